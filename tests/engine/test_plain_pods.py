"""Pods that no SharePod made, on the whole operator: placed alike, or refused with what to do; and pods of others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.kube.api import EVENTS, NODES, PODS, PRIORITY_CLASSES, SHAREPODS
from sharepod_operator.manifest import names
from sharepod_operator.manifest.pod import read_pod
from tests.support.cluster_objects import GIB, node, sharepod
from tests.support.memory_server import MemoryServer
from tests.support.objects import container, seeing
from tests.support.operator import LoopClock, MemoryOperator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sharepod_operator.manifest.records import Json, PodRecord

pytestmark = pytest.mark.looptime


@asynccontextmanager
async def running(*gpus: int) -> AsyncIterator[MemoryOperator]:
    """An operator on nodes gpu-0, gpu-1, … of so many GPUs of 40Gi each."""
    server = MemoryServer(clock=LoopClock())
    for index, count in enumerate(gpus):
        server.put(NODES, node(f"gpu-{index}", count))
    async with MemoryOperator(server, scheduler_names=(names.SCHEDULER_NAME, "koord-scheduler")) as operator:
        await operator.settle()
        yield operator


def pod(name: str, gpu: int = 0, *, cpu: str = "100m", scheduler: str = names.SCHEDULER_NAME, **spec: Any) -> Json:
    """A plain Pod that asks for so many percent of a GPU."""
    limits = {"cpu": cpu, **({"koordinator.sh/gpu": str(gpu)} if gpu else {})}
    body = {"schedulerName": scheduler, "containers": [seeing(resources={"limits": limits})]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": body | spec}


def record(server: MemoryServer, name: str) -> PodRecord:
    return read_pod(server.pods()[name])


def events(server: MemoryServer, reason: str) -> list[Json]:
    return [event for event in server.objects(EVENTS) if event["reason"] == reason]


async def test_half_a_gpu_is_half_of_that_cards_memory_and_two_hundred_two_whole_ones() -> None:
    """The ledger holds bytes; a fraction blocks a whole request and the other way round; deletion frees."""
    async with running(2) as operator:
        server = operator.server
        server.put(PODS, pod("half", 50))
        await operator.settle()
        allocation = record(server, "half").allocation
        assert allocation is not None
        (charge,) = allocation.charges
        assert (500, 20 * GIB) == (charge.milli, charge.memory)
        assert charge.uuid == server.pods()["half"]["metadata"]["annotations"][names.GPU_UUIDS]

        server.put(PODS, pod("whole", 200, scheduler="koord-scheduler"))
        await operator.settle()
        assert "" == record(server, "whole").node
        assert "1 node(s) where 1 of 2 GPUs fit" in record(server, "whole").scheduled_message

        server.delete(PODS, "half", "default")
        await operator.settle()
        whole = record(server, "whole").allocation
        assert whole is not None
        assert [(1000, 40 * GIB)] * 2 == [(each.milli, each.memory) for each in whole.charges]


async def test_plain_pods_and_sharepods_share_one_ledger() -> None:
    """Half of a card by a SharePod and half by a Deployment's pod fill it."""
    async with running(1) as operator:
        server = operator.server
        server.put(SHAREPODS, sharepod("bert", 1))
        server.put(PODS, pod("plain", 50))
        await operator.settle()
        server.put(PODS, pod("late", 1))
        await operator.settle()
        assert ["late"] == [name for name in server.pods() if not record(server, name).node]


async def test_a_cpu_only_pod_is_placed_and_gets_no_ledger_entry() -> None:
    """It needs no environment."""
    async with running(0) as operator:
        operator.server.put(PODS, pod("web", containers=[container()]))
        await operator.settle()
        assert ("gpu-0", None) == (record(operator.server, "web").node, record(operator.server, "web").allocation)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"initContainers": [container("init")]}, "spec.initContainers[0] does not read its GPUs"),
        (
            {"containers": [seeing(resources={"limits": {"koordinator.sh/gpu": "150"}})]},
            "koordinator.sh/gpu: 150 is more than one GPU, so it must be a multiple of 100",
        ),
        (
            {"containers": [seeing(resources={"limits": {"koordinator.sh/gpu": "50", "nvidia.com/gpu": "1"}})]},
            "this scheduler does not implement resource nvidia.com/gpu, which the pod asks for",
        ),
    ],
)
async def test_a_pod_that_cannot_be_honoured_waits_with_one_sentence(spec: Json, words: str) -> None:
    """On the Pod, as condition and event; nothing is charged for it."""
    async with running(1) as operator:
        server = operator.server
        server.put(PODS, pod("bad", 50, **spec))
        await operator.settle()
        assert words in record(server, "bad").scheduled_message
        assert [words in event["note"] for event in events(server, "FailedScheduling")] == [True]
        assert {} == dict(operator.engine.cache.assignments)


