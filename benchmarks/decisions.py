"""How fast the core decides, without any I/O: the OpenB cluster's pods, one after another.

A decision is timed with what it costs to keep the indexes: finding the place and charging the pod. Rates and
percentiles are CPU time of the thread, which is what a decision takes on a core of its own, as there is no I/O to wait
for; the p99 of wall time stands beside them and shows what else the machine was doing. Refused pods
are also timed with the reason of every node and GPU. For comparison a sample of the same pods is decided at the same
moments by two scans of all nodes: one with all the filters, whose answer must be the same, and a bare one that looks
at nothing but CPU, memory and share.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING
from unittest.mock import patch

from benchmarks.openb import arrivals, capacity, load_nodes, load_pods, milli, resized, trace_dir
from sharepod_operator.core import placement
from sharepod_operator.core.filters import Query, node_refusal
from sharepod_operator.core.model import Assigned, Node, Placed, Refusal, Shape
from sharepod_operator.core.score import policy
from sharepod_operator.core.snapshot import Snapshot

if TYPE_CHECKING:
    from sharepod_operator.core.node_state import NodeState

BARS = {"decisions_per_second": 10_000, "p99_ms": 1.0, "growth": 2.0}
SCAN_EVERY = 20
"""One pod in so many is decided by the naive scan too."""


@dataclass(slots=True)
class Timings:
    """Seconds of each decision of one replay."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    placed: int = 0

    @property
    def rate(self) -> float:
        """Decisions per second of CPU time: what one core does, whoever else is on it."""
        return 1 / fmean(self.cpu)


def replay(nodes: list[Node], pods: list[Shape], *, reasons: bool = False) -> Timings:
    """Decide all pods; with `reasons`, those that fit nowhere get the full explanation."""
    snapshot = Snapshot(nodes)
    best_fit = policy("bestFit")
    timings = Timings()
    gc.collect()
    gc.freeze()
    for number, shape in enumerate(pods):
        start, cpu_start = time.perf_counter(), time.thread_time()
        decision = (placement.decide if reasons else placement.place)(snapshot, shape, best_fit)
        if isinstance(decision, Placed):
            snapshot.add(Assigned(str(number), decision.node, shape.resources, allocation=decision.allocation))
            timings.placed += 1
        timings.cpu.append(time.thread_time() - cpu_start)
        timings.wall.append(time.perf_counter() - start)
    gc.unfreeze()
    return timings


def bare_scan(snapshot: Snapshot, shape: Shape) -> tuple[int, str] | None:
    """The least that a naive scan can do: best fit of one GPU by CPU, memory and share, blind to all else."""
    cpu, memory, need = shape.resources.cpu_milli, shape.resources.memory, milli(shape)
    best: tuple[int, str] | None = None
    for name, state in snapshot.nodes.items():
        if state.free_cpu < cpu or state.free_memory < memory:
            continue
        for device in state.devices.values():
            left = device.free - need
            if left >= 0 and (best is None or (left, name) < best):
                best = left, name
    return best


def compare_with_scans(nodes: list[Node], pods: list[Shape]) -> tuple[float, float]:
    """Full and bare scans per second on a sample of the pods; ends the program where the full scan's answer differs."""
    snapshot = Snapshot(nodes)
    best_fit = policy("bestFit")
    seconds: list[float] = []
    bare_seconds: list[float] = []
    for number, shape in enumerate(pods):
        decision = placement.place(snapshot, shape, best_fit)
        if number % SCAN_EVERY == 0:
            start = time.process_time()
            scanned = placement.scan(snapshot, shape, best_fit)
            middle = time.process_time()
            bare_scan(snapshot, shape)
            seconds.append(middle - start)
            bare_seconds.append(time.process_time() - middle)
            if scanned != decision:
                raise SystemExit(f"pod {number}: the index says {decision}, the scan of all nodes {scanned}")
        if decision is not None:
            snapshot.add(Assigned(str(number), decision.node, shape.resources, allocation=decision.allocation))
    return 1 / fmean(seconds), 1 / fmean(bare_seconds)


