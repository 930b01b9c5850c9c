"""The in-memory API server of the other tests answers like the real one: the same stories, step by step, on both."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.kube.api import EVENTS, LEASES, PODS, SHAREPODS, Api, Json, Patch
from sharepod_operator.kube.auth import connect
from sharepod_operator.kube.errors import ApiError
from sharepod_operator.kube.gateway import Gateway
from tests.support.memory_api import MemoryApi, MemoryServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sharepod_operator.localcluster.cluster import Cluster

    Story = Callable[[Api, str], Awaitable[list[Any]]]


async def outcome(call: Awaitable[Any]) -> tuple[Any, ...]:
    """What kind of answer came: the object's kind, or the error with its status."""
    try:
        answer = await call
    except ApiError as error:
        return (type(error).__name__, error.status)
    return ("ok", answer.get("kind") if isinstance(answer, dict) else None)


def pod(name: str, **spec: Any) -> Json:
    spec = {"containers": [{"name": "c", "image": "i"}], "schedulerName": "nobody", **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def sharepod(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": SHAREPODS.api_version,
        "kind": SHAREPODS.kind,
        "metadata": {"name": name},
        "spec": {"gpu": {"request": 0.5}, "podSpec": {"containers": [{"name": "c", "image": "i"}]}, **spec},
    }


def versions(*objects: Json) -> list[bool]:
    """Whether each object is newer than the one before it."""
    numbers = [int(body["metadata"]["resourceVersion"]) for body in objects]
    return [later > earlier for earlier, later in itertools.pairwise(numbers)]


async def creating(api: Api, namespace: str) -> list[Any]:
    """Create, create again, dry run, refusals by field and by priority class."""
    made = await api.create(PODS, pod("a"), namespace=namespace)
    said = [
        (made["status"]["phase"], made["metadata"]["generation"], made["spec"]["priority"]),
        (
            made["spec"]["restartPolicy"],
            made["spec"]["terminationGracePeriodSeconds"],
            made["spec"]["preemptionPolicy"],
        ),
        await outcome(api.create(PODS, pod("a"), namespace=namespace)),
        await outcome(api.create(PODS, pod("dry"), namespace=namespace, dry_run=True)),
        await outcome(api.get(PODS, "dry", namespace=namespace)),
        await outcome(api.create(PODS, pod("b", priorityClassName="missing"), namespace=namespace)),
        await outcome(api.create(PODS, pod("b", containers=[]), namespace=namespace)),
    ]
    try:
        await api.create(PODS, pod("b", containers=[{"name": "c"}]), namespace=namespace)
    except ApiError as error:
        said.append((error.message, error.field_causes))
    crd = await api.create(SHAREPODS, {**sharepod("s"), "status": {"replicas": 3}}, namespace=namespace)
    said.append((crd["spec"]["replicas"], crd["metadata"]["generation"], (crd.get("status") or {}).get("replicas")))
    return said


async def patching(api: Api, namespace: str) -> list[Any]:
    """Status and spec, generations, versions, preconditions, content types."""
    made = await api.create(SHAREPODS, sharepod("s"), namespace=namespace)
    change = {"metadata": {"labels": {"x": "y"}}, "spec": {"replicas": 5}, "status": {"replicas": 4}}
    by_status = await api.patch(SHAREPODS, "s", change, namespace=namespace, subresource="status")
    by_main = await api.patch(SHAREPODS, "s", {**change, "status": {"replicas": 9}}, namespace=namespace)
    again = await api.patch(SHAREPODS, "s", change, namespace=namespace)
    old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"replicas": 2}}
    other = {"metadata": {"uid": "00000000-0000-4000-8000-00000000ffff"}, "spec": {"replicas": 2}}
    swap = [
        {"op": "test", "path": "/spec/replicas", "value": 1},
        {"op": "replace", "path": "/spec/replicas", "value": 3},
    ]
    missing = [{"op": "replace", "path": "/spec/nowhere/x", "value": 3}]
    return [
        [
            (each["spec"]["replicas"], (each.get("status") or {}).get("replicas"), each["metadata"]["generation"])
            for each in (made, by_status, by_main, again)
        ],
        [each["metadata"].get("labels") for each in (by_status, by_main)],
        versions(made, by_status, by_main, again),
        await outcome(api.patch(SHAREPODS, "s", old, namespace=namespace)),
        await outcome(api.patch(SHAREPODS, "s", other, namespace=namespace)),
        await outcome(api.patch(SHAREPODS, "s", {"spec": {}}, namespace=namespace, content=Patch.STRATEGIC)),
        await outcome(api.patch(SHAREPODS, "s", swap, namespace=namespace, content=Patch.JSON)),
        await outcome(api.patch(SHAREPODS, "s", missing, namespace=namespace, content=Patch.JSON)),
        await outcome(api.patch(SHAREPODS, "none", {"spec": {}}, namespace=namespace)),
    ]


