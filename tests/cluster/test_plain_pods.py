"""Deployments and Jobs on a real control plane, placed by the operator as if a SharePod had made their Pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.localcluster.programs import Program
from sharepod_operator.manifest import names
from tests.support import invariants
from tests.support.gpu_nodes import NODES, A
from tests.support.invariants import ledger
from tests.support.serving import serving_koordinator
from tests.support.workbench import COLLECTED, Workbench, gpu, sharepod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.cluster import Cluster
    from tests.support.operator_process import OperatorProcess

Json = dict[str, Any]
GIB = 1 << 30


@pytest.fixture(scope="module")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator with the rights of its service account that serves two scheduler names, and eight GPUs."""
    cluster.add_nodes(NODES)
    with serving_koordinator(cluster, tmp_path_factory.mktemp("plain")) as running:
        yield running
    for node in NODES:
        cluster.remove_node(node.name)


@pytest.fixture
def bench(cluster: Cluster, binaries: Binaries, operator: OperatorProcess, namespace: str) -> Workbench:
    return Workbench(cluster, binaries[Program.KUBECTL], namespace, [operator])


def workload(kind: str, name: str, percent: int, *, scheduler: str = names.SCHEDULER_NAME, **spec: Any) -> Json:
    """A Deployment or Job of one Pod that asks for so many percent of a GPU."""
    labels = {"app": name}
    main = {"name": "main", "image": "none", "resources": {"limits": {"koordinator.sh/gpu": str(percent)}}}
    pod_spec = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 0, "containers": [main], **spec}
    body: Json = {"template": {"metadata": {"labels": labels}, "spec": pod_spec}}
    if kind == "Deployment":
        body["selector"] = {"matchLabels": labels}
    else:
        pod_spec["restartPolicy"] = "Never"
    version = "apps/v1" if kind == "Deployment" else "batch/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": body}


def apply(bench: Workbench, manifest: Json) -> None:
    answer = bench.kubectl("apply", "-f", "-", stdin=manifest)
    assert 0 == answer.returncode, answer.stderr


def pod_of(bench: Workbench, name: str) -> Json:
    (found,) = [pod for pod in bench.pods() if pod["metadata"]["labels"].get("app") == name] or [{}]
    return found


def placed(bench: Workbench, name: str) -> Json:
    """Wait until the workload's one Pod is bound, with the strings that its environment reads; the Pod."""

    def probe() -> Json:
        found = pod_of(bench, name)
        return found if found and found["spec"].get("nodeName") else {}

    return bench.until(f"{name} is bound", probe)


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_fifty_is_half_a_gpu_and_half_of_its_memory_and_two_hundred_two_whole_ones(bench: Workbench, kind: str) -> None:
    """The containers carry the UUIDs; deleting the workload frees the GPUs for what waits."""
    apply(bench, workload(kind, "half", 50, initContainers=[{"name": "init", "image": "none"}]))
    half = placed(bench, "half")
    entry = ledger(half)
    assert entry is not None
    assert [(A[0], 500, 20 * GIB)] == [(each["uuid"], each["milli"], each["memory"]) for each in entry["gpus"]]
    for container in (*half["spec"]["containers"], *half["spec"]["initContainers"]):
        env = {entry["name"]: entry for entry in container["env"]}
        path = env["NVIDIA_VISIBLE_DEVICES"]["valueFrom"]["fieldRef"]["fieldPath"]
        assert f"metadata.annotations['{names.GPU_UUIDS}']" == path
    assert A[0] == half["metadata"]["annotations"][names.GPU_UUIDS]

    only_a = {"kubernetes.io/hostname": "gpu-a"}
    apply(bench, workload(kind, "pair", 200, scheduler="koord-scheduler", nodeSelector=only_a))
    bench.until(
        "the pair says why it waits",
        lambda: "1 of 2 GPUs fit" in str(pod_of(bench, "pair").get("status", {}).get("conditions", "")),
    )
    bench.kubectl("delete", kind, "half")
    pair = ledger(placed(bench, "pair"))
    assert pair is not None
    assert {(uuid, 1000, 40 * GIB) for uuid in A} == {
        (each["uuid"], each["milli"], each["memory"]) for each in pair["gpus"]
    }
    assert [] == invariants.always(bench.objects())
    bench.kubectl("delete", kind, "pair")
    bench.until("nothing is left", lambda: not bench.pods(), COLLECTED)


def test_plain_pods_and_sharepods_share_cards(bench: Workbench) -> None:
    """A SharePod of half a card and a Deployment of half a card sit on one, and the status tells resources as source."""
    apply(bench, workload("Deployment", "web", 50))
    placed(bench, "web")
    bench.create(sharepod("typed", gpu(0.5, "20Gi")))
    bench.running("typed")
    assert [("gpu-a", (A[0],))] == bench.placement("typed")
    limits = {"limits": {"koordinator.sh/gpu-core": "25", "koordinator.sh/gpu-memory-ratio": "50"}}
    bench.create(sharepod("percent", containers=[{"name": "main", "image": "none", "resources": limits}]))
    bench.running("percent")
    status = bench.sharepod("percent")["status"]["gpu"]
    assert {"share": "0.25/0.25", "memory": "50%", "source": "resources"} == status
    bench.kubectl("delete", "deployment", "web")
    bench.delete_all()


def test_a_set_of_resources_that_is_not_legal_says_so_on_the_pod(bench: Workbench) -> None:
    """Nothing is placed for it."""
    apply(bench, workload("Deployment", "odd", 150))
    words = "koordinator.sh/gpu: 150 is more than one GPU, so it must be a multiple of 100"
    bench.until("the pod is refused by name", lambda: words in str(pod_of(bench, "odd").get("status")))
    assert "nodeName" not in pod_of(bench, "odd")["spec"]
    bench.kubectl("delete", "deployment", "odd")


def test_a_foreign_binding_of_a_gpu_pod_is_told_and_charged(bench: Workbench) -> None:
    """Somebody with the right to bind used it on a pod that waits: a Warning on the Pod, and nobody binds it again."""
    apply(bench, workload("Deployment", "alien", 50, nodeSelector={"kubernetes.io/hostname": "elsewhere"}))
    name = bench.until("the pod is there", lambda: pod_of(bench, "alien"))["metadata"]["name"]
    bench.until("it waits", lambda: bench.events("FailedScheduling", "Pod"))
    where = f"/api/v1/namespaces/{bench.namespace}/pods/{name}"
    target = {"kind": "Node", "name": "gpu-a"}
    bench.cluster.client.create(f"{where}/binding", {"metadata": {"name": name}, "target": target})
    (event,) = bench.until("the event is there", lambda: bench.events("ForeignBinding", "Pod"))
    assert ("Warning", name) == (event["type"], event["regarding"]["name"])
    pod = bench.cluster.client.get(where)
    assert ("gpu-a", None) == (pod["spec"]["nodeName"], ledger(pod))
    bench.kubectl("delete", "deployment", "alien")
