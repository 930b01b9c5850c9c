"""Node and GPU filters, in the order in which they name a reason: the first that fails is the reason given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod_operator.core.model import Refusal
from sharepod_operator.core.reasons import DeviceReason, NodeReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod_operator.core.model import (
        Constraints,
        GPURequest,
        HostPort,
        Node,
        Requirement,
        Resources,
        SelectorTerm,
        Shape,
        Taint,
        Toleration,
    )
    from sharepod_operator.core.node_state import DeviceState, NodeState
    from sharepod_operator.core.snapshot import Snapshot

_NODE: Final = {reason: Refusal(reason) for reason in NodeReason}
_DEVICE: Final = {reason: Refusal(reason) for reason in DeviceReason}
_NOT_ASKED: Final = Refusal("")
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


@dataclass(slots=True)
class Query:
    """A pod's shape, with what the filters need of it worked out once. Made anew for each decision; not to be changed."""

    shape: Shape
    gpu: GPURequest | None
    constraints: Constraints
    constraints_number: int
    cpu: int
    memory: int
    more_resources: bool
    pinned: frozenset[str] | None
    """The only GPUs allowed, by UUID; None allows all."""
    virtual: str
    """The name of the virtual GPU that the pod asks for; "" for none."""


def query(snapshot: Snapshot, shape: Shape) -> Query:
    """Prepare a shape for the filters: a GPUID that is in the inventory pins that GPU, any other names a virtual one."""
    gpu = shape.gpu
    pinned: frozenset[str] | None = None
    virtual = ""
    if gpu is not None:
        if gpu.device_ids:
            pinned = frozenset(gpu.device_ids)
        if gpu.gpu_id and snapshot.owners(gpu.gpu_id):
            only = frozenset((gpu.gpu_id,))
            pinned = only if pinned is None else pinned & only
        else:
            virtual = gpu.gpu_id
    resources = shape.resources
    return Query(
        shape=shape,
        gpu=gpu,
        constraints=shape.constraints,
        constraints_number=snapshot.constraints_number(shape.constraints),
        cpu=resources.cpu_milli,
        memory=resources.memory,
        more_resources=bool(resources.ephemeral_storage or resources.extended),
        pinned=pinned,
        virtual=virtual,
    )


def node_refusal(state: NodeState, asked: Query) -> Refusal | None:
    """Why the node takes no pod of this kind, before its GPUs are looked at; None where it does."""
    static = state.static.get(asked.constraints_number, _NOT_ASKED)
    if static is _NOT_ASKED:
        static = state.static[asked.constraints_number] = static_refusal(state.node, state.labels, asked.constraints)
    if static is not None:
        return static
    if asked.cpu and asked.cpu > state.free_cpu:
        return _NODE[NodeReason.INSUFFICIENT_CPU]
    if asked.memory and asked.memory > state.free_memory:
        return _NODE[NodeReason.INSUFFICIENT_MEMORY]
    if state.free_pods < 1:
        return _NODE[NodeReason.TOO_MANY_PODS]
    if asked.gpu is not None and not state.devices:
        return _NODE[NodeReason.NO_GPU]
    return _further_refusal(state, asked)


def static_refusal(node: Node, labels: Mapping[str, str], constraints: Constraints) -> Refusal | None:
    """The filters that look at the node's record alone, so that a node answers them once for all pods alike."""
    if not node.ready:
        return _NODE[NodeReason.NOT_READY]
    if node.unschedulable:
        return _NODE[NodeReason.UNSCHEDULABLE]
    for taint in node.taints:
        if taint.effect != "PreferNoSchedule" and not any(tolerates(t, taint) for t in constraints.tolerations):
            return Refusal(NodeReason.TAINT, f"{{{taint.key}: {taint.value}}}")
    if any(labels.get(key) != value for key, value in constraints.node_selector):
        return _NODE[NodeReason.NODE_SELECTOR]
    terms = constraints.node_affinity
    if terms is not None and not any(_term_holds(term, node.name, labels) for term in terms):
        return _NODE[NodeReason.NODE_AFFINITY]
    if constraints.node_name and constraints.node_name != node.name:
        return _NODE[NodeReason.NODE_PIN]
    return None


