"""Node filters that the published cases do not touch, and their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharepod_operator.core.model import (
    Allocation,
    Assigned,
    Charge,
    Constraints,
    HostPort,
    Requirement,
    Resources,
    SelectorTerm,
    Taint,
    Toleration,
)
from sharepod_operator.core.ports import PortRange
from sharepod_operator.core.snapshot import Snapshot
from tests.support.placing import gpu, held, node, placed, reasons, shape

NIC = Resources(extended=(("example.com/nic", 2),))


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration("k", "Equal", "v", "NoSchedule"), True),
        (Toleration("k", "", "v"), True),
        (Toleration("k", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "Exists", effect="NoExecute"), False),
        (Toleration("k", "Equal", "w"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("k", "Gt", "v"), False),
    ],
)
def test_tolerations(toleration: Toleration, tolerated: bool) -> None:  # noqa: FBT001
    """As Kubernetes matches them; an operator that it does not know tolerates nothing."""
    tainted = replace(node("a", gpu("a0")), taints=(Taint("k", "v", "NoSchedule"),))
    wanted = shape(500, constraints=Constraints(tolerations=(toleration,)))
    if tolerated:
        assert ("a", ("a0",)) == placed(Snapshot([tainted]), wanted)
    else:
        assert {"a": "Taint"} == reasons(Snapshot([tainted]), wanted)


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        (Requirement("gen", "In", ("7", "8")), True),
        (Requirement("none", "In", ("",)), False),
        (Requirement("none", "NotIn", ("7",)), True),
        (Requirement("gen", "Exists"), True),
        (Requirement("none", "Exists"), False),
        (Requirement("none", "DoesNotExist"), True),
        (Requirement("gen", "Gt", ("6",)), True),
        (Requirement("gen", "Gt", ("7",)), False),
        (Requirement("gen", "Lt", ("10",)), True),
        (Requirement("gen", "Gt", ("-1",)), True),
        (Requirement("gen", "Gt", ("6.5",)), False),
        (Requirement("gen", "Gt", ()), False),
        (Requirement("gen", "Gt", ("1", "2")), False),
        (Requirement("word", "Lt", ("9",)), False),
        (Requirement("wide", "Gt", ("1",)), False),
        (Requirement("gen", "Like", ("7",)), False),
    ],
)
def test_affinity_operators(requirement: Requirement, holds: bool) -> None:  # noqa: FBT001
    """Strict comparison of whole ASCII numbers; unknown operators never hold."""
    labelled = replace(node("a", gpu("a0")), labels=(("gen", "7"), ("wide", "\uff18"), ("word", "v8")))
    wanted = shape(500, constraints=Constraints(node_affinity=(SelectorTerm((requirement,)),)))
    if holds:
        assert ("a", ("a0",)) == placed(Snapshot([labelled]), wanted)
    else:
        assert {"a": "NodeAffinity"} == reasons(Snapshot([labelled]), wanted)


@pytest.mark.parametrize("terms", [(), (SelectorTerm(),), (SelectorTerm(fields=(Requirement("other", "Exists"),)),)])
def test_terms_that_match_nothing(terms: tuple[SelectorTerm, ...]) -> None:
    """No term, an empty term, and a field that does not exist."""
    wanted = shape(500, constraints=Constraints(node_affinity=terms))
    assert {"a": "NodeAffinity"} == reasons(Snapshot([node("a", gpu("a0"))]), wanted)


@pytest.mark.parametrize(
    ("mine", "clash"),
    [
        (HostPort(80), True),
        (HostPort(80, ip="0.0.0.0"), True),
        (HostPort(80, ip="10.0.0.1"), True),
        (HostPort(80, ip="10.0.0.2"), False),
        (HostPort(81), False),
        (HostPort(80, "UDP"), False),
    ],
)
def test_host_ports(mine: HostPort, clash: bool) -> None:  # noqa: FBT001
    """One holder per port, protocol and address; no address means all of them."""
    snapshot = Snapshot([node("a", gpu("a0"))])
    snapshot.add(Assigned("h", "a", host_ports=(HostPort(80, ip="10.0.0.1"),)))
    wanted = shape(500, constraints=Constraints(host_ports=(mine,)))
    if clash:
        assert {"a": "HostPortConflict"} == reasons(snapshot, wanted)
        snapshot.remove("h")
    assert ("a", ("a0",)) == placed(snapshot, wanted)


@pytest.mark.parametrize("everywhere", ["", "0.0.0.0", "::"])
def test_a_host_port_held_on_all_addresses(everywhere: str) -> None:
    """It is taken on each of them."""
    snapshot = Snapshot([node("a", gpu("a0"))])
    snapshot.add(Assigned("h", "a", host_ports=(HostPort(80, ip=everywhere),)))
    wanted = shape(500, constraints=Constraints(host_ports=(HostPort(80, ip="10.0.0.1"),)))
    assert {"a": "HostPortConflict"} == reasons(snapshot, wanted)


def test_other_resources() -> None:
    """An extended resource is counted like CPU; one that the node does not have is short."""
    snapshot = Snapshot([replace(node("a", gpu("a0")), allocatable=replace(NIC, cpu_milli=8000, memory=2**40))])
    one = shape(100, resources=Resources(extended=(("example.com/nic", 1),)))
    placed(snapshot, one, "p1")
    placed(snapshot, one, "p2")
    assert {"a": "InsufficientResource"} == reasons(snapshot, one)
    assert {"a": "InsufficientResource"} == reasons(
        snapshot, shape(100, resources=Resources(extended=(("example.com/fpga", 1),)))
    )
    assert ("a", ("a0",)) == placed(snapshot, shape(100, resources=Resources(extended=(("example.com/fpga", 0),))))


def test_every_volume_must_reach_the_node() -> None:
    """The terms of one volume are alternatives; the volumes of a pod are not."""
    east = SelectorTerm((Requirement("zone", "In", ("east",)),))
    here = SelectorTerm(fields=(Requirement("metadata.name", "In", ("a",)),))
    a, b = replace(node("a"), labels=(("zone", "west"),)), replace(node("b"), labels=(("zone", "east"),))
    snapshot = Snapshot([a, b])

    def refused(*groups: tuple[SelectorTerm, ...]) -> dict[str, str]:
        return reasons(snapshot, shape(constraints=Constraints(volume_affinity=groups)))

    assert {"a": "VolumeNodeAffinity", "b": "VolumeNodeAffinity"} == refused((east,), (here,))
    assert {"a": "VolumeNodeAffinity", "b": "VolumeNodeAffinity"} == refused(())
    for groups, expected in (((east,),), "b"), (((here,),), "a"), (((here, east), (here,)), "a"):
        assert (expected, ()) == placed(snapshot, shape(constraints=Constraints(volume_affinity=groups)), expected)


def test_the_port_pool_is_a_limit_for_gpu_pods_only() -> None:
    """Every GPU pod gets a port; where none is left the node is full for them."""
    snapshot = Snapshot([node("a", gpu("a0"))], ports=PortRange(50051, 2))
    snapshot.add(held("h0", "a", "a0", port=50051))
    snapshot.add(held("h1", "a", "a0", port=50052))
    assert {"a": "PortPoolExhausted"} == reasons(snapshot, shape(100))
    assert ("a", ()) == placed(snapshot, shape())
    snapshot.remove("h0")
    assert ("a", ("a0",)) == placed(snapshot, shape(100))


def test_two_pods_on_one_port_free_it_together() -> None:
    """It should not happen; when it has, the port is in use until both are gone."""
    snapshot = Snapshot([node("a", gpu("a0"))])
    snapshot.add(held("h0", "a", "a0", port=50051))
    snapshot.add(held("h1", "a", "a0", port=50051))
    snapshot.remove("h0")
    assert 1 == snapshot.used_ports("a")
    snapshot.remove("h1")
    assert 0 == snapshot.used_ports("a")
    snapshot.validate()


def test_a_node_that_gives_its_gpus_to_others_too() -> None:
    """GPU pods stay away, others may come."""
    snapshot = Snapshot([replace(node("a", gpu("a0")), foreign_gpu_users=True)])
    assert {"a": "ForeignGPUUsers"} == reasons(snapshot, shape(100))
    assert ("a", ()) == placed(snapshot, shape())


def test_the_further_reasons_come_last_and_in_order() -> None:
    """Each node fails two neighbours of the list; the earlier one is named."""
    everything = shape(
        500,
        cpu=0,
        resources=Resources(ephemeral_storage=1, extended=(("example.com/nic", 1),)),
        constraints=Constraints(
            host_ports=(HostPort(80),),
            volume_affinity=((SelectorTerm((Requirement("disk", "Exists"),)),),),
            unsupported=("podAffinity",),
        ),
    )
    plenty = Resources(1000, 2**40, 1, (("example.com/nic", 1),))
    base = node("", gpu("x"))

    def named(name: str, allocatable: Resources, *, foreign: bool = False, gpus: bool = True) -> Snapshot:
        labels = () if name in {"d", "v"} else (("disk", ""),)
        kept = replace(base, name=name, labels=labels, allocatable=allocatable, foreign_gpu_users=foreign)
        snapshot = Snapshot([kept if gpus else replace(kept, devices=())], ports=PortRange(50051, 1))
        snapshot.add(Assigned("h", name, host_ports=(HostPort(80),) if name in {"c", "d"} else ()))
        if name in {"d", "e", "v"}:
            snapshot.add(Assigned("p", name, allocation=Allocation((Charge("x", 0, 0),), 50051)))
        return snapshot

    assert {"a": "NoGPU"} == reasons(named("a", Resources(), gpus=False), everything)
    assert {"b": "InsufficientEphemeralStorage"} == reasons(named("b", Resources()), everything)
    assert {"c": "InsufficientResource"} == reasons(named("c", replace(plenty, extended=())), everything)
    assert {"d": "HostPortConflict"} == reasons(named("d", plenty), everything)
    assert {"v": "VolumeNodeAffinity"} == reasons(named("v", plenty), everything)
    assert {"e": "PortPoolExhausted"} == reasons(named("e", plenty, foreign=True), everything)
    assert {"f": "ForeignGPUUsers"} == reasons(named("f", plenty, foreign=True), everything)
    assert {"g": "UnsupportedConstraint"} == reasons(named("g", plenty), everything)


def test_a_node_is_judged_anew_when_its_record_changes() -> None:
    """What it remembered of its old labels is gone."""
    snapshot = Snapshot([node("a", gpu("a0"))])
    wanted = shape(500, constraints=Constraints(node_selector=(("zone", "east"),)))
    assert {"a": "NodeSelector"} == reasons(snapshot, wanted)
    snapshot.set_node(replace(node("a", gpu("a0")), labels=(("zone", "east"),)))
    assert ("a", ("a0",)) == placed(snapshot, wanted)
