"""From the cache's records to what the pure decisions work on."""

from __future__ import annotations

import functools
import re
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from sharepod_operator.core.replicas import ReplicaState, Slot
from sharepod_operator.core.status import Reason, Refused, SharePodView
from sharepod_operator.manifest.selector import selector_string

if TYPE_CHECKING:
    from sharepod_operator.cache.cache import Cache, Verdict
    from sharepod_operator.manifest.records import NodeRecord, PodRecord, SharePodRecord

_REPLICA = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})", re.ASCII)
_REQUEST_PROBLEM = re.compile(r"spec\.gpu|annotation kubeshare/|resource koordinator\.sh/")
_MAX_REMEMBERED = 4096
_remembered: dict[str, _Look] = {}
"""The latest look at each pod, by uid. A SharePod is looked at many times while its replicas start, and each time most of
its pods are what they were; records are replaced, never changed, so the same records give the same state."""


class _Look(NamedTuple):
    """A pod's state, and what it was made from."""

    pod: PodRecord
    node: NodeRecord | None
    verdict: Verdict | None
    template_hash: str
    state: ReplicaState


def replica_annotation(slot: Slot) -> str:
    """The slot as it is written onto its Pod."""
    return f"{slot.ordinal}.{slot.incarnation}.{slot.losses}"


def slot_of(pod: PodRecord) -> Slot | None:
    """The slot that a Pod was made for; None where nothing legible says so."""
    found = _REPLICA.fullmatch(pod.replica)
    return Slot(*map(int, found.groups())) if found else None


def replica_states(sharepod: SharePodRecord, cache: Cache) -> list[ReplicaState]:
    """The SharePod's pods as they are known now."""
    return [_state(sharepod, pod, cache) for pod in cache.pods_of(sharepod.uid)]


def sharepod_view(sharepod: SharePodRecord, refused: Refused | None) -> SharePodView:
    """The SharePod as its status sees it."""
    return SharePodView(
        generation=sharepod.generation,
        wanted=sharepod.wanted,
        min_ready_seconds=sharepod.min_ready_seconds,
        selector=selector_string(sharepod.selector, sharepod.name),
        gpu=sharepod.gpu,
        gpu_source=sharepod.gpu_source,
        refused=refused,
    )


def problem_of(sharepod: SharePodRecord) -> Refused | None:
    """What is wrong with the SharePod as it was read; None where it is fine."""
    if not sharepod.invalid:
        return None
    in_request = all(_REQUEST_PROBLEM.match(sentence) for sentence in sharepod.invalid)
    return Refused(
        reason=Reason.INVALID_GPU_REQUEST if in_request else Reason.INVALID_POD_SPEC,
        message="; ".join(sharepod.invalid),
        event="ErrValueError" if in_request else "InvalidSpec",
    )


def _state(sharepod: SharePodRecord, pod: PodRecord, cache: Cache) -> ReplicaState:
    node = cache.node_named(pod.node) if pod.node else None
    verdict = None if pod.node else cache.verdict(pod.uid)
    look = _remembered.get(pod.uid)
    if (
        look is not None
        and look.pod is pod
        and look.node is node
        and look.verdict is verdict
        and look.template_hash == sharepod.template_hash
    ):
        return look.state
    if len(_remembered) >= _MAX_REMEMBERED:
        _remembered.clear()
    state = _rendered(sharepod.template_hash, pod, node, verdict)
    _remembered[pod.uid] = _Look(pod, node, verdict, sharepod.template_hash, state)
    return state


def _rendered(template_hash: str, pod: PodRecord, node: NodeRecord | None, verdict: Verdict | None) -> ReplicaState:
    slot = slot_of(pod) or Slot(-1)
    unhealthy: tuple[str, ...] = ()
    if node is not None and pod.allocation is not None:
        healthy = {device.uuid for device in node.node.devices if device.healthy}
        unhealthy = tuple(uuid for uuid in pod.allocation.uuids if uuid not in healthy)
    return ReplicaState(
        uid=pod.uid,
        name=pod.name,
        ordinal=slot.ordinal,
        incarnation=slot.incarnation,
        losses=slot.losses,
        node=pod.node,
        phase=pod.phase,
        deleting=pod.deleting,
        ready=pod.ready,
        ready_since=_time(pod.ready_since),
        restarts=pod.restarts,
        deletion_cost=pod.deletion_cost,
        created=_time(pod.pod.created),
        current=pod.template_hash == template_hash,
        restart_policy=pod.restart_policy,
        reason=pod.reason,
        allocation=pod.allocation,
        disrupted=pod.disrupted,
        verdict_reason=verdict.reason if verdict else "",
        verdict_message=verdict.message if verdict else "",
        node_ready=not pod.node or (node is not None and node.node.ready),
        unhealthy=unhealthy,
    )


@functools.lru_cache(maxsize=4096)
def _time(text: str) -> datetime | None:
    """An RFC 3339 time; None where it is unset or none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None
