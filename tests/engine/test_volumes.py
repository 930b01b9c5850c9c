"""The whole operator and volumes: placed where they can be used, waited for while they can't."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from sharepod_operator.kube.api import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SHAREPODS,
    STORAGE_CLASSES,
)
from sharepod_operator.kube.errors import Forbidden
from sharepod_operator.manifest.pod import read_pod
from tests.support.cluster_objects import node, sharepod
from tests.support.memory_server import MemoryServer
from tests.support.operator import LoopClock, MemoryOperator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sharepod_operator.manifest.records import Json, PodRecord

pytestmark = pytest.mark.looptime


@asynccontextmanager
async def running() -> AsyncIterator[MemoryOperator]:
    """An operator on two nodes of two GPUs."""
    server = MemoryServer(clock=LoopClock())
    for name in ("gpu-a", "gpu-b"):
        server.put(NODES, node(name, 2))
    async with MemoryOperator(server) as operator:
        await operator.settle()
        yield operator


def volume_on(node_name: str, name: str = "pv", claim: str = "data") -> Json:
    """A local PersistentVolume."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    return {
        "metadata": {"name": name},
        "spec": {
            "claimRef": {"namespace": "default", "name": claim},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }


def claim(volume: str = "", name: str = "data", *, mode: str = "ReadWriteOnce", storage_class: str = "") -> Json:
    """A claim, bound where it has a volume."""
    spec: Json = {"accessModes": [mode], "storageClassName": storage_class}
    if volume:
        spec["volumeName"] = volume
    status = {"phase": "Bound" if volume else "Pending"}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": status}


def using(name: str, *volumes: Json, replicas: int = 1) -> Json:
    """A SharePod with these volumes."""
    body = sharepod(name, replicas)
    body["spec"]["podSpec"]["volumes"] = list(volumes)
    return body


DATA = {"name": "disk", "persistentVolumeClaim": {"claimName": "data"}}


def records(server: MemoryServer) -> list[PodRecord]:
    return [read_pod(pod) for pod in server.objects(PODS)]


def nodes(server: MemoryServer) -> list[str]:
    return [record.node for record in records(server)]


def why(server: MemoryServer) -> tuple[str, str]:
    """What the only waiting pod and its SharePod say."""
    (told,) = [record.scheduled_message for record in records(server) if not record.node]
    conditions = [c for body in server.objects(SHAREPODS) for c in body["status"]["conditions"]]
    (shown,) = [c["message"] for c in conditions if c["type"] == "Scheduled" and c["status"] == "False"]
    return told, shown


async def test_a_pod_goes_where_its_volume_is() -> None:
    """Best fit would take gpu-a; the bound volume can be used on gpu-b only."""
    async with running() as operator:
        server = operator.server
        server.put(PERSISTENT_VOLUMES, volume_on("gpu-b"))
        server.put(PERSISTENT_VOLUME_CLAIMS, claim("pv"))
        server.put(SHAREPODS, using("bert", DATA, replicas=2))
        await operator.settle()
        assert ["gpu-b"] * 2 == nodes(server)

        server.put(SHAREPODS, using("large", DATA, replicas=3))  # two fit beside them
        await operator.settle()
        text = (
            "0/4 GPUs on 2 nodes are available: 2 GPU(s) Insufficient gpu, "
            "1 node(s) didn't match PersistentVolume's node affinity. preemption: 0/4 GPUs can be freed: "
            "2 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
        )
        assert ["", "gpu-b", "gpu-b", "gpu-b", "gpu-b"] == sorted(nodes(server))
        assert text == why(server)[0]


async def test_a_pod_waits_for_its_claim_and_goes_on_when_it_is_bound() -> None:
    """Each stage has its sentence, on the Pod and on the SharePod, and every change is followed without a retry."""
    async with running() as operator:
        server = operator.server
        server.put(SHAREPODS, using("bert", DATA))
        await operator.settle()
        stages = [
            ("does not exist", None, None),
            ("is not bound to a PersistentVolume yet", PERSISTENT_VOLUME_CLAIMS, claim()),
            ("is bound to PersistentVolume pv, which does not exist", PERSISTENT_VOLUME_CLAIMS, claim("pv")),
        ]
        for sentence, resource, body in stages:
            if resource is not None and body is not None:
                server.put(resource, body)
                await asyncio.sleep(15)  # longer than any back-off, shorter than the look after five minutes
            told, shown = why(server)
            assert f"PersistentVolumeClaim default/data {sentence}" == told
            assert told in shown
        before = len(server.writes)
        server.put(NODES, node("gpu-c", 1))
        await asyncio.sleep(3600)
        assert before == len(server.writes)

        server.put(PERSISTENT_VOLUMES, volume_on("gpu-b"))
        await asyncio.sleep(15)
        assert ["gpu-b"] == nodes(server)


async def test_a_claim_that_waits_for_a_consumer_is_refused_by_name_until_somebody_binds_it() -> None:
    """We bind no volumes; who does it otherwise lets the pod go on."""
    async with running() as operator:
        server = operator.server
        server.put(STORAGE_CLASSES, {"metadata": {"name": "local"}, "volumeBindingMode": "WaitForFirstConsumer"})
        server.put(PERSISTENT_VOLUME_CLAIMS, claim(storage_class="local"))
        server.put(SHAREPODS, using("bert", DATA))
        await operator.settle()
        told, shown = why(server)
        assert (
            "this scheduler does not implement binding of WaitForFirstConsumer volumes "
            "(claim default/data of StorageClass local is not bound), which the pod asks for"
        ) == told
        assert told in shown

        server.put(PERSISTENT_VOLUMES, volume_on("gpu-b"))
        server.put(PERSISTENT_VOLUME_CLAIMS, claim("pv", storage_class="local"))
        await asyncio.sleep(15)
        assert ["gpu-b"] == nodes(server)


