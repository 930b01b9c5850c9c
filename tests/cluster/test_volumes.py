"""Volumes on a real control plane: kube-controller-manager binds claims, and pods follow their volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.localcluster.programs import Program
from tests.support.gpu_nodes import NODES
from tests.support.operator_process import Command, OperatorProcess
from tests.support.rights import ACCOUNT, NAMESPACE, operator_kubeconfig, shipped
from tests.support.workbench import Workbench, gpu, sharepod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.cluster import Cluster

VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
LESS = "sharepod-less"
RBAC_GROUP = "rbac.authorization.k8s.io"
RBAC = {"apiVersion": f"{RBAC_GROUP}/v1"}
SUBJECTS = [{"kind": "ServiceAccount", "name": LESS, "namespace": NAMESPACE}]
LOCAL = "sharepod-local"


@pytest.fixture
def bench(cluster: Cluster, binaries: Binaries, namespace: str, tmp_path: Path) -> Iterator[Workbench]:
    """An operator, the usual nodes, and a StorageClass of local volumes that waits for the first consumer."""
    cluster.add_nodes(NODES)
    cluster.client.create(
        CLASSES,
        {
            "metadata": {"name": LOCAL},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    lease = {"lease_namespace": NAMESPACE, "lease_name": namespace}
    with OperatorProcess(operator_kubeconfig(cluster), tmp_path, command=Command.PRODUCTION, **lease) as operator:
        operator.wait_leading()
        bench = Workbench(cluster, binaries[Program.KUBECTL], namespace, [operator])
        yield bench
        bench.check()
        bench.delete_all()
        assert operator.stop() == 0, operator.tail()
        assert operator.complaints() == []
    cluster.client.delete(f"{CLASSES}/{LOCAL}")
    for node in NODES:
        cluster.remove_node(node.name)


@pytest.fixture
def volume(bench: Workbench) -> Iterator[str]:
    """A local PersistentVolume on gpu-b."""
    name = f"{bench.namespace}-disk"
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-b"]}]}
    bench.cluster.client.create(
        VOLUMES,
        {
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": LOCAL,
                "local": {"path": "/disk"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            },
        },
    )
    yield name
    bench.cluster.client.delete(f"{VOLUMES}/{name}")


def _claim(bench: Workbench, name: str, **spec: Any) -> dict[str, Any]:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return bench.cluster.client.create(
        f"/api/v1/namespaces/{bench.namespace}/persistentvolumeclaims", {"metadata": {"name": name}, "spec": asked}
    )


def _using(name: str, claim: str) -> dict[str, Any]:
    return sharepod(name, gpu(0.5), volumes=[{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}])


def _told(bench: Workbench, name: str) -> str:
    conditions = [each for pod in bench.pods(name) for each in pod["status"].get("conditions", ())]
    return "; ".join(each.get("message", "") for each in conditions if each["type"] == "PodScheduled")


def test_a_pod_follows_its_volume(bench: Workbench, volume: str) -> None:
    """Without the claim it waits and says so; a claim left to a scheduler is refused by name; once bound, it goes to gpu-b."""
    bench.create(_using("bert", "data"))
    missing = f"PersistentVolumeClaim {bench.namespace}/data does not exist"
    bench.until("the pod says what is missing", lambda: _told(bench, "bert") == missing)
    assert missing in bench.waits("bert", "Scheduled", "Unschedulable")["message"]

    claim = _claim(bench, "data", storageClassName=LOCAL)
    refused = (
        "this scheduler does not implement binding of WaitForFirstConsumer volumes "
        f"(claim {bench.namespace}/data of StorageClass {LOCAL} is not bound), which the pod asks for"
    )
    bench.until("the pod is refused by name", lambda: _told(bench, "bert") == refused)
    assert refused in bench.waits("bert", "Scheduled", "Unsatisfiable")["message"]

    reference = {key: claim["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    reference |= {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
    bench.cluster.client.patch(f"{VOLUMES}/{volume}", {"spec": {"claimRef": reference}})  # an administrator binds it
    (pod,) = bench.running("bert")
    assert "gpu-b" == pod["spec"]["nodeName"]


def test_an_ephemeral_volume_is_asked_about_by_its_own_claim(bench: Workbench) -> None:
    """kube-controller-manager makes the claim of a generic ephemeral volume; nobody provisions it here, so the pod waits."""
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    volumes = [{"name": "tmp", "ephemeral": {"volumeClaimTemplate": template}}]
    bench.create(sharepod("bert", gpu(0.5), volumes=volumes))
    bench.until("the pod is there", lambda: bench.pods("bert"))
    own = f"{bench.namespace}/{bench.pod('bert')['metadata']['name']}-tmp"
    waiting = f"PersistentVolumeClaim {own} is not bound to a PersistentVolume yet"
    bench.until("the pod names its own claim", lambda: _told(bench, "bert") == waiting)
    assert "nodeName" not in bench.pod("bert")["spec"]


def test_without_rights_on_volumes_the_operator_says_so(bench: Workbench, tmp_path: Path) -> None:
    """Nobody could tell where a volume is: it names resource and verbs once, and plans nothing before it has the rights."""
    kubeconfig = _account_without_volumes(bench.cluster)
    lease = {"lease_namespace": NAMESPACE, "lease_name": f"{bench.namespace}-less"}
    folder = tmp_path / "less"
    folder.mkdir()
    operator = OperatorProcess(kubeconfig, folder, command=Command.PRODUCTION, **lease)
    with operator.killed_afterwards():
        operator.start()
        only = ["persistentvolumes: not listed yet"]
        bench.until("only that is missing", lambda: operator.probe("/readyz")[1].get("problems") == only)
        told = [line["error"] for line in operator.lines() if line.get("event") == "ListFailed"]
        assert 1 == len(told), told
        assert told[0].startswith("persistentvolumes is forbidden")
        assert told[0].endswith("nothing is planned until the operator may list and watch persistentvolumes")

        _bind(bench.cluster, ACCOUNT)
        operator.wait_leading()
        assert 0 == operator.stop(), operator.tail()
        assert [] == operator.complaints()


def _account_without_volumes(cluster: Cluster) -> Path:
    """An account with the operator's rights but those on PersistentVolumes."""
    role = next(each for each in shipped("rbac.yaml") if each["kind"] == "ClusterRole")
    rules = [
        {**rule, "resources": [each for each in rule["resources"] if each != "persistentvolumes"]}
        for rule in role["rules"]
    ]
    cluster.client.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": LESS, "namespace": NAMESPACE}}
    )
    cluster.client.apply({**role, "metadata": {"name": LESS}, "rules": rules})
    _bind(cluster, LESS)
    lease_role = {"apiGroup": RBAC_GROUP, "kind": "Role", "name": ACCOUNT}
    metadata = {"name": LESS, "namespace": NAMESPACE}
    cluster.client.apply(
        {**RBAC, "kind": "RoleBinding", "metadata": metadata, "roleRef": lease_role, "subjects": SUBJECTS}
    )
    return cluster.service_account_kubeconfig(NAMESPACE, LESS)


def _bind(cluster: Cluster, role: str) -> None:
    reference = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": role}
    metadata = {"name": f"{LESS}-{role}"}
    cluster.client.apply(
        {**RBAC, "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": reference, "subjects": SUBJECTS}
    )
