"""Preemption on the whole operator: the acceptance story, crashes at every write, and what must not happen."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.core.audit import Holding, violations
from sharepod_operator.kube.api import EVENTS, NODES, PDBS, PODS, PRIORITY_CLASSES, SHAREPODS
from sharepod_operator.kube.errors import ServerError
from sharepod_operator.manifest import names
from sharepod_operator.manifest.pod import read_pod
from tests.support.cluster_objects import node, priority_class, sharepod
from tests.support.memory_server import MemoryServer
from tests.support.operator import LoopClock, MemoryOperator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sharepod_operator.kube.api import Resource
    from sharepod_operator.manifest.records import Json, PodRecord

pytestmark = pytest.mark.looptime


def cluster(gpus: int = 2) -> MemoryServer:
    server = MemoryServer(clock=LoopClock())
    server.put(NODES, node("gpu-a", gpus))
    for name, value in (("high", 1000), ("middle", 100)):
        server.put(PRIORITY_CLASSES, priority_class(name, value))
    return server


@asynccontextmanager
async def running(gpus: int = 2, **settings: Any) -> AsyncIterator[MemoryOperator]:
    async with MemoryOperator(cluster(gpus), **settings) as operator:
        await operator.settle()
        yield operator


def pods_of(server: MemoryServer, sharepod_name: str) -> list[PodRecord]:
    found = [read_pod(pod) for pod in server.objects(PODS)]
    return [pod for pod in found if pod.owner is not None and pod.owner.name == sharepod_name]


def events(server: MemoryServer, reason: str, kind: str = "Pod") -> list[Json]:
    return [e for e in server.objects(EVENTS) if e["reason"] == reason and e["regarding"]["kind"] == kind]


def condition(server: MemoryServer, name: str, kind: str) -> tuple[str, str, str]:
    obj = server.find(SHAREPODS, name, "default")
    assert obj is not None
    found = next(c for c in obj["status"]["conditions"] if c["type"] == kind)
    return found["status"], found["reason"], found["message"]


async def test_a_more_important_pod_gets_its_gpu() -> None:
    """The victim is told once and gets its grace; its GPU is kept for the preemptor, whoever else would like it."""
    async with running() as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("low", 1, request=1, count=2))
        await operator.settle()
        (victim,) = pods_of(server, "low")
        server.put(SHAREPODS, sharepod("urgent", 1, request=1, priority="high"))
        await asyncio.sleep(5)  # nobody ends the victim yet

        (preemptor,) = pods_of(server, "urgent")
        assert ("", "gpu-a") == (preemptor.node, preemptor.nominated)
        assert preemptor.nomination is not None
        told = events(server, "Preempted")
        assert [(victim.uid, f"Preempted by {preemptor.key} on node gpu-a")] == [
            (event["regarding"]["uid"], event["note"]) for event in told
        ]
        assert ("Normal", "Preempting", preemptor.uid) == (
            told[0]["type"],
            told[0]["action"],
            told[0]["related"]["uid"],
        )
        assert 1 == len(events(server, "Preempted", "SharePod"))
        status, reason, text = condition(server, "urgent", "Scheduled")
        assert ("False", "WaitingForVictims") == (status, reason)
        assert "Evicting 1 pod with lower priority from GPU-gpu-a-" in text
        assert text.endswith(f"on node gpu-a: {victim.key} (0); own priority 1000")
        assert "PreemptedByPriority" == condition(server, "low", "Preempted")[1]

        server.put(SHAREPODS, sharepod("sneaky", 1, request=1))  # the promised GPU isn't for this one, the other one is
        await operator.settle()  # now the victim ends
        (preemptor,) = pods_of(server, "urgent")
        assert preemptor.allocation is not None
        assert ("gpu-a", None) == (preemptor.node, preemptor.nomination)
        assert "" == server.pods()[preemptor.name]["metadata"]["annotations"][names.NOMINATION]
        (sneaky,) = pods_of(server, "sneaky")
        assert sneaky.allocation is not None
        assert set(preemptor.allocation.uuids).isdisjoint(sneaky.allocation.uuids)
        (replacement,) = pods_of(server, "low")
        assert ("", "") == (replacement.node, replacement.nominated)
        await asyncio.sleep(300)
        assert preemptor.uid == pods_of(server, "urgent")[0].uid
        assert 1 == len(events(server, "Preempted"))


async def test_only_whom_it_takes_and_nobody_of_equal_priority() -> None:
    """A half at 0 goes for a half at 1000; another one at 1000 then waits, in counts."""
    async with running(1) as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("low", 2))
        await operator.settle()
        server.put(SHAREPODS, sharepod("urgent", 3, priority="high"))
        await operator.settle()

        assert 2 == sum(bool(pod.node) for pod in pods_of(server, "urgent"))
        assert 0 == sum(bool(pod.node) for pod in pods_of(server, "low"))
        (waiting,) = [pod for pod in pods_of(server, "urgent") if not pod.node]
        assert waiting.scheduled_message.endswith(
            "preemption: 0/1 GPUs can be freed: 1 No preemption victims found for incoming pod."
        )
        assert 2 == len(events(server, "Preempted"))


async def test_a_budget_counts_evictions_that_it_does_not_know_of_yet() -> None:
    """Two preemptors at once: the second spares the budget that the first has used up, though its status says 1 still."""
    async with running(3) as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("guarded", 2, request=1))
        await operator.settle()
        server.put(SHAREPODS, sharepod("free", 1, request=1, priority="middle"))
        await operator.settle()
        server.put(
            PDBS,
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "pdb", "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": "guarded"}}},
                "status": {"disruptionsAllowed": 1},
            },
        )
        await asyncio.sleep(1)
        operator.engine.feeds["poddisruptionbudgets"].request_resync()
        await asyncio.sleep(2)
        server.put(SHAREPODS, sharepod("urgent", 2, request=1, priority="high"))
        await operator.settle()

        assert 2 == sum(bool(pod.node) for pod in pods_of(server, "urgent"))
        by_urgent = [event for event in events(server, "Preempted") if "default/urgent" in event["note"]]
        assert ["free", "guarded"] == sorted(event["regarding"]["name"].rpartition("-")[0] for event in by_urgent)


async def test_outranked_while_its_nomination_is_under_way() -> None:
    """Who loses the room before that was written evicts nobody any more, and no promise stays on it."""
    async with running(1) as operator:
        server, gate = operator.server, asyncio.Event()
        server.put(SHAREPODS, sharepod("low", 2))
        await operator.settle()
        patch = operator.api.patch

        async def slow(resource: Resource, name: str, body: Json, **more: Any) -> Json:
            if name.startswith("mid-") and names.NOMINATION in body.get("metadata", {}).get("annotations", {}):
                await gate.wait()
            return await patch(resource, name, body, **more)

        operator.api.patch = slow  # type: ignore[assignment,method-assign]
        server.put(SHAREPODS, sharepod("mid", 1, priority="middle"))
        await asyncio.sleep(2)
        server.put(SHAREPODS, sharepod("urgent", 1, request=1, priority="high"))
        await asyncio.sleep(2)
        gate.set()
        await operator.settle()

        (urgent,), (mid,) = pods_of(server, "urgent"), pods_of(server, "mid")
        assert "gpu-a" == urgent.node
        assert ("", "", None) == (mid.node, mid.nominated, mid.nomination)
        assert [f"Preempted by {urgent.key} on node gpu-a"] * 2 == [e["note"] for e in events(server, "Preempted")]


async def test_others_are_spared_where_a_setting_says_so() -> None:
    """With victims=own a pod of another scheduler stays, whatever its priority."""
    async with running(1, victims="own") as operator:
        server = operator.server
        server.put(
            PODS,
            {
                "metadata": {"name": "alien", "namespace": "default"},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        )
        uid = server.pods()["alien"]["metadata"]["uid"]
        node_now = server.objects(NODES)[0]
        node_now["status"]["allocatable"]["pods"] = "1"
        server.put(NODES, node_now)
        server.bind("default", "alien", uid, "gpu-a", {})
        server.put(SHAREPODS, sharepod("urgent", 1, priority="high"))
        await operator.settle()

        assert [] == events(server, "Preempted")
        assert uid == server.pods()["alien"]["metadata"]["uid"]


async def test_a_victim_that_never_ends_is_not_waited_for() -> None:
    """Two minutes past its grace it is stuck: said once, its room promised to nobody, and another victim is found."""
    async with running(2) as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("low", 2, request=1))
        await operator.settle()
        server.put(SHAREPODS, sharepod("urgent", 1, request=1, priority="high"))
        await asyncio.sleep(5)
        (stuck,) = [pod for pod in pods_of(server, "low") if pod.deleting]
        await asyncio.sleep(200)
        assert 1 == len(events(server, "VictimStuck"))
        leaving = {pod.uid for pod in pods_of(server, "low") if pod.deleting}
        assert stuck.uid in leaving
        assert 2 == len(leaving)
        (other,) = leaving - {stuck.uid}
        server.remove(PODS, next(p.name for p in pods_of(server, "low") if p.uid == other), "default")
        await asyncio.sleep(10)
        (preemptor,) = pods_of(server, "urgent")
        assert preemptor.node


async def test_a_refused_deletion_is_tried_again() -> None:
    """The API server's failures on the way cost time, not the outcome: one event, one deletion that counts."""
    async with running(1) as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("low", 1, request=1))
        await operator.settle()
        operator.api.faults.refuse(ServerError("no", status=500), verb="delete", resource=PODS, times=2)
        server.put(SHAREPODS, sharepod("urgent", 1, request=1, priority="high"))
        await asyncio.sleep(20)
        await operator.settle()

        assert [True] == [bool(pod.node) for pod in pods_of(server, "urgent")]
        assert 1 == len(events(server, "Preempted"))


