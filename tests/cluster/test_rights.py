"""The rights that manifests/ grants: the operator uses each of them and needs no other; users get what their roles say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.localcluster.programs import Program
from sharepod_operator.manifest.render import replica_name
from tests.support.audit import requests
from tests.support.gpu_nodes import NODES
from tests.support.operator_process import Command, OperatorProcess
from tests.support.rights import NAMESPACE, USER, exercised, granted, operator_kubeconfig, shipped
from tests.support.workbench import Workbench, gpu, sharepod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.cluster import Cluster

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@pytest.fixture
def bench(cluster: Cluster, binaries: Binaries, namespace: str) -> Iterator[Workbench]:
    """An empty namespace and one node with two GPUs."""
    cluster.add_node(NODES[0])
    yield Workbench(cluster, binaries[Program.KUBECTL], namespace)
    cluster.remove_node(NODES[0].name)


def test_every_granted_verb_is_used_and_no_other_is_wanted(bench: Workbench, tmp_path: Path) -> None:
    """A life with a taken name, a pod that doesn't fit, a lost one and changes of scale is what all the rights are for."""
    kubeconfig = operator_kubeconfig(bench.cluster)
    lease = {"lease_namespace": NAMESPACE, "lease_name": bench.namespace}
    created = bench.create(sharepod("bert", gpu(0.5, "10Gi")))
    foreign = _take_name(bench, replica_name("bert", created["metadata"]["uid"], 0, 0))
    with OperatorProcess(kubeconfig, tmp_path, command=Command.PRODUCTION, **lease) as operator:
        bench.operators.append(operator)
        operator.wait_leading()
        (pod,) = bench.running("bert")
        bench.create(sharepod("large", gpu(0.1, "64Gi")))
        bench.waits("large", "Scheduled", "Unsatisfiable")
        bench.cluster.client.delete(f"/api/v1/namespaces/{bench.namespace}/pods/{pod['metadata']['name']}")
        bench.until("the lost pod is replaced", lambda: _uid(bench, "bert") not in ("", pod["metadata"]["uid"]))
        for _ in range(3):  # it says that none or that one pod is left, so that of three times two are alike
            bench.scale("bert", 0)
            bench.waits("bert", "Ready", "ScaledToZero")
            bench.scale("bert", 1)
            bench.running("bert")
        bench.until("an event is counted", lambda: [e for e in bench.events("ScaledToZero") if e.get("series")])
        bench.cluster.client.delete(foreign)
        bench.delete_all()
        assert 0 == operator.stop(), operator.tail()
        assert [] == operator.complaints()
    done = [each for each in requests(bench.cluster.audit_log, USER) if each.resource]
    assert [] == [each for each in done if each.decision == "forbid"]
    assert granted() == exercised(done)


@pytest.mark.parametrize(
    ("role", "verb", "subresource", "allowed"),
    [
        ("view", "list", "", True),
        ("view", "get", "status", True),
        ("view", "create", "", False),
        ("view", "patch", "scale", False),
        ("edit", "watch", "", True),
        ("edit", "create", "", True),
        ("edit", "deletecollection", "", True),
        ("edit", "patch", "scale", True),
        ("edit", "patch", "status", False),
        ("admin", "delete", "", True),
        ("admin", "update", "status", False),
    ],
)
def test_the_usual_roles_reach_sharepods(
    cluster: Cluster, namespace: str, role: str, verb: str, subresource: str, *, allowed: bool
) -> None:
    """Whoever may view, edit or administer a namespace may do so with its SharePods; their status is nobody's to write."""
    bench = Workbench(cluster, cluster.kubeconfig, namespace)
    for manifest in shipped("users.yaml"):
        cluster.client.apply(manifest)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role}],
    }
    cluster.client.apply(binding)
    bench.until("the roles are put together", lambda: _may(cluster, role, namespace, "get", ""))
    bench.until(f"{role} {verb} {subresource}", lambda: allowed == _may(cluster, role, namespace, verb, subresource))
    assert allowed == _may(cluster, role, namespace, verb, subresource)


def _may(cluster: Cluster, user: str, namespace: str, verb: str, subresource: str) -> bool:
    asked = {"group": "faasshare.tum", "resource": "sharepods", "namespace": namespace, "verb": verb}
    spec = {"user": user, "resourceAttributes": {**asked, "subresource": subresource}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(cluster.client.create(REVIEWS, review)["status"]["allowed"])


def _take_name(bench: Workbench, name: str) -> str:
    """Somebody else's pod has the name that the first replica would get; its path."""
    foreign: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "none"}], "terminationGracePeriodSeconds": 0},
    }
    path = f"/api/v1/namespaces/{bench.namespace}/pods"
    bench.cluster.client.create(path, foreign)
    return f"{path}/{name}"


def _uid(bench: Workbench, name: str) -> str:
    return next((str(pod["metadata"]["uid"]) for pod in bench.pods(name)), "")
