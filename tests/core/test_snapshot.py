"""The ledger: charges of pods whose node or GPU is not there, replaced pods, shared UUIDs, and the audit itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharepod_operator.core.model import (
    Allocation,
    Assigned,
    Charge,
    Constraints,
    Device,
    GPURequest,
    HostPort,
    Node,
    Shape,
)
from sharepod_operator.core.placement import place
from sharepod_operator.core.ports import next_port
from sharepod_operator.core.reasons import NodeReason
from sharepod_operator.core.refusal import refuse
from sharepod_operator.core.score import policy
from sharepod_operator.core.snapshot import Snapshot
from tests.support.placing import GI, gpu, held, node, placed, reasons, shape

A = node("a", gpu("a0"), gpu("a1"))


def test_a_pod_of_an_unknown_node_counts_when_the_node_appears() -> None:
    """A pod may be seen before its node."""
    snapshot = Snapshot()
    snapshot.add(held("h", "a", "a0", milli=700))
    snapshot.validate()
    snapshot.set_node(A)
    snapshot.validate()
    assert 300 == snapshot.nodes["a"].devices["a0"].free


def test_a_pod_of_an_unknown_gpu_counts_when_the_gpu_appears() -> None:
    """An inventory may lose a card for a while; nobody else gets that share."""
    snapshot = Snapshot([node("a", gpu("a1"))])
    snapshot.add(held("h", "a", "a0", milli=700, cpu=500))
    assert 63_500 == snapshot.nodes["a"].free_cpu
    snapshot.set_node(A)
    snapshot.validate()
    assert 300 == snapshot.nodes["a"].devices["a0"].free
    snapshot.set_node(node("a", gpu("a1")))
    snapshot.remove("h")
    snapshot.set_node(A)
    snapshot.validate()
    assert 1000 == snapshot.nodes["a"].devices["a0"].free


def test_a_node_that_goes_and_comes_back_keeps_its_pods() -> None:
    """They hold their room until they are gone themselves."""
    snapshot = Snapshot([A])
    snapshot.add(held("h", "a", "a0", milli=700))
    snapshot.remove_node("a")
    snapshot.remove_node("a")
    assert {} == reasons(snapshot, shape(100))
    snapshot.set_node(A)
    assert ("a", ("a0",)) == placed(snapshot, shape(100))


def test_a_pod_added_again_replaces_its_record() -> None:
    """Also where it names another node."""
    snapshot = Snapshot([A, node("b", gpu("b0"))])
    snapshot.add(held("h", "a", "a0", milli=700))
    snapshot.add(held("h", "b", "b0", milli=200))
    snapshot.validate()
    assert (1000, 800) == (snapshot.nodes["a"].devices["a0"].free, snapshot.nodes["b"].devices["b0"].free)
    assert ["h"] == list(snapshot.pods_on("b"))
    assert {} == snapshot.pods_on("a")


def test_beyond_its_size_a_gpu_takes_only_what_asks_nothing() -> None:
    """What is there is charged as it is: free is below zero, and a zero request still never fails."""
    snapshot = Snapshot([node("a", gpu("a0"))])
    snapshot.add(held("h0", "a", "a0", milli=800, memory=39 * GI))
    snapshot.add(held("h1", "a", "a0", milli=800, memory=39 * GI))
    state = snapshot.nodes["a"].devices["a0"]
    assert (-600, -38 * GI) == (state.free, state.memory_free)
    assert {"a0": "InsufficientShare"} == reasons(snapshot, shape(1))
    assert ("a", ("a0",)) == placed(snapshot, shape(0))
    snapshot.remove("h0")
    assert ("a", ("a0",)) == placed(snapshot, shape(200))


def test_a_gpu_whose_pods_disagree_on_the_exclusion_tag_takes_nobody() -> None:
    """Every newcomer would break the rule with one of them."""
    snapshot = Snapshot([node("a", gpu("a0"))])
    snapshot.add(held("h0", "a", "a0", exclusion="x"))
    snapshot.add(held("h1", "a", "a0"))
    assert {"a0": "ExclusionConflict"} == reasons(snapshot, shape(1))
    assert {"a0": "ExclusionConflict"} == reasons(snapshot, shape(1, exclusion="x"))


def test_taking_pods_out_and_putting_them_back_restores_everything() -> None:
    """A dry run needs no copy, in whatever order it is undone."""
    snapshot = Snapshot([A])
    pods = [held(f"h{i}", "a", "a0", "a1", port=50051 + i, affinity="x", virtual_id="v") for i in range(3)]
    for pod in pods:
        snapshot.add(pod)
    before = {uuid: replace(state) for uuid, state in snapshot.nodes["a"].devices.items()}
    assert pods == [snapshot.remove(pod.uid) for pod in pods]
    snapshot.validate()
    assert 2 == snapshot.nodes["a"].idle
    for pod in reversed(pods):
        snapshot.add(pod)
    snapshot.validate()
    assert before == snapshot.nodes["a"].devices
    assert 0b111 == snapshot.used_ports("a")


def test_an_equal_record_of_a_node_changes_nothing() -> None:
    """Nodes report often and change rarely."""
    snapshot = Snapshot([A])
    version = snapshot.version
    snapshot.set_node(replace(A))
    assert version == snapshot.version


def test_clear_forgets_nodes_and_pods_but_not_that_time_went_on() -> None:
    """A version seen before is never seen again with other contents."""
    snapshot = Snapshot([A])
    snapshot.add(held("h", "a", "a0"))
    version = snapshot.version
    snapshot.clear()
    snapshot.validate()
    assert ([], {}, True) == (snapshot.names, dict(snapshot.pods), snapshot.version > version)
    assert 0 == snapshot.used_ports("a")


@pytest.mark.parametrize("field", ["free_cpu", "free_memory", "free_pods", "idle", "whole", "free_milli", "used_ports"])
def test_the_audit_finds_a_wrong_amount_and_tells_where(field: str) -> None:
    """The message names node, field and both values."""
    snapshot = Snapshot([A])
    state = snapshot.nodes["a"]
    setattr(state, field, getattr(state, field) + 1)
    with pytest.raises(AssertionError, match=f"^node a: {field} is "):
        snapshot.validate()


def test_the_audit_finds_a_wrong_gpu_and_a_wrong_index() -> None:
    """Free share, and an index that no longer agrees with it."""
    snapshot = Snapshot([A])
    snapshot.nodes["a"].devices["a0"].free = 999
    with pytest.raises(AssertionError, match=r"^node a: devices is "):
        snapshot.validate()
    other = Snapshot([A])
    other.validate()
    other._open.clear()
    with pytest.raises(AssertionError, match=r"^the index holds "):
        other.validate()


def test_a_gpu_that_two_nodes_claim_takes_nobody_until_one_gives_it_up() -> None:
    """Nobody knows where such a GPU is: two full shares on it would be two promises of one card."""
    a, b = (Node(name, devices=(Device("GPU-x", 40), Device(f"GPU-{name}", 40))) for name in "ab")
    snapshot = Snapshot([a, b])
    pinned = Shape(gpu=GPURequest(1000, 1000, device_ids=("GPU-x",)))
    assert place(snapshot, pinned, policy("bestFit")) is None
    snapshot.validate()
    snapshot.set_node(replace(b, devices=b.devices[1:]))
    assert {"a"} == snapshot.owners("GPU-x")
    placed = place(snapshot, pinned, policy("bestFit"))
    assert placed is not None
    assert "a" == placed.node
    snapshot.validate()


def test_host_ports_and_pod_manager_ports_are_ports_of_one_machine() -> None:
    """A port that a pod binds on the node isn't drawn for the GPU daemon, and one of the daemon's isn't given away."""
    snapshot = Snapshot([Node("a", devices=(Device("GPU-a", 40),))])
    snapshot.add(Assigned("host", "a", host_ports=(HostPort(50051),)))
    assert (50052, 2) == next_port(snapshot.taken_ports("a"), 0, snapshot.ports)
    snapshot.add(Assigned("gpu", "a", allocation=Allocation((Charge("GPU-a", 100, 1),), port=50052)))
    wants = Shape(constraints=Constraints(host_ports=(HostPort(50052),)))
    answer = refuse(snapshot, wants)
    assert NodeReason.HOST_PORT_CONFLICT == answer.nodes["a"].reason
    snapshot.remove("host")
    assert snapshot.used_ports("a") == snapshot.taken_ports("a")
    snapshot.validate()
