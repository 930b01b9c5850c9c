"""The SharePod controller alone on an in-memory API server, with a scheduler and kubelets that do as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from sharepod_operator.cache.cache import Cache, Verdict
from sharepod_operator.controller.sharepods import SharePodController
from sharepod_operator.core.model import Allocation, Charge
from sharepod_operator.kube.api import EVENTS, NODES, PODS, SHAREPODS, Json
from sharepod_operator.kube.errors import ApiError
from sharepod_operator.kube.recorder import Recorder
from sharepod_operator.manifest import names
from sharepod_operator.manifest.ledger import encode_allocation
from tests.support.memory_api import Crash, MemoryApi, MemoryServer, Write
from tests.support.memory_server import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod_operator.kube.api import Resource

EPOCH = datetime(2026, 11, 30, 11, 0, tzinfo=UTC)
GIB = 1 << 30
NAMESPACE = "ml"


class LoopClock(ManualClock):
    """Wall time that goes with the event loop's virtual time."""

    def __call__(self) -> datetime:
        return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())


def sharepod(name: str = "bert", *, replicas: int = 1, **spec: Any) -> Json:
    """A SharePod of half a GPU that is valid unless the arguments make it something else."""
    pod_spec = {"containers": [{"name": "c", "image": "i"}]}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "podSpec": pod_spec,
            "gpu": {"request": 0.5, "limit": 1, "memory": "10Gi"},
            **spec,
        },
    }


@dataclass
class Cluster:
    """Everything but the operator: it binds unbound pods while there is room, runs what is bound, ends what is deleted.

    Attributes:
        room: how many pods may be bound at a time.
        places: whether pods are bound at all.
        runs: whether bound pods become Running and Ready.
        ends: whether deleted pods end.
    """

    server: MemoryServer
    room: int = 100_000
    places: bool = True
    runs: bool = True
    ends: bool = True
    waiting: set[str] = field(default_factory=set)
    _ports: itertools.count[int] = field(default_factory=lambda: itertools.count(50051))

    def node(self, name: str = "gpu-a", *, ready: bool = True) -> None:
        """A node with one GPU of 40 GiB."""
        self.server.put(
            NODES,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "annotations": {names.KUBESHARE_GPU_INFO: "GPU-0:40960,"}},
                "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
            },
        )

    def step(self) -> None:
        """One round of scheduler and kubelet."""
        pods = self.server.objects(PODS)
        bound = sum(_takes_room(pod) for pod in pods)
        self.waiting.clear()
        for pod in pods:
            if _takes_room(pod) or "deletionTimestamp" in pod["metadata"]:
                continue
            if self.places and bound < self.room and pod["status"]["phase"] == "Pending":
                self.bind(pod)
                bound += 1
            else:
                self.waiting.add(pod["metadata"]["uid"])
        if self.runs:
            self.server.run_pods()
        if self.ends:
            self.server.finish_deletions()

    def bind(self, pod: Json, node: str = "gpu-a") -> None:
        """Places the pod as the scheduler would."""
        metadata = pod["metadata"]
        allocation = Allocation((Charge("GPU-0", 500, 10 * GIB),), port=next(self._ports))
        self.server.bind(
            metadata["namespace"],
            metadata["name"],
            metadata["uid"],
            node,
            {names.ALLOCATION: encode_allocation(allocation)},
        )

    def apply(self, body: Json) -> Json:
        """`kubectl apply`: the object's new metadata and spec."""
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        there = self.server.find(SHAREPODS, name, namespace)
        if there is None:
            return self.server.create(SHAREPODS, body, namespace)
        return self.edit(name, lambda it: it.update(spec=body["spec"]))

    def edit(self, name: str, change: Callable[[Json], object]) -> Json:
        """A user's edit of a SharePod."""

        def make(before: Json) -> Json:
            change(before)
            return before

        return self.server.change(SHAREPODS, name, NAMESPACE, make)

    def scale(self, name: str, replicas: int) -> None:
        """`kubectl scale`."""
        self.edit(name, lambda it: it["spec"].update(replicas=replicas))

    def status(self, name: str = "bert") -> Json:
        """The SharePod's status."""
        there = self.server.find(SHAREPODS, name, NAMESPACE)
        assert there is not None
        return dict(there.get("status") or {})

    def condition(self, kind: str, name: str = "bert") -> tuple[str, str, str]:
        """Status, reason and message of a condition; empty where it is absent."""
        for found in self.status(name).get("conditions", []):
            if found["type"] == kind:
                return found["status"], found["reason"], found["message"]
        return "", "", ""

    def pods(self) -> dict[str, Json]:
        """Pods by name."""
        return self.server.pods()

    def ordinals(self) -> list[str]:
        """The replica annotations of the pods that are neither finished nor being deleted, sorted."""
        return sorted(
            pod["metadata"]["annotations"].get(names.REPLICA, "")
            for pod in self.pods().values()
            if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] not in ("Succeeded", "Failed")
        )

    def events(self) -> list[tuple[str, str, str]]:
        """Object, reason and note of every event, in order of their first writing."""
        found = sorted(self.server.objects(EVENTS), key=lambda event: int(event["metadata"]["uid"][-12:]))
        return [(event["regarding"]["kind"], event["reason"], event["note"]) for event in found]


