"""Why a node or a GPU does not take a pod: closed lists of words, the same in messages, conditions and metrics,
and the sentence that counts them for people.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sharepod_operator.core.model import Refusal, Unschedulable


class NodeReason(StrEnum):
    """Node filters in the order in which they are asked; the first that fails names the node's reason."""

    NOT_READY = "NotReady"
    UNSCHEDULABLE = "Unschedulable"
    TAINT = "Taint"
    NODE_SELECTOR = "NodeSelector"
    NODE_AFFINITY = "NodeAffinity"
    NODE_PIN = "NodePin"
    INSUFFICIENT_CPU = "InsufficientCPU"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    TOO_MANY_PODS = "TooManyPods"
    NO_GPU = "NoGPU"
    INSUFFICIENT_EPHEMERAL_STORAGE = "InsufficientEphemeralStorage"
    INSUFFICIENT_RESOURCE = "InsufficientResource"
    HOST_PORT_CONFLICT = "HostPortConflict"
    VOLUME_NODE_AFFINITY = "VolumeNodeAffinity"
    PORT_POOL_EXHAUSTED = "PortPoolExhausted"
    FOREIGN_GPU_USERS = "ForeignGPUUsers"
    UNSUPPORTED_CONSTRAINT = "UnsupportedConstraint"


class DeviceReason(StrEnum):
    """Device filters in the order in which they are asked; the first that fails names the GPU's reason."""

    UNHEALTHY = "Unhealthy"
    DEVICE_PIN = "DevicePin"
    EXCLUSION_CONFLICT = "ExclusionConflict"
    AFFINITY_MISMATCH = "AffinityMismatch"
    ANTI_AFFINITY_CONFLICT = "AntiAffinityConflict"
    INSUFFICIENT_SHARE = "InsufficientShare"
    INSUFFICIENT_GPU_MEMORY = "InsufficientGPUMemory"


MAX_MESSAGE: Final = 1024
"""Longest message of an event, in characters."""

_NODE_TEXT: Final = {
    NodeReason.NOT_READY: "node(s) were not ready",
    NodeReason.UNSCHEDULABLE: "node(s) were unschedulable",
    NodeReason.TAINT: "node(s) had untolerated taint {detail}",
    NodeReason.NODE_SELECTOR: "node(s) didn't match Pod's node affinity/selector",
    NodeReason.NODE_AFFINITY: "node(s) didn't match Pod's node affinity/selector",
    NodeReason.NODE_PIN: "node(s) didn't match the requested node name",
    NodeReason.INSUFFICIENT_CPU: "Insufficient cpu",
    NodeReason.INSUFFICIENT_MEMORY: "Insufficient memory",
    NodeReason.TOO_MANY_PODS: "Too many pods",
    NodeReason.NO_GPU: "node(s) had no GPUs",
    NodeReason.INSUFFICIENT_EPHEMERAL_STORAGE: "Insufficient ephemeral-storage",
    NodeReason.INSUFFICIENT_RESOURCE: "Insufficient {detail}",
    NodeReason.HOST_PORT_CONFLICT: "node(s) didn't have free ports for the requested pod ports",
    NodeReason.VOLUME_NODE_AFFINITY: "node(s) didn't match PersistentVolume's node affinity",
    NodeReason.PORT_POOL_EXHAUSTED: "node(s) had all pod-manager ports in use",
    NodeReason.FOREIGN_GPU_USERS: "node(s) advertise nvidia.com/gpu, so that others may use their GPUs",
    NodeReason.UNSUPPORTED_CONSTRAINT: "node(s) refused, since this scheduler does not implement {detail}",
}
_DEVICE_TEXT: Final = {
    DeviceReason.UNHEALTHY: "unhealthy or cordoned",
    DeviceReason.DEVICE_PIN: "not the requested GPU",
    DeviceReason.EXCLUSION_CONFLICT: "held by another exclusion tag",
    DeviceReason.AFFINITY_MISMATCH: "without the wanted affinity tag",
    DeviceReason.ANTI_AFFINITY_CONFLICT: "held by the same anti-affinity tag",
    DeviceReason.INSUFFICIENT_SHARE: "Insufficient gpu",
    DeviceReason.INSUFFICIENT_GPU_MEMORY: "Insufficient gpu memory",
}


def message(decision: Unschedulable, *, gpu: bool) -> str:
    """Why the pod is not placed, in one line of at most MAX_MESSAGE characters, as kube-scheduler would say it.

    Equal situations give equal text: counts per reason, GPUs before nodes, no amounts.

    Args:
        decision: the refusal to tell.
        gpu: whether the pod asks for GPUs; if not, kube-scheduler's own form is used.
    """
    if decision.blocked or decision.unsatisfiable:
        return _cut(decision.blocked or decision.unsatisfiable)
    head = f"0/{decision.total_nodes} nodes are available: "
    if gpu:
        head = f"0/{decision.total_devices} GPUs on {decision.total_nodes} nodes are available: "
    devices = _tally(decision.devices.values(), lambda why: f"GPU(s) {_DEVICE_TEXT[DeviceReason(why.reason)]}")
    nodes = _tally(decision.nodes.values(), lambda why: _node_text(why, gpu=gpu))
    nodes.update(
        f"node(s) where {fitting} of {decision.wanted_devices} GPUs fit" for fitting in decision.short.values()
    )
    parts = [f"{count} {text}" for counts in (devices, nodes) for text, count in sorted(counts.items(), key=_by_count)]
    return _joined(head, parts or ["no nodes available to schedule pods"])


def _tally(refusals: Iterable[Refusal], text: Callable[[Refusal], str]) -> Counter[str]:
    """Count by text. The filters share their records, so thousands of refusals are a handful of objects."""
    alike: dict[int, list[Refusal]] = {}
    for why in refusals:
        alike.setdefault(id(why), []).append(why)
    counts: Counter[str] = Counter()
    for group in alike.values():
        counts[text(group[0])] += len(group)
    return counts


def _node_text(why: Refusal, *, gpu: bool) -> str:
    text = _NODE_TEXT[NodeReason(why.reason)].replace("{detail}", why.detail)
    return f"node(s) {text}" if gpu and not text.startswith("node(s)") else text


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    text, count = item
    return count, text


def _joined(head: str, parts: list[str]) -> str:
    """The parts in a row; those at the end give way to "and N more" where they would not fit."""
    whole = head + ", ".join(parts) + "."
    for left_out in range(1, len(parts)):
        if len(whole) <= MAX_MESSAGE:
            break
        whole = head + ", ".join(parts[:-left_out]) + f", …and {left_out} more."
    return _cut(whole)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
