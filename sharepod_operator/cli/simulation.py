"""Placing the pods of a scenario one after another, by the decisions of the cluster.

Where one fits nowhere, pods of lower priority make room for it, as they would there. Victims leave at once and don't
come back; what leaves already when the scenario begins stays, and a pod that only needs it gone waits.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sharepod_operator.core.model import Assigned, Placed, Unschedulable
from sharepod_operator.core.occupancy import Occupancy
from sharepod_operator.core.placement import decide, place_on
from sharepod_operator.core.ports import next_port
from sharepod_operator.core.preemption import (
    Evictions,
    Helpless,
    Patience,
    Preemptor,
    TrialMemory,
    preempt,
)
from sharepod_operator.core.preemption_text import why_nobody
from sharepod_operator.core.reasons import message
from sharepod_operator.core.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sharepod_operator.core.model import Allocation, Decision, Shape
    from sharepod_operator.core.occupancy import Occupant
    from sharepod_operator.core.preemption import Answer
    from sharepod_operator.core.score import Policy
    from sharepod_operator.manifest.scenario import Candidate, Scenario


class Outcome(StrEnum):
    """What became of a pod."""

    PLACED = "placed"
    WAITING = "waiting"
    """Its room is held by pods that are on their way out."""
    UNSCHEDULABLE = "unschedulable"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one pod."""

    pod: str
    outcome: Outcome
    node: str | None = None
    gpus: tuple[str, ...] = ()
    victims: tuple[str, ...] = ()
    """namespace/name of the pods that were evicted for it, sorted."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Node name or UUID to the reason for which it refused the pod."""
    message: str = ""
    """For people: why it is not placed."""

    def as_json(self) -> dict[str, Any]:
        """The result as `--format json` prints it; `victims` and `message` only where there are any."""
        body: dict[str, Any] = {
            "pod": self.pod,
            "outcome": self.outcome.value,
            "node": self.node,
            "gpus": list(self.gpus),
            "reasons": self.reasons,
        }
        if self.victims:
            body["victims"] = list(self.victims)
        return {**body, "message": self.message} if self.message else body


def place_all(scenario: Scenario, policy: Policy, *, preempting: bool = True) -> list[Result]:
    """One result per pod to be placed, in order; every placement and every eviction counts for the pods after it.

    Args:
        scenario: the cluster as it is, and the pods.
        policy: how to choose among GPUs.
        preempting: whether pods may be evicted. If not, nothing that was promised counts either.
    """
    simulation = _Simulation(scenario, policy, preempting=preempting)
    return [simulation.place(candidate) for candidate in scenario.candidates]


