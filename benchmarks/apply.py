"""From `kubectl apply` to bound, and to a status that says so, beside the same pods by Deployments and kube-scheduler.

Two works: many SharePods of one replica, and one SharePod of many replicas. Both sides have the same control plane,
nodes, pods and client, one after the other, again and again. Times are the API server's own, from its audit log: from
the first create to the answer of the last Binding, and to the answer of the last status write. The operator is stopped
while the native pair works; kube-controller-manager, kube-scheduler and kwok always run, as they do in a cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from benchmarks.plane import DEPLOYMENTS, OPERATOR, control_plane, deployment, difference, load, sharepod
from benchmarks.trail import writes
from sharepod_operator.kube.api import SHAREPODS

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.plane import Json, Plane
    from benchmarks.trail import Request

BARS = {"singles": 2.5, "replicas": 1.0, "writes_per_sharepod": 5.0}
WARM_UP = 100
"""Pods of each side that are made before anything is measured: an API server that has just started is slow for whoever comes first."""
NODES = 100
NAMESPACE = "bench"


class Side(StrEnum):
    """Who does the work."""

    OURS = "ours"
    NATIVE = "native"


class Work(StrEnum):
    """What is to be done."""

    SINGLES = "singles"
    REPLICAS = "replicas"


@dataclass(frozen=True, slots=True)
class Round:
    """One work done once by one side."""

    side: Side
    work: Work
    bound: float
    """Seconds from the first create to the last Binding."""
    told: float
    """Seconds from the first create to the last status."""
    cpu_bound: dict[str, float]
    """CPU seconds of each process until all were bound."""
    cpu: dict[str, float]
    """CPU seconds of each process until every status was true."""
    writes: Counter[str]
    """Changes that the operator made."""


async def measure(plane: Plane, side: Side, work: Work, pods: int) -> Round:
    """Do one work and clear up after it."""
    resource, status = (SHAREPODS, "sharepods/status") if side is Side.OURS else (DEPLOYMENTS, "deployments/status")
    make = sharepod if side is Side.OURS else deployment
    objects, replicas = (pods, 1) if work is Work.SINGLES else (1, pods)
    bodies = [make(f"bench-{number:05d}", replicas=replicas) for number in range(objects)]
    await plane.quiet(1.0)
    before = plane.cpu()
    seen: list[Request] = []
    await plane.create_all(resource, bodies, NAMESPACE)

    async def all_bound() -> bool:
        return len(_of(seen, "pods/binding")) >= pods

    async def all_told() -> bool:
        if len(_of(seen, status)) < objects:
            return False
        found = await plane.api.list(resource, namespace=NAMESPACE)
        return len(found.items) == objects and all(_is_true(each) for each in found.items)

    await plane.until("all pods bound", seen, all_bound)
    until_bound = difference(before, plane.cpu())
    await plane.until("every status true", seen, all_told, every=0.4)
    told = max(each.answered for each in _of(seen, status))
    spent = difference(before, plane.cpu())
    seen += await plane.quiet(1.0)
    first = min(each.received for each in seen if each.verb == "create" and each.resource == resource.plural)
    bound = max(each.answered for each in _of(seen, "pods/binding"))
    await plane.clear(NAMESPACE)
    return Round(side, work, bound - first, told - first, until_bound, spent, writes(seen, OPERATOR))


def _of(seen: list[Request], resource: str) -> list[Request]:
    return [each for each in seen if each.resource == resource and each.namespace == NAMESPACE and each.changes]


def _is_true(obj: Json) -> bool:
    """Whether the status says that all replicas of this generation are ready."""
    status = obj.get("status", {})
    return (status.get("observedGeneration"), status.get("readyReplicas")) == (
        obj["metadata"]["generation"],
        obj["spec"]["replicas"],
    )


async def run(pods: int, rounds: int) -> list[Round]:
    """Alternate the two sides."""
    done: list[Round] = []
    async with control_plane(NODES, [NAMESPACE]) as plane:
        await measure(plane, Side.NATIVE, Work.REPLICAS, WARM_UP)
        plane.start_operator()
        await measure(plane, Side.OURS, Work.REPLICAS, WARM_UP)
        plane.stop_operator()
        for _ in range(rounds):
            plane.start_operator()
            for work in Work:
                done.append(await measure(plane, Side.OURS, work, pods))
                show(done[-1], pods)
            plane.stop_operator()
            for work in Work:
                done.append(await measure(plane, Side.NATIVE, work, pods))
                show(done[-1], pods)
    return done


def show(each: Round, pods: int) -> None:
    """One row of the table."""
    total = sum(each.cpu.values())
    shares = "  ".join(f"{_SHORT.get(name, name)} {seconds:.1f}" for name, seconds in each.cpu.items())
    print(
        f"{each.work:<10}{each.side:<8}{each.bound:>7.2f}{pods / each.bound:>9.0f}{each.told:>9.2f}{pods / each.told:>9.0f}"
        f"{1e3 * total / pods:>9.1f}   {shares}",
        flush=True,
    )


_SHORT = {
    "kube-apiserver": "api",
    "kube-controller-manager": "manager",
    "kube-scheduler": "scheduler",
    "benchmark": "client",
}


def ratio(done: list[Round], work: Work, seconds: Callable[[Round], float]) -> float:
    """How many times as fast as the native pair we were over all rounds."""
    ours, native = (sum(seconds(each) for each in done if (each.side, each.work) == (side, work)) for side in Side)
    return native / ours


def main() -> None:
    """Measure, print a table, then one JSON object; fail below the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2, help="times that each side does each work (default 2)")
    options = parser.parse_args()
    before = load()
    print(f"{'':<18}{'bound s':>7}{'pods/s':>9}{'status s':>9}{'pods/s':>9}{'CPU ms':>9}   CPU seconds of each process")
    done = asyncio.run(run(options.pods, options.rounds))
    ratios = {str(work): ratio(done, work, lambda each: each.bound) for work in Work}
    told = {str(work): ratio(done, work, lambda each: each.told) for work in Work}
    singles = [each for each in done if (each.side, each.work) == (Side.OURS, Work.SINGLES)]
    per_sharepod = {
        what: round(count / options.pods / len(singles), 3)
        for what, count in sum((each.writes for each in singles), Counter[str]()).items()
    }
    total = round(sum(per_sharepod.values()), 3)
    for work in Work:
        print(
            f"{work}: {ratios[work]:.2f} times as fast as Deployments with kube-scheduler, {told[work]:.2f} to status"
        )
    print(f"writes per SharePod of one replica: {total:.2f} ({per_sharepod})")
    met = all(ratios[work] >= BARS[work] for work in ratios) and round(total, 2) <= BARS["writes_per_sharepod"]
    result = {
        "benchmark": "apply",
        "pods": options.pods,
        "load_before": before,
        "bars": BARS,
        "ratios": {work: round(times, 2) for work, times in ratios.items()},
        "ratios_to_status": {work: round(times, 2) for work, times in told.items()},
        "rounds": [
            {
                "work": each.work,
                "side": each.side,
                "bound_s": round(each.bound, 3),
                "status_s": round(each.told, 3),
                "pods_per_second_bound": round(options.pods / each.bound, 1),
                "pods_per_second_status": round(options.pods / each.told, 1),
                "cpu_s_bound": each.cpu_bound,
                "cpu_s": each.cpu,
            }
            for each in done
        ],
        "writes_per_sharepod": total,
        "writes": per_sharepod,
        "bars_met": met,
    }
    print(json.dumps(result))
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
