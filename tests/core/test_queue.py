"""The order of heads, back-off, and who is woken by what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharepod_operator.core.model import ClaimUse, GPURequest, Pod, Refusal, Resources, Shape, Unschedulable
from sharepod_operator.core.queue import MAX_REFUSALS, Change, Hint, Queue, can_help
from sharepod_operator.core.reasons import DeviceReason, NodeReason

FULL = Unschedulable(
    nodes={"b": Refusal(NodeReason.INSUFFICIENT_CPU), "c": Refusal(NodeReason.TAINT)},
    devices={"GPU-a0": Refusal(DeviceReason.INSUFFICIENT_SHARE), "GPU-a1": Refusal(DeviceReason.UNHEALTHY)},
)


def pod(uid: str, priority: int = 0, created: str = "2026-01-01T00:00:00Z") -> Pod:
    return Pod(uid=uid, namespace="default", name=uid, shape=Shape(), priority=priority, created=created)


def drain(queue: Queue, now: float) -> list[str]:
    taken = []
    while (head := queue.pop(now)) is not None:
        taken.append(head.uid)
    return taken


def test_heads_come_by_priority_then_age_then_arrival() -> None:
    """The most important pod is decided first; among equals the oldest, then the one that was seen first."""
    queue = Queue()
    for waiting in (
        pod("late", created="2026-01-02T00:00:00Z"),
        pod("b"),
        pod("a"),
        pod("high", priority=10, created="2026-01-03T00:00:00Z"),
        pod("low", priority=-5),
    ):
        queue.add(waiting)

    assert ["high", "b", "a", "late", "low"] == drain(queue, 0.0)


def test_a_refused_pod_waits_for_help_and_its_back_off_doubles() -> None:
    """1, 2, 4, 8, 10, 10 seconds: a change that can help wakes the pod, but not before its back-off is over."""
    queue, waiting, now = Queue(), pod("p"), 0.0
    queue.add(waiting)
    for backoff in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        head = queue.pop(now)
        assert head is not None
        queue.refuse(head, FULL, now)
        queue.wake([Hint(Change.NODE, "a")], now)

        assert queue.pop(now + backoff - 0.001) is None
        assert now + backoff == queue.next_due()
        now += backoff

    assert ["p"] == drain(queue, now)


def test_nothing_that_can_help_means_one_look_in_five_minutes() -> None:
    """A refused pod that nothing wakes is still looked at again, in case an event was missed."""
    queue = Queue()
    queue.add(pod("p"))
    head = queue.pop(0.0)
    assert head is not None
    queue.refuse(head, FULL, 0.0)
    queue.wake([Hint(Change.FREED, "c", ("GPU-c0",))], 200.0)

    assert queue.pop(299.0) is None
    assert ["p"] == drain(queue, 300.0)


@pytest.mark.parametrize(
    ("hint", "helps"),
    [
        (Hint(Change.NODE, "new"), True),
        (Hint(Change.GATE, "c"), True),  # perhaps its taint is gone
        (Hint(Change.GATE, "b"), False),  # it was open, and its CPU was short
        (Hint(Change.GATE, "a"), False),  # it was open, and its GPUs were taken
        (Hint(Change.FREED, "a", ("GPU-a0",)), True),
        (Hint(Change.FREED, "a", ("GPU-a1",)), False),  # room on an unhealthy GPU
        (Hint(Change.FREED, "b"), True),  # CPU was short there
        (Hint(Change.FREED, "c", ("GPU-c0",)), False),  # a taint keeps the pod out, whatever is free
        (Hint(Change.TAGGED, "a", ("GPU-a0",)), False),  # no tag was missing
    ],
)
def test_only_a_change_that_can_help_wakes(hint: Hint, *, helps: bool) -> None:
    """A change helps where what it frees, or brings, is what the pod was refused for."""
    assert helps == can_help(hint, FULL)


def test_a_tag_helps_who_wanted_to_join_it() -> None:
    """A pod that waits for an affinity tag is woken when a pod with a tag takes its place on that GPU."""
    refused = Unschedulable(devices={"GPU-a0": Refusal(DeviceReason.AFFINITY_MISMATCH)})

    assert can_help(Hint(Change.TAGGED, "a", ("GPU-a0",)), refused)


def test_a_claim_wakes_those_who_use_it() -> None:
    """A pod that waits for its claim is helped by that claim alone: neither by another one nor by room or nodes."""
    blocked = Unschedulable(blocked="PersistentVolumeClaim default/data does not exist")
    mine = ["default/data"]

    assert can_help(Hint(Change.CLAIM, claim="default/data"), blocked, mine)
    assert can_help(Hint(Change.CLAIM, claim="default/data"), FULL, mine)
    for hint in (
        Hint(Change.CLAIM, claim="default/other"),
        Hint(Change.NODE, "a"),
        Hint(Change.FREED, "a", ("GPU-a0",)),
    ):
        assert not can_help(hint, blocked, mine)


def test_of_equal_refusals_a_claim_wakes_the_right_pod() -> None:
    """Pods of one shape share their refusal, and yet only the user of the claim is looked at again."""
    queue = Queue()
    users = [replace(pod(name), claims=(ClaimUse(f"default/{name}"),)) for name in ("a", "b")]
    for user in users:
        queue.add(user)
        queue.pop(0.0)
        queue.refuse(user, FULL, 0.0)
    queue.wake([Hint(Change.CLAIM, claim="default/b")], 5.0)

    assert ["b"] == drain(queue, 5.0)


def test_equal_pods_share_the_latest_refusal() -> None:
    """What kept the second one out keeps out the first as well: freed room on a GPU that has become unhealthy helps neither."""
    queue = Queue()
    for uid, reason in (("a", DeviceReason.INSUFFICIENT_SHARE), ("b", DeviceReason.UNHEALTHY)):
        queue.add(pod(uid))
        queue.pop(0.0)
        queue.refuse(pod(uid), Unschedulable(devices={"GPU-a0": Refusal(reason)}), 0.0)
    queue.wake([Hint(Change.FREED, "a", ("GPU-a0",))], 5.0)

    assert [] == drain(queue, 5.0)


def test_a_forgotten_refusal_lets_every_change_wake() -> None:
    """Only so many different refusals are remembered; who waits with an older one is looked at too often, never too rarely."""
    queue = Queue()
    pods = [
        replace(pod(f"p{number:03d}"), shape=Shape(Resources(cpu_milli=number))) for number in range(MAX_REFUSALS + 2)
    ]
    for waiting in pods:
        queue.add(waiting)
        queue.pop(0.0)
        queue.refuse(waiting, FULL, 0.0)
    queue.wake([Hint(Change.TAGGED, "a", ("GPU-a0",)), Hint(Change.CLAIM, claim="default/data")], 5.0)

    assert ["p000", "p001"] == drain(queue, 5.0)


def test_what_could_never_fit_waits_for_nodes_only() -> None:
    """Freed room can't help a request that is larger than any GPU; another node can."""
    refused = replace(FULL, unsatisfiable="memory 48Gi is more than any GPU has")

    assert not can_help(Hint(Change.FREED, "a", ("GPU-a0",)), refused)
    assert not can_help(Hint(Change.GATE, "c"), refused)
    assert can_help(Hint(Change.NODE, "a"), refused)


