"""A more important pod gets its GPU, on a real control plane: who goes, what people see, and who gets the room."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.localcluster.nodes import GIB, FakeNode, gpu_uuid, gpus_of
from sharepod_operator.localcluster.programs import Program
from sharepod_operator.manifest import names
from tests.support import invariants
from tests.support.audit import requests
from tests.support.cluster_objects import priority_class
from tests.support.invariants import ledger
from tests.support.rights import USER
from tests.support.serving import serving_koordinator
from tests.support.workbench import COLLECTED, Workbench, gpu, sharepod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.cluster import Cluster
    from tests.cluster.conftest import AddNodes
    from tests.support.operator_process import OperatorProcess

Json = dict[str, Any]

CLASSES = {"one": 1, "two": 2, "thousand": 1000}
MODEL = "NVIDIA-A100-PCIE-40GB"
DUO = FakeNode("duo", gpus_of("duo", 2, 40 * GIB, MODEL))
SOLO = FakeNode("solo", gpus_of("solo", 1, 40 * GIB, MODEL))
GRACE = 6
"""Seconds that a victim takes to go: time enough to look at it on a loaded machine."""
A_WHILE = 3.0
"""Seconds for which nothing must change; a pod that fits is bound in a tenth of one."""
_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator with the rights of its service account, which serves Koordinator's scheduler name too."""
    for name, value in CLASSES.items():
        cluster.client.apply(priority_class(name, value))
    with serving_koordinator(cluster, tmp_path_factory.mktemp("preemption")) as running:
        yield running
    for name in CLASSES:
        cluster.client.delete(f"{_CLASSES}/{name}")


@pytest.fixture
def in_namespace(cluster: Cluster, binaries: Binaries, operator: OperatorProcess) -> Callable[[str], Workbench]:
    return lambda namespace: Workbench(cluster, binaries[Program.KUBECTL], namespace, [operator])


@pytest.fixture
def bench(in_namespace: Callable[[str], Workbench], namespace: str) -> Iterator[Workbench]:
    """An empty namespace; its SharePods go before the nodes do."""
    made = in_namespace(namespace)
    yield made
    made.delete_all()


def deployment(name: str, percent: int, **spec: Any) -> Json:
    """The Deployments of Koordinator's pull request on preempting devices; kwok ends their pods after GRACE seconds."""
    labels = {"app": name}
    limits = {"cpu": "1", "memory": "1Gi", "koordinator.sh/gpu": str(percent)}
    main = {
        "name": "test",
        "image": "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda10.2",
        "command": ["sleep"],
        "args": ["3600"],
        "resources": {"limits": limits},
    }
    template = {
        "metadata": {
            "labels": {**labels, "koordinator.sh/qosClass": "LS"},
            "annotations": {"pod-delete.stage.kwok.x-k8s.io/delay": f"{GRACE}s"},
        },
        "spec": {"schedulerName": "koord-scheduler", "containers": [main], **spec},
    }
    body = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
        "progressDeadlineSeconds": 600,
        "revisionHistoryLimit": 10,
        "template": template,
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": body}


def pods_of(bench: Workbench, app: str) -> list[Json]:
    return [pod for pod in bench.pods() if pod["metadata"].get("labels", {}).get("app") == app]


def runs(bench: Workbench, app: str) -> Json:
    """Wait until the Deployment's only pod runs; the pod."""

    def probe() -> Json:
        found = pods_of(bench, app)
        return found[0] if [pod["status"].get("phase") for pod in found] == ["Running"] else {}

    return bench.until(f"{app} runs", probe)


def nominated(bench: Workbench, pods: Callable[[], list[Json]]) -> Json:
    """Wait until the only one of these pods has a nominated node; the pod."""
    return bench.until(
        "a node is nominated", lambda: next((p for p in pods() if p["status"].get("nominatedNodeName")), {})
    )


def shown(bench: Workbench) -> dict[str, dict[str, str]]:
    """What `kubectl get pods -o wide` prints, by pod and column."""
    header, *rows = bench.kubectl("get", "pods", "-o", "wide").stdout.splitlines()
    columns = re.split(r"\s{2,}", header.strip())
    return {row.split()[0]: dict(zip(columns, re.split(r"\s{2,}", row.strip()), strict=True)) for row in rows}


