"""Processes are recognised by more than their pid, and end when they should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.processes import (
    Identity,
    ProcessFiles,
    boot_id,
    is_running,
    last_words,
    start,
    stop,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLEEP = ["/bin/sleep", "60"]
ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ProcessFiles]:
    made = ProcessFiles("sleeper", tmp_path / "pid", tmp_path / "sleeper.log")
    yield made
    stop(made)


def _says(log: Path, word: str) -> bool:
    return word in log.read_text()


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_started_process_is_on_record_and_stops(files: ProcessFiles) -> None:
    """The pid file names the very process that start returned; after stop neither is there."""
    identity = start(files, SLEEP, env=ENV, tethered=False)
    assert identity == files.identity() == files.running()
    assert stop(files)
    assert not is_running(identity)
    assert not files.pid_file.exists()
    assert not stop(files)


@pytest.mark.parametrize(
    "change",
    [
        lambda identity: replace(identity, start_ticks=identity.start_ticks - 1),
        lambda identity: replace(identity, boot_id="00000000-0000-0000-0000-000000000000"),
        lambda identity: replace(identity, pid=2**22 - 1),
    ],
    ids=["started at another time", "of another boot", "no such pid"],
)
def test_a_reused_pid_is_a_stranger_and_is_left_alone(
    files: ProcessFiles, change: Callable[[Identity], Identity]
) -> None:
    """A pid file left by an earlier run may name a pid that somebody else has now: he is not stopped."""
    identity = start(files, SLEEP, env=ENV, tethered=False)
    other = change(identity)
    stale = ProcessFiles("stale", files.pid_file.with_name("stale"), files.log)
    stale.pid_file.write_text(f"{other.pid} {other.start_ticks} {other.boot_id}\n")
    assert stale.running() is None
    assert not stop(stale)
    assert is_running(identity)


@pytest.mark.parametrize("text", ["", "12\n", "x y z\n", "1 2 3 4\n"])
def test_a_broken_pid_file_names_nobody(text: str, files: ProcessFiles) -> None:
    files.pid_file.write_text(text)
    assert files.running() is None


def test_a_dead_child_that_nobody_collected_counts_as_ended(files: ProcessFiles) -> None:
    """A killed child stays as a zombie until collected; it must not look alive."""
    identity = start(files, SLEEP, env=ENV, tethered=False)
    os.kill(identity.pid, signal.SIGKILL)
    assert eventually(lambda: not is_running(identity))


def test_a_process_that_ignores_sigterm_is_killed(files: ProcessFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharepod_operator.localcluster.processes.STOP_TIMEOUT", 0.2)
    identity = start(
        files, ["/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"], env=ENV, tethered=False
    )
    assert eventually(lambda: "deaf" in files.log.read_text())
    assert stop(files)
    assert eventually(lambda: not is_running(identity))


def test_a_program_that_cannot_be_run_is_told_by_name(files: ProcessFiles) -> None:
    """Until it is run, the launcher stands in its place; so the end comes a moment after the start."""
    start(files, ["/nonexistent/etcd"], env=ENV, tethered=False)
    with pytest.raises(
        LocalClusterError, match="sleeper has ended: Error: /nonexistent/etcd can't be run: No such file or directory"
    ):
        wait_until([files], "starting", lambda: False, 10)


def test_waiting_says_what_took_too_long(files: ProcessFiles) -> None:
    start(files, ["/bin/sh", "-c", "echo still busy; sleep 60"], env=ENV, tethered=False)
    assert eventually(lambda: "still busy" in files.log.read_text())
    with pytest.raises(
        LocalClusterError, match=r"starting etcd took more than 0 s: still busy \(log: .*sleeper\.log\)"
    ):
        wait_until([files], "starting etcd", lambda: False, 0.1)


def test_the_log_of_the_run_before_is_kept(files: ProcessFiles) -> None:
    for word in ("first", "second"):
        start(files, ["/bin/sh", "-c", f"echo {word}; sleep 60"], env=ENV, tethered=False)
        assert eventually(partial(_says, files.log, word))
        stop(files)
    assert ("first\n", "second\n") == (files.log.with_suffix(".previous").read_text(), files.log.read_text())


def test_a_tethered_process_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    """SIGKILL gives the parent no chance to clean up; the kernel does it."""
    program = (
        "import sys, time; from pathlib import Path; from sharepod_operator.localcluster.processes import *\n"
        "f = ProcessFiles('s', Path(sys.argv[1]), Path(sys.argv[2])); start(f, ['/bin/sleep', '60'], env={}, tethered=True)\n"
        "print('started', flush=True); time.sleep(60)"
    )
    files = ProcessFiles("s", tmp_path / "pid", tmp_path / "log")
    with subprocess.Popen(
        [sys.executable, "-c", program, files.pid_file, files.log],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as parent:
        assert parent.stdout is not None
        assert "started\n" == parent.stdout.readline()
        identity = files.running()
        assert identity is not None
        parent.kill()
    assert eventually(lambda: not is_running(identity))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("a\nb\n\nc\nd\n", "b | c | d"),
        ("", "it said nothing"),
        (
            "I0101 fine\nError: listen tcp: address already in use\nI0101 bye\n",
            "Error: listen tcp: address already in use",
        ),
        ('{"level":"info"}\n{"level":"fatal","msg":"no"}\n{"level":"info"}\n', '{"level":"fatal","msg":"no"}'),
    ],
)
def test_last_words_prefer_the_reason(log: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(log)
    assert f"{expected} (log: {path})" == last_words(path)


def test_this_boot_has_a_name() -> None:
    assert 36 == len(boot_id())
