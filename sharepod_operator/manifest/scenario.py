"""The plain form of a scenario for `sharepod simulate`: nodes with GPUs, pods that are there, pods to be placed.

A mistake in the form or in what is already there is an error. A pod to be placed that asks for what can't be read is a
result of its own, as it is in a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharepod_operator.core.model import Allocation, Assigned, Charge, Device, GPURequest, Node, Resources, Shape, Taint
from sharepod_operator.core.quantity import shown
from sharepod_operator.core.request import RequestFields, RequestLabels, build_request
from sharepod_operator.manifest.constraints import read_constraints
from sharepod_operator.manifest.gpu_fields import looks_like_device
from sharepod_operator.manifest.inventory import InventoryError, device_memory, device_uuid
from sharepod_operator.manifest.pod import intern
from sharepod_operator.manifest.resources import DEFAULT_MAX_PODS, effective_request, read_amounts
from sharepod_operator.manifest.strict import (
    ScenarioError,
    as_object,
    check_keys,
    flag_at,
    integer_at,
    name_at,
    object_at,
    objects,
    refuse_twice,
    strings_at,
    text_at,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod_operator.manifest.records import Json

_NODE_KEYS = ("name", "ready", "unschedulable", "labels", "taints", "allocatable", "gpus")
_GPU_KEYS = ("uuid", "memory", "healthy", "model", "index", "cordoned")
_REQUEST_KEYS = {
    "request": "request",
    "limit": "limit",
    "memory": "memory",
    "count": "count",
    "affinity": "affinity",
    "antiAffinity": "anti_affinity",
    "exclusion": "exclusion",
    "deviceIDs": "device_ids",
    "GPUID": "gpu_id",
}
_LISTS = ("containers", "initContainers", "tolerations", "topologySpreadConstraints", "volumes", "resourceClaims")
_OBJECTS = ("affinity", "overhead", "resources", "os")
_SPEC_KEYS = (*_LISTS, *_OBJECTS, "nodeSelector", "hostNetwork")
_POD_KEYS = ("name", "namespace", "priority", "cpu", "memory", "gpu", "node", "gpus", "phase", "nodeName", *_SPEC_KEYS)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_FINAL = ("Succeeded", "Failed")
_PHASES = ("Pending", "Running", "Unknown", *_FINAL)

Inventory = dict[str, dict[str, Device]]
"""Node name to its GPUs by UUID."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod to be placed; `invalid` is a sentence where it can't be, whatever the cluster."""

    key: str
    shape: Shape | None = None
    """None exactly where `invalid` says why."""
    invalid: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What `sharepod simulate` works on: the cluster as it is, and the pods to be placed in this order."""

    nodes: tuple[Node, ...]
    assigned: tuple[Assigned, ...]
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()
    """What was left out of the file, and why; one sentence each."""


def read_plain(body: Json) -> Scenario:
    """The scenario of `{"nodes": [...], "pods": [...]}`.

    Raises:
        ScenarioError: the form is wrong, or what is already there can't be.
    """
    check_keys(body, ("nodes", "pods"), "")
    nodes = tuple(_node(node, where) for node, where in objects(body, "nodes", ""))
    refuse_twice("nodes", (node.name for node in nodes), "node")
    refuse_twice("nodes", (device.uuid for node in nodes for device in node.devices), "GPU")
    inventory = {node.name: {device.uuid: device for device in node.devices} for node in nodes}
    assigned: list[Assigned] = []
    candidates: list[Candidate] = []
    keys: list[str] = []
    for pod, where in objects(body, "pods", ""):
        check_keys(pod, _POD_KEYS, where)
        integer_at(pod, "priority", where, 0)
        key = f"{text_at(pod, 'namespace', where, 'default')}/{name_at(pod, where)}"
        keys.append(key)
        finished = _phase(pod, where) in _FINAL
        if pod.get("node") is not None:
            there = _assigned(pod, key, where, inventory)
            assigned += [] if finished else [there]
        elif not finished:
            candidates.append(_candidate(pod, key, where, inventory))
    refuse_twice("pods", keys, "pod")
    return Scenario(nodes, tuple(assigned), tuple(candidates))


def _node(node: Json, where: str) -> Node:
    check_keys(node, _NODE_KEYS, where)
    problems: list[str] = []
    allocatable, pods, _ = read_amounts(object_at(node, "allocatable", where), f"{where}.allocatable", problems)
    if problems:
        raise ScenarioError(problems[0])
    gpus = objects(node, "gpus", where)
    return Node(
        name=name_at(node, where),
        ready=flag_at(node, "ready", where, default=True),
        unschedulable=flag_at(node, "unschedulable", where, default=False),
        labels=strings_at(node, "labels", where),
        taints=tuple(_taint(taint, here) for taint, here in objects(node, "taints", where)),
        allocatable=allocatable,
        max_pods=DEFAULT_MAX_PODS if pods is None else pods,
        devices=tuple(_device(gpu, here, index) for index, (gpu, here) in enumerate(gpus)),
    )


def _taint(taint: Json, where: str) -> Taint:
    check_keys(taint, ("key", "value", "effect"), where)
    effect = text_at(taint, "effect", where)
    if effect not in _EFFECTS:
        raise ScenarioError(f"{where}.effect is {shown(effect)}; it must be one of {', '.join(_EFFECTS)}")
    return Taint(text_at(taint, "key", where), text_at(taint, "value", where), effect)


def _device(gpu: Json, where: str, position: int) -> Device:
    check_keys(gpu, _GPU_KEYS, where)
    try:
        uuid = device_uuid(gpu.get("uuid"), f"{where}.uuid")
        memory = device_memory(gpu.get("memory"), f"{where}.memory")
    except InventoryError as error:
        raise ScenarioError(str(error)) from None
    return Device(
        uuid,
        memory,
        model=text_at(gpu, "model", where),
        index=integer_at(gpu, "index", where, position),
        healthy=flag_at(gpu, "healthy", where, default=True),
        cordoned=flag_at(gpu, "cordoned", where, default=False),
    )


def _phase(pod: Json, where: str) -> str:
    phase = text_at(pod, "phase", where, "Pending")
    if phase not in _PHASES:
        raise ScenarioError(f"{where}.phase is {shown(phase)}; it must be one of {', '.join(_PHASES)}")
    return phase


def _assigned(pod: Json, key: str, where: str, inventory: Inventory) -> Assigned:
    """A pod that is already there, charged as it is."""
    node = text_at(pod, "node", where)
    if node not in inventory:
        raise ScenarioError(f"{where}.node is {shown(node)}; it must be the name of one of the nodes")
    problems: list[str] = []
    resources, request = _amounts(pod, where, problems)
    if problems:
        raise ScenarioError(problems[0])
    uuids = [_charged_uuid(gpu, here, node, inventory[node]) for gpu, here in objects(pod, "gpus", where)]
    refuse_twice(f"{where}.gpus", uuids, "GPU")
    if bool(uuids) != (request is not None):
        missing, given = ("gpu", "gpus") if uuids else ("gpus", "gpu")
        raise ScenarioError(f"{where}.{missing} is missing; a pod that is already on a node needs it beside {given}")
    allocation = _allocation(request, uuids, inventory) if request is not None else None
    return Assigned(key, node, resources, read_constraints(_spec(pod, where)).host_ports, allocation)


def _charged_uuid(gpu: Json, where: str, node: str, devices: Mapping[str, Device]) -> str:
    uuid = text_at(gpu, "uuid", where)
    if uuid not in devices:
        raise ScenarioError(f"{where}.uuid is {shown(uuid)}; it must be a GPU of node {node}")
    return uuid


def _allocation(request: GPURequest, uuids: list[str], inventory: Inventory) -> Allocation:
    return Allocation(
        tuple(Charge(uuid, request.milli, request.memory) for uuid in uuids),
        limit_milli=request.limit_milli,
        affinity=request.affinity,
        anti_affinity=request.anti_affinity,
        exclusion=request.exclusion,
        virtual_id="" if _in_inventory(request.gpu_id, inventory) else request.gpu_id,
    )


def _in_inventory(uuid: str, inventory: Inventory) -> bool:
    return any(uuid in devices for devices in inventory.values())


def _candidate(pod: Json, key: str, where: str, inventory: Inventory) -> Candidate:
    problems: list[str] = []
    pin = text_at(pod, "nodeName", where)
    constraints = read_constraints(_spec(pod, where), pinned_node=pin)
    resources, request = _amounts(pod, where, problems)
    gpu_id = request.gpu_id if request is not None else ""
    if gpu_id and not pin and not looks_like_device(gpu_id) and not _in_inventory(gpu_id, inventory):
        problems.append(
            f"{where}.gpu.GPUID: {shown(gpu_id)} is no GPU's UUID and so names a virtual GPU; set {where}.nodeName as well"
        )
    if problems:
        return Candidate(key, invalid=problems[0])
    return Candidate(key, intern(Shape(resources, constraints, request)))


def _amounts(pod: Json, where: str, problems: list[str]) -> tuple[Resources, GPURequest | None]:
    """What the pod takes: of the node by its containers where it has some, else by cpu and memory; and of GPUs."""
    if pod.get("containers") is not None or pod.get("initContainers") is not None:
        resources = effective_request(_spec(pod, where), problems, where)
    else:
        resources, _, _ = read_amounts({key: pod[key] for key in ("cpu", "memory") if key in pod}, where, problems)
    if pod.get("gpu") is None:
        return resources, None
    where = f"{where}.gpu"
    gpu = as_object(pod["gpu"], where)
    check_keys(gpu, tuple(_REQUEST_KEYS), where)
    text_at(gpu, "GPUID", where)
    fields = {field: gpu.get(key) for key, field in _REQUEST_KEYS.items()}
    labels = {field: f"{where}.{key}" for key, field in _REQUEST_KEYS.items()}
    request = build_request(RequestFields(**fields), RequestLabels(**labels))
    if isinstance(request, list):
        problems += request
        return resources, None
    return resources, request


def _spec(pod: Json, where: str) -> Json:
    """The part of a pod that has the form of a Kubernetes PodSpec."""
    strings_at(pod, "nodeSelector", where)
    for key in _LISTS:
        objects(pod, key, where)
    for key in _OBJECTS:
        object_at(pod, key, where)
    return {key: pod[key] for key in _SPEC_KEYS if key in pod}
