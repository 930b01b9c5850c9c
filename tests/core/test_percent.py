"""Memory in percent of a card: bytes on each candidate, rounded down, before anything is judged or compared."""

from __future__ import annotations

import pytest

from sharepod_operator.core.model import GPURequest, Placed, Shape
from sharepod_operator.core.placement import decide, scan
from sharepod_operator.core.request import RequestFields, build_request
from sharepod_operator.core.score import policy
from sharepod_operator.core.snapshot import Snapshot
from tests.support.placing import GI, gpu, held, node, placed, reasons, shape

BEST_FIT = policy("bestFit")


def charged(snapshot: Snapshot, wanted: Shape) -> list[tuple[str, int, int]]:
    decision = decide(snapshot, wanted, BEST_FIT)
    assert isinstance(decision, Placed)
    assert decision == scan(snapshot, wanted, BEST_FIT)
    assert decision.allocation is not None
    return [(charge.uuid, charge.milli, charge.memory) for charge in decision.allocation.charges]


@pytest.mark.parametrize(
    ("percent", "card", "expected"), [(50, 40 * GI, 20 * GI), (33, 100, 33), (33, 10, 3), (1, 99, 0), (100, 7, 7)]
)
def test_a_percentage_is_rounded_down_to_bytes(percent: int, card: int, expected: int) -> None:
    """So that a hundred times one percent never exceed the card."""
    assert expected == GPURequest(0, 1, memory_percent=percent).memory_on(card)


def test_what_is_charged_is_bytes_of_the_card_that_was_chosen() -> None:
    """Two cards of different sizes in one node: each gives half of its own."""
    snapshot = Snapshot([node("a", gpu("a0", 40 * GI), gpu("a1", 24 * GI))])
    assert [("a1", 500, 12 * GI)] == charged(snapshot, shape(500, memory_percent=50))
    assert [("a1", 500, 12 * GI), ("a0", 500, 20 * GI)] == charged(snapshot, shape(500, memory_percent=50, count=2))


def test_memory_left_is_compared_with_each_cards_own_amount() -> None:
    """Of equal scores the card with less memory left after placement wins: 20 of 40, not 12 of 30 with 18 left."""
    snapshot = Snapshot([node("a", gpu("a0", 40 * GI), gpu("a1", 30 * GI))])
    snapshot.add(held("x", "a", "a0", milli=100, memory=18 * GI))
    snapshot.add(held("y", "a", "a1", milli=100, memory=2 * GI))
    assert ("a", ("a0",)) == placed(snapshot, shape(100, memory_percent=50))


def test_too_little_memory_is_judged_in_bytes() -> None:
    """21Gi of 40Gi are free: 52 percent fit, 53 do not."""
    snapshot = Snapshot([node("a", gpu("a0", 40 * GI))])
    snapshot.add(held("x", "a", "a0", memory=19 * GI))
    assert ("a", ("a0",)) == placed(snapshot, shape(100, memory_percent=52))
    assert {"a0": "InsufficientGPUMemory"} == reasons(snapshot, shape(100, memory_percent=53))


def test_a_percentage_fits_every_empty_card_however_small() -> None:
    """It never is more than any GPU has; the index is asked for what the smallest card would give."""
    snapshot = Snapshot([node("a", gpu("a0", 80 * GI)), node("b", gpu("b0", 1 * GI))])
    snapshot.add(held("x", "a", "a0", milli=100, memory=41 * GI))
    assert [("b0", 500, 512 << 20)] == charged(snapshot, shape(500, memory_percent=50))
    snapshot.remove_node("b")
    assert {"a0": "InsufficientGPUMemory"} == reasons(snapshot, shape(500, memory_percent=50))
    snapshot.set_node(node("c", gpu("c0", 8)))
    assert [("c0", 500, 4)] == charged(snapshot, shape(500, memory_percent=50))


@pytest.mark.parametrize("percent", [0, 101, "50"])
def test_a_percentage_out_of_range_is_told(percent: object) -> None:
    """Readers give integers from 1 to 100."""
    assert ["koordinator.sh/gpu-memory-ratio: " in each for each in _errors(percent)] == [True]


def _errors(percent: object) -> list[str]:
    built = build_request(RequestFields(request="0.5", memory_percent=percent))
    assert isinstance(built, list)
    return built
