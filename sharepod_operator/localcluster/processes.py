"""Starts, recognises and stops the processes of a control plane. A pid alone is never trusted: it may have been reused."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod_operator.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LAUNCHER: Final = Path(__file__).parent / "launch.py"
STOP_TIMEOUT: Final = 8.0
"""Seconds between SIGTERM and SIGKILL."""
_START_TIMEOUT: Final = 10.0
_POLL: Final = 0.03


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for all time on this machine: pid, start in clock ticks since boot, and which boot."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class ProcessFiles:
    """What a process leaves in the state folder."""

    name: str
    pid_file: Path
    log: Path

    def identity(self) -> Identity | None:
        """Who the pid file says is running; None without a readable pid file."""
        try:
            pid, ticks, boot_id = self.pid_file.read_text().split()
            return Identity(int(pid), int(ticks), boot_id)
        except (OSError, ValueError):
            return None

    def running(self) -> Identity | None:
        """The live process, or None when it has ended; a stranger that got its pid doesn't count."""
        identity = self.identity()
        return identity if identity is not None and is_running(identity) else None


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def is_running(identity: Identity) -> bool:
    """Whether exactly this process is alive. One that has ended and waits to be collected is not; but while one of its
    threads lives, so do its ports.
    """
    if identity.boot_id != boot_id():
        return False
    process = Path(f"/proc/{identity.pid}")
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        threads = len(list((process / "task").iterdir()))
    except OSError:
        return False
    if int(fields[19]) != identity.start_ticks:
        return False
    if fields[0] in {"Z", "X"} and threads <= 1:
        _collect(identity.pid)
        return False
    return True


def start(files: ProcessFiles, command: Sequence[str], *, env: Mapping[str, str], tethered: bool) -> Identity:
    """Starts a process in a session of its own, its output in its log file (the log before it is kept as `.previous`).

    Tethered, it is killed by the kernel when the calling thread ends; so call it from a thread that lives long enough,
    usually the main thread. Otherwise it survives its parent.
    """
    if files.log.exists():
        files.log.replace(files.log.with_suffix(".previous"))
    files.pid_file.unlink(missing_ok=True)
    parent = os.getpid() if tethered else 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", str(LAUNCHER), str(files.pid_file), str(parent), *command],
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(files.log), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline:
        identity = files.identity()
        if identity is not None and identity.pid == pid:
            return identity
        if _collect(pid):
            break
        time.sleep(_POLL)
    raise LocalClusterError(f"{files.name} could not be started: {last_words(files.log)}")


def stop(files: ProcessFiles) -> bool:
    """Ends the process, if it is still the one on record: politely, after 8 s by force. True if it was running."""
    identity = files.running()
    if identity is not None:
        _signal(identity, signal.SIGTERM)
        if not _ended_within(identity, STOP_TIMEOUT):
            _signal(identity, signal.SIGKILL)
            _ended_within(identity, STOP_TIMEOUT)
    files.pid_file.unlink(missing_ok=True)
    return identity is not None


def wait_until(
    files: Sequence[ProcessFiles], what: str, ready: Callable[[], bool], timeout: float, *, every: float = _POLL
) -> None:
    """Polls until `ready`; gives up at once when one of the processes has ended, whatever `ready` says.

    Raises:
        LocalClusterError: a process ended or time ran out, with the last words of its log and where the log is.
    """
    deadline = time.monotonic() + timeout
    while True:
        for process in files:
            if process.running() is None:
                raise LocalClusterError(f"{process.name} has ended: {last_words(process.log)}")
        if ready():
            return
        if time.monotonic() > deadline:
            raise LocalClusterError(f"{what} took more than {timeout:.0f} s: {last_words(files[-1].log)}")
        time.sleep(every)


def last_words(log: Path, lines: int = 3, width: int = 400) -> str:
    """The end of a log in one line, and the log's place. Lines that look like the reason win over the very last ones."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return f"no log at {log}"
    told = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in told if line.startswith(("Error", "error", "panic", "F")) or '"level":"fatal"' in line]
    tail = " | ".join((reasons or told)[-lines:]) or "it said nothing"
    return f"{tail[-width:]} (log: {log})"


def _signal(identity: Identity, number: signal.Signals) -> None:
    try:
        os.kill(identity.pid, number)
    except ProcessLookupError:
        return


def _ended_within(identity: Identity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(identity):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _collect(pid: int) -> bool:
    """Collects an ended child; True if there was one to collect. A process of an earlier run is nobody's child here."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False
