"""Why nothing takes a pod: the reason of every node and GPU, worked out only when it is wanted.

An answer is kept until something changes, so that a thousand equal replicas that do not fit cost one evaluation; after
that only the nodes that changed are judged again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sharepod_operator.core.filters import Query, device_refusal, node_refusal, query
from sharepod_operator.core.model import GPURequest, Shape, Unschedulable
from sharepod_operator.core.quantity import format_bytes, format_cpu
from sharepod_operator.core.snapshot import KnownRefusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod_operator.core.node_state import NodeState
    from sharepod_operator.core.snapshot import Snapshot

_MAX_SHAPES: Final = 64
"""Answers kept; one names every GPU of the cluster."""


def refuse(snapshot: Snapshot, shape: Shape) -> Unschedulable:
    """The reasons why no node takes the pod as things stand. Nodes and GPUs that would take it have none."""
    known = snapshot.refusals.pop(shape, None)
    if known is None or known.version != snapshot.version:
        asked = query(snapshot, shape)
        if known is None or known.inventory_version != snapshot.inventory_version:
            answer = _judge_all(snapshot, asked)
        else:
            answer = _judge_changed(snapshot, asked, known)
        known = KnownRefusal(snapshot.version, snapshot.inventory_version, answer)
        if len(snapshot.refusals) >= _MAX_SHAPES:
            del snapshot.refusals[next(iter(snapshot.refusals))]
    snapshot.refusals[shape] = known  # last in order: the one not asked for the longest goes first
    return known.answer


def _judge_all(snapshot: Snapshot, asked: Query) -> Unschedulable:
    answer = Unschedulable(
        wanted_devices=asked.gpu.count if asked.gpu is not None else 0,
        total_nodes=len(snapshot.nodes),
        total_devices=snapshot.total_devices,
        unsatisfiable=_unsatisfiable(snapshot, asked),
    )
    for state in snapshot.nodes.values():
        _judge(state, asked, answer)
    return answer


def _judge_changed(snapshot: Snapshot, asked: Query, known: KnownRefusal) -> Unschedulable:
    """The nodes are the same: only those where pods came or went since then are judged again."""
    before = known.answer
    answer = replace(before, nodes=dict(before.nodes), devices=dict(before.devices), short=dict(before.short))
    for name, state in snapshot.nodes.items():
        if state.generation > known.version:
            answer.nodes.pop(name, None)
            answer.short.pop(name, None)
            for uuid in state.devices:
                answer.devices.pop(uuid, None)
            _judge(state, asked, answer)
    return answer


def _judge(state: NodeState, asked: Query, answer: Unschedulable) -> None:
    """Enter the reason of a node, or of each of its GPUs."""
    refusal = node_refusal(state, asked)
    if refusal is not None:
        answer.nodes[state.node.name] = refusal
        return
    gpu = asked.gpu
    if gpu is None:
        return
    passing = 0
    for uuid, device in state.devices.items():
        why = device_refusal(state, device, gpu, asked)
        if why is None:
            passing += 1
        else:
            answer.devices[uuid] = why
    if 0 < passing < gpu.count:
        answer.short[state.node.name] = passing


def _unsatisfiable(snapshot: Snapshot, asked: Query) -> str:
    """A sentence where no node could take the pod even if it were empty, healthy and without taints; else ""."""
    if asked.constraints.unsupported:
        names = ", ".join(asked.constraints.unsupported)
        return f"this scheduler does not implement {names}, which the pod asks for"
    pin = asked.constraints.node_name
    if pin and pin not in snapshot.nodes:
        return f"there is no node {pin}, which the pod asks for by name"
    if asked.pinned is not None and not asked.pinned:
        return "the GPUs that deviceIDs names and the one of GPUID have none in common"
    if asked.pinned is not None and not any(snapshot.owners(uuid) for uuid in asked.pinned):
        return f"no node has the GPU {' or '.join(sorted(asked.pinned)[:3])}, which the pod asks for by UUID"
    if asked.gpu is not None:
        states = [snapshot.nodes[name] for name in snapshot.names if snapshot.nodes[name].devices]
        return (states and _more_gpu_than_any(states, asked, asked.gpu)) or _more_than_any(states, asked, "with GPUs ")
    return _more_than_any([snapshot.nodes[name] for name in snapshot.names], asked, "")


def _more_gpu_than_any(states: list[NodeState], asked: Query, gpu: GPURequest) -> str:
    cards = [(device.device.memory, state.node.name) for state in states for device in state.devices.values()]
    largest, at = max(cards, key=lambda card: card[0])
    wanted = format_bytes(gpu.memory)
    if gpu.memory > largest:
        return f"memory {wanted} is more than any GPU has (largest {format_bytes(largest)}, node {at})"
    if gpu.count == 1:
        return ""
    if gpu.gpu_id:
        return f"count {gpu.count} does not go with GPUID {gpu.gpu_id}, which stands for one GPU"
    if asked.pinned is not None and len(asked.pinned) < gpu.count:
        return f"count {gpu.count} is more GPUs than deviceIDs names ({len(asked.pinned)})"
    most = max(states, key=lambda state: len(state.devices))
    if gpu.count > len(most.devices):
        return f"count {gpu.count} is more GPUs than any node has (most {len(most.devices)}, node {most.node.name})"
    if not any(sum(d.device.memory >= gpu.memory for d in s.devices.values()) >= gpu.count for s in states):
        return f"no node has {gpu.count} GPUs with memory {wanted} each"
    return ""


def _more_than_any(states: list[NodeState], asked: Query, kind: str) -> str:
    if not states:
        return ""
    resources = asked.shape.resources
    amounts: list[tuple[str, int, Callable[[NodeState], int], Callable[[int], str]]] = [
        ("cpu", resources.cpu_milli, lambda state: state.node.allocatable.cpu_milli, format_cpu),
        ("node memory", resources.memory, lambda state: state.node.allocatable.memory, format_bytes),
        (
            "ephemeral-storage",
            resources.ephemeral_storage,
            lambda state: state.node.allocatable.ephemeral_storage,
            format_bytes,
        ),
    ]
    for what, wanted, has, shown in amounts:
        most = max(states, key=has)
        if wanted and wanted > has(most):
            return (
                f"{what} {shown(wanted)} is more than any node {kind}has "
                f"(most {shown(has(most))}, node {most.node.name})"
            )
    return ""