def candidates(nodes: list[Node], pods: list[Shape]) -> float:
    """Nodes looked at per decision, on average: a figure that no machine changes."""
    looked_at = 0

    def counting(state: NodeState, asked: Query) -> Refusal | None:
        nonlocal looked_at
        looked_at += 1
        return node_refusal(state, asked)

    with patch("sharepod_operator.core.placement.node_refusal", counting):
        replay(nodes, pods)
    return looked_at / len(pods)


def percentile(values: list[float], percent: float) -> float:
    """The value that so many percent do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def figures(name: str, runs: list[Timings]) -> dict[str, float]:
    """Print one row for the best of several replays (the least disturbed by others), and return it."""
    best = max(runs, key=lambda run: run.rate)
    row = {
        "decisions_per_second": round(best.rate),
        "p50_ms": round(1e3 * percentile(best.cpu, 50), 4),
        "p99_ms": round(1e3 * percentile(best.cpu, 99), 4),
        "mean_ms": round(1e3 * fmean(best.cpu), 4),
        "wall_p99_ms": round(1e3 * percentile(best.wall, 99), 4),
        "decisions": len(best.cpu),
        "placed": best.placed,
    }
    print(
        f"{name:<34}{row['decisions_per_second']:>12,}{row['p50_ms']:>9.3f}{row['p99_ms']:>9.3f}{row['mean_ms']:>9.3f}"
        f"{row['wall_p99_ms']:>13.3f}{best.placed:>9,} of {len(best.cpu):,}"
    )
    return row


def main() -> None:
    """Measure, print a table, then one JSON object; fail below the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="replays of each row, the best counts (default 3)")
    repeat: int = parser.parse_args().repeat
    folder = trace_dir()
    nodes, pods = load_nodes(folder), load_pods(folder, "default")

    print(f"{'':<34}{'decisions/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'mean ms':>9}{'wall p99 ms':>13}   placed")
    result: dict[str, object] = {"benchmark": "decisions", "bars": BARS}
    full = figures("OpenB, 6,212 GPUs", [replay(nodes, pods) for _ in range(repeat)])
    result["openb"] = full
    explained = figures("  with the reasons of refusals", [replay(nodes, pods, reasons=True) for _ in range(repeat)])
    result["openb_with_reasons"] = explained
    scan_rate, bare_rate = compare_with_scans(nodes, pods)
    for name, rate in (("  scan of all nodes, all filters", scan_rate), ("  scan of all nodes, bare", bare_rate)):
        print(f"{name:<34}{rate:>12,.0f}{'':>9}{'':>9}{1e3 / rate:>9.3f}")
    result |= {
        "scan_per_second": round(scan_rate),
        "bare_scan_per_second": round(bare_rate),
        "times_faster_than_scan": round(full["decisions_per_second"] / scan_rate, 1),
        "times_faster_than_bare_scan": round(full["decisions_per_second"] / bare_rate, 1),
    }

    sizes = (1_000, 10_000)
    means: dict[int, float] = {}
    looked: dict[int, float] = {}
    for gpus in sizes:
        cluster = resized(nodes, gpus, Random(1))
        demand = list(arrivals(pods, capacity(cluster), 100, Random(1)))
        row = figures(f"{gpus:,} GPUs, filled to 100 %", [replay(cluster, demand) for _ in range(repeat)])
        means[gpus] = 1 / row["decisions_per_second"]
        looked[gpus] = candidates(cluster, demand)
        result[f"gpus_{gpus}"] = row
    growth = means[sizes[1]] / means[sizes[0]]
    looked_openb = candidates(nodes, pods)
    print(
        f"nodes looked at per decision: OpenB {looked_openb:.1f}, "
        + ", ".join(f"{g:,} GPUs {n:.1f}" for g, n in looked.items())
    )
    print(f"growth of the cost from {sizes[0]:,} to {sizes[1]:,} GPUs: {growth:.2f}x")
    met = growth < BARS["growth"] and all(
        row["decisions_per_second"] >= BARS["decisions_per_second"] and row["p99_ms"] < BARS["p99_ms"]
        for row in (full, explained)
    )
    result |= {
        "growth": round(growth, 3),
        "looked_at": {"openb": round(looked_openb, 2)} | {str(gpus): round(n, 2) for gpus, n in looked.items()},
        "bars_met": met,
    }
    print(json.dumps(result))
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
