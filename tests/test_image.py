"""What the image holds, built by the same script as in the Dockerfile; no container engine is needed for that."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sharepod_operator import __version__
from sharepod_operator.localcluster.binaries import cache_root

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
SCRIPT = "scripts/image-root.sh"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
_PYTHON = "import json; from importlib import metadata; print(json.dumps([d.name for d in metadata.distributions()]))"


def locked(name: str) -> set[str]:
    """The distributions of a requirements file that are meant for this platform."""
    text = (ROOT / "requirements" / name).read_text()
    found = re.findall(r"^([\w.-]+)==\S+ (?:; (.+) )?\\$", text, re.MULTILINE)
    return {distribution for distribution, marker in found if "== 'win32'" not in marker}


@pytest.fixture(scope="module")
def image_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the image copies. The downloads stay in the user's cache, so that later runs need no network."""
    root = tmp_path_factory.mktemp("image") / "sharepod"
    lock = b"".join((ROOT / "requirements" / name).read_bytes() for name in ("operator.txt", "build.txt"))
    kind = f"{sys.implementation.cache_tag}-{hashlib.sha256(lock).hexdigest()[:16]}"
    wheels = cache_root(os.environ).parent / "wheels" / kind
    environment = {**os.environ, "PYTHON": sys.executable, "WHEELS": str(wheels)}
    done = subprocess.run([ROOT / SCRIPT, root], env=environment, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    return root


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Run it as in the container: without anything of the caller's environment."""
    done = subprocess.run(command, env=env or {}, cwd="/", capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.image
@pytest.mark.timeout(600)
def test_the_operator_runs_from_it(image_root: Path) -> None:
    """The command is there and brings the CRD and the examples along."""
    assert f"sharepod {__version__}\n" == run(image_root / "bin" / "sharepod", "--version")
    data = image_root / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "sharepod_operator" / "_data"
    assert (data / "crds" / "sharepods.yaml").read_text() == (ROOT / "crds" / "sharepods.yaml").read_text()
    assert (data / "examples").is_dir()


@pytest.mark.image
@pytest.mark.timeout(600)
def test_only_the_locked_dependencies_are_inside(image_root: Path) -> None:
    """Neither a tool of development nor pip: what isn't in requirements/operator.txt isn't in the image."""
    inside = set(json.loads(run(image_root / "bin" / "python", "-c", _PYTHON)))
    plain = {re.sub(r"[-_.]+", "-", name).lower() for name in inside}
    assert {*locked("operator.txt"), "sharepod-operator"} == plain
    assert {"pytest", "mypy", "pip"}.isdisjoint(plain)


def test_the_dockerfile_pins_its_base_and_runs_as_nobody() -> None:
    """One base, by digest; the numeric user of the Deployment, since kubelets can't check names."""
    assert ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"] == re.findall(r"^FROM (.+)$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)
    assert "USER 65532:65532\n" in DOCKERFILE
    assert [f"{SCRIPT} /opt/sharepod"] == re.findall(r"^RUN (.+)$", DOCKERFILE, re.MULTILINE)


def test_the_dockerfile_copies_what_the_build_needs() -> None:
    """Everything that it copies exists, and .dockerignore lets it through."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in allowed, source
