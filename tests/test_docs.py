"""The documentation says what is so: settings, links, commands and files that it names are there."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import typer.core
import typer.main

from sharepod_operator.cli.main import app
from sharepod_operator.core import reasons
from sharepod_operator.core.status import Reason
from sharepod_operator.settings import Settings, key, variable
from tests.support.exposition import everything, families
from tests.support.rights import shipped

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/*.md"))
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
SETTING = re.compile(r"^\| `(SHAREPOD_\w+)` \| `(\w+)` \| (.+?) \| .+ \|$", re.MULTILINE)
MAKE = re.compile(r"(?:^|[\s(;&])make +([a-z][a-z-]*)")
SHAREPOD = re.compile(r"(?:^|[\s(;&|/])sharepod +([a-z].*)")
SOURCE = re.compile(r"[\w/-]+/[\w-]+\.py")
METRIC = re.compile(r"^\| `(sharepod_\w+)` \| (counter|gauge|histogram) \| (.+?) \| .+ \|$", re.MULTILINE)
WORD = re.compile(r"^\| `(\w+)` \| (.*?) \|", re.MULTILINE)
NAMED_METRIC = re.compile(r"\bsharepod_[a-z_]+[a-z]\b")
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


def section(name: str, heading: str) -> str:
    """The part of a page of docs/ below a heading, up to the next one of its level."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", (ROOT / "docs" / name).read_text(), re.MULTILINE | re.DOTALL
    )
    assert found, f"{name} has no heading {heading}"
    return found[1]


def words_said(node: ast.expr) -> set[str]:
    """The words that an expression can be: constants, members of Reason, and both sides of a condition."""
    match node:
        case ast.Constant(value=str(word)):
            return {word}
        case ast.IfExp(test=ast.Compare(comparators=[member]), body=ast.Attribute(attr="value"), orelse=other):
            return words_said(member) | words_said(other)  # `reason.value if reason is Reason.MEMBER else …`
        case ast.IfExp(body=one, orelse=other):
            return words_said(one) | words_said(other)
        case ast.Attribute(value=ast.Name(id="Reason"), attr=member):
            return {Reason[member].value}
    return set()


def event_reasons() -> tuple[set[str], set[str]]:
    """The reasons of all events that the code emits, and the expressions there that are no words by themselves."""
    words, unknown = set[str](), set[str]()
    for path in sorted((ROOT / "sharepod_operator").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            given: list[ast.expr] = []
            match node:
                case ast.Call(func=ast.Attribute(attr="emit" | "emit_once_now")):
                    given = [node.args[2]]
                case ast.Call(func=ast.Attribute(attr="_warn")):
                    given = [node.args[1]]
                case ast.Call(func=ast.Name(id="Refused")):
                    given = [each.value for each in node.keywords if each.arg == "event"]
                case ast.Assign(targets=[ast.Name(id="event")]) if path.name == "announcer.py":
                    given = [node.value]
            for each in given:
                said = words_said(each)
                words |= said
                if not said:
                    unknown.add(ast.unparse(each))
    return words, unknown


def test_metrics_are_documented_as_they_are() -> None:
    """One row for each metric, with its type and labels, and no name anywhere on the page that there isn't."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    exposed = {
        f"{name}_total" if family.type == "counter" else name: (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for name, family in families(everything()).items()
        if name.startswith("sharepod_")
    }
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in METRIC.findall(text)}
    assert exposed == documented
    for name in NAMED_METRIC.findall(text):
        assert re.sub(r"_(bucket|count|sum)$", "", name) in exposed, name


def test_events_are_documented() -> None:
    """One row for each reason that the code gives an event, and none besides."""
    words, unknown = event_reasons()
    rows = [word for word, _ in WORD.findall(section("events.md", "Events"))]
    assert sorted(words) == sorted(rows)
    assert {"reason", "event", "view.refused.event"} == unknown, "only what is passed on, from where it is a word"


def test_conditions_are_documented() -> None:
    """One row for each reason of a SharePod's conditions, in their order."""
    rows = [word for word, _ in WORD.findall(section("events.md", "Conditions"))]
    assert list(Reason) == rows


def test_refusals_are_documented() -> None:
    """Every word for why a node or a GPU is refused, in the order in which they are asked, with the sentence that people see."""
    rows = WORD.findall(section("events.md", "Why a node or a GPU is refused"))
    nodes = [(word, "node(s)", reasons._NODE_TEXT[word]) for word in reasons.NodeReason]
    devices = [(word, "GPU(s)", reasons._DEVICE_TEXT[word]) for word in reasons.DeviceReason]
    assert [
        (word, f"{unit} {text.removeprefix(f'{unit} ').replace('{detail}', '…')}")
        for word, unit, text in (*nodes, *devices)
    ] == rows


def test_what_is_installed_is_documented() -> None:
    """The page names every kind and name that install.yaml has."""
    text = section("install.md", "What is installed")
    for each in shipped("install.yaml"):
        kind, name = each["kind"], each["metadata"]["name"]
        if "AdmissionPolicy" in kind:
            assert "Admission policies" in text
            continue
        assert name in text, name
        assert kind.removesuffix("Binding") in text, kind


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
