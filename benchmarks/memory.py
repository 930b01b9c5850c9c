"""A big cluster, and a flood: 1,000 nodes, 10,000 SharePods of which every fifth never fits.

Shows the rate at which those that fit are placed beside the hopeless ones, the operator's memory, how long a new process
needs until it is ready, what it asks of the API server when all is done, and that looking at the hopeless ones again
costs no write. The new process looks at pods that wait every 10 s instead of every 5 minutes, so that there are enough
looks to count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.plane import CARD, OPERATOR, control_plane, difference, load, sharepod
from benchmarks.trail import writes
from sharepod_operator.kube.api import LIST_PAGE, SHAREPODS

if TYPE_CHECKING:
    from typing import Any

    from benchmarks.plane import Json, Plane
    from benchmarks.trail import Request

BARS = {
    "memory_mib": 400,
    "cold_start_s": 15,
    "requests_per_second_at_rest": 1.0,
    "writes_of_hopeless": 0,
    "statuses_wrong": 0,
}
NODES = 1000
NAMESPACE = "bench"
HOPELESS_EVERY = 5
LOOK_AGAIN = 10.0
"""Seconds after which the operator looks at a waiting pod again in this benchmark."""
SETTLED = 5.0
"""Seconds without a write after a start: Kopf lets go of what it has listed when an object was quiet for so long."""
QUARTERS = 4


def flood(number: int) -> Json:
    """One of the SharePods: a small share, or one of two kinds that no node can ever take."""
    name = f"bench-{number:05d}"
    if number % HOPELESS_EVERY:
        return sharepod(name, gpu={"request": 0.5, "memory": "4Gi"})
    if number % (2 * HOPELESS_EVERY):
        return sharepod(name, gpu={"request": 0.5, "memory": str(2 * CARD)})
    return sharepod(name, gpu={"request": 0.5}, nodeSelector={"pool": "nowhere"})


async def place(plane: Plane, count: int) -> dict[str, Any]:
    """Create them all and wait until those that fit are bound and nobody writes any more."""
    fitting = count - len(range(0, count, HOPELESS_EVERY))
    seen: list[Request] = []
    before = plane.cpu()
    bound: list[float] = []
    read = 0

    async def all_bound() -> bool:
        nonlocal read
        bound.extend(each.answered for each in seen[read:] if each.resource == "pods/binding" and each.changes)
        read = len(seen)
        return len(bound) >= fitting

    async with asyncio.TaskGroup() as group:
        group.create_task(plane.create_all(SHAREPODS, (flood(number) for number in range(count)), NAMESPACE))
        group.create_task(plane.until("all that fit are bound", seen, all_bound, limit=1_200))
    seen += await plane.quiet(3.0)
    created = [each.received for each in seen if each.verb == "create" and each.resource == "sharepods"]
    edges = [min(created), *(sorted(bound)[fitting * part // QUARTERS - 1] for part in range(1, QUARTERS + 1))]
    rates = [fitting / QUARTERS / (end - start) for start, end in pairwise(edges)]
    return {
        "bound": len(bound),
        "hopeless": count - fitting,
        "seconds": round(edges[-1] - edges[0], 1),
        "pods_per_second": round(fitting / (edges[-1] - edges[0]), 1),
        "pods_per_second_by_quarter": [round(rate, 1) for rate in rates],
        "writes": dict(writes(seen, OPERATOR)),
        "cpu_s": difference(before, plane.cpu()),
    }


async def rest(plane: Plane, seconds: float) -> dict[str, Any]:
    """Watch an operator that has nothing to do but to look at the hopeless ones again."""
    plane.trail.read()
    before, looks = plane.cpu(), _attempts(plane)
    await asyncio.sleep(seconds)
    asked = [each for each in plane.trail.read() if each.user == OPERATOR]
    return {
        "seconds": seconds,
        "looks": _attempts(plane) - looks,
        "writes": sum(writes(asked, OPERATOR).values()),
        "requests_per_second": round(len(asked) / seconds, 2),
        "requests": dict(Counter(f"{each.verb} {each.resource}" for each in asked)),
        "cpu_s": difference(before, plane.cpu()),
    }


async def wrong_statuses(plane: Plane, count: int) -> int:
    """SharePods whose status does not say by now what became of them."""
    found = await plane.api.list(SHAREPODS, namespace=NAMESPACE, limit=LIST_PAGE)
    right = Counter(_word(each) for each in found.items)
    hopeless = len(range(0, count, HOPELESS_EVERY))
    return abs(count - hopeless - right["AllPlaced"]) + abs(hopeless - right["Unsatisfiable"] - right["Unschedulable"])


async def _all_right(plane: Plane, count: int) -> bool:
    return not await wrong_statuses(plane, count)


async def run(count: int, seconds: float) -> dict[str, Any]:
    """All of it."""
    async with control_plane(NODES, [NAMESPACE]) as plane:
        empty = plane.start_operator()
        with_nodes = plane.memory()[0]
        result: dict[str, Any] = {"start_with_nodes_only_s": round(empty, 2), "flood": await place(plane, count)}
        placed, peak = plane.memory()
        plane.stop_operator()
        result["cold_start_s"] = round(plane.start_operator(leftover_after=LOOK_AGAIN), 2)
        await plane.until("every status is right", [], partial(_all_right, plane, count), every=2.0)
        await plane.quiet(SETTLED)
        result["at_rest"] = await rest(plane, seconds)
        result["statuses_wrong"] = await wrong_statuses(plane, count)
        cold, cold_peak = plane.memory()
    memory = {
        "nodes_only": with_nodes,
        "all_placed": placed,
        "peak": peak,
        "after_cold_start": cold,
        "peak_of_cold_start": cold_peak,
    }
    return {**result, "memory_mib": {key: round(value) for key, value in memory.items()}}


def main() -> None:
    """Measure, print a table, then one JSON object; fail below the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sharepods", type=int, default=10_000)
    parser.add_argument("--rest", type=float, default=30.0, help="seconds to watch it at rest (default 30)")
    options = parser.parse_args()
    before, began = load(), time.monotonic()
    found = asyncio.run(run(options.sharepods, options.rest))
    memory, at_rest = found["memory_mib"], found["at_rest"]
    worst = max(memory.values())
    rows = (
        ("placed, SharePods per second", f"{found['flood']['pods_per_second']}"),
        ("  by quarter", ", ".join(map(str, found["flood"]["pods_per_second_by_quarter"]))),
        ("resident memory, MiB", ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in memory.items())),
        ("cold start to ready, s", f"{found['cold_start_s']} (with the nodes only {found['start_with_nodes_only_s']})"),
        ("at rest, API requests per second", f"{at_rest['requests_per_second']}"),
        ("at rest, CPU of the operator, s/s", f"{at_rest['cpu_s']['operator'] / at_rest['seconds']:.3f}"),
        ("looks at hopeless pods / writes", f"{at_rest['looks']} / {at_rest['writes']}"),
        ("statuses that are wrong afterwards", f"{found['statuses_wrong']}"),
    )
    for name, value in rows:
        print(f"{name:<36}{value}")
    met = (
        worst < BARS["memory_mib"]
        and found["cold_start_s"] < BARS["cold_start_s"]
        and at_rest["requests_per_second"] < BARS["requests_per_second_at_rest"]
        and at_rest["writes"] <= BARS["writes_of_hopeless"]
        and found["statuses_wrong"] <= BARS["statuses_wrong"]
    )
    result = {
        "benchmark": "memory",
        "nodes": NODES,
        "sharepods": options.sharepods,
        "load_before": before,
        "seconds": round(time.monotonic() - began),
        "bars": BARS,
        **found,
        "bars_met": met,
    }
    print(json.dumps(result))
    raise SystemExit(0 if met else 1)


def _word(sharepod: Json) -> str:
    """The reason of its condition Scheduled."""
    conditions = sharepod.get("status", {}).get("conditions", ())
    return next((each["reason"] for each in conditions if each["type"] == "Scheduled"), "")


def _attempts(plane: Plane) -> int:
    """How often the operator has decided that a pod fits nowhere."""
    found = re.search(
        r'^sharepod_scheduling_attempts_total\{outcome="unschedulable"\} (\S+)$', plane.metrics(), re.MULTILINE
    )
    return round(float(found[1])) if found else 0


if __name__ == "__main__":
    main()
