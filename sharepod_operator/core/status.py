"""What a SharePod's status says: counters, conditions, placements, and the maps that faas-share's clients read.

Everything is written from the pods as they are; nothing is remembered, except when a condition last changed. What grows
with the replicas (`DETAILS`) is written apart from the rest, since it is dear for the API server.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sharepod_operator.core.quantity import format_bytes, format_share
from sharepod_operator.core.status_details import DETAILS, render_details

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sharepod_operator.core.model import GPURequest
    from sharepod_operator.core.replicas import ReplicaState

Json = dict[str, Any]

MESSAGE_LIMIT = 1024


class Reason(StrEnum):
    """The reasons of the conditions: part of the API, never renamed."""

    VALID = "Valid"
    INVALID_GPU_REQUEST = "InvalidGPURequest"
    INVALID_POD_SPEC = "InvalidPodSpec"
    UNKNOWN_PRIORITY_CLASS = "UnknownPriorityClass"
    ALL_PLACED = "AllPlaced"
    PLACING = "Placing"
    """Status Unknown: replicas are being made or wait for the scheduler's first word."""
    UNSCHEDULABLE = "Unschedulable"
    UNSATISFIABLE = "Unsatisfiable"
    WAITING_FOR_VICTIMS = "WaitingForVictims"
    WAITING_FOR_DEVICE = "WaitingForDevice"
    PORT_POOL_EXHAUSTED = "PortPoolExhausted"
    ALL_REPLICAS_READY = "AllReplicasReady"
    SCALED_TO_ZERO = "ScaledToZero"
    REPLICAS_NOT_READY = "ReplicasNotReady"
    NODE_LOST = "NodeLost"
    GPU_UNHEALTHY = "GPUUnhealthy"
    NODE_NOT_READY = "NodeNotReady"
    ALL_HEALTHY = "AllHealthy"
    PREEMPTED_BY_PRIORITY = "PreemptedByPriority"
    RESCHEDULED = "Rescheduled"


@dataclass(frozen=True, slots=True)
class Refused:
    """Why no pod can be made from the SharePod as it is."""

    reason: Reason
    """One of Accepted's reasons; Unschedulable where the spec is fine and the API server refuses for now, as by a quota."""
    message: str
    event: str
    """Reason of the event that tells of it."""


@dataclass(frozen=True, slots=True)
class SharePodView:
    """What the status needs to know of the SharePod itself."""

    generation: int
    wanted: int
    min_ready_seconds: int
    selector: str
    gpu: GPURequest | None = None
    gpu_source: str = ""
    refused: Refused | None = None


def render_status(
    view: SharePodView, pods: Sequence[ReplicaState], previous: Json, now: datetime, *, details: bool = True
) -> Json:
    """The whole status. Without `details` the fields of that name are taken over from the previous one as they are."""
    status: Json = {
        "observedGeneration": view.generation,
        "replicas": sum(pod.active for pod in pods),
        "readyReplicas": sum(pod.active and pod.ready for pod in pods),
        "availableReplicas": sum(_available_in(view, pod, now) == timedelta(0) for pod in pods),
        "selector": view.selector,
        "conditions": _conditions(view, pods, previous, now),
    }
    if view.gpu is not None:
        status["gpu"] = _gpu(view.gpu, view.gpu_source)
    if details:
        return {**status, **render_details(pods)}
    return {**status, **{field: previous[field] for field in DETAILS if field in previous}}


def next_available(view: SharePodView, pods: Iterable[ReplicaState], now: datetime) -> timedelta | None:
    """When the next Ready pod becomes available although nothing changes; None where none will."""
    waits = (_available_in(view, pod, now) for pod in pods)
    return min((wait for wait in waits if wait), default=None)


def at_rest(view: SharePodView, pods: Iterable[ReplicaState]) -> bool:
    """Whether each wanted replica has its place or the scheduler's word, so that details are worth writing."""
    pods = tuple(pods)
    if view.refused is not None:
        return True
    settled = sum(_placed(pod) or (pod.active and bool(pod.verdict_reason)) for pod in pods)
    return settled >= view.wanted and all(pod.node or pod.verdict_reason for pod in pods if pod.active)


