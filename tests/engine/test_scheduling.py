"""The whole operator on an API server in memory: room, refusals, lost answers, rivals and blind watches."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.kube.api import EVENTS, NODES, PODS, SHAREPODS, Listing, Resource, WatchEvent
from sharepod_operator.kube.errors import Conflict, Forbidden, Gone, TooManyRequests
from sharepod_operator.manifest import names
from sharepod_operator.manifest.pod import read_pod
from tests.support.cluster_objects import node, sharepod
from tests.support.exposition import value
from tests.support.memory_server import MemoryServer
from tests.support.operator import LoopClock, MemoryOperator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sharepod_operator.manifest.records import Json, PodRecord

pytestmark = pytest.mark.looptime


@asynccontextmanager
async def running(gpus: int = 2, **settings: Any) -> AsyncIterator[MemoryOperator]:
    """An operator on one node of so many GPUs."""
    server = MemoryServer(clock=LoopClock())
    server.put(NODES, node("gpu-a", gpus))
    async with MemoryOperator(server, **settings) as operator:
        await operator.settle()
        yield operator


def records(server: MemoryServer) -> list[PodRecord]:
    return [read_pod(pod) for pod in server.objects(PODS)]


def bound(server: MemoryServer) -> list[PodRecord]:
    return [record for record in records(server) if record.node]


def condition(obj: Json, kind: str) -> tuple[str, str, str]:
    found = next(c for c in obj["status"]["conditions"] if c["type"] == kind)
    return found["status"], found["reason"], found["message"]


def attempts(operator: MemoryOperator) -> float | None:
    """How often a pod found no place."""
    return value(operator.engine.metrics, "sharepod_scheduling_attempts_total", {"outcome": "unschedulable"})


def told(server: MemoryServer, reason: str) -> list[Json]:
    return [event for event in server.objects(EVENTS) if event["reason"] == reason]


async def test_a_node_that_flaps_wakes_only_those_whom_it_kept_out() -> None:
    """Under load nodes miss their heartbeats by the hundred; who waits for something else isn't looked at each time."""
    async with running(gpus=1) as operator:
        server = operator.server
        server.put(NODES, cordoned := node("gpu-b", 1) | {"spec": {"unschedulable": True}})
        server.put(SHAREPODS, sharepod("bert", 2, request=1))
        await operator.settle()
        assert 1 == len(bound(server))
        looks = attempts(operator)
        for ready in ("False", "True") * 10:
            flapping = node("gpu-a", 1)
            flapping["status"]["conditions"][0]["status"] = ready
            server.put(NODES, flapping)
            await asyncio.sleep(12.0)
        assert looks == attempts(operator)
        server.put(NODES, cordoned | {"spec": {}})
        await asyncio.sleep(12.0)

    assert 2 == len(bound(server))


