"""Finds the programs of a control plane on this machine, or has them built once into the cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod_operator.localcluster.build import build
from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.programs import (
    CONTROL_PLANE,
    Bundle,
    Program,
    Version,
    bundle_of,
    fits,
    parse_version,
)
from sharepod_operator.localcluster.progress import Report, to_stderr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SETTING: Final = "SHAREPOD_LOCALCLUSTER_BIN"


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where each program lies."""

    paths: Mapping[Program, Path]

    def __getitem__(self, program: Program) -> Path:
        return self.paths[program]


@dataclass(frozen=True, slots=True)
class Search:
    """What was found, what was not, and what was passed over because its version doesn't fit."""

    found: Mapping[Program, Path]
    missing: tuple[Program, ...]
    passed_over: tuple[str, ...]


def find_or_build(
    programs: Iterable[Program] = CONTROL_PLANE,
    *,
    explicit: Path | None = None,
    env: Mapping[str, str] | None = None,
    report: Report = to_stderr,
) -> Binaries:
    """Every wanted program: from the explicit folder (the argument, else SHAREPOD_LOCALCLUSTER_BIN), KUBEBUILDER_ASSETS,
    the cache folder, PATH, in this order and program by program; what is still missing is built from pinned Go modules.
    kubectl is taken from PATH first, since that is the one its user knows.

    Raises:
        LocalClusterError: the explicit folder lacks a program or has a wrong version, or a build is impossible.
    """
    env = os.environ if env is None else env
    result = search(programs, explicit=explicit, env=env)
    for line in result.passed_over:
        report(line)
    found = dict(result.found)
    bundles = {bundle_of(program).name: bundle_of(program) for program in result.missing}
    if bundles:
        build(tuple(bundles.values()), cache_root(env), env=env, report=report)
    for program in result.missing:
        found[program] = cached(bundle_of(program), env) / program
    return Binaries(found)


def search(programs: Iterable[Program], *, explicit: Path | None, env: Mapping[str, str]) -> Search:
    """Looks everywhere, builds nothing.

    Raises:
        LocalClusterError: the explicit folder lacks a program or has a wrong version.
    """
    if explicit is None and env.get(SETTING):
        explicit = Path(env[SETTING])
    found: dict[Program, Path] = {}
    missing: list[Program] = []
    passed_over: list[str] = []
    for program in programs:
        if explicit is not None and (program is not Program.KUBECTL or _is_program(explicit / program)):
            found[program] = _require(explicit, program)
            continue
        for candidate, trusted in _candidates(program, env):
            complaint = None if trusted else _complaint(candidate, program)
            if complaint is None:
                found[program] = candidate
                break
            passed_over.append(f"passed over {complaint}")
        else:
            missing.append(program)
    return Search(found, tuple(missing), tuple(passed_over))


def cache_root(env: Mapping[str, str]) -> Path:
    """The folder under the user's cache where built programs are kept: XDG_CACHE_HOME, else ~/.cache."""
    base = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "sharepod-operator" / "localcluster"


def cached(bundle: Bundle, env: Mapping[str, str]) -> Path:
    """The folder of one built bundle, named by version and platform; it appears whole or not at all."""
    return cache_root(env) / bundle.cache_name


def _candidates(program: Program, env: Mapping[str, str]) -> Iterator[tuple[Path, bool]]:
    """Existing files in search order, and whether their version is known without asking."""
    if env.get("KUBEBUILDER_ASSETS"):
        assets = Path(env["KUBEBUILDER_ASSETS"]) / program
        if _is_program(assets):
            yield assets, False
    built = cached(bundle_of(program), env) / program
    in_cache = [(built, True)] if _is_program(built) else []
    on_path = shutil.which(program, path=env.get("PATH", ""))
    in_path = [(Path(on_path), False)] if on_path is not None else []
    yield from in_path + in_cache if program is Program.KUBECTL else in_cache + in_path


def _require(folder: Path, program: Program) -> Path:
    path = folder / program
    if not _is_program(path):
        raise LocalClusterError(f"{folder} has no program {program}: name a folder with {', '.join(CONTROL_PLANE)}")
    complaint = _complaint(path, program)
    if complaint is not None:
        raise LocalClusterError(complaint)
    return path


def _complaint(path: Path, program: Program) -> str | None:
    """Why this file can't serve as the program; None when it can."""
    wanted = bundle_of(program).version
    version = ask_version(path, program)
    if version is None:
        return f"{path}: it doesn't tell its version, so it is no {program} {wanted.major}.{wanted.minor}"
    if not fits(program, version):
        return f"{path}: it is version {version}, wanted is {wanted.major}.{wanted.minor} (such as {wanted})"
    return None


def ask_version(path: Path, program: Program) -> Version | None:
    """The version that the program itself tells, or None when it can't be run or tells none."""
    arguments = ["version", "--client"] if program is Program.KUBECTL else ["--version"]
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own program, asked for its version
            [path, *arguments], capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stdout) if answer.returncode == 0 else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
