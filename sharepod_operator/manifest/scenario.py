"""The plain form of a scenario for `sharepod simulate`: nodes with GPUs, pods that are there, pods to be placed.

A mistake in the form or in what is already there is an error. A pod to be placed that asks for what can't be read is a
result of its own, as it is in a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharepod_operator.core.model import (
    Allocation,
    Assigned,
    Charge,
    Device,
    GPURequest,
    Node,
    Resources,
    Shape,
    Unschedulable,
)
from sharepod_operator.core.quantity import shown
from sharepod_operator.core.request import RequestFields, RequestLabels, build_request
from sharepod_operator.manifest.constraints import read_constraints
from sharepod_operator.manifest.disruption import read_occupant
from sharepod_operator.manifest.gpu_fields import looks_like_device
from sharepod_operator.manifest.gpu_resources import fill_in, read_resources
from sharepod_operator.manifest.plain_nodes import read_plain_node
from sharepod_operator.manifest.plain_standing import STANDING_KEYS, read_plain_budgets, read_standing
from sharepod_operator.manifest.pod import intern
from sharepod_operator.manifest.resources import effective_request, read_amounts
from sharepod_operator.manifest.strict import (
    ScenarioError,
    as_object,
    check_keys,
    object_at,
    objects,
    refuse_twice,
    strings_at,
    text_at,
)
from sharepod_operator.manifest.volumes import read_claim_uses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod_operator.core.occupancy import Occupant
    from sharepod_operator.manifest.disruption import BudgetRecord
    from sharepod_operator.manifest.gpu_resources import Stated
    from sharepod_operator.manifest.records import Json, PodRecord

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
_POD_KEYS = ("cpu", "memory", "gpu", "node", "gpus", "phase", "nodeName", *STANDING_KEYS, *_SPEC_KEYS)
_OF_PODS = ("limits", "requests", "claims")
"""What `resources` of a PodSpec holds. There it may also hold amounts themselves, as a short form of one container."""
_FINAL = ("Succeeded", "Failed")
_PHASES = ("Pending", "Running", "Unknown", *_FINAL)

Inventory = dict[str, dict[str, Device]]
"""Node name to its GPUs by UUID."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod to be placed; `invalid` is a sentence where it can't be, whatever the cluster."""

    pod: Occupant
    """As it will be judged once it is placed."""
    shape: Shape | None = None
    """None exactly where `invalid` says why."""
    invalid: str = ""
    blocked: Unschedulable | None = None
    """Why it waits whatever the nodes have left, such as for a claim that isn't bound."""
    never: bool = False
    """preemptionPolicy Never."""
    nominated: str = ""
    """The node where it was promised room."""
    promised: Allocation | None = None
    """The GPUs that were promised to it there, where that is known."""

    @property
    def key(self) -> str:
        """namespace/name."""
        return self.pod.key


