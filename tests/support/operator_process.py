"""The operator as a process of its own, for tests on a real control plane: started, killed, stopped, frozen and thawed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from sharepod_operator.localcluster import launch

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY: Final = Path(__file__).parents[2]
START_LIMIT: Final = 45.0
STOP_LIMIT: Final = 15.0
"""Seconds after SIGTERM; a kubelet gives thirty, and writes in flight get ten of them."""
_POLL: Final = 0.05
_TAIL: Final = 25
_WIDTH: Final = 400


class Command(Enum):
    """The ways to run the operator that are promised to people."""

    PRODUCTION = ("-m", "sharepod_operator.cli.main", "operator")
    DEVELOPMENT = ("-m", "kopf", "run", "-A", "--standalone", "-m", "sharepod_operator.handlers")
    DEVELOPMENT_BY_PATH = ("-m", "kopf", "run", "-A", "--standalone", "sharepod_operator/handlers.py")


class OperatorProcess:
    """One operator. Ends with the test process, however that ends, so start it from the main thread.

    Attributes:
        identity: its name in the Lease; its logs are `<identity>-<n>.log`, one for each start.
    """

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        *,
        identity: str = "one",
        command: Command = Command.PRODUCTION,
        **settings: str,
    ) -> None:
        """`settings` are those of the operator, such as `lease_duration="3"`."""
        self.identity = identity
        self.folder = folder
        self._command = command
        self._settings = {
            "kubeconfig": str(kubeconfig),
            "identity": identity,
            "http_host": "127.0.0.1",
            "http_port": "0",
            "lease_namespace": "default",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._port: int | None = None

    def __enter__(self) -> Self:
        """Start, and wait until it is ready."""
        self.start()
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, it is gone afterwards."""
        self.kill()

    @contextlib.contextmanager
    def killed_afterwards(self) -> Iterator[None]:
        """For tests that start it themselves: whatever happens, it is gone afterwards."""
        try:
            yield
        finally:
            self.kill()

    @property
    def log(self) -> Path:
        """The log of the latest start."""
        return self.folder / f"{self.identity}-{self._starts}.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return at once."""
        assert not self.running, f"operator {self.identity} runs already"
        self._starts += 1
        self._port = None
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            **{f"SHAREPOD_{name.upper()}": value for name, value in self._settings.items()},
        }
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(self.folder / f"{self.identity}.pid")]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*launcher, str(os.getpid()), sys.executable, *self._command.value],
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, limit: float = START_LIMIT) -> None:
        """Until /readyz says yes: every cache was listed."""
        self._wait("ready", lambda: self.probe("/readyz")[0] == http.client.OK, limit)

    def wait_leading(self, limit: float = START_LIMIT) -> None:
        """Until it is ready and holds the Lease."""
        self._wait("leading", lambda: bool(self.probe("/readyz")[1].get("leading")), limit)

    def probe(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body of /healthz or /readyz; (0, {}) while nobody answers."""
        status, text = self._fetch(path)
        return status, json.loads(text) if status else {}

    def metrics(self) -> str:
        return self._fetch("/metrics")[1].decode()

    def kill(self) -> None:
        """SIGKILL; harmless when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code; it has to end within STOP_LIMIT seconds."""
        assert self._process is not None, f"operator {self.identity} was never started"
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"operator {self.identity} still runs {STOP_LIMIT:.0f} s after SIGTERM\n{self.tail()}"
            ) from None

    def freeze(self) -> None:
        """SIGSTOP: it is there and does nothing, as behind a hung disk or in a suspended machine."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The records of the latest log that are JSON."""
        for line in self.log.read_text(errors="replace").splitlines() if self.log.exists() else ():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)

    def complaints(self) -> list[dict[str, Any]]:
        """Records with a traceback or of severity error, in the logs of all starts: a healthy run has none.

        Kopf calls each answer 429 an error before it tries again, and leaves a watch to the end of its event loop.
        """
        found = []
        for number in range(1, self._starts + 1):
            log = self.folder / f"{self.identity}-{number}.log"
            for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
                if line.startswith("{") and line.endswith("}"):
                    record = json.loads(line)
                    if _is_complaint(record):
                        found.append(record)
                elif line.strip():
                    found.append({"raw": line})
        return found

    def tail(self) -> str:
        """The last lines of the log, for a failed test."""
        told = self.log.read_text(errors="replace").splitlines() if self.log.exists() else ["no log"]
        return "\n".join([f"--- operator {self.identity}: {self.log}", *(line[:_WIDTH] for line in told[-_TAIL:])])

    def _wait(self, what: str, done: Any, limit: float) -> None:
        deadline = time.monotonic() + limit
        while not done():
            assert self.running, f"operator {self.identity} has ended before it was {what}\n{self.tail()}"
            assert time.monotonic() < deadline, f"operator {self.identity} not {what} in {limit:.0f} s\n{self.tail()}"
            time.sleep(_POLL)

    def _fetch(self, path: str) -> tuple[int, bytes]:
        if self._port is None:
            self._port = next((line["port"] for line in self.lines() if line.get("event") == "Listening"), None)
            if self._port is None:
                return 0, b""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()


def _is_complaint(record: dict[str, Any]) -> bool:
    if record["logger"].startswith("kopf.") and "will retry" in record["message"]:
        return False
    if record["logger"] == "asyncio" and "infinite_watch" in record["message"]:
        return False
    return record["severity"] in ("error", "critical") or "exception" in record
