"""What the metrics say while the whole operator works: they are fed where things happen, not where they are defined."""

from __future__ import annotations

import pytest

from sharepod_operator.kube.api import NODES, SHAREPODS
from tests.support.cluster_objects import node, sharepod
from tests.support.exposition import families, value
from tests.support.memory_server import MemoryServer
from tests.support.operator import LoopClock, MemoryOperator

pytestmark = pytest.mark.looptime


async def test_a_scrape_tells_what_is_placed_what_waits_and_why() -> None:
    """Two whole GPUs are wanted, and there is one: attempts, refusals, waiting pods, shares and watch events say so."""
    server = MemoryServer(clock=LoopClock())
    server.put(NODES, node("gpu-a", 1))
    async with MemoryOperator(server) as operator:
        server.put(SHAREPODS, sharepod("bert", 2, request=1))
        await operator.settle()
        metrics = operator.engine.metrics

        assert 1 == value(metrics, "sharepod_scheduling_attempts_total", {"outcome": "placed"})
        assert 1 <= (value(metrics, "sharepod_scheduling_attempts_total", {"outcome": "unschedulable"}) or 0)
        assert 1 <= (value(metrics, "sharepod_scheduling_refusals_total", {"reason": "InsufficientShare"}) or 0)
        assert 1 == value(metrics, "sharepod_pod_bind_duration_seconds_count")
        assert 1 == value(metrics, "sharepod_pending_pods", {"reason": "Unschedulable"})
        assert 1 == value(metrics, "sharepod_sharepods", {"reason": "Unschedulable"})
        assert 1 == value(metrics, "sharepod_node_ports_used", {"node": "gpu-a"})
        assert [1.0] == [sample.value for sample in families(metrics)["sharepod_gpu_allocated_ratio"].samples]
        assert 1 == value(metrics, "sharepod_leader")
        assert 2 == value(metrics, "sharepod_watch_events_total", {"resource": "pods", "type": "ADDED"})
        assert 1 <= (value(metrics, "sharepod_watch_events_total", {"resource": "nodes", "type": "LISTED"}) or 0)
