"""Statuses are written rarely, in time for whoever waits, and never over something newer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sharepod_operator.cache.cache import Verdict
from sharepod_operator.controller.status_writer import PATIENCE, WORKERS
from sharepod_operator.core.status_details import DETAILS
from sharepod_operator.kube.api import EVENTS, PODS, SHAREPODS, Json
from tests.support.controller_world import NAMESPACE, Cluster, Operator, new_cluster, sharepod

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.looptime


def statuses(cluster: Cluster) -> Iterator[tuple[Json, Json]]:
    """Each write of a SharePod's status, as the status before and after it."""
    for change in cluster.server.history:
        if change.resource == SHAREPODS and change.type == "MODIFIED":
            before = (change.before or {}).get("status", {})
            if before != change.object.get("status", {}):
                yield before, change.object["status"]


async def test_a_waiting_pod_is_explained_within_a_second() -> None:
    """The message of the scheduler stands on the SharePod, once, and as one event."""
    cluster = new_cluster(places=False)
    cluster.apply(sharepod())
    async with Operator(cluster) as operator:
        await operator.pass_time(1.0)
        found = cluster.condition("Scheduled")
        await operator.pass_time(60)
        assert 1 == len(operator.writes("patch", SHAREPODS))

    assert ("False", "Unschedulable", operator.verdict.message) == found
    assert [("SharePod", "FailedScheduling", operator.verdict.message)] == cluster.events()


async def test_another_reason_is_told_and_the_same_one_is_not() -> None:
    """Retries with the same answer are silent."""
    cluster = new_cluster(places=False)
    cluster.apply(sharepod())
    async with Operator(cluster) as operator:
        await operator.settle()
        operator.verdict = Verdict("Unsatisfiable", "memory 48Gi is more than any GPU has")
        await operator.settle()
        operator.verdict = Verdict("PortPoolExhausted", "all ports of gpu-a are in use")
        await operator.settle()

    assert 3 == len(operator.writes("patch", SHAREPODS))
    assert ["FailedScheduling", "FailedScheduling", "PortPoolExhausted"] == [
        reason for _, reason, _ in cluster.events()
    ]


async def test_a_pod_that_is_never_judged_is_shown_as_being_placed() -> None:
    """Nobody claims that room is missing before the scheduler has said so."""
    cluster = new_cluster(places=False)
    cluster.apply(sharepod())
    async with Operator(cluster, judges=False) as operator:
        await operator.pass_time(1)
        assert {} == cluster.status()
        await operator.pass_time(2)
        assert ("Unknown", "Placing") == cluster.condition("Scheduled")[:2]
        assert not set(DETAILS) & set(cluster.status())
        await operator.pass_time(10)

    assert [{"pod": next(iter(cluster.pods())), "state": "Pending"}] == cluster.status()["placements"]


async def test_a_slow_start_is_shown_before_it_is_over() -> None:
    """Containers that take minutes to become Ready don't hide where the pod is."""
    cluster = new_cluster(runs=False)
    cluster.apply(sharepod())
    async with Operator(cluster) as operator:
        await operator.pass_time(4)
        assert "gpu-a/GPU-0" == cluster.status()["summary"]
        assert ("True", "AllPlaced") == cluster.condition("Scheduled")[:2]
        assert ("False", "ReplicasNotReady") == cluster.condition("Ready")[:2]
        cluster.runs = True
        await operator.settle()

    assert 2 == len(operator.writes("patch", SHAREPODS))


async def test_where_many_start_most_need_one_status() -> None:
    """First statuses that would soon be out of date give way, and yet each is there after a while."""
    cluster = new_cluster(runs=False)
    for number in range(40):
        cluster.apply(sharepod(f"s-{number}"))
    async with Operator(cluster) as operator:
        await operator.pass_time(6)
        early = len(operator.writes("patch", SHAREPODS))
        await operator.pass_time(PATIENCE)
        assert all(cluster.status(f"s-{number}") for number in range(40))

    assert early <= 3 * WORKERS


