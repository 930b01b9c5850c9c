"""The whole operator, killed before and after every write of a SharePod's life: it ends where it would have ended anyway."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from sharepod_operator.core.audit import Holding, violations
from sharepod_operator.kube.api import EVENTS, NODES, PODS, SHAREPODS
from sharepod_operator.manifest.pod import read_pod
from tests.support.cluster_objects import node, sharepod
from tests.support.memory_server import MemoryServer
from tests.support.operator import LoopClock, MemoryOperator

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod_operator.manifest.records import Json


def scale(server: MemoryServer, name: str, replicas: int) -> None:
    found = server.find(SHAREPODS, name, "default")
    assert found is not None
    found["spec"]["replicas"] = replicas
    server.put(SHAREPODS, found)


def delete(server: MemoryServer, name: str) -> None:
    server.remove(SHAREPODS, name, "default")
    server.collect_garbage()


STEPS: tuple[Callable[[MemoryServer], object], ...] = (
    lambda server: server.put(SHAREPODS, sharepod("bert", 3)),
    lambda server: scale(server, "bert", 5),  # four fit
    lambda server: scale(server, "bert", 1),
    lambda server: server.put(SHAREPODS, sharepod("wide", 1, count=2, request=0.25)),
    lambda server: delete(server, "bert"),
    lambda server: delete(server, "wide"),
)


def facts(server: MemoryServer) -> Json:
    """What must be the same however often the operator was killed: not names and ports, which tell of the history, nor
    which of several equal cards it is.
    """
    pods = [read_pod(pod) for pod in server.objects(PODS)]
    holdings = [Holding(pod.uid, pod.key, pod.node, pod.allocation, pod.pod.created) for pod in pods if pod.allocation]
    assert [] == violations(holdings)
    return {
        "cards": sorted(Counter(uuid for pod in pods if pod.allocation for uuid in pod.allocation.uuids).values()),
        "waiting": sorted(pod.scheduled_message for pod in pods if not pod.node),
        "sharepods": [_told(obj) for obj in server.objects(SHAREPODS)],
        "events": sorted(
            (event["reason"], event["type"], event["regarding"]["kind"])
            for event in server.objects(EVENTS)
            if event["reason"] in ("Synced", "ScaledToZero")
        ),
    }


def _told(obj: Json) -> Json:
    status = obj["status"]
    return {
        "name": obj["metadata"]["name"],
        "counts": [status["replicas"], status["readyReplicas"], status["availableReplicas"]],
        "conditions": [(c["type"], c["status"], c["reason"], c["message"]) for c in status["conditions"]],
        "placements": len(status["placements"]),
        "observed": status["observedGeneration"] == obj["metadata"]["generation"],
    }


def assert_once(server: MemoryServer) -> None:
    """No pod is bound twice, and none is told twice that it was scheduled."""
    bound = Counter(
        (write.namespace, write.name) for write in server.writes if write.verb == "bind" and write.outcome == "ok"
    )
    told = Counter(event["regarding"]["uid"] for event in server.objects(EVENTS) if event["reason"] == "Scheduled")
    assert all(count == 1 for count in told.values()), told
    assert bound, "nothing was ever bound"


async def live(fault: tuple[str, int] | None) -> tuple[list[Json], int]:
    """The story from beginning to end; the facts after each step, and the first process's number of writes."""
    server = MemoryServer(clock=LoopClock())
    server.put(NODES, node("gpu-a", 2))
    operator = MemoryOperator(server)
    if fault is not None:
        setattr(operator.api.faults, *fault)
    first = operator
    await operator.__aenter__()
    seen = []
    try:
        for step in STEPS:
            step(server)
            await operator.settle()
            if operator.crashed:
                await operator.__aexit__()
                operator = MemoryOperator(server, identity="two")
                await operator.__aenter__()
                await operator.settle()
            seen.append(facts(server))
    finally:
        await operator.__aexit__()
    assert_once(server)
    assert {} == server.pods()
    return seen, len(first.api.sent)


@pytest.mark.looptime
async def test_killed_at_any_write_it_ends_where_it_would_have_ended() -> None:
    """Killed before or after the Nth write, or with its answer or the request lost, for every N: the same end states."""
    expected, writes = await live(None)
    assert writes > 20
    assert [2, 2] == expected[1]["cards"]
    for number in range(1, writes + 1):
        for kind in ("crash_before", "crash_after", "lose_answer", "lose_request"):
            seen, _ = await live((kind, number))
            for step, (wanted, found) in enumerate(zip(expected, seen, strict=True)):
                assert wanted == found, f"{kind} {number}, after step {step}"
            await asyncio.sleep(0)