async def live(fault: tuple[str, int] | None) -> tuple[Json, int]:
    """Low pods run, an urgent one comes; the end, and the first process's number of writes from then on."""
    server = cluster(2)
    operator = MemoryOperator(server)
    await operator.__aenter__()
    try:
        server.put(SHAREPODS, sharepod("low", 4))
        await operator.settle()
        before = len(operator.api.sent)
        first = operator
        if fault is not None:
            setattr(operator.api.faults, fault[0], fault[1] + before)
        server.put(SHAREPODS, sharepod("urgent", 1, request=1, priority="high"))
        await asyncio.sleep(2)
        await operator.settle()
        if operator.crashed:
            await operator.__aexit__()
            operator = MemoryOperator(server, identity="two")
            await operator.__aenter__()
            await operator.settle()
        holdings = [
            Holding(pod.uid, pod.key, pod.node, pod.allocation, pod.pod.created)
            for pod in (read_pod(each) for each in server.objects(PODS))
            if pod.allocation is not None
        ]
        assert [] == violations(holdings)
        told = Counter(event["regarding"]["uid"] for event in events(server, "Preempted"))
        assert {1} == set(told.values())
        urgent = pods_of(server, "urgent")
        return (
            {
                "urgent": [pod.allocation.uuids if pod.allocation else () for pod in urgent],
                "victims": sorted(event["regarding"]["name"] for event in events(server, "Preempted")),
                "low": sorted(pod.allocation.uuids if pod.allocation else () for pod in pods_of(server, "low")),
                "conditions": [condition(server, name, "Scheduled")[:2] for name in ("low", "urgent")],
            },
            len(first.api.sent) - before,
        )
    finally:
        await operator.__aexit__()