def waiting(pods: Iterable[ReplicaState]) -> bool:
    """Whether some pod waits and the scheduler has said why."""
    return any(pod.active and not pod.node and pod.verdict_reason for pod in pods)


def settled(view: SharePodView, pods: Sequence[ReplicaState]) -> bool:
    """Whether nothing more is expected to happen soon: all replicas are Ready or done, or no pod can be made."""
    if view.refused is not None:
        return True
    active = [pod for pod in pods if pod.active]
    finished = sum(pod.done for pod in pods)
    return len(active) <= view.wanted <= len(active) + finished and all(pod.ready for pod in active)


def complete(view: SharePodView, pods: Sequence[ReplicaState]) -> bool:
    """Whether every wanted replica of this very generation is placed."""
    return view.refused is None and 0 < view.wanted <= sum(_placed(pod) and pod.current for pod in pods)


def merge_patch(old: Json, new: Json) -> Json:
    """The JSON merge-patch that turns `old` into `new`; empty where they are equal."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if (inner := merge_patch(before, value)) or (not value and before):
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch


def one_line(text: str) -> str:
    """A message as conditions and events carry it: on one line, at most 1024 characters."""
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 1] + "…"


def condition(status: Json, kind: str) -> Json:
    """The condition of that type, or an empty one."""
    for found in status.get("conditions") or ():
        if found.get("type") == kind:
            return dict(found)
    return {}


def verdicts(pods: Iterable[ReplicaState]) -> list[tuple[Reason, str, int]]:
    """Why pods wait: reason, message and how many; what no waiting mends comes first, then the most frequent."""
    counts = Counter(
        (Reason(pod.verdict_reason), pod.verdict_message)
        for pod in pods
        if pod.active and not pod.node and pod.verdict_reason
    )
    ordered = sorted(counts.items(), key=lambda item: (item[0][0] is not Reason.UNSATISFIABLE, -item[1], item[0]))
    return [(reason, message, count) for (reason, message), count in ordered]


def _placed(pod: ReplicaState) -> bool:
    return (pod.active and bool(pod.node)) or pod.done


def _available_in(view: SharePodView, pod: ReplicaState, now: datetime) -> timedelta | None:
    """How long until the pod counts as available: zero where it does, None where it isn't Ready."""
    if not (pod.active and pod.ready):
        return None
    if not view.min_ready_seconds or pod.ready_since is None:
        return timedelta(0)
    return max(timedelta(0), pod.ready_since + timedelta(seconds=view.min_ready_seconds) - now)


def _conditions(view: SharePodView, pods: Sequence[ReplicaState], previous: Json, now: datetime) -> list[Json]:
    accepted = _accepted(view)
    scheduled = _scheduled(view, pods)
    found: dict[str, tuple[str, Reason, str]] = {"Accepted": accepted}
    if accepted[0] == "True" or scheduled[0] == "True":
        found["Scheduled"] = scheduled
    found["Ready"] = _ready(view, pods, accepted, scheduled)
    preempted = _preempted(view, pods, condition(previous, "Preempted"))
    if preempted is not None:
        found["Preempted"] = preempted
    found["Degraded"] = _degraded(pods)
    return [
        _dated(kind, state, reason, message, view.generation, condition(previous, kind), now)
        for kind, (state, reason, message) in found.items()
    ]


def _dated(kind: str, state: str, reason: Reason, message: str, generation: int, before: Json, now: datetime) -> Json:
    """The condition, with the time when its status (not its reason) last changed."""
    since = before.get("lastTransitionTime") if before.get("status") == state else None
    return {
        "type": kind,
        "status": state,
        "observedGeneration": generation,
        "lastTransitionTime": since or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "reason": reason.value,
        "message": one_line(message),
    }


def _accepted(view: SharePodView) -> tuple[str, Reason, str]:
    refused = view.refused
    if refused is None or refused.reason is Reason.UNSCHEDULABLE:
        return "True", Reason.VALID, "The SharePod is valid"
    return "False", refused.reason, refused.message