async def binding(api: Api, namespace: str) -> list[Any]:
    """A nomination, a Binding, and every Binding that must not succeed."""
    made = await api.create(PODS, pod("a"), namespace=namespace)
    gated = await api.create(PODS, pod("g", schedulingGates=[{"name": "x/y"}]), namespace=namespace)
    uid = made["metadata"]["uid"]
    nominated = await api.patch(
        PODS,
        "a",
        {
            "metadata": {"annotations": {"faasshare.tum/nomination": "{}", "user": "1"}},
            "status": {
                "nominatedNodeName": "n-2",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
            },
        },
        namespace=namespace,
        subresource="status",
        content=Patch.STRATEGIC,
    )

    async def bind(name: str, uid: str) -> tuple[Any, ...]:
        values = {"faasshare.tum/nomination": "", "port": "50051"}
        return await outcome(api.create_binding(namespace, name, uid=uid, node="n-1", annotations=values))

    said: list[Any] = [
        (nominated["status"]["nominatedNodeName"], nominated["metadata"]["annotations"]),
        await bind("a", "00000000-0000-4000-8000-00000000ffff"),
        await bind("g", gated["metadata"]["uid"]),
        await bind("none", uid),
        await bind("a", uid),
        await bind("a", uid),
    ]
    after = await api.get(PODS, "a", namespace=namespace)
    late = {"status": {"nominatedNodeName": "n-3"}}
    how: Any = {"namespace": namespace, "subresource": "status", "content": Patch.STRATEGIC}
    moved = {"spec": {"nodeName": "n-9"}}
    return [
        *said,
        (after["spec"]["nodeName"], after["metadata"]["annotations"], after["status"]["phase"]),
        ("nominatedNodeName" in after["status"], after["metadata"]["generation"]),
        [(each["type"], each["status"], each.get("reason")) for each in after["status"]["conditions"]],
        await outcome(api.patch(PODS, "a", late, **how)),
        await outcome(api.patch(PODS, "a", moved, namespace=namespace)),
    ]


async def deleting(api: Api, namespace: str) -> list[Any]:
    """Unbound, bound and failed Pods, wrong uids, finalizers, custom resources."""
    pods = {name: await api.create(PODS, pod(name), namespace=namespace) for name in ("free", "bound", "failed")}
    held = pod("held")
    held["metadata"]["finalizers"] = ["x.y/z"]
    pods["held"] = await api.create(PODS, held, namespace=namespace)
    uids = {name: made["metadata"]["uid"] for name, made in pods.items()}
    for name in ("bound", "failed"):
        await api.create_binding(namespace, name, uid=uids[name], node="n-1", annotations={})
    failed = {"status": {"phase": "Failed"}}
    await api.patch(PODS, "failed", failed, namespace=namespace, subresource="status", content=Patch.STRATEGIC)
    crd = await api.create(SHAREPODS, sharepod("s"), namespace=namespace)
    other = "00000000-0000-4000-8000-00000000ffff"

    async def delete(name: str, **how: Any) -> tuple[Any, ...]:
        return await outcome(api.delete(PODS, name, **{"uid": uids[name], "namespace": namespace, **how}))

    said = [await delete("free", uid=other), await delete("free", resource_version="1")]
    said += [await delete(name) for name in pods]
    said.append(await outcome(api.create_binding(namespace, "held", uid=uids["held"], node="n", annotations={})))
    said.append(await outcome(api.delete(SHAREPODS, "s", uid=crd["metadata"]["uid"], namespace=namespace)))
    left = {body["metadata"]["name"]: body["metadata"] for body in (await api.list(PODS, namespace=namespace)).items}
    graces = [(name, left[name]["deletionGracePeriodSeconds"]) for name in sorted(left)]
    said += [await delete("bound"), await delete("bound", grace_period_seconds=5), await delete("free")]
    shorter = (await api.get(PODS, "bound", namespace=namespace))["metadata"]["deletionGracePeriodSeconds"]
    said.append(await delete("bound", grace_period_seconds=0))
    free = await api.patch(PODS, "held", {"metadata": {"finalizers": None}}, namespace=namespace)
    rest = [body["metadata"]["name"] for body in (await api.list(PODS, namespace=namespace)).items]
    return [*said, graces, shorter, free["metadata"]["name"], rest]


