"""From a Pod object to what the scheduler charges and the controller counts, and what the Binding writes onto it."""

from __future__ import annotations

from typing import Any

from sharepod_operator.core.model import Allocation, Assigned, GPURequest, Pod, Resources, Shape
from sharepod_operator.core.quantity import shown
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import (
    controlling_owner,
    integer,
    mapping,
    mappings,
    string_pairs,
    text,
    version,
)
from sharepod_operator.manifest.constraints import read_constraints
from sharepod_operator.manifest.gpu_fields import read_plain_gpu
from sharepod_operator.manifest.ledger import (
    LedgerError,
    decode_allocation,
    decode_request,
    encode_allocation,
)
from sharepod_operator.manifest.nomination import Nomination, decode_nomination
from sharepod_operator.manifest.records import Json, Owner, PodRecord
from sharepod_operator.manifest.resources import charged_request, effective_request
from sharepod_operator.manifest.volumes import read_claim_uses

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
    resources, constraints = effective_request(spec, problems), read_constraints(spec)
    owner = controlling_owner(metadata)
    understood = len(problems)
    request = _request(spec, annotations, owner, constraints.node_name, problems)
    shape = intern(Shape(resources, constraints, None if problems else request))
    node = text(spec.get("nodeName"))
    allocation, ledger_error = _ledger(annotations) if node else (None, "")
    phase = text(status.get("phase"))
    ready, ready_since = _readiness(status)
    scheduled = _condition(status, "PodScheduled")
    unplaced = scheduled.get("status") == "False"
    namespace, name = text(metadata.get("namespace")), text(metadata.get("name"))
    pod = Pod(
        uid=text(metadata.get("uid")),
        namespace=namespace,
        name=name,
        shape=shape,
        priority=integer(spec.get("priority")),
        created=text(metadata.get("creationTimestamp")),
        claims=read_claim_uses(spec, namespace, name),
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
        wants_gpu=request is not None or len(problems) > understood,
        nominated="" if node else text(status.get("nominatedNodeName")),
        nomination=None if node else _nomination(annotations),
        never_preempts=spec.get("preemptionPolicy") == "Never",
        labels=string_pairs(metadata.get("labels")),
        protected=names.CONFIG_MIRROR in annotations or (owner is not None and owner.kind == "DaemonSet"),
        disrupted=_is_disrupted(status),
        grace_seconds=integer(metadata.get("deletionGracePeriodSeconds"), 30),
        node=node,
        phase=phase if phase in _PHASES else "Pending",
        deleting=bool(metadata.get("deletionTimestamp")),
        deletion_time=text(metadata.get("deletionTimestamp")),
        owner=owner,
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
    that its environment reads. A pod without GPUs gets none. A nomination ends with it; a Binding can't remove the
    annotation, so its text becomes empty.
    """
    allocation = assigned.allocation
    void = {names.NOMINATION: ""} if pod.nomination is not None else {}
    if allocation is None:
        return void
    return {
        **void,
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


def _request(spec: Json, annotations: Json, owner: Owner | None, node: str, problems: list[str]) -> GPURequest | None:
    """The GPU request on a Pod: on one of a SharePod the form that the controller writes, else what its user wrote.

    On any other Pod that form would be a request past every check that a user's own has to pass, so it counts for nothing.
    """
    if owner is not None and (owner.api_version, owner.kind) == (names.API_VERSION, names.KIND):
        written = annotations.get(names.GPU_REQUEST)
        if isinstance(written, str) and written:
            try:
                return decode_request(written)
            except LedgerError as error:
                problems.append(f"annotation {names.GPU_REQUEST} is {shown(written)}: {error}")
                return None
    return read_plain_gpu(spec, annotations, node, problems)


def _ledger(annotations: Json) -> tuple[Allocation | None, str]:
    written = annotations.get(names.ALLOCATION)
    if not isinstance(written, str) or not written:
        return None, ""
    try:
        return decode_allocation(written), ""
    except LedgerError as error:
        return None, f"annotation {names.ALLOCATION} is {shown(written)}: {error}"


def _nomination(annotations: Json) -> Nomination | None:
    """One that can't be read is none: the preemptor is decided anew, and its victims that leave are seen leaving."""
    written = annotations.get(names.NOMINATION)
    if not isinstance(written, str) or not written:
        return None
    try:
        return decode_nomination(written)
    except LedgerError:
        return None


def _is_disrupted(status: Json) -> bool:
    """Whether a scheduler told the pod to leave for a more important one."""
    condition = _condition(status, "DisruptionTarget")
    return condition.get("status") == "True" and condition.get("reason") == names.BY_SCHEDULER


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
