"""Which pods of lower priority have to go so that a more important one fits, and on which node.

The rules are those of Kubernetes' DefaultPreemption, judged per GPU: on each node that could take the pod every pod of
strictly lower priority is taken out, the *same* placement as always is asked, and then as many as possible are put
back, those that a disruption budget protects first, then the most important. Three things differ:

- Pods that are on their way out count as gone. Where that alone is enough nobody is evicted: the pod waits.
- The putting back is repeated until a pass changes nothing. With affinity tags one pass isn't minimal: a pod put back
  early may open a GPU without the tag that the preemptor needs, and fit once a later one has brought it back.
- The last tie between nodes is broken by name, so that the answer depends on nothing but the cluster.

The trial works on the snapshot's own record of a node, by exact inverses that leave it as it was.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from sharepod_operator.core.filters import node_refusal, query
from sharepod_operator.core.placement import offer, placed_on
from sharepod_operator.core.reasons import NodeReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sharepod_operator.core.filters import Query
    from sharepod_operator.core.model import Assigned, Placed, Shape
    from sharepod_operator.core.node_state import NodeState
    from sharepod_operator.core.occupancy import Occupancy, Occupant
    from sharepod_operator.core.score import Policy
    from sharepod_operator.core.snapshot import Snapshot

NEVER: Final = "not eligible due to preemptionPolicy=Never."
NO_VICTIMS: Final = "No preemption victims found for incoming pod"
NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
LOWEST_PRIORITY: Final = -(1 << 31)

_UNRESOLVABLE: Final = frozenset(
    {
        NodeReason.NOT_READY,
        NodeReason.UNSCHEDULABLE,
        NodeReason.TAINT,
        NodeReason.NODE_SELECTOR,
        NodeReason.NODE_AFFINITY,
        NodeReason.NODE_PIN,
        NodeReason.NO_GPU,
        NodeReason.VOLUME_NODE_AFFINITY,
        NodeReason.FOREIGN_GPU_USERS,
        NodeReason.UNSUPPORTED_CONSTRAINT,
    }
)
"""Refusals of a node that no eviction can cure (kube-scheduler's UnschedulableAndUnresolvable)."""


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod that found no room."""

    shape: Shape
    priority: int = 0
    never: bool = False
    """preemptionPolicy Never."""


@dataclass(frozen=True, slots=True)
class Evictions:
    """What would make room: these victims on this node; the placement is where the pod then goes."""

    placed: Placed
    victims: tuple[Occupant, ...]
    """To be deleted, the most important first."""
    leaving: tuple[Occupant, ...] = ()
    """On their way out already; the room needs them gone as well."""
    violations: int = 0
    """Victims whose budget allows no more disruptions."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The pod fits once these, who are leaving anyway, are gone; nobody is evicted."""

    placed: Placed
    leaving: tuple[Occupant, ...]


@dataclass(frozen=True, slots=True)
class Helpless:
    """No eviction makes room: how many GPUs (nodes, for a pod without GPUs) each reason stands for."""

    reasons: Mapping[str, int] = field(default_factory=dict)
    total: int = 0
    sentence: str = ""
    """Where preemption was not tried at all, why."""


Answer = Evictions | Patience | Helpless


def preempt(
    snapshot: Snapshot, preemptor: Preemptor, occupancy: Occupancy, policy: Policy, memory: TrialMemory | None = None
) -> Answer:
    """Find room for a pod that fits nowhere as things are.

    Args:
        snapshot: with the nominations charged that the preemptor has to respect, and no others. Equal afterwards.
        preemptor: the pod.
        occupancy: the pods that the snapshot charges; one that isn't known there stays.
        policy: the one of ordinary placement.
        memory: outcomes of earlier trials with the same snapshot and policy, so that only nodes that changed are tried.
    """
    if preemptor.never:
        return Helpless(sentence=NEVER)
    asked = query(snapshot, preemptor.shape)
    known = {} if memory is None else memory.of(snapshot, preemptor)
    outlooks: list[tuple[_Rank, _Outlook]] = []
    for name in snapshot.names:
        outlook = known.get(name)
        state = snapshot.nodes[name]
        seen = (state.generation, occupancy.version(name))
        if outlook is None or not outlook.holds(seen, occupancy.budgets_version):
            trial = _Trial(state, snapshot.pods_on(name), occupancy, preemptor.priority, asked, policy)
            outlook = known[name] = _Outlook(trial, seen, occupancy.budgets_version)
        if outlook.bound is not None:
            outlooks.append((outlook.bound, outlook))
    outlooks.sort(key=itemgetter(0))
    best: _Found | None = None
    for bound, outlook in outlooks:
        if best is not None and best[0] <= bound:
            break
        found = outlook.outcome()
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return best[1] if best is not None else _helpless(snapshot, asked, known)


def is_resolvable(snapshot: Snapshot, shape: Shape, node: str) -> bool:
    """Whether the node takes such a pod, or would if others left: nothing stands in the way that no eviction can cure."""
    state = snapshot.nodes.get(node)
    if state is None:
        return False
    refusal = node_refusal(state, query(snapshot, shape))
    return refusal is None or refusal.reason not in _UNRESOLVABLE


def _helpless(snapshot: Snapshot, asked: Query, outlooks: Mapping[str, _Outlook]) -> Helpless:
    """Why no node helps, counted in GPUs, or in nodes for a pod that asks for none."""
    refused: Counter[str] = Counter()
    for name in snapshot.names:
        weight = 1 if asked.gpu is None else len(snapshot.nodes[name].devices)
        refused[outlooks[name].refusal] += weight
    total = len(snapshot.names) if asked.gpu is None else snapshot.total_devices
    return Helpless({reason: count for reason, count in sorted(refused.items()) if count}, total)


_Rank = tuple[int, int, int, int, int, str]
"""Kubernetes' order of candidate nodes, smaller is better: budget violations, priority of the top victim, sum of
(priority + 2^31), number of victims, start of the earliest of the top victims (negated: the latest is best), name."""
_Found = tuple[_Rank, "Evictions | Patience"]
_NOBODY: Final = (0, LOWEST_PRIORITY - 1, 0, 0, 0)


class TrialMemory:
    """Outlooks of nodes by what a pod asks for and how important it is; a few kinds of pods at a time."""

    KINDS: Final = 64

    def __init__(self) -> None:
        self._known: dict[tuple[Shape, int], dict[str, _Outlook]] = {}
        self._inventory = -1

    def of(self, snapshot: Snapshot, preemptor: Preemptor) -> dict[str, _Outlook]:
        """What is known for pods like this one, to be read and added to."""
        if snapshot.inventory_version != self._inventory:
            self._known.clear()
            self._inventory = snapshot.inventory_version
        kind = (preemptor.shape, preemptor.priority)
        known = self._known.pop(kind, {})
        if len(self._known) >= self.KINDS:
            del self._known[next(iter(self._known))]
        self._known[kind] = known  # last in order: the one not asked for the longest goes first
        return known


class _Outlook:
    """What may come of a node: a bound at first, the outcome once the trial was worth running."""

    __slots__ = ("_budgets_version", "_outcome", "_seen", "_trial", "bound", "refusal")

    def __init__(self, trial: _Trial, seen: tuple[int, int], budgets_version: int) -> None:
        self.refusal = NOT_HELPFUL if not trial.may_help() else NO_VICTIMS if trial.is_empty else NOT_HELPFUL
        self.bound = trial.best_rank() if trial.may_help() and not trial.is_empty else None
        """No outcome ranks better; None where there is nothing to try."""
        self._trial: _Trial | None = trial
        self._outcome: _Found | None = None
        self._seen = seen
        self._budgets_version = budgets_version if trial.is_budgeted else None

    def holds(self, seen: tuple[int, int], budgets_version: int) -> bool:
        """Whether nothing that it depends on has changed."""
        return self._seen == seen and self._budgets_version in (None, budgets_version)

    def outcome(self) -> _Found | None:
        """Who has to go, with the rank among the nodes; None where even all of them do not suffice."""
        if self._trial is not None:
            self._outcome, self._trial = self._trial.run(), None
        return self._outcome


class _Trial:
    """One node as it would be without some of its pods."""

    __slots__ = ("_asked", "_budgets", "_pods", "_policy", "leaving", "lower", "state")

    def __init__(
        self,
        state: NodeState,
        pods: Mapping[str, Assigned],
        occupancy: Occupancy,
        priority: int,
        asked: Query,
        policy: Policy,
    ) -> None:
        self.state = state
        self._pods = pods
        self._asked = asked
        self._policy = policy
        self._budgets = occupancy.budgets
        self.leaving: list[Occupant] = []
        self.lower: list[Occupant] = []
        for uid, occupant in occupancy.of(state.node.name).items():
            if occupant.stuck or uid not in pods:
                continue
            if occupant.leaving:
                self.leaving.append(occupant)
            elif occupant.priority < priority and not occupant.protected:
                self.lower.append(occupant)

    @property
    def is_empty(self) -> bool:
        """Whether there is nobody who could go, or is going."""
        return not self.lower and not self.leaving

    @property
    def is_budgeted(self) -> bool:
        """Whether disruption budgets have a say here."""
        return any(occupant.budgets for occupant in self.lower)

    def may_help(self) -> bool:
        """Whether nothing stands in the way that no eviction can cure."""
        refusal = node_refusal(self.state, self._asked)
        return refusal is None or refusal.reason not in _UNRESOLVABLE

    def best_rank(self) -> _Rank:
        """A bound: no outcome of `run` ranks better. Judged by share and memory alone, it is cheap."""
        name = self.state.node.name
        if self.leaving or not self.lower:
            return (*_NOBODY, name)
        top = self._least_top()
        latest = max(occupant.started for occupant in self.lower)
        return (0, top, top - LOWEST_PRIORITY, 1, -latest, name)

    def _least_top(self) -> int:
        """The lowest priority that the most important victim can have: on the GPU that is freed most easily, for one GPU;
        for several, or none, that of the least important pod there is.
        """
        gpu = self._asked.gpu
        if gpu is None or gpu.count > 1:
            return min(occupant.priority for occupant in self.lower)
        held: dict[str, list[tuple[int, int, int]]] = {}
        for occupant in self.lower:
            allocation = self._pods[occupant.uid].allocation
            for charge in allocation.charges if allocation is not None else ():
                held.setdefault(charge.uuid, []).append((occupant.priority, charge.milli, charge.memory))
        least = min(occupant.priority for occupant in self.lower)
        tops = []
        for uuid, device in self.state.devices.items():
            milli = gpu.milli - device.free
            memory = gpu.memory_on(device.device.memory) - device.memory_free
            top = least
            for priority, share, size in sorted(held.get(uuid, ())):
                if milli <= 0 and memory <= 0:
                    break
                top = priority
                milli -= share
                memory -= size
            if milli <= 0 and memory <= 0:
                tops.append(top)
        return min(tops, default=least)

    def run(self) -> _Found | None:
        """Who has to go here, with the rank of the outcome; None where even all of them do not suffice."""
        with self._without(self.leaving):
            placed = self._place()
            if placed is not None:
                return self._rank((), 0), Patience(placed, tuple(self.leaving))
            with self._without(self.lower):
                if self._place() is None:
                    return None
            return self._spare()

    def _spare(self) -> _Found:
        """Put back whom the pod fits beside: the protected ones first, then the most important, until nobody more can be."""
        lower = sorted(self.lower, key=_importance)
        violating = _violating(lower, self._budgets)
        out = [o for o in lower if o.uid in violating] + [o for o in lower if o.uid not in violating]
        for occupant in out:
            self.state.uncharge(self._pods[occupant.uid])
        try:
            again = True
            while again:
                again = False
                for occupant in tuple(out):
                    self.state.charge(self._pods[occupant.uid])
                    if self._place() is None:
                        self.state.uncharge(self._pods[occupant.uid])
                    else:
                        out.remove(occupant)
                        again = True
            placed = self._place()
        finally:
            for occupant in out:
                self.state.charge(self._pods[occupant.uid])
        assert placed is not None
        victims = tuple(sorted(out, key=_importance))
        violations = sum(occupant.uid in violating for occupant in victims)
        return self._rank(victims, violations), Evictions(placed, victims, tuple(self.leaving), violations)

    def _rank(self, victims: Sequence[Occupant], violations: int) -> _Rank:
        name = self.state.node.name
        if not victims:
            return (*_NOBODY, name)
        top = victims[0].priority
        earliest = min(victim.started for victim in victims if victim.priority == top)
        total = sum(victim.priority - LOWEST_PRIORITY for victim in victims)
        return (violations, top, total, len(victims), -earliest, name)

    def _place(self) -> Placed | None:
        if node_refusal(self.state, self._asked) is not None:
            return None
        offered = offer(self.state, self._asked, self._policy)
        return None if offered is None else placed_on(self.state.node.name, offered, self._asked)

    @contextmanager
    def _without(self, occupants: Collection[Occupant]) -> Iterator[None]:
        for occupant in occupants:
            self.state.uncharge(self._pods[occupant.uid])
        try:
            yield
        finally:
            for occupant in occupants:
                self.state.charge(self._pods[occupant.uid])


def _violating(lower: Sequence[Occupant], budgets: Mapping[str, int]) -> set[str]:
    """Uids of those whose eviction a budget no longer allows, when all are evicted in this order."""
    left = dict(budgets)
    found = set()
    for occupant in lower:
        for budget in occupant.budgets:
            left[budget] = left.get(budget, 0) - 1
            if left[budget] < 0:
                found.add(occupant.uid)
    return found


def _importance(occupant: Occupant) -> tuple[int, int, str]:
    """Kubernetes' MoreImportantPod, most important first: higher priority, then earlier start."""
    return -occupant.priority, occupant.started, occupant.uid
