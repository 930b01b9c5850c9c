"""What the controller sees of pods is what the cache has now, however often it has looked before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.cache.cache import Cache, Verdict
from sharepod_operator.controller.view import replica_states
from sharepod_operator.manifest import names
from tests.support.objects import node_object, of_sharepod, pod_object, sharepod_object

if TYPE_CHECKING:
    from sharepod_operator.core.replicas import ReplicaState


@pytest.fixture
def cache() -> Cache:
    """One SharePod with one pod that waits, and one node."""
    found = Cache()
    found.store("sharepods").observe("ADDED", sharepod_object())
    found.store("nodes").observe("ADDED", node("1"))
    found.observe_pod(pod("1"))
    return found


def pod(version: str, **spec: Any) -> dict[str, Any]:
    written = pod_object(metadata=of_sharepod(), **spec)
    written["metadata"]["resourceVersion"] = version
    return written


def node(version: str, *, ready: str = "True") -> dict[str, Any]:
    written = node_object()
    written["metadata"]["resourceVersion"] = version
    written["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    return written


def look(cache: Cache) -> ReplicaState:
    (sharepod,) = cache.sharepods.values()
    (state,) = replica_states(sharepod, cache)
    return state


def test_an_unchanged_pod_is_not_read_again(cache: Cache) -> None:
    """A thousand replicas that start are looked at many times, and most of them have not changed since."""
    assert look(cache) is look(cache)


def test_a_new_verdict_is_seen(cache: Cache) -> None:
    """A waiting pod's reason is part of its state."""
    before = look(cache)
    cache.judge(before.uid, Verdict("Unschedulable", "no room"))

    assert ("", "Unschedulable") == (before.verdict_reason, look(cache).verdict_reason)


def test_a_changed_pod_is_seen(cache: Cache) -> None:
    """Also where nothing but its node is new."""
    before = look(cache)
    cache.observe_pod(pod("2", nodeName="gpu-a"))

    assert ("", "gpu-a") == (before.node, look(cache).node)


def test_a_changed_node_is_seen(cache: Cache) -> None:
    """The pod's record is the same as before, its node has failed."""
    cache.observe_pod(pod("2", nodeName="gpu-a"))
    before = look(cache)
    cache.store("nodes").observe("MODIFIED", node("2", ready="False"))

    assert (True, False) == (before.node_ready, look(cache).node_ready)


def test_a_changed_template_is_seen(cache: Cache) -> None:
    """The pod's record is the same as before, but it is no longer what the SharePod asks for."""
    (sharepod,) = cache.sharepods.values()
    current = pod("3", nodeName="gpu-a")
    current["metadata"].setdefault("annotations", {})[names.TEMPLATE_HASH] = sharepod.template_hash
    cache.observe_pod(current)
    before = look(cache)
    edited = sharepod_object(pod_spec={"priorityClassName": "high"})
    edited["metadata"] |= {"resourceVersion": "8", "generation": 3}
    cache.store("sharepods").observe("MODIFIED", edited)

    assert (True, False) == (before.current, look(cache).current)