def name_of(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def uuids(pod: Json) -> set[str]:
    entry = ledger(pod)
    return {card["uuid"] for card in entry["gpus"]} if entry is not None else set()


def told_victims(bench: Workbench) -> dict[str, str]:
    """Note of the event Preempted by the name of the pod that it is about; each was told exactly once."""
    told = bench.events("Preempted", "Pod")
    assert [] == [event for event in told if event.get("series")]
    by_name = {str(event["regarding"]["name"]): str(event["note"]) for event in told}
    assert len(told) == len(by_name)
    return by_name


def for_a_while(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + A_WHILE
    while time.monotonic() < deadline:
        assert holds()
        time.sleep(0.1)


def test_the_scenario_of_koordinators_pull_request(
    in_namespace: Callable[[str], Workbench], add_nodes: AddNodes
) -> None:
    """Two Deployments on a node with two GPUs: the victim is told and goes in its own time, its replacement waits on."""
    bench = in_namespace("default")
    add_nodes(DUO)
    assert 0 == bench.kubectl("apply", "-f", "-", stdin=deployment("test-gpu-deploy", 200)).returncode
    victim = runs(bench, "test-gpu-deploy")
    high = deployment("high-test-gpu-deploy", 100, priorityClassName="system-cluster-critical")
    assert 0 == bench.kubectl("apply", "-f", "-", stdin=high).returncode
    preemptor = nominated(bench, lambda: pods_of(bench, "high-test-gpu-deploy"))
    bench.until("the victim is replaced", lambda: len(pods_of(bench, "test-gpu-deploy")) == 2)

    columns = {name: (row["STATUS"], row["NODE"], row["NOMINATED NODE"]) for name, row in shown(bench).items()}
    (replacement,) = [p for p in pods_of(bench, "test-gpu-deploy") if name_of(p) != name_of(victim)]
    assert {
        name_of(preemptor): ("Pending", "<none>", "duo"),
        name_of(victim): ("Terminating", "duo", "<none>"),
        name_of(replacement): ("Pending", "<none>", "<none>"),
    } == columns
    leaving = next(p for p in pods_of(bench, "test-gpu-deploy") if name_of(p) == name_of(victim))
    assert 30 == leaving["metadata"]["deletionGracePeriodSeconds"]
    (mark,) = [c for c in leaving["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert ("True", "PreemptionByScheduler") == (mark["status"], mark["reason"])
    (event,) = bench.events("Preempted", "Pod")
    assert (
        "Normal",
        victim["metadata"]["uid"],
        preemptor["metadata"]["uid"],
        f"Preempted by default/{name_of(preemptor)} on node duo",
    ) == (event["type"], event["regarding"]["uid"], event["related"]["uid"], event["note"])

    running = runs(bench, "high-test-gpu-deploy")
    assert preemptor["metadata"]["uid"] == running["metadata"]["uid"]
    assert ("duo", 1) == (running["spec"]["nodeName"], len(uuids(running)))

    def unmoved() -> bool:
        now = {name_of(p): p["status"]["phase"] for p in bench.pods()}
        return now == {name_of(running): "Running", name_of(replacement): "Pending"}

    for_a_while(unmoved)
    assert 0 == bench.kubectl("apply", "-f", "-", stdin=deployment("third", 100)).returncode
    third = runs(bench, "third")
    assert {gpu_uuid("duo", 0), gpu_uuid("duo", 1)} == uuids(running) | uuids(third)
    assert {name_of(victim)} == set(told_victims(bench))
    assert [] == invariants.always(bench.objects())
    bench.kubectl("delete", "deployment", "test-gpu-deploy", "high-test-gpu-deploy", "third", "--wait=false")
    bench.until("nothing is left", lambda: not bench.pods(), COLLECTED)


def test_the_same_with_sharepods(bench: Workbench, add_nodes: AddNodes) -> None:
    """Both sides say what happens: WaitingForVictims with GPU and victim, Preempted on the SharePod that lost its pod."""
    add_nodes(DUO)
    bench.create(sharepod("low", gpu(1, "40Gi", count=2), terminationGracePeriodSeconds=GRACE))
    (victim,) = bench.running("low")
    bench.create(sharepod("urgent", gpu(1, "40Gi"), priorityClassName="thousand"))
    preemptor = nominated(bench, lambda: bench.pods("urgent"))
    waiting = bench.waits("urgent", "Scheduled", "WaitingForVictims")
    assert re.fullmatch(
        rf"Evicting 1 pod with lower priority from GPU-[0-9a-f-]+ on node duo: "
        rf"{bench.namespace}/{name_of(victim)} \(0\); own priority 1000",
        waiting["message"],
    )
    assert "True" == bench.waits("low", "Preempted", "PreemptedByPriority")["status"]
    bench.until("the victim is replaced", lambda: len(bench.pods("low")) == 2)
    columns = {name: (row["STATUS"], row["NOMINATED NODE"]) for name, row in shown(bench).items()}
    (replacement,) = [p for p in bench.pods("low") if name_of(p) != name_of(victim)]
    assert {
        name_of(preemptor): ("Pending", "duo"),
        name_of(victim): ("Terminating", "<none>"),
        name_of(replacement): ("Pending", "<none>"),
    } == columns

    (running,) = bench.running("urgent")
    assert preemptor["metadata"]["uid"] == running["metadata"]["uid"]
    assert "" == running["metadata"]["annotations"][names.NOMINATION]
    for_a_while(lambda: [name_of(replacement)] == [name_of(p) for p in bench.pods("low")])
    assert "Pending" == bench.pod("low")["status"]["phase"]
    bench.create(sharepod("third", gpu(1, "40Gi")))
    (third,) = bench.running("third")
    assert {gpu_uuid("duo", 0), gpu_uuid("duo", 1)} == uuids(running) | uuids(third)
    note = f"Preempted by {bench.namespace}/{name_of(running)} on node duo"
    assert {name_of(victim): note} == told_victims(bench)
    assert [f"{name_of(victim)}: {note}"] == [event["note"] for event in bench.events("Preempted")]
    bench.check()


@pytest.mark.parametrize(
    ("half", "quarters", "expected"), [("one", "two", ["half"]), ("two", "one", ["quarter-a", "quarter-b"])]
)
def test_of_fractions_only_the_least_important_go(
    bench: Workbench, add_nodes: AddNodes, half: str, quarters: str, expected: list[str]
) -> None:
    """One pod of a half or two of a quarter make room for a half; priority decides which, not number or size."""
    add_nodes(SOLO)
    sizes = {"half": (0.5, "20Gi", half), "quarter-a": (0.25, "10Gi", quarters), "quarter-b": (0.25, "10Gi", quarters)}
    before = {}
    for name, (share, memory, important) in sizes.items():
        bench.create(sharepod(name, gpu(share, memory), priorityClassName=important))
        (before[name],) = bench.running(name)
    bench.create(sharepod("urgent", gpu(0.5, "20Gi"), priorityClassName="thousand"))
    bench.running("urgent")

    assert {name_of(before[name]) for name in expected} == set(told_victims(bench))
    for_a_while(lambda: all(bench.condition(name, "Scheduled").get("status") == "False" for name in expected))
    for name in sizes.keys() - set(expected):
        assert before[name]["metadata"]["uid"] == bench.pod(name)["metadata"]["uid"]
    assert {name_of(before[name]) for name in expected} == set(told_victims(bench))
    bench.check()


def test_while_a_victim_takes_its_time_nobody_slips_in(bench: Workbench, add_nodes: AddNodes) -> None:
    """For twenty seconds the GPU is the victim's still, and then the preemptor's, though others wait for it as well."""
    add_nodes(SOLO)
    bench.create(sharepod("low", gpu(1, "40Gi"), priorityClassName="one", terminationGracePeriodSeconds=20))
    (victim,) = bench.running("low")
    bench.create(sharepod("urgent", gpu(1, "40Gi"), priorityClassName="thousand"))
    nominated(bench, lambda: bench.pods("urgent"))
    bench.create(sharepod("sneaky", gpu(0.25, "10Gi"), priorityClassName="two"))
    bench.waits("sneaky", "Scheduled", "Unschedulable")

    def urgent_alone() -> bool:
        now = {name: bench.pod(name) for name in ("urgent", "sneaky")}
        there = any(name_of(p) == name_of(victim) for p in bench.pods("low"))
        assert not now["sneaky"]["spec"].get("nodeName")
        assert not now["sneaky"]["status"].get("nominatedNodeName")
        return not there and bool(now["urgent"]["spec"].get("nodeName"))

    bench.until("the preemptor follows the victim", urgent_alone, 45)
    done = list(requests(bench.cluster.audit_log, USER))
    deleted = next(each.at for each in done if each.verb == "delete" and each.name == name_of(victim))
    urgent = name_of(bench.pod("urgent"))
    bound = next(each.at for each in done if each.resource == "pods/binding" and each.name == urgent)
    assert (bound - deleted).total_seconds() >= 19, "deletionTimestamps are whole seconds"
    for_a_while(lambda: not bench.pod("sneaky")["spec"].get("nodeName"))
    assert {name_of(victim)} == set(told_victims(bench))
    bench.check()