async def test_a_thousand_replicas_write_details_at_rest_only() -> None:
    """While they are placed, slowly, the counters move at most once a second; placements and maps come with the end."""
    cluster = new_cluster(room=0)
    cluster.server.garbage_collection = False
    cluster.apply(sharepod(replicas=1000))
    loop = asyncio.get_running_loop()
    async with Operator(cluster, judges=False, tick=0.25) as operator:
        started = loop.time()
        while cluster.room < 1000:
            cluster.room += 50
            await operator.pass_time(0.25)
        seconds = loop.time() - started
        await operator.settle()
        writes = len(operator.writes("patch", SHAREPODS))

    with_details = [
        after
        for before, after in statuses(cluster)
        if set(DETAILS) & set(after) and before.get("placements") != after.get("placements")
    ]
    assert 1000 == len(operator.writes("create", PODS))
    assert 2 <= writes <= seconds + 3
    assert len(with_details) <= 2
    assert 1000 == len(cluster.status()["placements"]) == len(cluster.status()["boundDeviceIDs"])
    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]


async def test_entries_of_pods_that_are_gone_leave_the_maps() -> None:
    """A merge-patch keeps what it doesn't name, so it names what goes."""
    cluster = new_cluster()
    cluster.apply(sharepod(replicas=4))
    async with Operator(cluster) as operator:
        await operator.settle()
        cluster.scale("bert", 1)
        await operator.settle()

    (name,) = cluster.pods()
    for field in ("boundDeviceIDs", "podManagerPort", "usage", "pod2node"):
        assert [name] == list(cluster.status()[field])


async def test_a_conflict_is_read_again_and_the_truth_written() -> None:
    """Somebody else's write in between: no blind overwrite, and the end is right."""
    cluster = new_cluster()
    cluster.apply(sharepod())
    async with Operator(cluster) as operator:
        await operator.settle()
        operator.api.hold_watches()
        cluster.runs = False
        cluster.edit("bert", lambda it: it["metadata"].update(labels={"team": "ml"}))
        cluster.server.set_phase(next(iter(cluster.pods())), "Pending", NAMESPACE)
        await operator.pass_time(0.1)
        (uid,) = operator.cache.sharepods
        operator.cache.observe_pod(next(iter(cluster.pods().values())))
        operator.controller.enqueue(uid)
        await operator.pass_time(1.5)
        outcomes = [write.outcome for write in operator.writes("patch", SHAREPODS)]
        operator.api.release_watches()
        cluster.runs = True
        await operator.settle()

    assert "Conflict" in outcomes
    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]


async def test_a_status_that_somebody_changed_is_put_right() -> None:
    """Status is output: what others write there is replaced, and nothing is decided by it."""
    cluster = new_cluster()
    cluster.apply(sharepod())
    async with Operator(cluster) as operator:
        await operator.settle()
        wanted = cluster.status()

        def lie(before: Json) -> Json:
            before["status"] = {"replicas": 77, "placements": [], "boundDeviceIDs": {"x": "GPU-9"}}
            return before

        cluster.server.change(SHAREPODS, "bert", NAMESPACE, lie, subresource="status")
        await operator.settle()

    times = [found.pop("lastTransitionTime") for status in (wanted, cluster.status()) for found in status["conditions"]]
    assert times
    assert [{**found, "lastTransitionTime": ""} for found in wanted["conditions"]] == [
        {**found, "lastTransitionTime": ""} for found in cluster.status()["conditions"]
    ]
    assert {k: v for k, v in wanted.items() if k != "conditions"} == {
        k: v for k, v in cluster.status().items() if k != "conditions"
    }
    assert 1 == len(operator.writes("create", PODS))


async def test_a_restart_writes_nothing_when_nothing_is_new() -> None:
    """A hundred SharePods at rest: the new process looks and finds all written, events included."""
    cluster = new_cluster()
    for number in range(100):
        cluster.apply(sharepod(f"s-{number}"))
    async with Operator(cluster) as first:
        await first.settle()
    async with Operator(cluster) as second:
        await second.settle()

    assert [] == second.api.sent


async def test_a_lost_node_shows_and_its_return_too() -> None:
    """Ready and Degraded follow the node's health."""
    cluster = new_cluster()
    cluster.apply(sharepod())
    async with Operator(cluster) as operator:
        await operator.settle()
        cluster.node(ready=False)
        cluster.server.set_phase(next(iter(cluster.pods())), "Running", NAMESPACE, conditions=[])
        await operator.settle()
        assert ("False", "NodeLost") == cluster.condition("Ready")[:2]
        assert ("True", "NodeNotReady") == cluster.condition("Degraded")[:2]
        cluster.node(ready=True)
        cluster.server.set_phase(next(iter(cluster.pods())), "Running", NAMESPACE)
        await operator.settle()

    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]
    assert ("False", "AllHealthy") == cluster.condition("Degraded")[:2]
    assert 1 == len(operator.writes("create", EVENTS))
