"""Placing the pods of a scenario one after another, by the decisions of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sharepod_operator.core.model import Assigned, Placed
from sharepod_operator.core.placement import decide
from sharepod_operator.core.ports import next_port
from sharepod_operator.core.reasons import message
from sharepod_operator.core.snapshot import Snapshot

if TYPE_CHECKING:
    from sharepod_operator.core.model import Allocation, Shape
    from sharepod_operator.core.score import Policy
    from sharepod_operator.manifest.scenario import Candidate, Scenario


class Outcome(StrEnum):
    """What became of a pod."""

    PLACED = "placed"
    UNSCHEDULABLE = "unschedulable"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one pod."""

    pod: str
    outcome: Outcome
    node: str | None = None
    gpus: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)
    """Node name or UUID to the reason for which it refused the pod."""
    message: str = ""
    """For people: why it is not placed."""

    def as_json(self) -> dict[str, Any]:
        """The result as `--format json` prints it; `message` only where there is one."""
        body: dict[str, Any] = {
            "pod": self.pod,
            "outcome": self.outcome.value,
            "node": self.node,
            "gpus": list(self.gpus),
            "reasons": self.reasons,
        }
        return {**body, "message": self.message} if self.message else body


def place_all(scenario: Scenario, policy: Policy) -> list[Result]:
    """One result per pod to be placed, in order; every placement counts for the pods after it."""
    snapshot = Snapshot(scenario.nodes)
    for assigned in scenario.assigned:
        snapshot.add(assigned)
    cursors: dict[str, int] = {}
    return [_place(snapshot, candidate, policy, cursors) for candidate in scenario.candidates]


def _place(snapshot: Snapshot, candidate: Candidate, policy: Policy, cursors: dict[str, int]) -> Result:
    shape = candidate.shape
    if shape is None:
        return Result(candidate.key, Outcome.INVALID, message=candidate.invalid)
    decision = decide(snapshot, shape, policy)
    if isinstance(decision, Placed):
        allocation = _with_port(snapshot, decision, cursors)
        snapshot.add(_assigned(candidate.key, shape, decision.node, allocation))
        return Result(candidate.key, Outcome.PLACED, decision.node, allocation.uuids if allocation else ())
    refusals = {**decision.nodes, **decision.devices}
    return Result(
        candidate.key,
        Outcome.UNSCHEDULABLE,
        reasons={name: str(refusal.reason) for name, refusal in refusals.items()},
        message=message(decision, gpu=shape.gpu is not None),
    )


def _assigned(key: str, shape: Shape, node: str, allocation: Allocation | None) -> Assigned:
    return Assigned(key, node, shape.resources, shape.constraints.host_ports, allocation)


def _with_port(snapshot: Snapshot, placed: Placed, cursors: dict[str, int]) -> Allocation | None:
    """The allocation with a pod-manager port, drawn as in a cluster, so that a node can run out of them here, too."""
    if placed.allocation is None:
        return None
    drawn = next_port(snapshot.used_ports(placed.node), cursors.get(placed.node, 0), snapshot.ports)
    if drawn is None:
        return placed.allocation
    port, cursors[placed.node] = drawn
    return replace(placed.allocation, port=port)
