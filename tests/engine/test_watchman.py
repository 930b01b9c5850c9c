"""What is wrong with nodes and ledger entries is said once, where people look, and costs nobody a promise."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from sharepod_operator.kube.api import EVENTS, NODES, PODS, SHAREPODS
from sharepod_operator.manifest import names
from sharepod_operator.manifest.pod import read_pod
from tests.support.cluster_objects import node, sharepod
from tests.support.memory_server import MemoryServer
from tests.support.operator import LoopClock, MemoryOperator

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

pytestmark = pytest.mark.looptime


def told(server: MemoryServer, reason: str) -> list[tuple[str, str]]:
    return [(e["regarding"]["name"], e["note"]) for e in server.objects(EVENTS) if e["reason"] == reason]


def with_inventory(name: str, inventory: str) -> Json:
    body = node(name, 1)
    body["metadata"]["annotations"][names.GPU_INVENTORY] = inventory
    return body


async def test_an_inventory_that_cant_be_read_is_said_on_the_node() -> None:
    """The node offers nothing; its event says what is wrong with the annotation, once, and again only if it is another."""
    server = MemoryServer(clock=LoopClock())
    server.put(NODES, with_inventory("gpu-a", '{"gpus": ['))
    async with MemoryOperator(server) as operator:
        await operator.settle()
        ((where, text),) = told(server, "InvalidInventory")
        assert "gpu-a" == where
        assert text.startswith("Node gpu-a: faasshare.tum/gpu-inventory: it is not JSON")
        operator.engine.leadership_won()
        await operator.settle()
        assert 1 == len(told(server, "InvalidInventory"))
        server.put(NODES, node("gpu-a", 1))
        server.put(SHAREPODS, sharepod("bert", 1))
        await operator.settle()
        assert ["gpu-a"] == [pod["spec"]["nodeName"] for pod in server.objects(PODS)]


async def test_a_gpu_in_two_inventories_is_promised_to_nobody() -> None:
    """Two full shares of one card on two nodes would both be sold; instead the nodes' events say what to mend."""
    server = MemoryServer(clock=LoopClock())
    twin = json.dumps({"source": "admin", "gpus": [{"uuid": "GPU-twin", "memory": 40 << 30}]})
    for name in ("gpu-a", "gpu-b"):
        server.put(NODES, with_inventory(name, twin))
    async with MemoryOperator(server) as operator:
        server.put(SHAREPODS, sharepod("bert", 2, request=1))
        await operator.settle()
        assert {"gpu-a", "gpu-b"} >= {where for where, _ in told(server, "InvalidInventory")} > set()
        assert [None, None] == [pod["spec"].get("nodeName") for pod in server.objects(PODS)]
        server.put(NODES, node("gpu-b", 0))
        await operator.settle()
        assert ["gpu-a"] == [pod["spec"]["nodeName"] for pod in server.objects(PODS) if pod["spec"].get("nodeName")]


async def test_a_changed_ledger_entry_changes_nothing_that_is_charged() -> None:
    """Whoever edits the allocation of a bound pod frees no share by it; the pod's event says that it was edited."""
    server = MemoryServer(clock=LoopClock())
    server.put(NODES, node("gpu-a", 1))
    async with MemoryOperator(server) as operator:
        server.put(SHAREPODS, sharepod("bert", 1, request=1))
        await operator.settle()
        (pod,) = server.objects(PODS)
        for entry in ("", "garbage"):
            pod["metadata"]["annotations"][names.ALLOCATION] = entry
            server.put(PODS, pod)
            await asyncio.sleep(1)
        server.put(SHAREPODS, sharepod("thief", 1, request=1))
        await operator.settle()

        placed = [each for each in server.objects(PODS) if each["spec"].get("nodeName")]
        assert [pod["metadata"]["name"]] == [each["metadata"]["name"] for each in placed]
        ((where, text),) = told(server, "LedgerChanged")
        assert pod["metadata"]["name"] == where
        assert "was changed after the pod was bound" in text
        assert read_pod(placed[0]).allocation is None
