"""How fast it is decided who has to leave, and how fast the room is taken.

`decisions`: the OpenB cluster is filled with its own pods, at three priorities; then more important ones come. Where one
fits, it fills the cluster further; where none of the nodes can take it, the decision who leaves is timed alone, in CPU
time of the thread, and carried out before the next one.

`plane`: on a real control plane every GPU is taken by a pod of low or middle priority; then 200 more important pods come
at once. The same with CPU instead of GPUs is kube-scheduler's, on the same nodes. Times are the API server's own, from
its audit log: from the first create to the answer of the last Binding. Victims must be those that the pure function names.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any

from benchmarks.openb import arrivals, capacity, load_nodes, load_pods, trace_dir
from benchmarks.plane import DEPLOYMENTS, OPERATOR, control_plane, deployment, difference, load, percentile, sharepod
from sharepod_operator.core.model import Assigned
from sharepod_operator.core.occupancy import Occupancy, Occupant
from sharepod_operator.core.placement import place
from sharepod_operator.core.preemption import Evictions, Preemptor, TrialMemory, preempt
from sharepod_operator.core.score import policy
from sharepod_operator.core.snapshot import Snapshot
from sharepod_operator.kube.api import NODES, PODS, SHAREPODS
from sharepod_operator.manifest.node import read_node
from sharepod_operator.manifest.pod import read_pod

if TYPE_CHECKING:
    from benchmarks.plane import Json, Plane
    from benchmarks.trail import Request
    from sharepod_operator.core.model import Shape

BARS = {"p50_ms": 20.0}
PRIORITIES = (0, 0, 100, 1000)
IMPORTANT = 2000
DECISIONS = 1000
"""Decisions that are timed."""
NAMESPACE = "bench"
CLASSES = {"bench-middle": 100, "bench-high": 1000}
NATIVE = "system:kube-scheduler"
SPARED = 40
"""GPUs more than there are preemptors, so that it matters who goes."""


# decisions


def decisions(seed: int) -> dict[str, Any]:
    """Fill the cluster, then decide; figures of one run."""
    folder = trace_dir()
    nodes, pods = load_nodes(folder), load_pods(folder, "default")
    rng, best_fit = Random(seed), policy("bestFit")
    snapshot, occupancy, memory = Snapshot(nodes), Occupancy(), TrialMemory()
    for number, shape in enumerate(arrivals(pods, capacity(nodes), 400, rng)):
        _fill(snapshot, occupancy, f"filler-{number}", shape, rng)
    gc.collect()
    gc.freeze()
    seconds: list[float] = []
    victims = evictions = fillers = 0
    wanted = [shape for shape in pods if shape.gpu is not None]
    while len(seconds) < DECISIONS:
        shape = rng.choice(wanted)
        if _fill(snapshot, occupancy, f"more-{fillers}", shape, rng):
            fillers += 1
            continue
        start = time.thread_time()
        answer = preempt(snapshot, Preemptor(shape, IMPORTANT), occupancy, best_fit, memory)
        seconds.append(time.thread_time() - start)
        if isinstance(answer, Evictions):
            evictions += 1
            victims += len(answer.victims)
            _take(snapshot, occupancy, answer, f"preemptor-{len(seconds)}", shape)
    gc.unfreeze()
    return {
        "gpus": snapshot.total_devices,
        "decisions": len(seconds),
        "evictions": evictions,
        "victims": victims,
        "p50_ms": round(1e3 * percentile(seconds, 50), 2),
        "p99_ms": round(1e3 * percentile(seconds, 99), 2),
        "max_ms": round(1e3 * max(seconds), 2),
        "mean_ms": round(1e3 * sum(seconds) / len(seconds), 2),
    }


def _fill(snapshot: Snapshot, occupancy: Occupancy, uid: str, shape: Shape, rng: Random) -> bool:
    """Give a pod the room that is there, if it is there."""
    placed = place(snapshot, shape, policy("bestFit"))
    if placed is None:
        return False
    snapshot.add(Assigned(uid, placed.node, shape.resources, allocation=placed.allocation))
    occupancy.put(placed.node, Occupant(uid, uid, rng.choice(PRIORITIES), rng.randrange(86_400)))
    return True


def _take(snapshot: Snapshot, occupancy: Occupancy, found: Evictions, uid: str, shape: Shape) -> None:
    """The victims leave and the preemptor has the room."""
    for victim in found.victims:
        snapshot.remove(victim.uid)
        occupancy.remove(victim.uid)
    placed = found.placed
    snapshot.add(Assigned(uid, placed.node, shape.resources, allocation=placed.allocation))
    occupancy.put(placed.node, Occupant(uid, uid, IMPORTANT))


# plane


@dataclass(frozen=True, slots=True)
class Rush:
    """Many preemptors at once, by one side."""

    side: str
    nominated: float
    """Seconds from the first create to the last DELETE of a victim."""
    bound: float
    """Seconds from the first create to the last Binding."""
    victims: int
    as_expected: bool | None
    """Whether they are those of the pure function; None where it isn't ours."""
    cpu: dict[str, float]


