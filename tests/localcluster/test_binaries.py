"""Where programs are looked for, in which order, and which versions are taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sharepod_operator.localcluster import binaries
from sharepod_operator.localcluster.binaries import SETTING, cached, find_or_build, search
from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.programs import (
    BUNDLES,
    CONTROL_PLANE,
    Program,
    Version,
    bundle_of,
    fits,
    parse_version,
)

Script = Callable[[Path, str], Path]

ETCD_RIGHT = "echo 'etcd Version: 3.6.4'; echo 'Git SHA: abc'; echo 'Go Version: go1.24.9'"
ETCD_OLD = "echo 'etcd Version: 3.4.30'"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing is found anywhere."""
    return {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PATH": f"{tmp_path / 'path'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
    }


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("etcd Version: 3.6.16\nGit SHA: 1a2b\nGo Version: go1.26.8\n", Version(3, 6, 16)),
        ("Kubernetes v1.36.3\n", Version(1, 36, 3)),
        ("kwok version v0.8.0 go1.26.8 (linux/amd64)\n", Version(0, 8, 0)),
        ("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0\n", Version(1, 32, 4)),
        ("1.26\n", Version(1, 26, 0)),
        ("no number here\n", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_a_program_says(answer: str, expected: Version | None) -> None:
    assert expected == parse_version(answer)


def test_every_program_has_a_pin_and_no_go_newer_than_the_sources_need() -> None:
    """The pins stand in the tool modules alone; Go 1.26.0 is enough for all of them."""
    pins = {bundle.name: str(bundle.version) for bundle in BUNDLES}
    assert {"etcd": "v3.6.16", "kwok": "v0.8.0", "kubernetes": "v1.36.3", "kubectl": "v1.36.3"} == pins
    assert {Version(1, 26, 0)} == {bundle.go_version for bundle in BUNDLES}


@pytest.mark.parametrize(
    ("program", "version", "expected"),
    [
        (Program.API_SERVER, Version(1, 36, 0), True),
        (Program.API_SERVER, Version(1, 35, 9), False),
        (Program.SCHEDULER, Version(1, 37, 0), False),
        (Program.ETCD, Version(3, 6, 1), True),
        (Program.ETCD, Version(3, 5, 30), False),
        (Program.KUBECTL, Version(1, 20, 0), True),
    ],
)
def test_a_program_fits_by_its_minor_version(program: Program, version: Version, expected: bool) -> None:  # noqa: FBT001
    assert expected is fits(program, version)


def test_the_order_is_setting_then_assets_then_cache_then_path(
    script: Script, tmp_path: Path, env: dict[str, str]
) -> None:
    """Each place wins over those after it: taking the places away one by one shows the whole order."""
    places = [
        script(tmp_path / "argument" / "etcd", ETCD_RIGHT),
        script(tmp_path / "setting" / "etcd", ETCD_RIGHT),
        script(tmp_path / "assets" / "etcd", ETCD_RIGHT),
        script(cached(bundle_of(Program.ETCD), env) / "etcd", "exit 1"),
        script(tmp_path / "path" / "etcd", ETCD_RIGHT),
    ]
    env |= {SETTING: str(tmp_path / "setting"), "KUBEBUILDER_ASSETS": str(tmp_path / "assets")}
    found = [search([Program.ETCD], explicit=tmp_path / "argument", env=env).found[Program.ETCD]]
    found.append(search([Program.ETCD], explicit=None, env=env).found[Program.ETCD])
    del env[SETTING]
    for place in places[2:]:
        found.append(search([Program.ETCD], explicit=None, env=env).found[Program.ETCD])
        place.unlink()
    assert places == found
    assert (Program.ETCD,) == search([Program.ETCD], explicit=None, env=env).missing


def test_kubectl_comes_from_path_before_the_cache(script: Script, tmp_path: Path, env: dict[str, str]) -> None:
    """The user's own kubectl is the one that he will type."""
    script(cached(bundle_of(Program.KUBECTL), env) / "kubectl", "exit 1")
    own = script(tmp_path / "path" / "kubectl", "echo 'Client Version: v1.31.0'")
    assert own == search([Program.KUBECTL], explicit=None, env=env).found[Program.KUBECTL]


def test_a_wrong_version_on_the_way_is_passed_over_and_said(
    script: Script, tmp_path: Path, env: dict[str, str]
) -> None:
    """An old etcd in KUBEBUILDER_ASSETS doesn't hide the right one on PATH."""
    old = script(tmp_path / "assets" / "etcd", ETCD_OLD)
    right = script(tmp_path / "path" / "etcd", ETCD_RIGHT)
    env["KUBEBUILDER_ASSETS"] = str(tmp_path / "assets")
    result = search([Program.ETCD], explicit=None, env=env)
    assert {Program.ETCD: right} == result.found
    assert (f"passed over {old}: it is version v3.4.30, wanted is 3.6 (such as v3.6.16)",) == result.passed_over


@pytest.mark.parametrize("body", ["exit 1", "echo hello", "echo 'etcd Version: 3.6.1'; exit 3"])
def test_a_program_that_tells_no_version_is_passed_over(
    body: str, script: Script, tmp_path: Path, env: dict[str, str]
) -> None:
    broken = script(tmp_path / "path" / "etcd", body)
    result = search([Program.ETCD], explicit=None, env=env)
    assert (Program.ETCD,) == result.missing
    assert (f"passed over {broken}: it doesn't tell its version, so it is no etcd 3.6",) == result.passed_over


def test_an_explicit_folder_must_hold_every_program(script: Script, tmp_path: Path, env: dict[str, str]) -> None:
    """Who names a folder gets its programs or an error, never others."""
    script(tmp_path / "mine" / "etcd", ETCD_RIGHT)
    with pytest.raises(
        LocalClusterError, match=r"mine has no program kube-apiserver: name a folder with etcd, kube-apiserver"
    ):
        search(CONTROL_PLANE, explicit=tmp_path / "mine", env=env)


def test_an_explicit_folder_with_a_wrong_version_is_an_error(
    script: Script, tmp_path: Path, env: dict[str, str]
) -> None:
    old = script(tmp_path / "mine" / "etcd", ETCD_OLD)
    env[SETTING] = str(tmp_path / "mine")
    with pytest.raises(LocalClusterError) as caught:
        search([Program.ETCD], explicit=None, env=env)
    assert f"{old}: it is version v3.4.30, wanted is 3.6 (such as v3.6.16)" == str(caught.value)


def test_only_missing_programs_are_built(
    script: Script, tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an etcd on PATH only kwok's bundle is built, and its program is expected in the cache."""
    script(tmp_path / "path" / "etcd", ETCD_RIGHT)
    built: list[str] = []
    monkeypatch.setattr(binaries, "build", lambda bundles, *_, **__: built.extend(bundle.name for bundle in bundles))
    result = find_or_build([Program.ETCD, Program.KWOK], env=env, report=built.append)
    assert ["kwok"] == built
    assert tmp_path / "path" / "etcd" == result[Program.ETCD]
    assert cached(bundle_of(Program.KWOK), env) / "kwok" == result[Program.KWOK]