def device_refusal(state: NodeState, device: DeviceState, gpu: GPURequest, asked: Query) -> Refusal | None:
    """Why this GPU of a node that passes takes no pod of this kind; None where it does."""
    if not device.usable:
        return _DEVICE[DeviceReason.UNHEALTHY]
    if asked.pinned is not None and device.device.uuid not in asked.pinned:
        return _DEVICE[DeviceReason.DEVICE_PIN]
    if asked.virtual and not _may_be_virtual(state, device, asked):
        return _DEVICE[DeviceReason.DEVICE_PIN]
    if device.pods:
        if len(device.exclusion) != 1 or gpu.exclusion not in device.exclusion:
            return _DEVICE[DeviceReason.EXCLUSION_CONFLICT]
        if gpu.affinity and gpu.affinity not in device.affinity:
            return _DEVICE[DeviceReason.AFFINITY_MISMATCH]
        if gpu.anti_affinity and gpu.anti_affinity in device.anti_affinity:
            return _DEVICE[DeviceReason.ANTI_AFFINITY_CONFLICT]
    if gpu.milli and gpu.milli > device.free:
        return _DEVICE[DeviceReason.INSUFFICIENT_SHARE]
    memory = gpu.memory_on(device.device.memory) if gpu.memory_percent else gpu.memory
    if memory and memory > device.memory_free:
        return _DEVICE[DeviceReason.INSUFFICIENT_GPU_MEMORY]
    return None


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether the toleration covers the taint: an empty effect or key covers every one."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in {"", "Equal"} and toleration.value == taint.value


def _further_refusal(state: NodeState, asked: Query) -> Refusal | None:
    constraints = asked.constraints
    short = _further_shortage(state, asked.shape.resources) if asked.more_resources else None
    if short is not None:
        return short
    if constraints.host_ports and any(_port_taken(port, state) for port in constraints.host_ports):
        return _NODE[NodeReason.HOST_PORT_CONFLICT]
    if constraints.volume_affinity and not _volumes_reach(state, constraints):
        return _NODE[NodeReason.VOLUME_NODE_AFFINITY]
    if asked.gpu is not None:
        if state.taken_ports == state.ports.full:
            return _NODE[NodeReason.PORT_POOL_EXHAUSTED]
        if state.node.foreign_gpu_users:
            return _NODE[NodeReason.FOREIGN_GPU_USERS]
    if constraints.unsupported:
        return Refusal(NodeReason.UNSUPPORTED_CONSTRAINT, ", ".join(constraints.unsupported))
    return None


def _further_shortage(state: NodeState, resources: Resources) -> Refusal | None:
    if resources.ephemeral_storage and resources.ephemeral_storage > state.free_ephemeral_storage:
        return _NODE[NodeReason.INSUFFICIENT_EPHEMERAL_STORAGE]
    for name, amount in resources.extended:
        if amount and amount > state.free_extended.get(name, 0):
            return Refusal(NodeReason.INSUFFICIENT_RESOURCE, name)
    return None


def _may_be_virtual(state: NodeState, device: DeviceState, asked: Query) -> bool:
    """The card that the virtual GPU's name stands for, or an idle one to open; a name counts on a pinned node only."""
    if not asked.constraints.node_name:
        return False
    cards = state.virtual.get(asked.virtual)
    return device.device.uuid in cards if cards else not device.pods


def _port_taken(wanted: HostPort, state: NodeState) -> bool:
    if wanted.protocol == "TCP" and wanted.port in state.port_counts:
        return True  # the GPU daemon listens there for a pod, on the node's own network
    return any(
        held.port == wanted.port
        and held.protocol == wanted.protocol
        and (held.ip == wanted.ip or held.ip in _WILDCARDS or wanted.ip in _WILDCARDS)
        for held in state.host_ports
    )


def _volumes_reach(state: NodeState, constraints: Constraints) -> bool:
    return all(
        any(_term_holds(term, state.node.name, state.labels) for term in terms) for terms in constraints.volume_affinity
    )


def _term_holds(term: SelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    if not term.expressions and not term.fields:
        return False
    return all(_holds(wanted, labels.get(wanted.key)) for wanted in term.expressions) and all(
        wanted.key == "metadata.name" and _holds(wanted, name) for wanted in term.fields
    )


def _holds(wanted: Requirement, value: str | None) -> bool:
    match wanted.operator:
        case "In":
            return value in wanted.values
        case "NotIn":
            return value not in wanted.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            if value is None or len(wanted.values) != 1:
                return False
            bound = wanted.values[0]
            if not (_INTEGER.fullmatch(value) and _INTEGER.fullmatch(bound)):
                return False
            return int(value) > int(bound) if wanted.operator == "Gt" else int(value) < int(bound)
        case _:
            return False