def _takes_room(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName")) and pod["status"]["phase"] not in ("Succeeded", "Failed")


class Operator:
    """One life of the controller's process; a Crash of its API ends it."""

    def __init__(self, cluster: Cluster, *, judges: bool = True, tick: float = 0.05) -> None:
        loop = asyncio.get_running_loop()
        self.cluster = cluster
        self.api = MemoryApi(cluster.server)
        self.cache = Cache()
        self.judges = judges
        self.tick = tick
        """Virtual seconds between two rounds of the cluster."""
        self.leading = True
        self.crashed = False
        self.verdict = Verdict("Unschedulable", "0/1 GPUs on 1 nodes are available: 1 GPU(s) Insufficient gpu.")
        recorder_random, own_random = random.Random(1), random.Random(2)
        self.recorder = Recorder(
            self.api,
            controller=names.CONTROLLER_NAME,
            instance="test",
            now=cluster.server.clock,
            clock=loop.time,
            rng=recorder_random,
        )
        self.controller = SharePodController(
            self.cache,
            self.api,
            self.recorder,
            may_act=lambda: self.leading,
            now=cluster.server.clock,
            rng=own_random,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def pass_time(self, seconds: float) -> None:
        """Let everybody act for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        seen = -1
        while loop.time() < until and not self.crashed:
            if self.cluster.server.version != seen:
                seen = self.cluster.server.version
                self.cluster.step()
            await asyncio.sleep(self.tick if seconds <= 10 else 5 * self.tick)
            if self.judges:
                for uid in self.cluster.waiting & self.cache.pods.keys():
                    self.cache.judge(uid, self.verdict)

    async def settle(self, quiet: float = 8.0, limit: float = 900.0) -> None:
        """Wait until nobody wrote anything for a while, or the process was killed."""
        loop = asyncio.get_running_loop()
        started, last, seen = loop.time(), loop.time(), self.cluster.server.version
        while loop.time() - last < quiet and not self.crashed:
            assert loop.time() - started < limit, [str(write) for write in self.cluster.server.writes[-10:]]
            await self.pass_time(0.25)
            if self.cluster.server.version != seen:
                last, seen = loop.time(), self.cluster.server.version
        if not self.crashed:
            self.cache.validate()

    def writes(self, verb: str, resource: Resource) -> list[Write]:
        """This process' writes of one kind."""
        return [write for write in self.api.sent if (write.verb, write.resource) == (verb, resource)]

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.recorder.run())
                group.create_task(self.controller.run())
                for resource in (NODES, PODS, SHAREPODS):
                    group.create_task(self._feed(resource))
        except* Crash:
            self.crashed = True

    async def _feed(self, resource: Resource) -> None:
        store = self.cache.store(resource.plural)
        while True:
            try:
                known = store.highest_version
                listing = await self.api.list(resource)
                store.replace(listing.items, int(listing.resource_version), known)
                async for event in self.api.watch(resource, resource_version=listing.resource_version):
                    if event.type != "BOOKMARK":
                        store.observe(event.type, event.object)
            except ApiError:
                await asyncio.sleep(0.1)


def new_cluster(**options: Any) -> Cluster:
    """A cluster with one node."""
    cluster = Cluster(MemoryServer(clock=LoopClock()), **options)
    cluster.node()
    return cluster