async def test_killed_at_any_write_the_same_preemptor_gets_the_same_gpu() -> None:
    """Before and after every write, or with an answer or a request lost: the same victims, once, and the same end."""
    expected, writes = await live(None)
    assert 2 == len(expected["victims"])
    assert writes > 10
    for number in range(1, writes + 1):
        for kind in ("crash_before", "crash_after", "lose_answer", "lose_request"):
            found, _ = await live((kind, number))
            assert expected == found, f"{kind} {number}"


@pytest.mark.parametrize("trouble", ["cordoned", "gone"])
async def test_a_promise_on_a_node_that_is_no_use_any_more_is_dropped(trouble: str) -> None:
    """The nominated node is cordoned or deleted while the victim leaves: room is made on another node instead."""
    async with running(1) as operator:
        server = operator.server
        server.put(NODES, node("gpu-b", 1))
        server.put(SHAREPODS, sharepod("low", 2, request=1))
        await operator.settle()
        server.put(SHAREPODS, sharepod("urgent", 1, request=1, priority="high"))
        await asyncio.sleep(3)
        (preemptor,) = pods_of(server, "urgent")
        first = preemptor.nominated
        if trouble == "gone":
            server.remove(NODES, first)
        else:
            cordoned = server.find(NODES, first)
            assert cordoned is not None
            cordoned["spec"] = {**cordoned.get("spec", {}), "unschedulable": True}
            server.put(NODES, cordoned)
        await asyncio.sleep(20)
        (preemptor,) = pods_of(server, "urgent")
        assert {"gpu-a", "gpu-b"} - {first} == {preemptor.nominated}
        await operator.settle()
        (preemptor,) = pods_of(server, "urgent")
        assert preemptor.node not in ("", first)
