"""A control plane with fake GPU nodes and the operator on it, for the benchmarks that go through the API server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.trail import Trail
from sharepod_operator.kube.api import PODS, SHAREPODS, Resource
from sharepod_operator.kube.auth import connect
from sharepod_operator.kube.gateway import Gateway
from sharepod_operator.kube.transport import Limits
from sharepod_operator.localcluster import lifecycle
from sharepod_operator.localcluster.binaries import find_or_build
from sharepod_operator.localcluster.nodes import GIB, FakeNode, gpus_of
from sharepod_operator.localcluster.state import START_ORDER, ClusterOptions, StateFolder
from tests.support.operator_process import OperatorProcess
from tests.support.rights import NAMESPACE, USER, operator_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

    from benchmarks.trail import Request
    from sharepod_operator.localcluster.cluster import Cluster

Json = dict[str, Any]

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
OPERATOR = USER
IN_FLIGHT = 24
"""Requests of the benchmark's own client at a time, for both sides of a comparison."""
CLIENT_QPS = 5_000
"""Client limit of kube-controller-manager and kube-scheduler: far above what they reach."""
CARD = 40 * GIB
PATIENCE = 240.0
QUIET_LIMIT = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Plane:
    """One control plane, its processes, and a client of the benchmark's own."""

    def __init__(self, cluster: Cluster, gateway: Gateway, folder: Path, kubeconfig: Path) -> None:
        self.cluster = cluster
        self.api = gateway
        self.trail = Trail(cluster.audit_log)
        self._folder = folder
        self._kubeconfig = kubeconfig
        self._operator: OperatorProcess | None = None

    # The operator

    def start_operator(self, *, leftover_after: float = 300.0) -> float:
        """Start it with only its own rights and wait until it leads; seconds until it said that it is ready."""
        began = time.monotonic()
        self._operator = OperatorProcess(
            self._kubeconfig, self._folder, lease_namespace=NAMESPACE, leftover_after=str(leftover_after)
        )
        self._operator.start()
        self._operator.wait_ready(limit=120)
        ready = time.monotonic() - began
        self._operator.wait_leading(limit=120)
        return ready

    def stop_operator(self) -> None:
        """Stop it, if it runs."""
        if self._operator is not None and self._operator.running:
            self._operator.stop()

    def metrics(self) -> str:
        """What the operator tells Prometheus."""
        assert self._operator is not None
        return self._operator.metrics()

    # The processes

    def cpu(self) -> dict[str, float]:
        """CPU seconds of each process so far, the benchmark's own among them."""
        spent = {name: _cpu(pid) for name, pid in self._pids().items()}
        return {**spent, "benchmark": time.process_time()}

    def memory(self) -> tuple[float, float]:
        """Resident memory of the operator in MiB: now, and its peak."""
        text = Path(f"/proc/{self._pids()['operator']}/status").read_text()
        fields = dict(line.split(":", 1) for line in text.splitlines())
        return tuple(int(fields[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))  # type: ignore[return-value]

    def _pids(self) -> dict[str, int]:
        running = ((program, self.cluster.folder.process(program).running()) for program in START_ORDER)
        pids = {str(program): identity.pid for program, identity in running if identity is not None}
        if self._operator is not None and self._operator.running:
            pids["operator"] = int((self._folder / f"{self._operator.identity}.pid").read_text().split()[0])
        return pids

    # Objects

    async def create_all(self, resource: Resource, bodies: Iterable[Json], namespace: str) -> None:
        """Create objects as fast as the API server takes them from one client."""
        await in_parallel(bodies, lambda body: self.api.create(resource, body, namespace=namespace))

    async def clear(self, namespace: str) -> None:
        """Delete everything that a round has made, owners first, and wait until it is gone."""
        client = self.cluster.client
        client.close()  # the API server ends connections that were idle for long
        for path in (
            f"/apis/{SHAREPODS.group}/{SHAREPODS.version}/namespaces/{namespace}/sharepods",
            f"/apis/apps/v1/namespaces/{namespace}/deployments",
            f"/apis/apps/v1/namespaces/{namespace}/replicasets",
            f"/api/v1/namespaces/{namespace}/pods",
            f"/apis/events.k8s.io/v1/namespaces/{namespace}/events",
        ):
            await asyncio.to_thread(client.request, "DELETE", path)
        deadline = time.monotonic() + PATIENCE
        while (await self.api.list(PODS, namespace=namespace, limit=1)).items:
            if time.monotonic() > deadline:
                raise SystemExit(f"pods of namespace {namespace} are still there")
            await asyncio.sleep(0.5)
        await self.quiet(1.0)

    async def quiet(self, seconds: float) -> list[Request]:
        """Wait until nobody has written anything for so long, or for QUIET_LIMIT; what was asked meanwhile.

        Where the machine is too slow for its nodes' heartbeats the node controller never stops to write.
        """
        seen: list[Request] = []
        deadline = time.monotonic() + QUIET_LIMIT
        last = time.monotonic()
        while time.monotonic() - last < seconds and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            new = self.trail.read()
            seen += new
            if any(each.changes and each.resource != "nodes/status" for each in new):
                last = time.monotonic()
        return seen

    async def until(
        self,
        what: str,
        seen: list[Request],
        done: Callable[[], Awaitable[bool]],
        *,
        every: float = 0.1,
        limit: float = PATIENCE,
    ) -> None:
        """Collect requests in `seen` until `done` says so."""
        deadline = time.monotonic() + limit
        while True:
            seen += self.trail.read()
            if await done():
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"not in {limit:.0f} s: {what}")
            await asyncio.sleep(every)


