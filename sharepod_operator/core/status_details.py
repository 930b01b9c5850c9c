"""The part of a status that grows with the replicas: placements, columns, and the maps that faas-share's clients read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sharepod_operator.core.quantity import format_bytes, format_milli
from sharepod_operator.core.replicas import MAX_REPLICAS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sharepod_operator.core.model import Allocation
    from sharepod_operator.core.replicas import ReplicaState

Json = dict[str, Any]

DETAILS = (
    "placements",
    "summary",
    "ports",
    "boundDeviceIDs",
    "podManagerPort",
    "usage",
    "pod2node",
    "node2Id",
    "prewarmPool",
)
"""The fields that are written only at rest."""
_PORTS_SHOWN = 3
_UUIDS_SHOWN = 3
_SUMMARY_LIMIT = 500
_LONG_UUID = re.compile(r"((?:GPU|MIG)-[0-9a-fA-F]{8})-[0-9a-fA-F-]+")


def render_details(pods: Iterable[ReplicaState]) -> Json:
    """Placements and maps of every pod that takes up room or wants some, terminating ones included."""
    shown = sorted(
        (pod for pod in pods if not pod.finished),
        key=lambda pod: (pod.deleting, pod.ordinal if pod.ordinal >= 0 else MAX_REPLICAS, pod.name),
    )[:MAX_REPLICAS]
    placed = [pod for pod in shown if pod.node]
    held = [(pod, pod.allocation) for pod in placed if pod.allocation is not None]
    on = dict.fromkeys((pod.node, ",".join(allocation.uuids)) for pod, allocation in held)
    return {
        "placements": [_placement(pod) for pod in shown],
        "summary": _summary(placed),
        "ports": _ports([allocation.port for _, allocation in held if allocation.port]),
        "boundDeviceIDs": {pod.name: ",".join(allocation.uuids) for pod, allocation in held},
        "podManagerPort": {pod.name: allocation.port for pod, allocation in held if allocation.port},
        "usage": {pod.name: _usage(allocation) for pod, allocation in held},
        "pod2node": {pod.name: pod.node for pod in placed},
        "node2Id": [{"node": node, "gpu": gpu} for node, gpu in on],
        "prewarmPool": [],
    }


def _placement(pod: ReplicaState) -> Json:
    entry: Json = {"pod": pod.name, "state": "Terminating" if pod.deleting else pod.phase}
    if pod.node:
        entry["node"] = pod.node
    if pod.allocation is not None:
        charge = pod.allocation.charges[0]
        entry["gpus"] = list(pod.allocation.uuids)
        entry["request"] = format_milli(charge.milli)
        entry["memory"] = ",".join(dict.fromkeys(format_bytes(each.memory) for each in pod.allocation.charges))
        if pod.allocation.port:
            entry["port"] = pod.allocation.port
    return entry


def _usage(allocation: Allocation) -> Json:
    times = f"x{len(allocation.charges)}" if len(allocation.charges) > 1 else ""
    return {
        "gpu": format_milli(allocation.charges[0].milli) + times,
        "totalMemoryBytes": sum(charge.memory for charge in allocation.charges),
    }


def _summary(placed: Sequence[ReplicaState]) -> str:
    """The first replica's node and GPUs, and how many more there are: `gpu-a/GPU-604ac76c +2`."""
    if not placed:
        return ""
    first = placed[0]
    uuids = first.allocation.uuids if first.allocation is not None else ()
    where = first.node + ("/" + ",".join(map(short_uuid, uuids[:_UUIDS_SHOWN])) if uuids else "")
    return where[:_SUMMARY_LIMIT] + (f" +{len(placed) - 1}" if len(placed) > 1 else "")


def short_uuid(uuid: str) -> str:
    """The first part of a GPU's UUID, which is enough for people."""
    match = _LONG_UUID.fullmatch(uuid)
    return match[1] if match else uuid


def _ports(ports: Sequence[int]) -> str:
    rest = len(ports) - _PORTS_SHOWN
    return ",".join(map(str, ports[:_PORTS_SHOWN])) + (f" +{rest}" if rest > 0 else "")
