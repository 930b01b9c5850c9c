"""Which programs make a control plane, which Go modules they come from, and which versions fit together."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from platform import machine
from typing import Final, NamedTuple

TOOLS: Final = Path(__file__).parent / "tools"


class Program(StrEnum):
    """A program, by the name of its file."""

    ETCD = "etcd"
    API_SERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KWOK = "kwok"
    KUBECTL = "kubectl"


class Version(NamedTuple):
    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"v{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Programs that are built together from one tool module, a go.mod with pins and no code of its own.

    Attributes:
        folder: the tool module's folder under `tools/`.
        module: the Go module whose pinned version is the programs' version.
        packages: the Go package of each program.
    """

    name: str
    folder: str
    module: str
    packages: tuple[tuple[Program, str], ...]

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(program for program, _ in self.packages)

    @property
    def tool_module(self) -> Path:
        return TOOLS / self.folder

    @property
    def version(self) -> Version:
        """The pinned version, read from the tool module's go.mod, the only place where it stands."""
        return _pin(self.tool_module / "go.mod", self.module)

    @property
    def cache_name(self) -> str:
        """The name of its folder in the cache: version and this machine's platform."""
        return f"{self.name}-{self.version}-{sys.platform}-{machine().lower()}"

    @property
    def go_version(self) -> Version:
        """The oldest Go that builds this."""
        return _go_directive(self.tool_module / "go.mod")


_KUBERNETES: Final = "k8s.io/kubernetes"
BUNDLES: Final = (
    Bundle("etcd", "etcd", "go.etcd.io/etcd/server/v3", ((Program.ETCD, "go.etcd.io/etcd/server/v3"),)),
    Bundle("kwok", "kwok", "sigs.k8s.io/kwok", ((Program.KWOK, "sigs.k8s.io/kwok/cmd/kwok"),)),
    Bundle(
        "kubernetes",
        "kubernetes",
        _KUBERNETES,
        tuple(
            (program, f"{_KUBERNETES}/cmd/{program}")
            for program in (Program.API_SERVER, Program.CONTROLLER_MANAGER, Program.SCHEDULER)
        ),
    ),
    Bundle("kubectl", "kubernetes", _KUBERNETES, ((Program.KUBECTL, f"{_KUBERNETES}/cmd/kubectl"),)),
)
CONTROL_PLANE: Final = (
    Program.ETCD,
    Program.API_SERVER,
    Program.CONTROLLER_MANAGER,
    Program.SCHEDULER,
    Program.KWOK,
)


def bundle_of(program: Program) -> Bundle:
    return next(bundle for bundle in BUNDLES if program in bundle.programs)


def parse_version(text: str) -> Version | None:
    """The first version in a program's answer to `--version`, or None."""
    match = re.search(r"(?<![\d.])v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return Version(int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def fits(program: Program, found: Version) -> bool:
    """Whether a program found on this machine may take part: the pin's minor version, since all parts must agree.
    kubectl only talks to the API server from outside and may have any version.
    """
    if program is Program.KUBECTL:
        return True
    return found[:2] == bundle_of(program).version[:2]


@cache
def _pin(go_mod: Path, module: str) -> Version:
    match = re.search(rf"^\s*{re.escape(module)} (v\S+)", go_mod.read_text(), re.MULTILINE)
    version = parse_version(match[1]) if match else None
    if version is None:
        raise ValueError(f"{go_mod} pins no version of {module}")
    return version


@cache
def _go_directive(go_mod: Path) -> Version:
    match = re.search(r"^go (\S+)", go_mod.read_text(), re.MULTILINE)
    version = parse_version(match[1]) if match else None
    if version is None:
        raise ValueError(f"{go_mod} has no go line")
    return version