async def rush(plane: Plane, side: str, preemptors: int) -> Rush:
    """Fill all GPUs, let the preemptors come, and clear up."""
    ours = side == "ours"
    resource, user = (SHAREPODS, OPERATOR) if ours else (DEPLOYMENTS, NATIVE)
    make = _ours if ours else _native
    low, middle = preemptors // 2, preemptors // 2 + SPARED
    seen: list[Request] = []
    fillers = [make("low", "", low), make("middle", "bench-middle", middle)]
    await plane.quiet(1.0)
    await plane.create_all(resource, fillers, NAMESPACE)

    async def all_run() -> bool:
        pods = (await plane.api.list(PODS, namespace=NAMESPACE)).items
        return [pod["status"].get("phase") for pod in pods] == ["Running"] * (low + middle)

    await plane.until("the GPUs are taken", seen, all_run, every=0.5)
    await plane.quiet(1.5)
    before = {pod["metadata"]["name"]: pod for pod in (await plane.api.list(PODS, namespace=NAMESPACE)).items}
    spent = plane.cpu()
    rushed: list[Request] = []
    await plane.create_all(resource, [make(f"high-{n:03d}", "bench-high", 1) for n in range(preemptors)], NAMESPACE)

    async def all_bound() -> bool:
        return len(_of(rushed, user, "create", "pods/binding")) >= preemptors

    await plane.until("the preemptors are bound", rushed, all_bound)
    cpu = difference(spent, plane.cpu())
    rushed += await plane.quiet(1.5)
    first = min(each.received for each in rushed if each.verb == "create" and each.resource == resource.plural)
    deletes = _of(rushed, user, "delete", "pods")
    gone = {each.name for each in deletes}
    expected = await _expected(plane, before, preemptors) if ours else None
    result = Rush(
        side,
        max(each.answered for each in deletes) - first,
        max(each.answered for each in _of(rushed, user, "create", "pods/binding")) - first,
        len(gone),
        None if expected is None else expected == gone,
        cpu,
    )
    await plane.clear(NAMESPACE)
    return result


async def _expected(plane: Plane, before: dict[str, Json], preemptors: int) -> set[str]:
    """The victims by the pure function, one preemptor after another."""
    snapshot = Snapshot([read_node(node).node for node in (await plane.api.list(NODES)).items])
    occupancy, best_fit = Occupancy(), policy("bestFit")
    for obj in before.values():
        pod = read_pod(obj)
        snapshot.add(Assigned(pod.uid, pod.node, pod.charged, pod.host_ports, pod.allocation))
        started = int(datetime.fromisoformat(pod.start_time).timestamp())
        occupancy.put(pod.node, Occupant(pod.uid, pod.name, pod.pod.priority, started))
    pods = [read_pod(pod) for pod in (await plane.api.list(PODS, namespace=NAMESPACE)).items]
    urgent = next(pod.pod for pod in pods if pod.pod.priority == CLASSES["bench-high"])
    victims: set[str] = set()
    for number in range(preemptors):
        answer = preempt(snapshot, Preemptor(urgent.shape, urgent.priority), occupancy, best_fit)
        assert isinstance(answer, Evictions), answer
        victims |= {victim.key for victim in answer.victims}
        _take(snapshot, occupancy, answer, f"preemptor-{number}", urgent.shape)
    return victims


