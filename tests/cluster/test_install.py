"""What an administrator does with manifests/, as the real kubectl and the real API server take it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from sharepod_operator.localcluster.access import ADMIN
from sharepod_operator.localcluster.errors import ApiError
from sharepod_operator.localcluster.programs import Program
from sharepod_operator.manifest import names
from tests.support.gpu_nodes import NODES
from tests.support.rights import MANIFESTS, NAMESPACE, shipped
from tests.support.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.cluster import Cluster

KEPT: Final = ("Namespace", "CustomResourceDefinition", "ServiceAccount")
"""Other tests go on with these."""
APPLY: Final = ("apply", "--server-side", "--force-conflicts")
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture
def installed(cluster: Cluster, binaries: Binaries) -> Iterator[Workbench]:
    """A workbench in the operator's namespace; what the test has installed beside the other tests' is gone afterwards."""
    cluster.add_node(NODES[-1])
    before = {_key(each) for each in shipped("install.yaml") if _find(cluster, each) is not None}
    yield Workbench(cluster, binaries[Program.KUBECTL], NAMESPACE)
    for each in reversed(shipped("install.yaml")):
        if _key(each) not in before and each["kind"] not in KEPT and _find(cluster, each) is not None:
            cluster.client.delete(cluster.client.path_of(each))
    cluster.remove_node(NODES[-1].name)


@pytest.fixture
def overlay(tmp_path: Path) -> str:
    """A kustomization like that of docs/install.md: an image of one's own, and a developer among the operators."""
    operators = f"{names.OPERATOR_USER},{ADMIN.name}"
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.POLICY_CONFIG_MAP, "namespace": NAMESPACE},
        "data": {"operators": operators},
    }
    kustomization = {
        "resources": [os.path.relpath(MANIFESTS, tmp_path.resolve())],
        "images": [
            {"name": "registry.example/sharepod-operator", "newName": "here.example/sharepod", "newTag": "1.2.3"}
        ],
        "patches": [{"patch": yaml.safe_dump(config)}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return str(tmp_path)


def test_the_administrator_installs_it_into_a_restricted_namespace(installed: Workbench, overlay: str) -> None:
    """Every object is taken without a warning, and the operator's pod is admitted and comes up, with the own image."""
    bench = installed
    told = bench.kubectl(*APPLY, "-k", overlay)
    assert (0, "") == (told.returncode, told.stderr)
    namespace = bench.cluster.client.get(f"/api/v1/namespaces/{NAMESPACE}")
    assert "restricted" == namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    (pod,) = bench.until("the operator's pod runs", lambda: _running(bench))
    (container,) = pod["spec"]["containers"]
    assert "here.example/sharepod:1.2.3" == container["image"]
    assert 10**9 == pod["spec"]["priority"]
    assert 30 == pod["spec"]["terminationGracePeriodSeconds"]


def test_applying_it_again_changes_nothing(installed: Workbench, overlay: str) -> None:
    """An upgrade to the same version is none: each object that is the administrator's alone keeps its resourceVersion."""
    bench = installed
    still = [each for each in shipped("install.yaml") if each["kind"] not in ("Deployment", "PodDisruptionBudget")]
    seen = []
    for _ in range(2):
        told = bench.kubectl(*APPLY, "-k", overlay)
        assert (0, "") == (told.returncode, told.stderr)
        seen.append({_key(each): _version(bench.cluster, each) for each in still})
    assert seen[0] == seen[1]


@pytest.mark.parametrize("source", [("-f", "install.yaml"), ("-k", ".")], ids=["file", "kustomization"])
def test_both_forms_are_valid(installed: Workbench, source: tuple[str, str]) -> None:
    """The real kubectl and the API server take install.yaml, and the kustomization beside it, as they are; nothing is stored."""
    (namespace,) = shipped("namespace.yaml")
    installed.cluster.client.apply(namespace)
    option, place = source
    told = installed.kubectl(*APPLY, "--dry-run=server", option, str(MANIFESTS / place))
    assert (0, "") == (told.returncode, told.stderr)
    assert len(shipped("install.yaml")) == len(told.stdout.splitlines())


def test_a_pod_that_asks_for_more_is_refused_there(installed: Workbench) -> None:
    """The namespace enforces what the operator's own pod keeps to: root, or a writable host path, gets no pod."""
    bench = installed
    (namespace,) = shipped("namespace.yaml")
    bench.cluster.client.apply(namespace)
    pod = {"metadata": {"name": "intruder"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    with pytest.raises(ApiError, match='violates PodSecurity "restricted'):
        bench.cluster.client.create(PODS, pod)


def _running(bench: Workbench) -> list[dict[str, Any]]:
    found = bench.cluster.client.list(PODS, labelSelector="app.kubernetes.io/name=sharepod-operator")
    return [pod for pod in found if pod["status"].get("phase") == "Running"]


def _find(cluster: Cluster, manifest: dict[str, Any]) -> dict[str, Any] | None:
    return cluster.client.find(cluster.client.path_of(manifest))


def _version(cluster: Cluster, manifest: dict[str, Any]) -> str:
    return str(cluster.client.get(cluster.client.path_of(manifest))["metadata"]["resourceVersion"])


def _key(manifest: dict[str, Any]) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]