@dataclass(frozen=True, slots=True)
class Promise:
    """Room that another scheduler promised to a pod of its own: nobody less important gets it."""

    assigned: Assigned
    priority: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """What `sharepod simulate` works on: the cluster as it is, and the pods to be placed in this order."""

    nodes: tuple[Node, ...]
    assigned: tuple[Assigned, ...]
    candidates: tuple[Candidate, ...]
    occupants: tuple[Occupant, ...] = ()
    """The pods of `assigned`, by the same uids."""
    disrupted: frozenset[str] = frozenset()
    """Uids of those who leave because a scheduler told them to."""
    promises: tuple[Promise, ...] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Disruptions that each PodDisruptionBudget still allows."""
    notes: tuple[str, ...] = ()
    """What was left out of the file, and why; one sentence each."""


def read_plain(body: Json) -> Scenario:
    """The scenario of `{"nodes": [...], "pods": [...], "podDisruptionBudgets": [...]}`.

    Raises:
        ScenarioError: the form is wrong, or what is already there can't be.
    """
    check_keys(body, ("nodes", "pods", "podDisruptionBudgets"), "")
    nodes = tuple(read_plain_node(node, where) for node, where in objects(body, "nodes", ""))
    refuse_twice("nodes", (node.name for node in nodes), "node")
    refuse_twice("nodes", (device.uuid for node in nodes for device in node.devices), "GPU")
    inventory = {node.name: {device.uuid: device for device in node.devices} for node in nodes}
    budgets = read_plain_budgets(body)
    assigned: list[Assigned] = []
    there: list[PodRecord] = []
    candidates: list[Candidate] = []
    keys: list[str] = []
    for pod, where in objects(body, "pods", ""):
        check_keys(pod, _POD_KEYS, where)
        record = read_standing(pod, where)
        keys.append(record.key)
        finished = _phase(pod, where) in _FINAL
        if pod.get("node") is not None:
            charged = _assigned(pod, record.key, where, inventory)
            if not finished:
                assigned.append(charged)
                there.append(record)
        elif not finished and not record.deleting:
            candidates.append(_candidate(pod, record, budgets, where, inventory))
    refuse_twice("pods", keys, "pod")
    return Scenario(
        nodes,
        tuple(assigned),
        tuple(candidates),
        tuple(read_occupant(record, budgets) for record in there),
        frozenset(record.uid for record in there if record.deleting and record.disrupted),
        budgets={budget.key: budget.allowed for budget in budgets},
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
    allocation = _allocation(request, [inventory[node][uuid] for uuid in uuids], inventory) if request else None
    return Assigned(key, node, resources, read_constraints(_spec(pod, where)).host_ports, allocation)


def _charged_uuid(gpu: Json, where: str, node: str, devices: Mapping[str, Device]) -> str:
    uuid = text_at(gpu, "uuid", where)
    if uuid not in devices:
        raise ScenarioError(f"{where}.uuid is {shown(uuid)}; it must be a GPU of node {node}")
    return uuid


def _allocation(request: GPURequest, cards: list[Device], inventory: Inventory) -> Allocation:
    return Allocation(
        tuple(Charge(card.uuid, request.milli, request.memory_on(card.memory)) for card in cards),
        limit_milli=request.limit_milli,
        affinity=request.affinity,
        anti_affinity=request.anti_affinity,
        exclusion=request.exclusion,
        virtual_id="" if _in_inventory(request.gpu_id, inventory) else request.gpu_id,
    )


def _in_inventory(uuid: str, inventory: Inventory) -> bool:
    return any(uuid in devices for devices in inventory.values())


def _candidate(
    pod: Json, record: PodRecord, budgets: list[BudgetRecord], where: str, inventory: Inventory
) -> Candidate:
    occupant = read_occupant(record, budgets)
    problems: list[str] = []
    pin = text_at(pod, "nodeName", where)
    spec = _spec(pod, where)
    constraints = read_constraints(spec, pinned_node=pin)
    resources, request = _amounts(pod, where, problems)
    if read_claim_uses(spec, "", ""):
        problems.append(
            f"{where}.volumes: the plain form has no PersistentVolumes; write the file as Kubernetes manifests"
        )
    gpu_id = request.gpu_id if request is not None else ""
    if gpu_id and not pin and not looks_like_device(gpu_id) and not _in_inventory(gpu_id, inventory):
        problems.append(
            f"{where}.gpu.GPUID: {shown(gpu_id)} is no GPU's UUID and so names a virtual GPU; set {where}.nodeName as well"
        )
    if problems:
        return Candidate(occupant, invalid=problems[0])
    shape = intern(Shape(resources, constraints, request))
    return Candidate(occupant, shape, never=record.never_preempts, nominated=record.nominated)


def _amounts(pod: Json, where: str, problems: list[str]) -> tuple[Resources, GPURequest | None]:
    """What the pod takes: of the node by its containers or resources where it has some, else by cpu and memory; and of
    GPUs.
    """
    asked: dict[str, Stated] = {}
    spec = _spec(pod, where)
    if spec.get("containers") is not None or spec.get("initContainers") is not None:
        resources = effective_request(spec, problems, where)
        asked = read_resources(spec, problems)
    else:
        resources, _, _ = read_amounts({key: pod[key] for key in ("cpu", "memory") if key in pod}, where, problems)
    if problems or (pod.get("gpu") is None and not asked):
        return resources, None
    where = f"{where}.gpu"
    gpu = {} if pod.get("gpu") is None else as_object(pod["gpu"], where)
    check_keys(gpu, tuple(_REQUEST_KEYS), where)
    text_at(gpu, "GPUID", where)
    fields = {field: gpu.get(key) for key, field in _REQUEST_KEYS.items()}
    labels = {field: f"{where}.{key}" for key, field in _REQUEST_KEYS.items()}
    fill_in(fields, labels, asked)
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
    spec = {key: pod[key] for key in _SPEC_KEYS if key in pod}
    stated = object_at(pod, "resources", where)
    if all(key in _OF_PODS for key in stated):
        return spec
    if spec.get("containers") is not None or spec.get("initContainers") is not None:
        raise ScenarioError(
            f"{where}.resources holds amounts, and the pod has containers; write the amounts into these"
        )
    basic = {key: pod[key] for key in ("cpu", "memory") if pod.get(key) is not None}
    return {**spec, "resources": {}, "containers": [{"resources": {"limits": {**basic, **stated}}}]}
