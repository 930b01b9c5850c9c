"""One at a time on an idle cluster of 500 GPU nodes: from the create to the answer of the Binding, beside kube-scheduler.

Four kinds take turns, so that whatever else the machine does meets all of them alike: a SharePod beside a Deployment,
which both need a controller first, and a bare Pod of each scheduler. Times are the API server's, from its audit log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from enum import StrEnum
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.plane import (
    DEPLOYMENTS,
    control_plane,
    deployment,
    difference,
    load,
    percentile,
    pod_spec,
    sharepod,
)
from sharepod_operator.kube.api import PODS, SHAREPODS

if TYPE_CHECKING:
    from benchmarks.plane import Json, Plane
    from benchmarks.trail import Request
    from sharepod_operator.kube.api import Resource

BARS = {"sharepod_beside_deployment": 1.0}
NODES = 500
NAMESPACE = "bench"
REST = 0.15
"""Seconds without a write before the next create: the cluster is to be idle."""


class Kind(StrEnum):
    """What is created."""

    SHAREPOD = "SharePod"
    DEPLOYMENT = "Deployment"
    OUR_POD = "Pod, sharepod-scheduler"
    NATIVE_POD = "Pod, kube-scheduler"


def manifest(kind: Kind, name: str) -> tuple[Resource, Json]:
    """One pod of this kind."""
    match kind:
        case Kind.SHAREPOD:
            return SHAREPODS, sharepod(name)
        case Kind.DEPLOYMENT:
            return DEPLOYMENTS, deployment(name)
        case Kind.OUR_POD:
            return PODS, _pod(name, "sharepod-scheduler")
        case Kind.NATIVE_POD:
            return PODS, _pod(name, "default-scheduler")


async def once(plane: Plane, kind: Kind, number: int) -> float:
    """Create one and wait until it is bound and everybody rests; the seconds from create to bound."""
    resource, body = manifest(kind, f"bench-{number:04d}")
    await plane.quiet(REST)
    seen: list[Request] = []
    await plane.api.create(resource, body, namespace=NAMESPACE)

    async def bound() -> bool:
        return any(each.resource == "pods/binding" and each.changes for each in seen)

    await plane.until(f"{kind} bound", seen, bound, every=0.02)
    seen += await plane.quiet(REST)
    await plane.api.delete(resource, body["metadata"]["name"], namespace=NAMESPACE, uid=None)

    async def gone() -> bool:
        return not (await plane.api.list(PODS, namespace=NAMESPACE)).items

    await plane.until("its pod gone", seen, gone, every=0.05)
    created = min(each.received for each in seen if each.verb == "create" and each.resource == resource.plural)
    return max(each.answered for each in seen if each.resource == "pods/binding" and each.changes) - created


async def run(samples: int) -> tuple[dict[Kind, list[float]], dict[str, float]]:
    """The samples of each kind, and the CPU seconds of each process."""
    found: dict[Kind, list[float]] = {kind: [] for kind in Kind}
    async with control_plane(NODES, [NAMESPACE]) as plane:
        plane.start_operator()
        for kind in Kind:
            await once(plane, kind, 0)  # caches, connections and code are warm afterwards
        before = plane.cpu()
        for number in range(samples):
            for kind in Kind:
                found[kind].append(await once(plane, kind, number + 1))
        return found, difference(before, plane.cpu())


def main() -> None:
    """Measure, print a table, then one JSON object; fail below the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=50, help="of each kind (default 50)")
    samples: int = parser.parse_args().samples
    before = load()
    found, cpu = asyncio.run(run(samples))
    rows = {
        kind: {"p50_ms": round(1e3 * percentile(times, 50), 1), "p99_ms": round(1e3 * percentile(times, 99), 1)}
        | {"mean_ms": round(1e3 * fmean(times), 1)}
        for kind, times in found.items()
    }
    print(f"{'create to bound':<26}{'p50 ms':>9}{'p99 ms':>9}{'mean ms':>9}")
    for kind, row in rows.items():
        print(f"{kind:<26}{row['p50_ms']:>9.1f}{row['p99_ms']:>9.1f}{row['mean_ms']:>9.1f}")
    ratio = rows[Kind.DEPLOYMENT]["p50_ms"] / rows[Kind.SHAREPOD]["p50_ms"]
    pods = rows[Kind.NATIVE_POD]["p50_ms"] / rows[Kind.OUR_POD]["p50_ms"]
    print(
        f"at p50 a SharePod is {ratio:.2f} times as fast as a Deployment, a Pod {pods:.2f} times as with kube-scheduler"
    )
    met = ratio >= BARS["sharepod_beside_deployment"]
    result = {
        "benchmark": "latency",
        "nodes": NODES,
        "samples": samples,
        "load_before": before,
        "bars": BARS,
        "create_to_bound": rows,
        "ratios": {"sharepod_beside_deployment": round(ratio, 2), "pod_beside_pod": round(pods, 2)},
        "cpu_s": cpu,
        "bars_met": met,
    }
    print(json.dumps(result))
    raise SystemExit(0 if met else 1)


def _pod(name: str, scheduler: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": pod_spec(schedulerName=scheduler),
    }


if __name__ == "__main__":
    main()
