"""Preemption against its rules spelled out on fresh snapshots, and the properties that hold whatever the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod_operator.core.model import (
    Allocation,
    Assigned,
    Charge,
    Device,
    GPURequest,
    Node,
    Placed,
    Resources,
    Shape,
    Taint,
)
from sharepod_operator.core.occupancy import NOW, Occupancy, Occupant
from sharepod_operator.core.placement import place, place_on
from sharepod_operator.core.preemption import (
    LOWEST_PRIORITY,
    NEVER,
    NO_VICTIMS,
    NOT_HELPFUL,
    Evictions,
    Helpless,
    Patience,
    Preemptor,
    TrialMemory,
    preempt,
)
from sharepod_operator.core.score import policy
from sharepod_operator.core.snapshot import Snapshot

BEST_FIT = policy("bestFit")
NODES = ("a", "b")


@dataclass(frozen=True)
class Running:
    """A pod that runs, with what preemption knows of it."""

    assigned: Assigned
    occupant: Occupant


def node(name: str, gpus: int = 2, *, cpu: int = 4000, taint: bool = False) -> Node:
    devices = tuple(Device(f"GPU-{name}{index}", 40) for index in range(gpus))
    taints = (Taint("k", "v", "NoSchedule"),) if taint else ()
    return Node(name, taints=taints, allocatable=Resources(cpu, 1 << 40), devices=devices)


def running(
    uid: str,
    where: str,
    cards: tuple[int, ...] = (0,),
    milli: int = 500,
    memory: int = 10,
    cpu: int = 0,
    *,
    affinity: str = "",
    exclusion: str = "",
    anti_affinity: str = "",
    **occupant: object,
) -> Running:
    charges = tuple(Charge(f"GPU-{where}{card}", milli, memory) for card in cards)
    allocation = Allocation(charges, affinity=affinity, exclusion=exclusion, anti_affinity=anti_affinity)
    assigned = Assigned(uid, where, Resources(cpu), allocation=allocation if charges else None)
    return Running(assigned, Occupant(uid, uid, **occupant))  # type: ignore[arg-type]


def world(nodes: list[Node], pods: list[Running], budgets: dict[str, int] | None = None) -> tuple[Snapshot, Occupancy]:
    snapshot, occupancy = Snapshot(nodes), Occupancy()
    occupancy.allow(budgets or {})
    for pod in pods:
        snapshot.add(pod.assigned)
        occupancy.put(pod.assigned.node, pod.occupant)
    return snapshot, occupancy


def wants(milli: int = 500, memory: int = 0, count: int = 1, cpu: int = 0, **tags: Any) -> Shape:
    return Shape(Resources(cpu), gpu=GPURequest(milli, 1000, memory, count, **tags))


def victims(answer: object) -> list[str]:
    assert isinstance(answer, Evictions), answer
    return [victim.uid for victim in answer.victims]


def test_a_small_low_pod_survives_when_a_bigger_middle_one_has_to_go_anyway() -> None:
    """0.5 at priority 1 and twice 0.25 at priority 2: a newcomer of 0.5 takes the place of the 0.5 pod alone."""
    half = running("half", "a", milli=500, priority=1)
    quarters = [running(f"quarter{n}", "a", milli=250, priority=2) for n in range(2)]
    snapshot, occupancy = world([node("a", 1)], [half, *quarters])

    assert ["half"] == victims(preempt(snapshot, Preemptor(wants(500), 1000), occupancy, BEST_FIT))


def test_both_small_low_pods_go_for_an_important_bigger_one() -> None:
    """The other way round, 0.5 at 2 and the 0.25s at 1: both quarters go, and the half stays."""
    half = running("half", "a", milli=500, priority=2)
    quarters = [running(f"quarter{n}", "a", milli=250, priority=1) for n in range(2)]
    snapshot, occupancy = world([node("a", 1)], [half, *quarters])

    assert ["quarter0", "quarter1"] == victims(preempt(snapshot, Preemptor(wants(500), 1000), occupancy, BEST_FIT))


@pytest.mark.parametrize("reason", ["taint", "protected", "equal", "stuck"])
def test_nobody_is_evicted_in_vain(reason: str) -> None:
    """A taint, a protected pod, equal priority, a pod that never leaves: no eviction helps, and the counts say so."""
    pod = running(
        "p",
        "a",
        milli=1000,
        priority=5 if reason == "equal" else 0,
        protected=reason == "protected",
        stuck=reason == "stuck",
    )
    snapshot, occupancy = world([node("a", 1, taint=reason == "taint")], [pod])
    answer = preempt(snapshot, Preemptor(wants(500), 5), occupancy, BEST_FIT)

    assert isinstance(answer, Helpless)
    assert {NOT_HELPFUL if reason == "taint" else NO_VICTIMS: 1} == dict(answer.reasons)


def test_policy_never_is_a_sentence() -> None:
    """PreemptionPolicy Never: nothing is tried, and the message says why."""
    snapshot, occupancy = world([node("a", 1)], [running("p", "a", milli=1000)])

    assert Helpless(sentence=NEVER) == preempt(snapshot, Preemptor(wants(), 9, never=True), occupancy, BEST_FIT)


def test_pods_that_leave_anyway_are_waited_for() -> None:
    """Room that comes by itself costs nobody a place, whatever the priority of the pod that leaves."""
    leaving = running("leaving", "a", milli=1000, priority=99, leaving=True)
    snapshot, occupancy = world([node("a", 1), node("b", 1)], [leaving, running("low", "b", milli=1000)])
    answer = preempt(snapshot, Preemptor(wants(), 5), occupancy, BEST_FIT)

    assert isinstance(answer, Patience)
    assert ("a", ["leaving"]) == (answer.placed.node, [pod.uid for pod in answer.leaving])


def test_a_budget_steers_but_does_not_forbid() -> None:
    """The node whose victim no budget protects is taken; where there is no other, the protected one goes all the same."""
    guarded = running("guarded", "a", milli=1000, budgets=("pdb",))
    free = running("free", "b", milli=1000, priority=1)
    snapshot, occupancy = world([node("a", 1), node("b", 1)], [guarded, free], {"pdb": 0})
    assert ["free"] == victims(preempt(snapshot, Preemptor(wants(), 5), occupancy, BEST_FIT))

    snapshot, occupancy = world([node("a", 1)], [guarded], {"pdb": 0})
    answer = preempt(snapshot, Preemptor(wants(), 5), occupancy, BEST_FIT)
    assert (["guarded"], 1) == (victims(answer), answer.violations if isinstance(answer, Evictions) else None)


def test_one_pass_of_putting_back_is_not_enough_with_affinity() -> None:
    """A pod put back first would open the GPU without the wanted tag; once the tag's bearer is back, it can stay too."""
    other = running("other", "a", milli=200, priority=3)
    bearer = running("bearer", "a", milli=200, priority=2, affinity="x")
    big = running("big", "a", milli=600, priority=1)
    snapshot, occupancy = world([node("a", 1)], [other, bearer, big])

    assert ["big"] == victims(preempt(snapshot, Preemptor(wants(500, affinity="x"), 9), occupancy, BEST_FIT))


