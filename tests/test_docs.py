"""The documentation says what is so: settings, links, commands and files that it names are there."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import typer.core
import typer.main

from sharepod_operator.cli.main import app
from sharepod_operator.settings import Settings, key, variable

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/*.md"))
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
SETTING = re.compile(r"^\| `(SHAREPOD_\w+)` \| `(\w+)` \| (.+?) \| .+ \|$", re.MULTILINE)
MAKE = re.compile(r"(?:^|[\s(;&])make +([a-z][a-z-]*)")
SHAREPOD = re.compile(r"(?:^|[\s(;&|/])sharepod +([a-z].*)")
SOURCE = re.compile(r"[\w/-]+/[\w-]+\.py")
page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


def code_of(text: str) -> list[str]:
    """The lines of code blocks, and what stands between backticks outside of them."""
    blocks = [line for block in FENCE.findall(text) for line in block.splitlines()]
    return blocks + SPAN.findall(FENCE.sub("", text))


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def words_of(command: str) -> list[str]:
    """The words of a command up to where the shell's or the reader's part begins."""
    return shlex.split(re.split(r"[|;&<>`]|\s#", command.replace("…", " "))[0].rstrip(") "))


def problem_of(words: list[str]) -> str:
    """What is wrong with the words after `sharepod`; "" where it has such a command with such options."""
    command = typer.main.get_command(app)
    while words and isinstance(group := command, typer.core.TyperGroup):
        word, *words = words
        if word not in group.commands:
            return f"there is no command {word}"
        command = group.commands[word]
    known = {option for parameter in command.params for option in parameter.opts}
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    return f"{command.name} has no {' '.join(unknown)}" if unknown else ""


def test_settings_are_documented_as_they_are() -> None:
    """One row for each setting, in their order, with its variable, its key and a default that reads as the real one."""
    rows = SETTING.findall((ROOT / "docs" / "settings.md").read_text())

    assert [(variable(item.name), key(item.name)) for item in fields(Settings)] == [row[:2] for row in rows]
    for item, (name, _, shown) in zip(fields(Settings), rows, strict=True):
        if item.default in (None, ""):
            assert SPAN.fullmatch(shown) is None, f"{name} has no default of its own, so words must say what counts"
        else:
            assert item.default == item.metadata["parse"](shown.strip("`")), name


@page
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file of the repository, and every anchor a heading."""
    text = path.read_text()
    for target in LINK.findall(text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path

        assert found.exists(), target
        assert not anchor or anchor in anchors_of(found.read_text()), target


@page
def test_commands_are_there(path: Path) -> None:
    """Every `make` target and every `sharepod` command and option that a page shows exists."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in code_of(path.read_text()):
        assert set(MAKE.findall(line)) <= targets, line
        for rest in SHAREPOD.findall(line):
            assert "" == problem_of(words_of(rest)), line


def test_the_makefile_calls_commands_that_are_there() -> None:
    """The recipes of the Makefile run no command or option that the program lacks."""
    calls = SHAREPOD.findall((ROOT / "Makefile").read_text())

    assert calls
    for rest in calls:
        assert "" == problem_of(words_of(rest)), rest


@page
def test_source_files_are_there(path: Path) -> None:
    """Every source file that a page names exists, from the root or from the package."""
    for line in code_of(path.read_text()):
        for name in SOURCE.findall(line):
            assert (ROOT / name).is_file() or (ROOT / "sharepod_operator" / name).is_file(), name


@page
def test_pages_name_no_place_of_their_author(path: Path) -> None:
    """No page shows an absolute path of somebody's machine."""
    assert [] == re.findall(r"/(?:home|root|work|Users)/\S*", path.read_text())


def test_there_is_something_to_check() -> None:
    """The patterns find commands and files, so that the tests above can fail."""
    code = [line for path in PAGES for line in code_of(path.read_text())]

    assert {"demo", "test"} <= {target for line in code for target in MAKE.findall(line)}
    assert {"demo", "simulate", "operator"} <= {words.split()[0] for line in code for words in SHAREPOD.findall(line)}
    assert any(SOURCE.search(line) for line in code)
    assert "there is no command nonsense" == problem_of(["nonsense"])
    assert "up has no --nonsense" == problem_of(["demo", "up", "--nonsense"])
