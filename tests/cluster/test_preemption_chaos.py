"""The operator is killed in the middle of preemptions on a real control plane; the end is the same as without."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.localcluster.nodes import GIB, FakeNode, gpus_of
from sharepod_operator.localcluster.programs import Program
from tests.support import invariants
from tests.support.audit import bindings, requests
from tests.support.cluster_objects import priority_class
from tests.support.operator_process import Command, OperatorProcess
from tests.support.rights import NAMESPACE, USER, operator_kubeconfig
from tests.support.workbench import Workbench, gpu, sharepod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.cluster import Cluster

KILLS = 20
PREEMPTORS = 24
SPARED = 4
NODES = tuple(
    FakeNode(f"loss-{n}", gpus_of(f"loss-{n}", 4, 40 * GIB, "NVIDIA-A100-PCIE-40GB"))
    for n in range((PREEMPTORS + SPARED) // 4)
)
CLASSES = {"middle": 100, "high": 1000}
QUICK = {"lease_duration": "2", "renew_deadline": "1.5", "retry_period": "0.3"}
"""The test doesn't wait fifteen seconds for the Lease of each killed operator."""


@pytest.fixture
def bench(cluster: Cluster, binaries: Binaries, namespace: str) -> Iterator[Workbench]:
    """Full nodes to be; the test brings its operators, and whatever is left of them is killed."""
    cluster.add_nodes(NODES)
    for name, value in CLASSES.items():
        cluster.client.apply(priority_class(name, value))
    made = Workbench(cluster, binaries[Program.KUBECTL], namespace)
    yield made
    for operator in made.operators:
        operator.kill()
    made.delete_all()
    for name in CLASSES:
        cluster.client.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")
    for node in NODES:
        cluster.remove_node(node.name)


def moments(bench: Workbench, name: str, rng: random.Random) -> list[tuple[str, Callable[[], Any]]]:
    """Points of the next preemption at which the operator may be killed: what was written last, or any time."""

    def uids(holds: Callable[[dict[str, Any]], Any], pods: list[dict[str, Any]]) -> set[str]:
        return {pod["metadata"]["uid"] for pod in pods if holds(pod)}

    late = time.monotonic() + rng.uniform(0.0, 1.5)
    told = len(bench.events("Preempted", "Pod"))
    low = bench.pods("low")
    marked, leaving = uids(_is_marked, low), uids(_is_leaving, low)
    return [
        ("the nomination is written", lambda: uids(_is_nominated, bench.pods(name))),
        ("a victim is marked", lambda: uids(_is_marked, bench.pods("low")) - marked),
        ("a victim is told", lambda: len(bench.events("Preempted", "Pod")) > told),
        ("a victim leaves", lambda: uids(_is_leaving, bench.pods("low")) - leaving),
        ("any time", lambda: time.monotonic() > late),
    ]


@pytest.mark.timeout(420)
def test_killed_20_times_no_pod_goes_that_would_not_have_gone(
    cluster: Cluster, bench: Workbench, tmp_path: Path
) -> None:
    """As many pods of the lowest priority go as preemptors come, each told and deleted once, and every preemptor runs."""
    kubeconfig = operator_kubeconfig(cluster)
    rng = random.Random(20)
    began = datetime.now(UTC)

    def operator(identity: str) -> OperatorProcess:
        lease = {"lease_namespace": NAMESPACE, "lease_name": bench.namespace}
        made = OperatorProcess(kubeconfig, tmp_path, identity=identity, command=Command.PRODUCTION, **lease, **QUICK)
        bench.operators.append(made)
        made.start()
        return made

    victim = operator("life-0")
    victim.wait_leading()
    bench.create(sharepod("middle", gpu(1, "40Gi"), replicas=SPARED, priorityClassName="middle"))
    spared = {pod["metadata"]["uid"] for pod in bench.running("middle", SPARED)}
    bench.create(sharepod("low", gpu(1, "40Gi"), replicas=PREEMPTORS, terminationGracePeriodSeconds=3))
    first = {pod["metadata"]["name"] for pod in bench.running("low", PREEMPTORS)}
    waiting = iter(range(PREEMPTORS))
    for life in range(KILLS):
        for number in itertools.islice(waiting, 1 if life else PREEMPTORS - KILLS + 1):
            name = f"urgent-{number:02}"
            points = moments(bench, name, rng)
            bench.create(sharepod(name, gpu(1, "40Gi"), priorityClassName="high"))
        what, reached = points[life % len(points)]
        successor = operator(f"life-{life + 1}")
        bench.until(what, reached)
        victim.kill()
        bench.operators.remove(victim)
        assert [] == invariants.always(bench.objects()), bench.report()
        assert [] == victim.complaints()
        victim = successor
        victim.wait_leading()
    for number in range(PREEMPTORS):
        bench.running(f"urgent-{number:02}")
    bench.check()

    assert spared == {pod["metadata"]["uid"] for pod in bench.running("middle", SPARED)}
    assert {"Pending": PREEMPTORS} == Counter(pod["status"]["phase"] for pod in bench.pods("low"))
    events = bench.events("Preempted", "Pod")
    assert [] == [event for event in events if event.get("series")]
    assert dict.fromkeys(first, 1) == Counter(event["regarding"]["name"] for event in events)
    assert PREEMPTORS == len({event["related"]["uid"] for event in events})
    assert {1} == set(Counter(event["note"] for event in bench.events("Preempted")).values())
    deletions = [
        each
        for each in requests(cluster.audit_log, USER)
        if each.at > began and (each.verb, each.resource) == ("delete", "pods")
    ]
    assert first == {each.name for each in deletions}
    twice = [name for name, n in Counter(each.name for each in deletions if each.changes).items() if n > 1]
    assert [] == twice, "one whose sender was killed may have been carried out, and is noted as an error"
    assert {} == {uid: n for uid, n in bindings(cluster.audit_log).items() if n > 1}
    assert 0 == victim.stop(), victim.tail()
    assert [] == victim.complaints()


def _is_nominated(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("nominatedNodeName") or pod["spec"].get("nodeName"))


def _is_marked(pod: dict[str, Any]) -> bool:
    return any(each["type"] == "DisruptionTarget" for each in pod["status"].get("conditions", ()))


def _is_leaving(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