def _scheduled(view: SharePodView, pods: Sequence[ReplicaState]) -> tuple[str, Reason, str]:
    placed = sum(_placed(pod) for pod in pods)
    if placed >= view.wanted:
        return "True", Reason.ALL_PLACED, "Every wanted replica is placed" if view.wanted else "No replica is wanted"
    refused = view.refused
    if refused is not None and refused.reason is Reason.UNSCHEDULABLE:
        return "False", Reason.UNSCHEDULABLE, refused.message
    reasons = verdicts(pods)
    if reasons:
        reason, message, count = reasons[0]
        if view.wanted > 1:
            message = f"{count} of {view.wanted} replicas wait: {message}"
        return "False", reason, message
    return "Unknown", Reason.PLACING, f"{placed} of {view.wanted} replicas are placed, the others are about to be"


def _ready(
    view: SharePodView,
    pods: Sequence[ReplicaState],
    accepted: tuple[str, Reason, str],
    scheduled: tuple[str, Reason, str],
) -> tuple[str, Reason, str]:
    if accepted[0] == "False":
        return accepted
    if not view.wanted:
        return "True", Reason.SCALED_TO_ZERO, "No replica is wanted"
    if scheduled[0] == "False":
        return scheduled
    active = [pod for pod in pods if pod.active]
    ready = sum(pod.ready for pod in active)
    message = f"{ready} of {view.wanted} replicas are ready"
    finished = sum(pod.done for pod in pods)
    if finished:
        message += f", {finished} finished"
    outdated = sum(not pod.current for pod in active)
    if outdated:
        message += f"; {outdated} run an earlier version of the spec until they end"
    if ready >= view.wanted:
        return "True", Reason.ALL_REPLICAS_READY, message
    lagging = [pod for pod in active if pod.node and not pod.ready]
    reason = Reason.REPLICAS_NOT_READY
    if any(not pod.node_ready for pod in lagging):
        reason = Reason.NODE_LOST
    elif any(pod.unhealthy for pod in lagging):
        reason = Reason.GPU_UNHEALTHY
    return "False", reason, message


def _preempted(view: SharePodView, pods: Sequence[ReplicaState], before: Json) -> tuple[str, Reason, str] | None:
    """Whether replicas had to leave for more important pods; it stays until all are placed again. None: never yet."""
    gone = [pod.name for pod in pods if pod.disrupted]
    if gone:
        count = f"{len(gone)} replica{' was' if len(gone) == 1 else 's were'}"
        return "True", Reason.PREEMPTED_BY_PRIORITY, f"{count} preempted by more important pods: {_few(gone)}"
    if not before:
        return None
    if before.get("status") == "True" and sum(_placed(pod) for pod in pods) < view.wanted:
        return "True", Reason.PREEMPTED_BY_PRIORITY, before.get("message", "")
    return "False", Reason.RESCHEDULED, "Every replica is placed again"


def _degraded(pods: Sequence[ReplicaState]) -> tuple[str, Reason, str]:
    nodes = {pod.node for pod in pods if pod.active and pod.node and not pod.node_ready}
    if nodes:
        return "True", Reason.NODE_NOT_READY, f"Replicas are on nodes that are not Ready: {_few(nodes)}"
    uuids = {uuid for pod in pods if pod.active for uuid in pod.unhealthy}
    if uuids:
        return "True", Reason.GPU_UNHEALTHY, f"Replicas are on GPUs that are unhealthy: {_few(uuids)}"
    return "False", Reason.ALL_HEALTHY, "The nodes and GPUs of all replicas are healthy"


def _few(names: Iterable[str], shown: int = 5) -> str:
    ordered = sorted(names)
    rest = len(ordered) - shown
    return ", ".join(ordered[:shown]) + (f" and {rest} more" if rest > 0 else "")


def _gpu(request: GPURequest, source: str) -> Json:
    times = f"x{request.count}" if request.count > 1 else ""
    share = format_share(request.milli, request.limit_milli) + times
    memory = f"{request.memory_percent}%" if request.memory_percent else format_bytes(request.memory)
    return {"share": share, "memory": memory, "source": source}
