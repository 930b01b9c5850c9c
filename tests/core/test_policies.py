"""The policies by name, each against what it promises and against a scan of all nodes."""

from __future__ import annotations

from random import Random

import pytest

from sharepod_operator.core.model import Assigned, GPURequest, Placed, Resources, Shape
from sharepod_operator.core.placement import place, scan
from sharepod_operator.core.score import POLICIES, policy
from sharepod_operator.core.snapshot import Snapshot
from tests.support.placing import GI, gpu, held, node, placed, shape


def _cluster() -> Snapshot:
    nodes = [
        node("a", gpu("a0"), gpu("a1"), cpu=8000),
        node("b", gpu("b0"), gpu("b1", 16 * GI), cpu=64_000),
        node("c", gpu("c0"), cpu=32_000),
    ]
    snapshot = Snapshot(nodes)
    snapshot.add(held("h0", "b", "b0", milli=300))
    snapshot.add(held("h1", "c", "c0", milli=600))
    return snapshot


@pytest.mark.parametrize(
    ("name", "one", "two", "none"),
    [
        ("bestFit", ("c", ("c0",)), ("b", ("b0", "b1")), ("c", ())),
        ("firstFit", ("a", ("a0",)), ("a", ("a0", "a1")), ("a", ())),
        ("spread", ("a", ("a0",)), ("a", ("a0", "a1")), ("b", ())),
    ],
)
def test_where_each_policy_goes(
    name: str, one: tuple[str, tuple[str, ...]], two: tuple[str, tuple[str, ...]], none: tuple[str, tuple[str, ...]]
) -> None:
    """One GPU, two GPUs, and none: least left; first by name; most left."""
    snapshot = _cluster()
    assert one == placed(snapshot, shape(400), by=name)
    assert two == placed(snapshot, shape(400, count=2), by=name)
    assert none == placed(snapshot, shape(), by=name)


def test_random_is_fair_and_repeatable() -> None:
    """Every node with room gets its turn, and a seed gives the same sequence again."""
    snapshot = _cluster()

    def drawn(seed: int) -> list[str]:
        chance = policy("random", Random(seed))
        decisions = [place(snapshot, shape(400), chance) for _ in range(60)]
        return [decision.node for decision in decisions if decision is not None]

    assert {"a", "b", "c"} == set(drawn(1))
    assert 60 == len(drawn(1))
    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_refuses_while_there_is_room(name: str) -> None:
    """The last free share is found by each of them."""
    snapshot = _cluster()
    chosen = policy(name)
    for serial in range(100):
        decision = place(snapshot, shape(100), chosen)
        if decision is None:
            break
        snapshot.add(Assigned(str(serial), decision.node, Resources(100), allocation=decision.allocation))
    assert 0 == sum(state.free_milli for state in snapshot.nodes.values())


@pytest.mark.parametrize("name", ["bestFit", "firstFit", "spread"])
def test_the_indexed_search_equals_the_scan(name: str) -> None:
    """On a random cluster of many nodes, over a random history."""
    random = Random(7)
    nodes = [
        node(
            f"n{i}",
            *(gpu(f"n{i}-{j}", random.choice([16, 40, 80]) * GI) for j in range(random.choice([0, 1, 2, 8]))),
            cpu=random.choice([2000, 8000, 64_000]),
        )
        for i in range(30)
    ]
    snapshot, chosen, live = Snapshot(nodes), policy(name), []
    outcomes = {True: 0, False: 0}
    for serial in range(1500):
        wanted = Shape(
            Resources(random.choice([0, 500, 1000, 4000])),
            gpu=random.choice(
                [
                    None,
                    GPURequest(
                        random.choice([0, 100, 300, 1000]),
                        1000,
                        random.choice([0, 4, 20]) * GI,
                        random.choice([1, 1, 1, 2, 4]),
                        affinity=random.choice(["", "", "", "x"]),
                        anti_affinity=random.choice(["", "", "", "x"]),
                        exclusion=random.choice(["", "", "", "x"]),
                    ),
                ]
            ),
        )
        decision = place(snapshot, wanted, chosen)
        assert scan(snapshot, wanted, chosen) == decision
        outcomes[decision is not None] += 1
        if isinstance(decision, Placed):
            snapshot.add(Assigned(str(serial), decision.node, wanted.resources, allocation=decision.allocation))
            live.append(str(serial))
        if live and random.random() < 0.3:
            snapshot.remove(live.pop(random.randrange(len(live))))
    snapshot.validate()
    assert min(outcomes.values()) > 100


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The error of a setting."""
    with pytest.raises(
        ValueError, match=r'^unknown policy "best": it must be one of bestFit, firstFit, spread, random$'
    ):
        policy("best")


def test_an_open_gpu_with_all_its_share_free_comes_before_an_idle_one() -> None:
    """Only best-effort pods use it, so both score alike; the idle card stays idle, smaller or not."""
    snapshot = Snapshot([node("a", gpu("a0", 16 * GI), gpu("a1"))])
    snapshot.add(held("h", "a", "a1", milli=0, memory=0))
    assert ("a", ("a1",)) == placed(snapshot, shape(1000))


def test_idle_gpus_count_before_free_share_for_a_pod_without_gpus() -> None:
    """The node with one idle GPU is taken, though the one with two has less share free in all."""
    snapshot = Snapshot([node("a", gpu("a0"), gpu("a1")), node("b", gpu("b0"), gpu("b1"), gpu("b2"))])
    snapshot.add(held("h", "b", "b0", "b1"))
    assert ("b", ()) == placed(snapshot, shape())
    assert scan(snapshot, shape(), policy("bestFit")) == place(snapshot, shape(), policy("bestFit"))
