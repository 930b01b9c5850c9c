"""How many replicas, which to add, which to take away."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharepod_operator.core.replicas import (
    LOST_REASONS,
    Plan,
    ReplicaState,
    Slot,
    plan,
    replacement_delay,
    scale_down_order,
    wanted_replicas,
)

if TYPE_CHECKING:
    import random

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def pod(uid: str, ordinal: int = 0, **fields: Any) -> ReplicaState:
    """A pod that runs and is Ready unless said otherwise."""
    made = ReplicaState(
        uid=uid, name=f"p-{uid}", ordinal=ordinal, node="n", phase="Running", ready=True, created=ago(3600)
    )
    return replace(made, **fields)


def ended(uid: str, ordinal: int = 0, **fields: Any) -> ReplicaState:
    return pod(uid, ordinal, **{"phase": "Failed", "ready": False, **fields})


@pytest.mark.parametrize(
    ("replicas", "floor", "wanted"),
    [(1, 0, 1), (0, 3, 0), (2, 3, 3), (5, 3, 5), (1, 4000, 1000), (1000, 0, 1000)],
)
def test_the_floor_raises_but_never_wakes(replicas: int, floor: int, wanted: int) -> None:
    """OpenFaaS' floor: zero stays zero, more than the greatest number counts as that."""
    assert wanted == wanted_replicas(replicas, floor)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"node": "", "phase": "Running"}, {"phase": "Pending", "ready": False}, id="1 unassigned"),
        pytest.param({"phase": "Pending", "deletion_cost": 9}, {"phase": "Unknown"}, id="2 Pending before Unknown"),
        pytest.param({"phase": "Unknown", "deletion_cost": 9}, {"phase": "Running"}, id="2 Unknown before Running"),
        pytest.param({"ready": False, "deletion_cost": 9}, {"ready": True}, id="3 not ready"),
        pytest.param({"deletion_cost": -1, "restarts": 0}, {"restarts": 9}, id="4 deletion cost"),
        pytest.param({"ready_since": ago(10)}, {"ready_since": ago(10_000), "restarts": 9}, id="6 ready for less"),
        pytest.param({"ready_since": None}, {"ready_since": ago(1)}, id="6 unset time first"),
        pytest.param({"restarts": 2, "created": ago(9_999)}, {"restarts": 1, "created": ago(1)}, id="7 restarts"),
        pytest.param({"created": ago(10)}, {"created": ago(10_000)}, id="8 created later"),
        pytest.param({"created": None}, {"created": ago(1)}, id="8 unset time first"),
        pytest.param({"created": NOW}, {"created": ago(1)}, id="8 no age at all"),
        pytest.param({}, {}, id="9 uid"),
    ],
)
def test_each_rule_decides_before_those_after_it(first: dict[str, Any], second: dict[str, Any]) -> None:
    """One case per rule of ActivePodsWithRanks, in both orders of arrival."""
    a, b = pod("a", **first), pod("b", **second)

    assert [a, b] == scale_down_order([b, a], NOW) == scale_down_order([a, b], NOW)


def test_the_fuller_node_gives_first() -> None:
    """Rule 5: of equal pods the one with more neighbours of its own SharePod goes."""
    alone, one, two = pod("a", node="x"), pod("b", node="y"), pod("c", node="y")

    assert [one, two, alone] == scale_down_order([alone, one, two], NOW)


@pytest.mark.parametrize("field", ["ready_since", "created"])
def test_ages_of_one_magnitude_count_as_equal(field: str) -> None:
    """Rules 6 and 8 compare floor(log2(ns)): 5 s and 8 s lie in one step, 8 s and 9 s do not."""
    assert 2**32 <= 5 * 10**9 < 8 * 10**9 < 2**33 <= 9 * 10**9

    def aged(uid: str, seconds: float) -> ReplicaState:
        times: dict[str, Any] = {field: ago(seconds)}
        return pod(uid, **times)

    older, younger, oldest = aged("a", 8), aged("b", 5), aged("c", 9)

    assert [older, younger] == scale_down_order([younger, older], NOW)
    assert [younger, oldest] == scale_down_order([oldest, younger], NOW)