def _ours(name: str, priority: str, replicas: int) -> Json:
    return sharepod(name, replicas=replicas, gpu={"request": 1, "memory": "40Gi"}, **_important(priority))


def _native(name: str, priority: str, replicas: int) -> Json:
    made = deployment(name, replicas=replicas)
    spec = made["spec"]["template"]["spec"]
    spec.update(_important(priority))
    spec["containers"][0]["resources"] = {"requests": {"cpu": "8"}}  # an eighth of a node, as one of its GPUs is
    return made


def _important(priority: str) -> Json:
    return {"priorityClassName": priority} if priority else {}


def _of(seen: list[Request], user: str, verb: str, resource: str) -> list[Request]:
    return [
        each
        for each in seen
        if (each.user, each.verb, each.resource, each.namespace) == (user, verb, resource, NAMESPACE) and each.changes
    ]


async def run(preemptors: int) -> list[Rush]:
    """Both sides on one control plane, one after the other."""
    done: list[Rush] = []
    async with control_plane((preemptors + SPARED) // 8, [NAMESPACE]) as plane:
        for name, value in CLASSES.items():
            never = {"preemptionPolicy": "Never"} if name == "bench-middle" else {}
            made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            plane.cluster.client.apply({**made, "value": value, **never})
        plane.start_operator()
        for side in ("ours", "native"):
            done.append(await rush(plane, side, preemptors))
            show(done[-1], preemptors)
            plane.stop_operator()
    return done


def show(each: Rush, preemptors: int) -> None:
    """One row of the table."""
    shares = "  ".join(f"{name} {seconds:.1f}" for name, seconds in each.cpu.items())
    told = {True: "as the pure function says", False: "NOT as the pure function says", None: ""}[each.as_expected]
    print(
        f"{each.side:<8}{each.nominated:>10.2f}{each.bound:>9.2f}{preemptors / each.bound:>9.0f}{each.victims:>9}  {told}\n"
        f"        CPU seconds: {shares}",
        flush=True,
    )


def main() -> None:
    """Measure, print tables, then one JSON object; fail below the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("decisions", "plane", "both"), default="both")
    parser.add_argument("--preemptors", type=int, default=200, help="on the control plane (default 200)")
    options = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "preemption", "load_before": load(), "bars": BARS}
    met = True
    if options.part != "plane":
        found = result["decisions"] = decisions(42)
        print(
            f"OpenB, {found['gpus']:,} GPUs, full: {found['decisions']} decisions, {found['evictions']} of them with "
            f"{found['victims']} victims; CPU ms: p50 {found['p50_ms']:.2f}, p99 {found['p99_ms']:.2f}, "
            f"max {found['max_ms']:.2f}, mean {found['mean_ms']:.2f}",
            flush=True,
        )
        met = found["p50_ms"] < BARS["p50_ms"]
    if options.part != "decisions":
        print(f"{'':<8}{'deleted s':>10}{'bound s':>9}{'pods/s':>9}{'victims':>9}")
        done = asyncio.run(run(options.preemptors))
        ours, native = done
        print(f"{native.bound / ours.bound:.2f} times as fast as kube-scheduler with CPU")
        result["plane"] = [
            {
                "side": each.side,
                "preemptors": options.preemptors,
                "deleted_s": round(each.nominated, 3),
                "bound_s": round(each.bound, 3),
                "victims": each.victims,
                "as_expected": each.as_expected,
                "cpu_s": each.cpu,
            }
            for each in done
        ]
        met = met and bool(ours.as_expected)
    result["bars_met"] = met
    print(json.dumps(result))
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
