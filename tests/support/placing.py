"""Builders for placement: nodes, GPUs and pods in as few words as a test needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod_operator.core.model import (
    Allocation,
    Assigned,
    Charge,
    Constraints,
    Device,
    GPURequest,
    Node,
    Placed,
    Resources,
    Shape,
    Unschedulable,
)
from sharepod_operator.core.placement import decide
from sharepod_operator.core.score import policy

if TYPE_CHECKING:
    from sharepod_operator.core.snapshot import Snapshot

GI = 2**30


def gpu(uuid: str, memory: int = 40 * GI, *, healthy: bool = True, cordoned: bool = False) -> Device:
    """A GPU of 40Gi unless said otherwise."""
    return Device(uuid, memory, healthy=healthy, cordoned=cordoned)


def node(name: str, *devices: Device, cpu: int = 64_000, memory: int = 512 * GI, **more: object) -> Node:
    """A node with plenty of everything; `more` are fields of Node."""
    return Node(name, allocatable=Resources(cpu, memory), devices=devices, **more)  # type: ignore[arg-type]


def shape(
    milli: int | None = None,
    *,
    cpu: int = 100,
    memory: int = GI // 8,
    resources: Resources | None = None,
    constraints: Constraints = Constraints(),  # noqa: B008 - frozen
    **gpu_fields: object,
) -> Shape:
    """A pod's shape: with `milli` it asks for a GPU, and further keywords are fields of the GPURequest."""
    request = None
    if milli is not None:
        request = GPURequest(milli, max(milli, 1), **gpu_fields)  # type: ignore[arg-type]
    return Shape(resources or Resources(cpu, memory), constraints, request)


def held(
    uid: str, on: str, *uuids: str, milli: int = 100, memory: int = GI, port: int = 0, cpu: int = 100, **tags: str
) -> Assigned:
    """A pod that is already there; `tags` are those of its Allocation, or its virtual_id."""
    charges = tuple(Charge(uuid, milli, memory) for uuid in uuids)
    allocation = Allocation(charges, port, **tags) if uuids else None  # type: ignore[arg-type]
    return Assigned(uid, on, Resources(cpu, GI // 8), allocation=allocation)


def placed(snapshot: Snapshot, wanted: Shape, uid: str = "", by: str = "bestFit") -> tuple[str, tuple[str, ...]]:
    """Decide and, with a uid, charge the pod; returns node and GPUs. The pod must fit."""
    decision = decide(snapshot, wanted, policy(by))
    assert isinstance(decision, Placed), decision
    if uid:
        snapshot.add(Assigned(uid, decision.node, wanted.resources, allocation=decision.allocation))
        snapshot.validate()
    return decision.node, decision.allocation.uuids if decision.allocation is not None else ()


def refused(snapshot: Snapshot, wanted: Shape) -> Unschedulable:
    """Decide; the pod must not fit."""
    decision = decide(snapshot, wanted, policy("bestFit"))
    snapshot.validate()
    assert isinstance(decision, Unschedulable), decision
    return decision


def reasons(snapshot: Snapshot, wanted: Shape) -> dict[str, str]:
    """Decide; the pod must not fit. Returns the reason of each node and GPU."""
    answer = refused(snapshot, wanted)
    return {name: str(why.reason) for name, why in (answer.nodes | answer.devices).items()}
