"""The state folder of one control plane: what lies in it, what is on record, and who may work on it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.processes import ProcessFiles
from sharepod_operator.localcluster.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

START_ORDER: Final = (
    Program.ETCD,
    Program.API_SERVER,
    Program.CONTROLLER_MANAGER,
    Program.SCHEDULER,
    Program.KWOK,
)
_RECORD: Final = "cluster.json"
_FOLDERS: Final = ("audit", "certs", "config", "etcd", "home", "logs", "pids", "users")
_FILES: Final = (_RECORD, f"{_RECORD}.new", "kubeconfig", "tokens.csv")


@dataclass(frozen=True, slots=True)
class User:
    """Somebody with a token of his own: a name and groups, as RBAC and admission policies see them."""

    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How a control plane runs.

    Attributes:
        port: the API server's port; None takes a free one.
        fsync: whether etcd waits for the disk. Off, a power failure may cost the data: right for tests and demos.
        audit: write an audit log of every request (metadata only).
        client_qps: requests per second that controller-manager and scheduler may send; Kubernetes' own 20 and 50 make
            1,000 pods take a minute.
        users: people besides `admin`, each with a token and a kubeconfig.
        tethered: end with the process that started it, however that ends; otherwise it stays until `down`.
    """

    port: int | None = None
    fsync: bool = False
    audit: bool = False
    client_qps: int = 1000
    users: tuple[User, ...] = ()
    tethered: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """What must be known to reuse or restart a control plane: its options, ports and tokens."""

    options: ClusterOptions
    etcd_port: int
    peer_port: int
    api_port: int
    tokens: Mapping[str, str]
    boot_id: str

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Paths under one folder, which belongs to one control plane alone."""

    root: Path

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def certificate(self) -> Path:
        """The API server's certificate, which is also the CA to trust: kube-apiserver makes and signs it itself."""
        return self.root / "certs" / "apiserver.crt"

    @property
    def key(self) -> Path:
        """The API server's key, which also signs the tokens of service accounts."""
        return self.root / "certs" / "apiserver.key"

    @property
    def tokens(self) -> Path:
        return self.root / "tokens.csv"

    @property
    def audit_log(self) -> Path:
        return self.root / "audit" / "audit.log"

    def folder(self, name: str) -> Path:
        return self.root / name

    def process(self, program: Program) -> ProcessFiles:
        return ProcessFiles(program, self.root / "pids" / program, self.root / "logs" / f"{program}.log")

    def processes(self) -> tuple[ProcessFiles, ...]:
        """All of them, in the order of starting."""
        return tuple(self.process(program) for program in START_ORDER)

    def companion(self, name: str) -> ProcessFiles:
        """A process that is no part of the control plane and lives and ends with it, such as an operator to show."""
        return ProcessFiles(name, self.root / "pids" / name, self.root / "logs" / f"{name}.log")

    def companions(self) -> tuple[ProcessFiles, ...]:
        """Those that were started."""
        names = {path.name for path in (self.root / "pids").glob("*")} - set(START_ORDER)
        return tuple(self.companion(name) for name in sorted(names))

    def exists(self) -> bool:
        return (self.root / _RECORD).exists()

    def prepare(self) -> None:
        """Makes the folder, readable for its owner alone.

        Raises:
            LocalClusterError: the folder holds somebody else's files.
        """
        strangers = {path.name for path in self.root.iterdir()} - {*_FOLDERS, *_FILES} if self.root.exists() else set()
        if strangers and not self.exists():
            raise LocalClusterError(
                f"{self.root} is not empty and no state folder of a control plane: name another one"
            )
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in _FOLDERS:
            (self.root / name).mkdir(exist_ok=True, mode=0o700)

    def load(self) -> Record | None:
        """What is on record, or None when there is nothing or nothing readable (an interrupted or older version)."""
        try:
            raw = json.loads((self.root / _RECORD).read_text())
            options = raw.pop("options")
            users = tuple(User(user["name"], tuple(user["groups"])) for user in options.pop("users"))
            return Record(options=ClusterOptions(users=users, **options), **raw)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, record: Record) -> None:
        scratch = self.root / f"{_RECORD}.new"
        write_private(scratch, json.dumps(asdict(record), indent=1))
        scratch.replace(self.root / _RECORD)

    def forget_data(self) -> None:
        """Drops everything that the control plane stored, so that the next start is a first start."""
        for name in ("etcd", "certs", "audit"):
            shutil.rmtree(self.root / name, ignore_errors=True)
            (self.root / name).mkdir(mode=0o700)

    def remove(self) -> None:
        """Removes what this module made, and the folder itself if nothing else is in it. The record goes last, so that
        an interrupted removal can be repeated.
        """
        for name in _FOLDERS:
            shutil.rmtree(self.root / name, ignore_errors=True)
        for name in reversed(_FILES):
            (self.root / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.root.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time starts or stops this control plane.

        Raises:
            LocalClusterError: another one is at it right now.
        """
        path = self.root.with_name(f".{self.root.name}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with path.open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    message = f"another process is starting or stopping the control plane in {self.root}: try again when it is done"
                    raise LocalClusterError(message) from None
                if not _is_same_file(path, lock.fileno()):
                    continue  # its last holder removed the file between our open and our lock
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return


def default_state_folder(name: str, env: Mapping[str, str]) -> StateFolder:
    """The folder of the control plane with this name: under XDG_STATE_HOME, else ~/.local/state."""
    base = env.get("XDG_STATE_HOME") or Path(env.get("HOME") or Path.home()) / ".local" / "state"
    return StateFolder(Path(base) / "sharepod-operator" / name)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123 - takes a descriptor
        file.write(text)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