async def test_a_changed_class_is_noticed() -> None:
    """A class made anew with Immediate binding turns the refusal into waiting."""
    async with running() as operator:
        server = operator.server
        server.put(STORAGE_CLASSES, {"metadata": {"name": "local"}, "volumeBindingMode": "WaitForFirstConsumer"})
        server.put(PERSISTENT_VOLUME_CLAIMS, claim(storage_class="local"))
        server.put(SHAREPODS, using("bert", DATA))
        await operator.settle()
        server.remove(STORAGE_CLASSES, "local")
        server.put(STORAGE_CLASSES, {"metadata": {"name": "local"}, "volumeBindingMode": "Immediate"})
        await asyncio.sleep(15)
        assert "PersistentVolumeClaim default/data is not bound to a PersistentVolume yet" == why(server)[0]


async def test_an_ephemeral_volume_is_the_pods_own_claim() -> None:
    """Kubernetes makes the claim for the pod; once it is bound, the pod follows its volume."""
    async with running() as operator:
        server = operator.server
        server.put(SHAREPODS, using("bert", {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}))
        await operator.settle()
        (pod,) = records(server)
        own = f"{pod.name}-tmp"
        assert (
            f"PersistentVolumeClaim default/{own} for the ephemeral volume tmp has not been created yet"
            == why(server)[0]
        )

        made = claim("pv", own)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
        made["metadata"]["ownerReferences"] = [owner]
        server.put(PERSISTENT_VOLUMES, volume_on("gpu-b", claim=own))
        server.put(PERSISTENT_VOLUME_CLAIMS, made)
        await asyncio.sleep(15)
        assert ["gpu-b"] == nodes(server)


async def test_a_claim_for_one_pod_goes_from_hand_to_hand() -> None:
    """ReadWriteOncePod: the second pod waits, also while the first is only about to be bound, and follows when it is gone."""
    async with running() as operator:
        server = operator.server
        server.put(PERSISTENT_VOLUMES, volume_on("gpu-b"))
        server.put(PERSISTENT_VOLUME_CLAIMS, claim("pv", mode="ReadWriteOncePod"))
        server.put(SHAREPODS, using("bert", DATA, replicas=2))
        await operator.settle()
        assert ["", "gpu-b"] == sorted(nodes(server))
        (first,) = [record for record in records(server) if record.node]
        assert f"PersistentVolumeClaim default/data is ReadWriteOncePod and in use by pod {first.key}" == why(server)[0]

        server.put(SHAREPODS, using("bert", DATA))
        await operator.settle()
        assert [first.uid] == [record.uid for record in records(server)]
        server.put(SHAREPODS, using("next", DATA))
        await operator.settle()
        server.remove(SHAREPODS, "bert", "default")
        server.collect_garbage()
        await asyncio.sleep(2)
        server.finish_deletions()
        await asyncio.sleep(15)
        (last,) = records(server)
        assert ("gpu-b", True) == (last.node, last.uid != first.uid)


async def test_a_refused_binding_gives_the_claim_back() -> None:
    """The claim of a pod whose Binding was refused is free for the other one that waits for it."""
    async with running() as operator:
        server = operator.server
        server.put(PERSISTENT_VOLUMES, volume_on("gpu-b"))
        server.put(PERSISTENT_VOLUME_CLAIMS, claim("pv", mode="ReadWriteOncePod"))
        operator.api.faults.refuse(Forbidden("no", status=403), verb="bind")
        server.put(SHAREPODS, using("bert", DATA, replicas=2))
        await asyncio.sleep(15)
        assert ["", "gpu-b"] == sorted(nodes(server))


async def test_nothing_is_planned_before_the_volumes_were_listed() -> None:
    """Without rights on one of the kinds nobody knows where a volume is: no pod is placed until they are given."""
    server = MemoryServer(clock=LoopClock())
    server.put(NODES, node("gpu-a", 1))
    server.put(SHAREPODS, sharepod("bert", 1))
    async with MemoryOperator(server) as operator:
        refused = Forbidden('persistentvolumes is forbidden: User "x" cannot list resource', status=403)
        operator.api.faults.refuse(refused, times=60, verb="list", resource=PERSISTENT_VOLUMES)
        await asyncio.sleep(4)
        assert [] == [write for write in server.writes if write.client == "operator"]
        assert not operator.engine.may_plan()

        await operator.settle()
        assert ["gpu-a"] == nodes(server)


async def test_claims_that_no_pod_uses_are_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler hears of changes of the claims that pods use, and of no others."""
    async with running() as operator:
        server, heard = operator.server, list[str]()
        server.put(SHAREPODS, using("bert", DATA))
        await operator.settle()
        monkeypatch.setattr(operator.engine.scheduler, "claim_changed", heard.append)
        for number in range(20):
            server.put(PERSISTENT_VOLUME_CLAIMS, claim("pv", f"other-{number}"))
            server.put(PERSISTENT_VOLUMES, volume_on("gpu-a", f"pv-{number}", f"other-{number}"))
        server.put(PERSISTENT_VOLUME_CLAIMS, claim())
        await asyncio.sleep(1)
        assert 20 == len(server.objects(PERSISTENT_VOLUMES))
        assert ["default/data"] == heard