@contextlib.asynccontextmanager
async def control_plane(nodes: int, namespaces: Sequence[str], *, gpus: int = 8) -> AsyncIterator[Plane]:
    """A fresh control plane with so many GPU nodes. etcd waits for the disk, as in production."""
    with tempfile.TemporaryDirectory(prefix="sharepod-bench-") as scratch:
        folder = StateFolder(Path(scratch) / "state")
        options = ClusterOptions(fsync=True, audit=True, client_qps=CLIENT_QPS, tethered=True)
        cluster = lifecycle.up(folder, find_or_build(), options)
        try:
            cluster.apply_crds()
            for namespace in namespaces:
                cluster.add_namespace(namespace)
            cluster.add_nodes([_node(number, gpus) for number in range(nodes)])
            connection = await connect(kubeconfig=str(cluster.kubeconfig), context=None)
            limits = Limits(writes_in_flight=IN_FLIGHT, request=120.0)
            async with Gateway(connection, user_agent="benchmark", limits=limits) as gateway:
                plane = Plane(cluster, gateway, Path(scratch), operator_kubeconfig(cluster))
                try:
                    yield plane
                finally:
                    plane.stop_operator()
                    plane.trail.close()
        finally:
            cluster.client.close()
            lifecycle.down(folder)


def pod_spec(**more: Any) -> Json:
    """The pod of every benchmark: one container with little CPU, gone at once when it is deleted."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}}}
    return {"terminationGracePeriodSeconds": 0, "containers": [container], **more}


def sharepod(name: str, *, replicas: int = 1, gpu: Json | None = None, **more: Any) -> Json:
    """A SharePod that asks for half a GPU, unless `gpu` says otherwise."""
    return {
        "apiVersion": SHAREPODS.api_version,
        "kind": SHAREPODS.kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "gpu": gpu or {"request": 0.5, "memory": "4Gi"},
            "podSpec": pod_spec(**more),
        },
    }


def deployment(name: str, *, replicas: int = 1) -> Json:
    """The same pods without GPUs, for kube-controller-manager and kube-scheduler."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec()},
        },
    }


async def in_parallel(items: Iterable[Any], call: Callable[[Any], Awaitable[Any]]) -> None:
    """Make one call for each item, IN_FLIGHT at a time."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await call(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work())


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds spent between two looks, of the processes that were there both times."""
    return {name: round(after[name] - before[name], 2) for name in after if name in before}


def load() -> float:
    """The machine's load average of the last minute: above the number of cores others disturb the figures."""
    return round(os.getloadavg()[0], 1)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def _node(number: int, gpus: int) -> FakeNode:
    name = f"gpu-{number:04d}"
    return FakeNode(name, gpus=gpus_of(name, gpus, CARD, "NVIDIA-A100-PCIE-40GB"), cpu="64", memory="512Gi")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