@pytest.mark.parametrize("slow", [PODS, SHAREPODS, NODES], ids=str)
async def test_work_begins_whichever_list_comes_last(slow: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start nothing is planned before everything is listed; then all of it is, not only what changes later."""
    server = MemoryServer(clock=LoopClock())
    server.put(NODES, node("gpu-a", 2))
    server.put(SHAREPODS, sharepod("bert", 1, request=0.5))
    operator = MemoryOperator(server)
    listed = operator.api.list

    async def slowly(resource: Resource, **options: Any) -> Listing:
        await asyncio.sleep(10.0 if resource == slow else 0.0)
        return await listed(resource, **options)

    monkeypatch.setattr(operator.api, "list", slowly)
    async with operator:
        await asyncio.sleep(20.0)
        await operator.settle()

    assert 1 == len(bound(server))


async def test_what_does_not_fit_says_why_and_costs_no_write_per_retry() -> None:
    """A waiting pod carries the reason, in counts, and so does its SharePod; ten minutes of retries write nothing."""
    async with running(gpus=1) as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("bert", 3, request=1))
        await operator.settle()
        text = (
            "0/1 GPUs on 1 nodes are available: 1 GPU(s) Insufficient gpu. "
            "preemption: 0/1 GPUs can be freed: 1 No preemption victims found for incoming pod."
        )

        waiting = [record for record in records(server) if not record.node]
        assert [text, text] == [record.scheduled_message for record in waiting]
        assert ["Unschedulable"] * 2 == [record.scheduled_reason for record in waiting]
        sharepod_now = server.objects(SHAREPODS)[0]
        assert ("False", "Unschedulable") == condition(sharepod_now, "Scheduled")[:2]
        assert text in condition(sharepod_now, "Scheduled")[2]

        before = len(server.writes)
        server.put(NODES, node("tiny", 0))  # wakes them for nothing
        await asyncio.sleep(600)
        changed = [write for write in server.writes[before:] if write.client == "operator"]
        assert len(changed) <= 6, changed  # the count of nodes in the message went from 1 to 2
        before = len(server.writes)
        await asyncio.sleep(3600)
        assert before == len(server.writes)


async def test_freed_room_goes_to_the_pod_that_waits() -> None:
    """A pod that waits is placed as soon as another one is gone, and its words of waiting go with it."""
    async with running(gpus=1) as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("first", 1, request=1))
        await operator.settle()
        server.put(SHAREPODS, sharepod("second", 1, request=1))
        await operator.settle()
        server.remove(SHAREPODS, "first", "default")
        server.collect_garbage()
        await operator.settle()

        assert ["GPU-gpu-a-0"] == [
            uuid for pod in bound(server) for uuid in (pod.allocation.uuids if pod.allocation else ())
        ]
        assert ("True", "AllReplicasReady") == condition(server.objects(SHAREPODS)[0], "Ready")[:2]


async def test_a_terminating_pod_keeps_its_share_until_it_is_gone() -> None:
    """A deletionTimestamp frees nothing: share and port are given away only when the pod object is gone."""
    async with running(gpus=1) as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("bert", 1, request=1))
        await operator.settle()
        (old,) = bound(server)
        server.delete(PODS, old.name, "default")
        await asyncio.sleep(20)  # nobody ends the pod yet

        assert [old.uid] == [record.uid for record in bound(server)]
        await operator.settle()  # now its containers end
        (new,) = bound(server)
        assert old.uid != new.uid


async def test_a_refused_binding_is_forgotten_and_tried_again() -> None:
    """403 and 429 on the Binding charge nothing for long: the pod comes back after its back-off."""
    async with running() as operator:
        operator.api.faults.refuse(Forbidden("no", status=403), verb="bind")
        operator.api.faults.refuse(TooManyRequests("slow down"), verb="bind")
        operator.server.put(SHAREPODS, sharepod("bert", 2))
        await operator.settle()

        assert 2 == len(bound(operator.server))
        assert {} == dict(operator.engine.cache.assumptions)


async def test_a_pod_that_somebody_else_bound_is_charged_and_left_alone() -> None:
    """A Binding that isn't ours is never fought: the pod counts where it is, and is not bound again."""
    async with running() as operator:
        server = operator.server
        operator.leading = False
        server.put(
            PODS,
            {
                "metadata": {"name": "alien", "namespace": "default"},
                "spec": {"schedulerName": names.SCHEDULER_NAME, "containers": [{"name": "c", "image": "i"}]},
            },
        )
        await operator.settle()
        operator.api.faults.refuse(Conflict("already assigned", status=409), verb="bind")
        alien = server.pods()["alien"]
        server.bind("default", "alien", alien["metadata"]["uid"], "gpu-a", {})
        operator.leading = True
        operator.engine.leadership_won()
        await operator.settle()

        binds = [write for write in server.writes if write.verb == "bind" and write.client == "operator"]
        assert [] == binds
        assert 109 == operator.engine.cache.snapshot.nodes["gpu-a"].free_pods


async def test_a_standby_writes_nothing_and_takes_over_warm() -> None:
    """Without the Lease nothing is decided or written; with it everything goes on at once."""
    async with running() as operator:
        operator.leading = False
        before = len(operator.server.writes)
        operator.server.put(SHAREPODS, sharepod("bert", 2))
        await asyncio.sleep(60)
        assert [] == [write for write in operator.server.writes[before:] if write.client == "operator"]

        operator.leading = True
        operator.engine.leadership_won()
        await operator.settle()
        assert 2 == len(bound(operator.server))


@pytest.mark.parametrize("kind", ["lost", "doubled", "gone"])
async def test_a_watch_that_lies_is_healed_by_the_next_list(kind: str) -> None:
    """Events lost, doubled or cut off by 410: equal again after a resync at the latest, never over-committed meanwhile."""
    async with running(resync_interval=60.0) as operator:
        server = operator.server
        number = 0

        def tamper(event: WatchEvent) -> Sequence[WatchEvent]:
            nonlocal number
            number += 1
            if kind == "lost":
                return () if number % 3 == 0 else (event,)
            return (event, event)

        operator.api.tamper = tamper
        server.put(SHAREPODS, sharepod("bert", 4))
        await asyncio.sleep(5)
        if kind == "gone":
            operator.api.end_watches(Gone("too old", status=410))
        server.put(SHAREPODS, sharepod("late", 2, request=0.1))
        await asyncio.sleep(150)
        server.run_pods()
        await operator.settle()
        server.remove(SHAREPODS, "bert", "default")
        server.collect_garbage()
        await operator.settle()
        await asyncio.sleep(150)
        await operator.settle()

        assert 2 == len(bound(server))
        node_now = operator.engine.cache.snapshot.nodes["gpu-a"]
        assert 2000 - 200 == node_now.free_milli


async def test_two_pods_on_one_share_are_parted() -> None:
    """A double booking by a second operator is found, the pod bound last is deleted with an event, and placed anew."""
    async with running() as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("bert", 1, request=1))
        await operator.settle()
        (first,) = bound(server)
        copied = server.pods()[first.name]["metadata"]["annotations"]
        operator.leading = False
        server.put(SHAREPODS, sharepod("rival", 1, request=1))
        await asyncio.sleep(1)
        server.put(
            PODS,
            {
                "metadata": {"name": "rival-0", "namespace": "default", "annotations": {}},
                "spec": {"schedulerName": names.SCHEDULER_NAME, "containers": [{"name": "c", "image": "i"}]},
            },
        )
        uid = server.pods()["rival-0"]["metadata"]["uid"]
        server.bind("default", "rival-0", uid, "gpu-a", copied)
        operator.leading = True
        operator.engine.leadership_won()
        await asyncio.sleep(20)
        await operator.settle()

        assert first.uid in {record.uid for record in bound(server)}
        assert uid not in {record.uid for record in records(server)}
        assert [uid] == [event["regarding"]["uid"] for event in told(server, "DoubleBooked")]


async def test_a_sharepod_whose_deletion_nobody_told_is_found_out() -> None:
    """When the watch loses a SharePod's deletion, its vanished pods are not made again and again until the next list."""
    async with running() as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("bert", 2))
        await operator.settle()
        operator.api.tamper = lambda event: () if event.object["kind"] == names.KIND else (event,)
        before = len(server.writes)
        server.remove(SHAREPODS, "bert", "default")
        server.collect_garbage()
        await operator.settle()

        assert {} == server.pods()
        made = [write for write in server.writes[before:] if write.verb == "create" and write.resource is PODS]
        assert [] == made