@given(
    st.lists(
        st.builds(
            pod,
            st.uuids().map(str),
            node=st.sampled_from(["", "x", "y"]),
            phase=st.sampled_from(["Pending", "Unknown", "Running"]),
            ready=st.booleans(),
            ready_since=st.sampled_from([None, ago(1), ago(5), ago(8), ago(900)]),
            restarts=st.integers(0, 2),
            deletion_cost=st.integers(-1, 1),
            created=st.sampled_from([None, ago(1), ago(5), ago(8), ago(900)]),
        ),
        max_size=8,
        unique_by=lambda it: it.uid,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_depends_on_the_pods_alone(pods: list[ReplicaState], rng: random.Random) -> None:
    """Whatever the order in which the cache hands them over."""
    shuffled = pods.copy()
    rng.shuffle(shuffled)

    assert scale_down_order(pods, NOW) == scale_down_order(shuffled, NOW)


@pytest.mark.parametrize(
    ("wanted", "pods", "expected"),
    [
        pytest.param(2, [], Plan(create=(Slot(0), Slot(1))), id="nothing there"),
        pytest.param(2, [pod("a", 0), pod("b", 1)], Plan(), id="all there"),
        pytest.param(3, [pod("a", 1)], Plan(create=(Slot(0), Slot(2))), id="lowest free ordinals"),
        pytest.param(1, [pod("a", 0), pod("b", 1, ready=False)], Plan(delete=("b",)), id="one too many"),
        pytest.param(0, [pod("a", 0), pod("b", 1)], Plan(delete=("a", "b")), id="all go"),
        pytest.param(1, [pod("a", 0, deleting=True)], Plan(create=(Slot(0, 1),)), id="terminating is replaced at once"),
        pytest.param(0, [pod("a", 0, deleting=True)], Plan(), id="terminating is not deleted twice"),
        pytest.param(1, [pod("a", -1)], Plan(), id="a replica without legible ordinal counts"),
        pytest.param(2, [pod("a", -1)], Plan(create=(Slot(0),)), id="an ordinal that can't be read is nobody's"),
        pytest.param(1, [pod("a", 7)], Plan(), id="any ordinal will do"),
    ],
)
def test_the_plan_makes_up_the_number(wanted: int, pods: list[ReplicaState], expected: Plan) -> None:
    """Active pods count; free ordinals are filled from below."""
    assert expected == plan(wanted, pods, NOW)


@pytest.mark.parametrize(
    ("fields", "done"),
    [
        ({"restart_policy": "Never"}, True),
        ({"restart_policy": "Never", "phase": "Succeeded"}, True),
        ({"restart_policy": "OnFailure", "phase": "Succeeded"}, True),
        ({"restart_policy": "OnFailure"}, False),
        ({"restart_policy": "Always"}, False),
        ({"restart_policy": "Always", "phase": "Succeeded"}, False),
        ({"restart_policy": "Never", "reason": "DeadlineExceeded"}, True),
        ({"restart_policy": "Never", "reason": "OutOfnvidia.com/gpu"}, False),
        *(({"restart_policy": "Never", "reason": reason}, False) for reason in sorted(LOST_REASONS)),
        ({"restart_policy": "Never", "deleting": True}, False),
    ],
)
def test_what_is_done_keeps_its_ordinal(fields: dict[str, Any], *, done: bool) -> None:
    """A replica that ended as it may is neither made again nor deleted; any other is made again."""
    made = plan(1, [ended("a", **fields)], NOW)

    assert done == (made == Plan())
    assert done == (not made.create)


def test_done_replicas_leave_room_for_the_rest_only() -> None:
    """Of three, one is done and one runs: one is missing; scaling down never deletes what is done."""
    pods = [ended("a", 0, restart_policy="Never"), pod("b", 1)]

    assert Plan(create=(Slot(2),)) == plan(3, pods, NOW)
    assert Plan(delete=("b",)) == plan(0, pods, NOW)


def test_a_lost_replica_waits_and_then_gets_the_next_incarnation() -> None:
    """The delay counts from the creation of the lost pod and doubles with each loss; the object goes afterwards."""
    lost = ended("a", 0, reason="OutOfcpu", incarnation=3, losses=2, created=ago(1))
    waiting = plan(1, [lost], NOW)
    due = plan(1, [lost], NOW + timedelta(seconds=3))
    replaced = plan(1, [lost, pod("b", 0, incarnation=4)], NOW)

    assert Plan(look_again=timedelta(seconds=3)) == waiting
    assert Plan(create=(Slot(0, 4, 3),)) == due
    assert Plan(delete=("a",)) == replaced


def test_what_is_gone_never_lends_its_name() -> None:
    """Neither where nobody serves the ordinal any more, nor where an older pod of it is still there."""
    again = plan(2, [], NOW, {0: 4})
    older = plan(1, [pod("a", 0, incarnation=2, deleting=True)], NOW, {0: 4})

    assert (Slot(0, 5), Slot(1)) == again.create
    assert (Slot(0, 5),) == older.create


def test_a_replica_lost_after_a_long_life_starts_the_count_anew() -> None:
    """Only losses in a row slow things down."""
    lost = ended("a", 0, reason="Evicted", incarnation=8, losses=7, created=ago(7200))

    assert (Slot(0, 9, 1),) == plan(1, [lost], NOW).create


def test_the_delay_doubles_up_to_five_minutes() -> None:
    """1 s, 2 s, 4 s, …, 300 s, for any number of losses."""
    seconds = [replacement_delay(losses).total_seconds() for losses in (0, 1, 2, 8, 9, 10_000)]

    assert [1, 2, 4, 256, 300, 300] == seconds


def test_a_waiting_replica_does_not_hold_up_another() -> None:
    """One ordinal waits for its delay, the missing one beside it is made."""
    lost = ended("a", 0, reason="OutOfcpu", created=ago(0.25))

    assert Plan(create=(Slot(1),), look_again=timedelta(seconds=0.75)) == plan(2, [lost], NOW)


def test_unbound_pods_of_an_earlier_template_make_way_and_bound_ones_run_on() -> None:
    """The unbound one is replaced under its ordinal's next incarnation; neither counts twice."""
    unbound = pod("a", 0, current=False, node="", phase="Pending", ready=False)
    bound = pod("b", 1, current=False)

    assert Plan(create=(Slot(0, 1),), outdated=("a",)) == plan(2, [unbound, bound], NOW)


def test_what_ended_under_an_earlier_template_is_made_again() -> None:
    """A new template is new work."""
    old = ended("a", 0, restart_policy="Never", current=False)

    assert Plan(create=(Slot(0, 1),)) == plan(1, [old], NOW)
    assert Plan(delete=("a",)) == plan(1, [old, pod("b", 0, incarnation=1)], NOW)


states = st.builds(
    pod,
    st.uuids().map(str),
    st.integers(-1, 5),
    incarnation=st.integers(0, 3),
    losses=st.integers(0, 3),
    node=st.sampled_from(["", "x"]),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    deleting=st.booleans(),
    current=st.booleans(),
    restart_policy=st.sampled_from(["Always", "Never", "OnFailure"]),
    reason=st.sampled_from(["", "OutOfcpu"]),
    created=st.sampled_from([ago(0), ago(5), ago(7200)]),
)


@given(st.integers(0, 6), st.lists(states, max_size=8, unique_by=lambda it: it.uid))
def test_carried_out_a_plan_leaves_nothing_to_do(wanted: int, pods: list[ReplicaState]) -> None:
    """From any mixture of pods the steps lead to rest with the wanted number, and never name one pod or slot twice."""
    now = NOW
    for step in range(8):
        todo = plan(wanted, pods, now)
        gone = {*todo.delete, *todo.outdated}
        made = [(slot.ordinal, slot.incarnation) for slot in todo.create]
        used = {(it.ordinal, it.incarnation) for it in pods}

        assert len(todo.delete) + len(todo.outdated) == len(gone)
        assert len(made) == len(set(made))
        assert not used & set(made)
        assert not gone & {it.uid for it in pods if it.deleting}
        if todo == Plan():
            break
        pods = [it for it in pods if it.uid not in gone]
        pods += [
            pod(f"{step}-{slot.ordinal}", slot.ordinal, incarnation=slot.incarnation, losses=slot.losses, created=now)
            for slot in todo.create
        ]
        now += todo.look_again or timedelta(0)

    assert Plan() == plan(wanted, pods, now)
    active = sum(it.active for it in pods)
    assert active <= wanted <= active + sum(it.done for it in pods)