class _Simulation:
    def __init__(self, scenario: Scenario, policy: Policy, *, preempting: bool) -> None:
        self._snapshot = Snapshot(scenario.nodes)
        self._occupancy = Occupancy()
        self._policy = policy
        self._preempting = preempting
        self._memory = TrialMemory()
        self._cursors: dict[str, int] = {}
        self._disrupted = scenario.disrupted
        self._promises = scenario.promises if preempting else ()
        nominated = [each for each in scenario.candidates if each.nominated and each.shape and not each.blocked]
        self._nominated = {each.key: each for each in nominated} if preempting else {}
        """Those who were promised room and haven't been placed yet."""
        for assigned in scenario.assigned:
            self._snapshot.add(assigned)
        for occupant in scenario.occupants:
            self._occupancy.put(self._snapshot.pods[occupant.uid].node, occupant)
        self._occupancy.allow(scenario.budgets)

    def place(self, candidate: Candidate) -> Result:
        """What becomes of the next pod."""
        shape = candidate.shape
        if shape is None:
            return Result(candidate.key, Outcome.INVALID, message=candidate.invalid)
        with self._promised_room(candidate):
            decision = candidate.blocked or self._decide(candidate, shape)
            answer = self._ask(candidate, shape, decision) if isinstance(decision, Unschedulable) else None
        if isinstance(decision, Placed):
            return self._placed(candidate, shape, decision)
        if isinstance(answer, Evictions):
            self._evict(answer, shape)
            return self._placed(candidate, shape, answer.placed, answer.victims)
        return self._unplaced(candidate, shape, decision, answer)

    # Decisions

    def _decide(self, candidate: Candidate, shape: Shape) -> Decision:
        """The room that was promised is tried first, then the rest of that node, then all others."""
        there: Placed | None = None
        if candidate.key in self._nominated:
            there = self._place_on(_pinned(shape, candidate.promised), candidate.nominated)
            there = there or self._place_on(shape, candidate.nominated)
        return there or decide(self._snapshot, shape, self._policy)

    def _place_on(self, shape: Shape, node: str) -> Placed | None:
        return place_on(self._snapshot, shape, self._policy, (node,))

    def _ask(self, candidate: Candidate, shape: Shape, refused: Unschedulable) -> Answer | None:
        """What preemption can do for a pod that fits nowhere; None where it isn't asked."""
        if not self._preempting or refused.blocked or refused.unsatisfiable:
            return None
        if candidate.key in self._nominated and not candidate.never and self._has_victims(candidate):
            room = self._room(candidate, shape)
            if room is not None:
                return Patience(room, self._leaving(candidate.nominated))
        preemptor = Preemptor(shape, candidate.pod.priority, never=candidate.never)
        return preempt(self._snapshot, preemptor, self._occupancy, self._policy, self._memory)

    def _has_victims(self, candidate: Candidate) -> bool:
        """Whether pods leave for it already; while they do, it makes nobody else leave."""
        return any(
            occupant.uid in self._disrupted and occupant.priority < candidate.pod.priority
            for occupant in self._leaving(candidate.nominated)
        )

    def _leaving(self, node: str) -> tuple[Occupant, ...]:
        return tuple(occupant for occupant in self._occupancy.of(node).values() if occupant.leaving)

    # Promises

    @contextmanager
    def _promised_room(self, candidate: Candidate) -> Iterator[None]:
        """Within it, what was promised to others as important as this pod, or more, counts as taken."""
        priority = candidate.pod.priority
        made = [promise.assigned for promise in self._promises if promise.priority >= priority]
        for assigned in made:
            self._snapshot.add(assigned)
        for other in sorted(self._nominated.values(), key=lambda other: -other.pod.priority):
            promised = self._promise(other) if other.pod.priority >= priority else None
            if promised is not None:
                self._snapshot.add(promised)
                made.append(promised)
        self._snapshot.remove(candidate.key)
        try:
            yield
        finally:
            for assigned in made:
                self._snapshot.remove(assigned.uid)

    def _promise(self, candidate: Candidate) -> Assigned | None:
        """The room promised to a pod that waits; None where it no longer makes sense. Nobody may count on its tags."""
        assert candidate.shape is not None
        allocation = candidate.promised
        if allocation is None:
            room = self._room(candidate, candidate.shape)
            if room is None:
                return None
            allocation = room.allocation
        if allocation is not None:
            allocation = replace(allocation, port=0, affinity="", virtual_id="")
        return _assigned(candidate.key, candidate.shape, candidate.nominated, allocation)

    def _room(self, candidate: Candidate, shape: Shape) -> Placed | None:
        """Where it goes on its nominated node once those are gone who leave, or else those as well who are less
        important.
        """
        there = tuple(self._occupancy.of(candidate.nominated).values())
        leaving = [occupant for occupant in there if occupant.leaving]
        lower = [
            occupant
            for occupant in there
            if occupant.priority < candidate.pod.priority and not occupant.leaving and not occupant.protected
        ]
        aside: list[Assigned] = []
        try:
            for group in (leaving, lower):
                aside += self._taken_out(group)
                room = self._place_on(shape, candidate.nominated)
                if room is not None:
                    return room
            return None
        finally:
            for pod in aside:
                self._snapshot.add(pod)

    def _taken_out(self, occupants: Iterable[Occupant]) -> list[Assigned]:
        taken = (self._snapshot.remove(occupant.uid) for occupant in occupants)
        return [pod for pod in taken if pod is not None]

    # What comes of it

    def _evict(self, found: Evictions, shape: Shape) -> None:
        """The victims are gone, and of those who were leaving the ones whose room is needed, too."""
        for victim in found.victims:
            self._snapshot.remove(victim.uid)
            self._occupancy.remove(victim.uid)
        left = dict(self._occupancy.budgets)
        for budget in (budget for victim in found.victims for budget in victim.budgets):
            left[budget] -= 1
        self._occupancy.allow(left)
        wanted = _pinned(shape, found.placed.allocation)
        for gone in self._taken_out(found.leaving):
            self._snapshot.add(gone)
            if self._place_on(wanted, found.placed.node) is None:
                self._snapshot.remove(gone.uid)
                self._occupancy.remove(gone.uid)

    def _placed(self, candidate: Candidate, shape: Shape, placed: Placed, victims: Iterable[Occupant] = ()) -> Result:
        self._nominated.pop(candidate.key, None)
        allocation = self._with_port(placed)
        self._snapshot.add(_assigned(candidate.key, shape, placed.node, allocation))
        self._occupancy.put(placed.node, candidate.pod)
        return Result(
            candidate.key,
            Outcome.PLACED,
            placed.node,
            allocation.uuids if allocation else (),
            tuple(sorted(victim.key for victim in victims)),
        )

    def _unplaced(
        self, candidate: Candidate, shape: Shape, refused: Unschedulable, answer: Patience | Helpless | None
    ) -> Result:
        """It waits, for pods that leave or for whatever may come."""
        gpu = shape.gpu is not None
        text = message(refused, gpu=gpu)
        why = why_nobody(answer, gpu=gpu) if answer is not None else ""
        refusals = {**refused.nodes, **refused.devices}
        result = Result(
            candidate.key,
            Outcome.UNSCHEDULABLE,
            reasons={name: str(refusal.reason) for name, refusal in refusals.items()},
            message=f"{text} preemption: {why}" if why else text,
        )
        if not isinstance(answer, Patience):
            self._nominated.pop(candidate.key, None)
            return result
        allocation = answer.placed.allocation
        uuids = allocation.uuids if allocation is not None else ()
        return replace(result, outcome=Outcome.WAITING, node=answer.placed.node, gpus=uuids)

    def _with_port(self, placed: Placed) -> Allocation | None:
        """The allocation with a pod-manager port, drawn as in a cluster, so that a node can run out of them here, too."""
        if placed.allocation is None:
            return None
        taken = self._snapshot.taken_ports(placed.node)
        drawn = next_port(taken, self._cursors.get(placed.node, 0), self._snapshot.ports)
        if drawn is None:
            return placed.allocation
        port, self._cursors[placed.node] = drawn
        return replace(placed.allocation, port=port)


def _assigned(key: str, shape: Shape, node: str, allocation: Allocation | None) -> Assigned:
    return Assigned(key, node, shape.resources, shape.constraints.host_ports, allocation)


def _pinned(shape: Shape, allocation: Allocation | None) -> Shape:
    """The same pod, with these GPUs as the only ones allowed. The name of a virtual GPU says enough by itself."""
    if shape.gpu is None or allocation is None or shape.gpu.gpu_id:
        return shape
    return replace(shape, gpu=replace(shape.gpu, device_ids=allocation.uuids))