async def watching(api: Api, namespace: str) -> list[Any]:
    """What watches, some with a selector, see of the lives of three Pods and how their deletions answer."""
    start = (await api.list(PODS, namespace=namespace)).resource_version
    bound = await api.create(PODS, pod("bound"), namespace=namespace)
    await api.create_binding(namespace, "bound", uid=bound["metadata"]["uid"], node="n-1", annotations={"k": "v"})
    for _ in range(2):
        await api.patch(PODS, "bound", {"metadata": {"labels": {"k": "v"}}}, namespace=namespace)
    free = await api.create(PODS, pod("free"), namespace=namespace)
    answers = [
        await api.delete(PODS, "bound", uid=bound["metadata"]["uid"], namespace=namespace),
        await api.delete(PODS, "bound", uid=bound["metadata"]["uid"], namespace=namespace, grace_period_seconds=0),
        await api.delete(PODS, "free", uid=free["metadata"]["uid"], namespace=namespace),
    ]

    async def collect(count: int, **how: Any) -> list[Any]:
        seen: list[Any] = []
        async with asyncio.timeout(20):
            async for kind, body in api.watch(PODS, resource_version=start, namespace=namespace, **how):
                if kind == "BOOKMARK":
                    continue
                seen.append((kind, "nodeName" in body["spec"], body["metadata"].get("labels"), *life(body)))
                if len(seen) == count:
                    break
        return seen

    return [
        [life(answer) for answer in answers],
        await collect(9),
        await collect(5, field_selector="spec.nodeName="),
        await collect(4, label_selector="k=v"),
    ]


def life(body: Json) -> tuple[Any, ...]:
    """Generation, and how long a deleted Pod still has."""
    metadata = body["metadata"]
    return (metadata["name"], metadata["generation"], metadata.get("deletionGracePeriodSeconds"))


async def leasing(api: Api, namespace: str) -> list[Any]:
    """The Lease is compare-and-set, and an empty holder is legal."""
    stamp = "2026-11-30T11:00:00.000000Z"
    spec = {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": stamp,
        "renewTime": stamp,
        "leaseTransitions": 0,
    }
    body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": "l"}, "spec": spec}
    made = await api.create(LEASES, body, namespace=namespace)
    released = {**made, "spec": {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}}
    after = await api.update(LEASES, "l", released, namespace=namespace)
    return [
        made["spec"],
        after["spec"],
        await outcome(api.update(LEASES, "l", released, namespace=namespace)),
        await outcome(api.update(LEASES, "l", body, namespace=namespace)),
    ]


async def recording(api: Api, namespace: str) -> list[Any]:
    """Events: what is required, what is frozen, how a repetition is written."""
    event: Json = {
        "apiVersion": EVENTS.api_version,
        "kind": "Event",
        "metadata": {"name": "e"},
        "eventTime": "2026-11-30T11:00:00.000000Z",
        "reportingController": "faasshare.tum/sharepod-operator",
        "reportingInstance": "x",
        "action": "Scheduling",
        "reason": "FailedScheduling",
        "type": "Warning",
        "note": "no room",
        "regarding": {"kind": "Pod", "namespace": namespace, "name": "a", "uid": "u"},
    }
    said = [await outcome(api.create(EVENTS, event, namespace=namespace))]
    wrongs: list[Json] = [
        {"type": "Error"},
        {"action": ""},
        {"reason": "x" * 129},
        {"note": "x" * 1025},
        {"note": "ü" * 600},
        {"reportingController": ""},
        {"regarding": {"kind": "Node", "name": "n"}},
    ]
    for number, wrong in enumerate(wrongs):
        body = {**event, **wrong, "metadata": {"name": f"e{number}"}}
        said.append(await outcome(api.create(EVENTS, body, namespace=namespace)))
    series = {"series": {"count": 2, "lastObservedTime": "2026-11-30T11:01:00.000000Z"}}
    said += [
        await outcome(api.create(EVENTS, event, namespace=namespace)),
        await outcome(api.patch(EVENTS, "e", series, namespace=namespace)),
        await outcome(api.patch(EVENTS, "e", {"note": "other"}, namespace=namespace)),
    ]
    return said


@pytest.mark.parametrize("story", [creating, patching, binding, deleting, watching, leasing, recording])
async def test_both_servers_tell_the_same_story(cluster: Cluster, namespace: str, story: Story) -> None:
    """Each step has the same answer, error, condition and order of versions on kube-apiserver and in memory."""
    async with Gateway(await connect(kubeconfig=str(cluster.kubeconfig))) as gateway:
        real = await story(gateway, namespace)
    assert real == await story(MemoryApi(MemoryServer()), namespace)