def test_cpu_is_made_room_for_as_well() -> None:
    """The GPU is free, the CPU isn't: the pod without a GPU goes."""
    hog = running("hog", "a", (), cpu=4000)
    snapshot, occupancy = world([node("a", 1)], [hog])

    assert ["hog"] == victims(preempt(snapshot, Preemptor(wants(cpu=1000), 1), occupancy, BEST_FIT))


def test_a_memory_of_trials_gives_the_same_answers() -> None:
    """Remembered outcomes are used only where nothing has changed: pods, priorities, who leaves, budgets."""
    pods = [running(f"p{n}", where, milli=1000, budgets=("pdb",)) for n, where in enumerate("ab")]
    snapshot, occupancy = world([node("a", 1), node("b", 1)], pods, {"pdb": 1})
    memory, asked = TrialMemory(), Preemptor(wants(), 5)
    assert ["p0"] == victims(preempt(snapshot, asked, occupancy, BEST_FIT, memory))
    occupancy.put("b", Occupant("p1", "p1", -1, budgets=("pdb",)))
    assert ["p1"] == victims(preempt(snapshot, asked, occupancy, BEST_FIT, memory))
    occupancy.put("b", Occupant("p1", "p1", -1, protected=True))
    assert ["p0"] == victims(preempt(snapshot, asked, occupancy, BEST_FIT, memory))
    occupancy.allow({"pdb": 0})
    found = preempt(snapshot, asked, occupancy, BEST_FIT, memory)
    assert isinstance(found, Evictions)
    assert 1 == found.violations
    snapshot.remove("p0")
    occupancy.remove("p0")
    snapshot.add(running("p2", "a", milli=1000).assigned)
    answer = preempt(snapshot, asked, occupancy, BEST_FIT, memory)
    assert isinstance(answer, Helpless)


# The rules once more, on fresh snapshots


