"""Which of two pods that can't both stay is named, and that nobody is named without need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharepod_operator.core.audit import Holding, violations
from sharepod_operator.core.model import Allocation, Charge

CARD = 40
FIRST = Holding("a", "ml/a", "gpu-a", Allocation((Charge("GPU-0", 500, 20, CARD),), port=50051), "2026-01-01T00:00:01Z")
SECOND = Holding(
    "b", "ml/b", "gpu-a", Allocation((Charge("GPU-0", 500, 20, CARD),), port=50052), "2026-01-01T00:00:02Z"
)


def test_a_card_filled_to_the_brim_is_fine() -> None:
    """Share and memory used up exactly break nothing."""
    assert [] == violations([SECOND, FIRST])


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (Allocation((Charge("GPU-0", 501, 20, CARD),), port=50052), "the share of GPU-0 is used up by older pods"),
        (Allocation((Charge("GPU-0", 500, 21, CARD),), port=50052), "the memory of GPU-0 is used up by older pods"),
        (Allocation((Charge("GPU-1", 1, 1, CARD),), port=50051), "port 50051 of node gpu-a belongs to ml/a"),
        (
            Allocation((Charge("GPU-0", 1, 1, CARD),), port=50052, exclusion="x"),
            "GPU-0 is held by another exclusion tag",
        ),
    ],
)
def test_the_pod_bound_last_is_named(second: Allocation, sentence: str) -> None:
    """Share, memory, port and exclusion: the older pod stays, whatever the order in which they are looked at."""
    found = violations([replace(SECOND, allocation=second), FIRST])

    assert [("b", sentence)] == [(violation.uid, violation.sentence) for violation in found]


def test_the_same_anti_affinity_tag_twice_on_a_card() -> None:
    """Two pods that repel each other can't both stay; a third with another tag can."""
    tagged = [
        replace(holding, allocation=replace(holding.allocation, anti_affinity="green")) for holding in (FIRST, SECOND)
    ]

    assert ["b"] == [violation.uid for violation in violations(tagged)]
    assert [] == violations([tagged[0], SECOND])


def test_a_virtual_gpu_is_one_card() -> None:
    """The name of a virtual GPU can't stand for two cards of a node; on another node it is another name."""
    first = replace(FIRST, allocation=replace(FIRST.allocation, virtual_id="v"))
    elsewhere = Allocation((Charge("GPU-1", 100, 1, CARD),), port=50052, virtual_id="v")

    assert ["b"] == [violation.uid for violation in violations([first, replace(SECOND, allocation=elsewhere)])]
    assert [] == violations([first, replace(SECOND, node="gpu-b", allocation=elsewhere)])


def test_a_loser_does_not_take_others_with_it() -> None:
    """What a violating pod holds isn't counted against pods bound after it."""
    loser = replace(SECOND, allocation=Allocation((Charge("GPU-0", 600, 1, CARD),), port=50052))
    third = Holding(
        "c", "ml/c", "gpu-a", Allocation((Charge("GPU-0", 500, 1, CARD),), port=50053), "2026-01-01T00:00:03Z"
    )

    assert ["b"] == [violation.uid for violation in violations([FIRST, loser, third])]


def test_a_smaller_inventory_costs_nobody_a_place() -> None:
    """Memory is judged by the size that the card had when its pods were placed, not by what is written there later."""
    later = replace(SECOND, allocation=Allocation((Charge("GPU-0", 100, 20, 16),), port=50052))

    assert [] == violations([FIRST, later])


def test_best_effort_pods_fit_any_share() -> None:
    """A request of 0 is charged nothing, also on a card whose share is used up."""
    best_effort = replace(SECOND, allocation=Allocation((Charge("GPU-0", 0, 0, CARD),), port=50053), uid="c")
    full = replace(FIRST, allocation=Allocation((Charge("GPU-0", 1000, 40, CARD),), port=50051))

    assert [] == violations([full, best_effort])