def test_an_unchanged_pod_is_not_looked_at_again() -> None:
    """Status writes on a waiting pod, ours among them, change nothing; another request starts afresh."""
    queue = Queue()
    queue.add(pod("p"))
    head = queue.pop(0.0)
    assert head is not None
    queue.refuse(head, FULL, 0.0)

    queue.add(pod("p"))
    assert queue.pop(0.5) is None

    queue.add(replace(pod("p"), shape=Shape(gpu=GPURequest(100, 100))))
    assert ["p"] == drain(queue, 0.5)


def test_a_failed_attempt_comes_back_by_itself() -> None:
    """An attempt that failed for another reason than room is repeated after the back-off, woken by nothing."""
    queue = Queue()
    queue.add(pod("p"))
    head = queue.pop(0.0)
    assert head is not None
    queue.requeue(head, 0.0)

    assert queue.pop(0.9) is None
    assert ["p"] == drain(queue, 1.0)


@given(st.lists(st.tuples(st.sampled_from(["add", "pop", "refuse", "requeue", "remove", "wake"]), st.integers(0, 4))))
def test_no_pod_is_lost_or_doubled(steps: list[tuple[str, int]]) -> None:
    """Whatever happens in whatever order: who is in the queue comes out exactly once, in the end."""
    queue, now, expected = Queue(), 0.0, set[str]()
    held: dict[str, Pod] = {}
    for step, number in steps:
        now += 0.7
        uid = f"p{number}"
        match step:
            case "add" if uid not in held:
                queue.add(pod(uid, priority=number % 2))
                expected.add(uid)
            case "pop":
                head = queue.pop(now)
                if head is not None:
                    held[head.uid] = head
                    expected.discard(head.uid)
            case "refuse" | "requeue" if uid in held:
                head = held.pop(uid)
                expected.add(uid)
                if step == "refuse":
                    queue.refuse(head, FULL, now)
                else:
                    queue.requeue(head, now)
            case "remove":
                queue.remove(uid)
                held.pop(uid, None)
                expected.discard(uid)
            case "wake":
                queue.wake([Hint(Change.NODE, "a")], now)
        assert len(expected) == len(queue) == queue.ready + queue.waiting

    taken = drain(queue, now + 1000.0)

    assert sorted(expected) == sorted(taken)