def by_the_rules(nodes: list[Node], pods: list[Running], budgets: dict[str, int], asked: Preemptor) -> object:
    """(node, victims, violations), the node to wait on, or None: an independent reading of the rules, without undo."""
    found: list[tuple[Any, ...]] = []
    for name in sorted(each.name for each in nodes):
        stay = [p for p in pods if not p.occupant.leaving or p.occupant.stuck]
        if fits(nodes, stay, asked.shape, name):
            found.append((0, LOWEST_PRIORITY - 1, 0, 0, 0, name, ()))
            continue
        out = [
            p
            for p in stay
            if p.assigned.node == name
            and p.occupant.priority < asked.priority
            and not p.occupant.protected
            and not p.occupant.stuck
        ]
        if not out or not fits(nodes, [p for p in stay if p not in out], asked.shape, name):
            continue
        out.sort(key=lambda p: (-p.occupant.priority, p.occupant.started, p.occupant.uid))
        left, violating = dict(budgets), set()
        for p in out:
            for budget in p.occupant.budgets:
                left[budget] -= 1
                if left[budget] < 0:
                    violating.add(p.occupant.uid)
        order = sorted(out, key=lambda p: p.occupant.uid not in violating)
        changed = True
        while changed:
            changed = False
            for p in list(order):
                kept = [q for q in order if q is not p]
                if fits(nodes, [q for q in stay if q not in kept], asked.shape, name):
                    order, changed = kept, True
        tops = max(p.occupant.priority for p in order)
        found.append(
            (
                sum(p.occupant.uid in violating for p in order),
                tops,
                sum(p.occupant.priority + 2**31 for p in order),
                len(order),
                -min(p.occupant.started for p in order if p.occupant.priority == tops),
                name,
                tuple(sorted(p.occupant.uid for p in order)),
            )
        )
    return min(found, default=None)


def fits(nodes: list[Node], pods: list[Running], shape: Shape, name: str) -> bool:
    return place_on(world(nodes, pods)[0], shape, BEST_FIT, [name]) is not None


tags = st.sampled_from(["", "", "x", "y"])


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[Running], dict[str, int], Preemptor]:
    nodes = [node(name, draw(st.integers(1, 2)), taint=draw(st.integers(0, 9)) == 0) for name in NODES]
    pods = []
    snapshot = Snapshot(nodes)
    for number in range(draw(st.integers(1, 7))):
        shape = wants(
            draw(st.sampled_from([0, 250, 500, 1000])),
            draw(st.sampled_from([0, 10, 30])),
            draw(st.sampled_from([1, 1, 1, 2])),
            draw(st.sampled_from([0, 1000, 2000])),
            affinity=draw(tags),
            anti_affinity=draw(tags),
            exclusion=draw(st.sampled_from(["", "", "", "z"])),
        )
        placed = place(snapshot, shape, BEST_FIT)
        if placed is None:
            continue
        assigned = Assigned(f"p{number}", placed.node, shape.resources, allocation=placed.allocation)
        snapshot.add(assigned)
        occupant = Occupant(
            assigned.uid,
            assigned.uid,
            draw(st.integers(-1, 3)),
            draw(st.sampled_from([1, 2, 3, NOW])),
            protected=draw(st.integers(0, 9)) == 0,
            leaving=(leaving := draw(st.integers(0, 5)) == 0),
            stuck=leaving and draw(st.booleans()),
            budgets=draw(st.sampled_from([(), (), ("one",), ("none",), ("none", "one")])),
        )
        pods.append(Running(assigned, occupant))
    shape = wants(
        draw(st.sampled_from([0, 250, 500, 1000])),
        draw(st.sampled_from([0, 20, 40])),
        draw(st.sampled_from([1, 1, 2])),
        draw(st.sampled_from([0, 3000])),
        affinity=draw(tags),
        anti_affinity=draw(tags),
        exclusion=draw(st.sampled_from(["", "", "z"])),
    )
    return nodes, pods, {"one": 1, "none": 0}, Preemptor(shape, draw(st.integers(0, 4)))


@settings(max_examples=400, deadline=None)
@given(clusters())
def test_random_clusters_end_as_the_rules_say(
    case: tuple[list[Node], list[Running], dict[str, int], Preemptor],
) -> None:
    """Outcome, node and victims are those of the rules; victims are of lower priority, and none could have stayed."""
    nodes, pods, budgets, asked = case
    snapshot, occupancy = world(nodes, pods, budgets)
    if place(snapshot, asked.shape, BEST_FIT) is not None:
        return
    answer = preempt(snapshot, asked, occupancy, BEST_FIT)
    snapshot.validate()
    wanted = by_the_rules(nodes, pods, budgets, asked)
    match answer:
        case Helpless():
            assert wanted is None
        case Patience(placed=Placed(node=name)):
            assert wanted == (0, LOWEST_PRIORITY - 1, 0, 0, 0, name, ())
        case Evictions(placed=placed, victims=gone):
            assert isinstance(wanted, tuple)
            assert wanted[-2:] == (placed.node, tuple(sorted(victim.uid for victim in gone)))
            assert wanted[0] == answer.violations
            assert all(victim.priority < asked.priority for victim in gone)
            left = {victim.uid for victim in (*gone, *answer.leaving)}
            for back in ("", *(victim.uid for victim in gone)):
                stay = [p for p in pods if p.occupant.uid not in left or p.occupant.uid == back]
                stay = [p for p in stay if not p.occupant.leaving or p.occupant.stuck]
                assert (not back) == fits(nodes, stay, asked.shape, placed.node), back
