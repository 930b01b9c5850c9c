"""Builds the programs once, from pinned Go modules, into the cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.goroot import Go, find_go, minimal_go_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sharepod_operator.localcluster.programs import Bundle
    from sharepod_operator.localcluster.progress import Report

REPORT_EVERY: Final = 20.0
"""Seconds between two lines of progress."""

_NO_NETWORK: Final = ("dial tcp", "no such host", "proxyconnect", "i/o timeout", "connection refused")


def build(bundles: Sequence[Bundle], cache: Path, *, env: Mapping[str, str], report: Report) -> None:
    """Builds every bundle that is not in the cache yet. Of several processes that want the same, one builds and the
    others wait; a build that fails or is killed leaves nothing that could be taken for a finished one.

    Raises:
        LocalClusterError: no Go and none to be had, no network, or the compiler failed; the text names the log.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with _one_builder(cache, report):
        wanted = [bundle for bundle in bundles if not _is_complete(cache, bundle)]
        if not wanted:
            return
        go = find_go(max(bundle.go_version for bundle in wanted), cache, env=env, report=report)
        for bundle in wanted:
            _build_bundle(bundle, cache, go, env=env, report=report)
        go.drop_private_caches()


def _is_complete(cache: Path, bundle: Bundle) -> bool:
    folder = cache / bundle.cache_name
    return all((folder / program).is_file() for program in bundle.programs)


@contextlib.contextmanager
def _one_builder(cache: Path, report: Report) -> Iterator[None]:
    with (cache / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is building the control plane: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_bundle(bundle: Bundle, cache: Path, go: Go, *, env: Mapping[str, str], report: Report) -> None:
    log = cache / f"build-{bundle.name}.log"
    target = cache / bundle.cache_name
    with tempfile.TemporaryDirectory(prefix=f".{bundle.name}-", dir=cache) as scratch:
        out = Path(scratch) / "bin"
        out.mkdir()
        command = [
            str(go.path),
            "build",
            "-C",
            str(bundle.tool_module),
            "-mod=readonly",
            "-trimpath",
            f"-ldflags={_ldflags(bundle)}",
            "-o",
            f"{out}{os.sep}",
            *(package for _, package in bundle.packages),
        ]
        _run_with_progress(command, _environment(go, env), log, f"{bundle.name} {bundle.version}", report)
        for program, package in bundle.packages:
            # A package at a module's root is named by its last path element, which may be the major version.
            built = out / _default_name(package)
            if built.name != program:
                built.rename(out / program)
        shutil.rmtree(target, ignore_errors=True)
        out.rename(target)


def _default_name(package: str) -> str:
    parts = package.split("/")
    last = parts[-1]
    is_major_version = last[0] == "v" and last[1:].isdigit()
    return parts[-2] if is_major_version else last


def _ldflags(bundle: Bundle) -> str:
    flags = "-s -w"
    if bundle.folder == "kubernetes":
        version = bundle.version
        where = "k8s.io/component-base/version"
        flags += (
            f" -X {where}.gitVersion={version} -X {where}.gitMajor={version.major} -X {where}.gitMinor={version.minor}"
        )
    return flags


def _environment(go: Go, env: Mapping[str, str]) -> dict[str, str]:
    """The pins alone decide what is built: the user's GOFLAGS, workspace and target platform don't."""
    return {**minimal_go_environment(env), **go.caches, "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}


def _run_with_progress(command: Sequence[str], env: dict[str, str], log: Path, what: str, report: Report) -> None:
    started = time.monotonic()
    report(f"building {what} from Go modules (one time, all parts together about 4 minutes)")
    with log.open("wb") as sink:
        process = subprocess.Popen(  # noqa: S603 - go, with arguments of our own
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=env, cwd="/"
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=REPORT_EVERY)
                    break
                except subprocess.TimeoutExpired:
                    report(f"building {what}: {time.monotonic() - started:.0f} s so far")
        except BaseException:
            process.kill()
            process.wait()
            raise
    if code != 0:
        raise LocalClusterError(build_failure(what, log.read_text(errors="replace"), log))
    report(f"built {what} in {time.monotonic() - started:.0f} s")


def build_failure(what: str, output: str, log: Path) -> str:
    """One line about a failed `go build`: what to do where that is known, else the end of its output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any(sign in line for line in lines for sign in _NO_NETWORK):
        return f"building {what} failed: its Go modules could not be downloaded, is there a network? See {log}"
    tail = " | ".join(lines[-3:]) or "go said nothing"
    return f"building {what} failed: {tail[-400:]} (all of it: {log})"
