"""From a Pod object to what the scheduler charges and the controller counts, and what the Binding writes onto it."""

from __future__ import annotations

from typing import Any

from sharepod_operator.core.model import Allocation, Assigned, GPURequest, Pod, Resources, Shape
from sharepod_operator.core.quantity import shown
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import controlling_owner, integer, mapping, mappings, text, version
from sharepod_operator.manifest.constraints import read_constraints
from sharepod_operator.manifest.ledger import (
    LedgerError,
    decode_allocation,
    decode_request,
    encode_allocation,
)
from sharepod_operator.manifest.records import Json, PodRecord
from sharepod_operator.manifest.resources import charged_request, effective_request

_PHASES = frozenset({"Pending", "Running", "Succeeded", "Failed", "Unknown"})
_MAX_INTERNED = 4096
_interned: dict[Shape, Shape] = {}


def read_pod(obj: Json) -> PodRecord:
    """The record of a Pod. Never raises: `invalid` and `ledger_error` say what could not be read.

    Whoever created the Pod, its amounts are read, since every pod of a node is charged.
    """
    body = mapping(obj)
    metadata, spec, status = mapping(body.get("metadata")), mapping(body.get("spec")), mapping(body.get("status"))
    annotations = mapping(metadata.get("annotations"))
    problems: list[str] = []
    resources = effective_request(spec, problems)
    request = _request(annotations, problems)
    shape = intern(Shape(resources, read_constraints(spec), None if problems else request))
    node = text(spec.get("nodeName"))
    allocation, ledger_error = _ledger(annotations) if node else (None, "")
    phase = text(status.get("phase"))
    ready, ready_since = _readiness(status)
    scheduled = _condition(status, "PodScheduled")
    unplaced = scheduled.get("status") == "False"
    pod = Pod(
        uid=text(metadata.get("uid")),
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        shape=shape,
        priority=integer(spec.get("priority")),
        created=text(metadata.get("creationTimestamp")),
    )
    return PodRecord(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        version=version(metadata),
        pod=pod,
        invalid=problems[0] if problems else "",
        scheduler_name=text(spec.get("schedulerName")),
        gated=bool(spec.get("schedulingGates")),
        node=node,
        phase=phase if phase in _PHASES else "Pending",
        deleting=bool(metadata.get("deletionTimestamp")),
        deletion_time=text(metadata.get("deletionTimestamp")),
        owner=controlling_owner(metadata),
        template_hash=text(annotations.get(names.TEMPLATE_HASH)),
        replica=text(annotations.get(names.REPLICA)),
        restart_policy=text(spec.get("restartPolicy")) or "Always",
        ready=ready,
        ready_since=ready_since,
        start_time=text(status.get("startTime")),
        restarts=_restarts(status),
        deletion_cost=_deletion_cost(annotations),
        reason=text(status.get("reason")),
        scheduled_reason=text(scheduled.get("reason")) if unplaced else "",
        scheduled_message=text(scheduled.get("message")) if unplaced else "",
        bound_at=text(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else "",
        allocation=allocation,
        ledger_error=ledger_error,
        charged=_charged(spec, status, resources),
        host_ports=shape.constraints.host_ports,
        whole_gpus=dict(resources.extended).get(names.NVIDIA_GPU, 0),
    )


def binding_annotations(pod: PodRecord, assigned: Assigned, pod_manager_ip: str) -> dict[str, str]:
    """What the Binding writes onto the Pod in the same write as its node: the ledger entry, and the plain strings
    that its environment reads. A pod without GPUs gets none.
    """
    allocation = assigned.allocation
    if allocation is None:
        return {}
    return {
        names.ALLOCATION: encode_allocation(allocation),
        names.GPU_UUIDS: ",".join(allocation.uuids),
        names.POD_MANAGER_PORT: str(allocation.port),
        names.POD_MANAGER_IP: pod_manager_ip,
        names.CLIENT_ID: pod.key,
    }


def intern(shape: Shape) -> Shape:
    """One object for all equal shapes: thousands of replicas then share their memory and compare at once."""
    if len(_interned) >= _MAX_INTERNED:
        _interned.clear()
    return _interned.setdefault(shape, shape)


def _request(annotations: Json, problems: list[str]) -> GPURequest | None:
    """The GPU request on a Pod: the one form that the controller writes, whatever the SharePod said.

    KubeShare's annotations on a Pod that no SharePod made are refused rather than ignored: placed as a pod without
    GPUs it would start and find none.
    """
    written = annotations.get(names.GPU_REQUEST)
    if isinstance(written, str) and written:
        try:
            return decode_request(written)
        except LedgerError as error:
            problems.append(f"annotation {names.GPU_REQUEST} is {shown(written)}: {error}")
            return None
    for key in names.KUBESHARE_AMOUNTS:
        if annotations.get(key):
            problems.append(
                f"annotation {key} is read on SharePods only; write a SharePod with this pod's spec as podSpec"
            )
            return None
    return None


def _ledger(annotations: Json) -> tuple[Allocation | None, str]:
    written = annotations.get(names.ALLOCATION)
    if not isinstance(written, str) or not written:
        return None, ""
    try:
        return decode_allocation(written), ""
    except LedgerError as error:
        return None, f"annotation {names.ALLOCATION} is {shown(written)}: {error}"


def _charged(spec: Json, status: Json, resources: Resources) -> Resources:
    return charged_request(spec, status, resources) if spec.get("nodeName") else resources


def _condition(status: Json, kind: str) -> Json:
    for condition in mappings(status.get("conditions")):
        if condition.get("type") == kind:
            return condition
    return {}


def _readiness(status: Json) -> tuple[bool, str]:
    condition = _condition(status, "Ready")
    if condition.get("status") != "True":
        return False, ""
    return True, text(condition.get("lastTransitionTime"))


def _restarts(status: Json) -> int:
    return max((integer(item.get("restartCount")) for item in mappings(status.get("containerStatuses"))), default=0)


def _deletion_cost(annotations: Json) -> int:
    """Kubernetes' own annotation; what is no 32-bit integer counts as 0, as there."""
    written: Any = annotations.get(names.POD_DELETION_COST)
    digits = text(written).removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return 0
    cost = int(text(written))
    return cost if -(1 << 31) <= cost < 1 << 31 else 0
