"""Killed before or after any write, or left without its answer, the controller comes to the same end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.kube.api import PODS, SHAREPODS, Json
from sharepod_operator.manifest import names
from tests.support.controller_world import NAMESPACE, Cluster, Operator, new_cluster, sharepod

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.looptime

TICK = 0.25
"""Coarse, since a sweep lives through hours of virtual time."""

Story = tuple["Callable[[Cluster], object]", ...]


def apply(**spec: Any) -> Callable[[Cluster], object]:
    """A step of a story: `kubectl apply`."""
    return lambda cluster: cluster.apply(sharepod(**spec))


def lose_one(cluster: Cluster) -> None:
    """The kubelet refuses the first pod."""
    cluster.server.set_phase(min(cluster.pods()), "Failed", NAMESPACE, reason="OutOfcpu")


def delete(cluster: Cluster) -> None:
    """`kubectl delete`; the garbage collector does the rest."""
    cluster.server.delete(SHAREPODS, "bert", NAMESPACE)


def no_room(cluster: Cluster) -> None:
    """The scheduler places nothing any more."""
    cluster.places = False


STORIES: dict[str, Story] = {
    "create": (apply(replicas=3),),
    "scale up and down": (apply(replicas=1), apply(replicas=4), apply(replicas=2)),
    "scale to zero and back": (apply(replicas=2), apply(replicas=0), apply(replicas=1)),
    "edit while pending": (no_room, apply(replicas=2), apply(replicas=2, gpu={"request": 0.25})),
    "lose a pod": (apply(replicas=2), lose_one),
    "invalid and mended": (apply(replicas=1, podSpec={"containers": [{"name": "c"}]}), apply(replicas=2)),
    "delete": (apply(replicas=3), delete),
    "delete and create": (apply(replicas=2), delete, apply(replicas=1)),
}


async def tell(story: Story, fault: str = "", number: int = 0) -> tuple[Json, int]:
    """The end of a story, and how many writes its first operator sent."""
    cluster = new_cluster()
    operator = Operator(cluster, tick=TICK)
    if fault:
        setattr(operator.api.faults, fault, number)
    first = operator
    await operator.__aenter__()
    for step in story:
        step(cluster)
        await operator.settle(quiet=4)
        while operator.crashed:
            await operator.__aexit__()
            operator = Operator(cluster, tick=TICK)
            await operator.__aenter__()
            await operator.settle(quiet=4)
    await operator.__aexit__()
    return ending(cluster), len(first.api.sent)


def ending(cluster: Cluster) -> Json:
    """Everything that must not depend on what went wrong on the way."""
    there = cluster.server.find(SHAREPODS, "bert", NAMESPACE)
    happened = Counter(change.type for change in cluster.server.history if change.resource == PODS)
    return {
        "pods": len(cluster.pods()),
        "replicas": len(set(cluster.ordinals())),
        "templates": sorted(pod["metadata"]["annotations"][names.TEMPLATE_HASH] for pod in cluster.pods().values()),
        "made and gone": (happened["ADDED"], happened["DELETED"]),
        "synced": sum(reason == "Synced" for _, reason, _ in cluster.events()),
        "status": there and without_history(there["status"]),
    }


def without_history(status: Json) -> Json:
    """The status without the times of its conditions and without names and ports, which follow from what was there before."""
    conditions = [{k: v for k, v in found.items() if k != "lastTransitionTime"} for found in status["conditions"]]
    placements = [
        {k: v for k, v in placement.items() if k not in ("port", "pod")} for placement in status["placements"]
    ]
    maps = {k: len(v) for k, v in status.items() if isinstance(v, dict) and k != "gpu"}
    rest = {k: v for k, v in status.items() if k not in maps and k != "ports"}
    return {**rest, **maps, "conditions": conditions, "placements": placements}


@pytest.mark.parametrize("fault", ["crash_before", "crash_after", "lose_answer", "lose_request"])
@pytest.mark.parametrize("name", STORIES)
async def test_every_single_fault_ends_like_none(name: str, fault: str) -> None:
    """The sweep over every write: same pods, none made or deleted in excess, the same status, each Synced once."""
    wanted, writes = await tell(STORIES[name])
    assert writes >= 2
    for number in range(1, writes + 1):
        found, _ = await tell(STORIES[name], fault, number)

        assert wanted == found, f"{fault} at write {number}"