async def test_a_forged_request_annotation_on_a_plain_pod_counts_for_nothing() -> None:
    """It is the controller's form; here the pod is one without a GPU."""
    async with running(1) as operator:
        forged = pod("forged")
        forged["metadata"]["annotations"] = {
            names.GPU_REQUEST: '{"requestMilli": 1000, "limitMilli": 1000, "memory": 0, "count": 1}'
        }
        operator.server.put(PODS, forged)
        await operator.settle()
        assert ("gpu-0", None) == (record(operator.server, "forged").node, record(operator.server, "forged").allocation)


async def test_a_gated_pod_is_placed_once_its_gates_are_gone() -> None:
    """Until then it is no business of the scheduler: no reason, no event."""
    async with running(1) as operator:
        server = operator.server
        server.put(PODS, pod("gated", 50, schedulingGates=[{"name": "example.com/quota"}]))
        await operator.settle()
        assert ("", "") == (record(server, "gated").node, record(server, "gated").scheduled_message)

        body = server.pods()["gated"]
        server.put(PODS, {**body, "spec": {key: body["spec"][key] for key in body["spec"] if key != "schedulingGates"}})
        await operator.settle()
        assert "gpu-0" == record(server, "gated").node


def nominated(body: Json, name: str) -> Json:
    return {**body, "status": {"phase": "Pending", "nominatedNodeName": name}}


async def test_a_nominated_node_is_taken_where_it_fits() -> None:
    """As kube-scheduler does; otherwise the best of the others."""
    async with running(1, 1) as operator:
        server = operator.server
        server.put(PODS, nominated(pod("wanted", 50), "gpu-1"))
        await operator.settle()
        server.put(PODS, nominated(pod("other", 60), "gpu-1"))
        await operator.settle()
        assert ["gpu-1", "gpu-0"] == [record(server, name).node for name in ("wanted", "other")]


async def test_room_that_another_scheduler_has_promised_is_spoken_for() -> None:
    """CPU and memory count, against pods of equal or lower priority; when the promise ends, the room is there."""
    async with running(1) as operator:
        server = operator.server
        for name, value in (("mid", 10), ("high", 11)):
            server.put(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
        theirs = pod("theirs", cpu="30", scheduler="default-scheduler", priorityClassName="mid")
        server.put(PODS, nominated(theirs, "gpu-0"))
        await operator.settle()
        server.put(PODS, pod("equal", 10, cpu="4", priorityClassName="mid"))
        server.put(PODS, pod("higher", 10, cpu="4", priorityClassName="high"))
        await operator.settle()
        assert "gpu-0" == record(server, "higher").node
        assert "Insufficient cpu" in record(server, "equal").scheduled_message

        server.remove(PODS, "theirs", "default")
        await operator.settle()
        assert "gpu-0" == record(server, "equal").node


async def test_a_foreign_binding_of_a_gpu_pod_is_told_once_charged_and_left_alone() -> None:
    """Nobody else is placed in its CPU; it is not bound again, also not by the next operator."""
    async with running(1) as operator:
        server = operator.server
        operator.leading = False
        server.put(PODS, pod("alien", 50, cpu="30"))
        await operator.settle()
        server.bind("default", "alien", server.pods()["alien"]["metadata"]["uid"], "gpu-0", {})
        operator.leading = True
        operator.engine.leadership_won()
        server.put(PODS, pod("next", 10, cpu="4"))
        await asyncio.sleep(60)
        await operator.settle()

        (event,) = events(server, "ForeignBinding")
        assert ("Warning", "alien") == (event["type"], event["regarding"]["name"])
        assert "Bound to node gpu-0 by somebody else than sharepod-scheduler" in event["note"]
        assert None is record(server, "alien").allocation
        assert "Insufficient cpu" in record(server, "next").scheduled_message

    async with MemoryOperator(server) as second:
        await asyncio.sleep(60)
        await second.settle()
        assert 1 == len(events(server, "ForeignBinding"))
    assert [] == [write for write in server.writes if write.verb == "bind" and write.client == "operator"]


async def test_pods_of_other_schedulers_are_charged_wherever_they_are() -> None:
    """Their CPU is gone for ours, and they are never touched."""
    async with running(1) as operator:
        server = operator.server
        server.put(PODS, pod("theirs", cpu="30", scheduler="default-scheduler", nodeName="gpu-0"))
        server.put(PODS, pod("pending", 50, scheduler="default-scheduler"))
        server.put(PODS, pod("ours", 10, cpu="4"))
        await operator.settle()
        assert "Insufficient cpu" in record(server, "ours").scheduled_message
        assert "" == record(server, "pending").node
        assert [] == events(server, "ForeignBinding")
