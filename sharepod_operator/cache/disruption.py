"""Keeps the occupancy that preemption judges by: who holds room where, who is leaving, and what the budgets allow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sharepod_operator.cache.store import Store
from sharepod_operator.core.occupancy import Occupancy
from sharepod_operator.manifest.disruption import read_budget, read_occupant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sharepod_operator.manifest.disruption import BudgetRecord
    from sharepod_operator.manifest.records import PodRecord

STUCK_AFTER = 120.0
"""Seconds past its grace period after which a pod that should have ended counts as stuck."""


class Disruption:
    """The occupants of all nodes. `spares` says whom a setting keeps out of it."""

    def __init__(
        self, pods: Mapping[str, PodRecord], spares: Callable[[PodRecord], bool], clock: Callable[[], float]
    ) -> None:
        self.occupancy = Occupancy()
        self.budgets: Store[BudgetRecord] = Store(read_budget, self._budget_changed)
        self._pods = pods
        self._spares = spares
        self._clock = clock
        self._leaving_since: dict[str, float] = {}
        self._spent: dict[str, tuple[int, set[str]]] = {}
        self._condemned: dict[str, frozenset[str]] = {}

    def pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        """A pod came, changed or went."""
        if new is None or not new.node or new.finished:
            gone = new or old
            if gone is not None:
                self.occupancy.remove(gone.uid)
                self._leaving_since.pop(gone.uid, None)
            return
        if new.deleting:
            self._leaving_since.setdefault(new.uid, self._clock())
        self._enter(new)

    def condemn(self, preemptor: str, victims: frozenset[str]) -> None:
        """Who leaves for this preemptor, by uid: they count as leaving from the decision on, for everybody."""
        before = self._condemned.get(preemptor, frozenset())
        if victims:
            self._condemned[preemptor] = victims
        else:
            self._condemned.pop(preemptor, None)
        for uid in before ^ victims:
            record = self._pods.get(uid)
            if record is not None and record.node and not record.finished:
                self._enter(record)

    def evicted(self, pod: PodRecord) -> None:
        """A pod is made to leave: until a budget tells of it by itself, one disruption less is allowed."""
        for record in self._counting(pod):
            version, uids = self._spent.get(record.uid, (record.version, set()))
            if version != record.version:
                uids = set()
            self._spent[record.uid] = (record.version, uids | {pod.uid})
        self._allow()

    def find_stuck(self) -> list[PodRecord]:
        """The pods that should have ended long ago and turned out to be stuck just now. To be asked now and then."""
        now = self._clock()
        found = []
        for uid, since in self._leaving_since.items():
            record, known = self._pods.get(uid), self.occupancy.get(uid)
            if record is None or known is None or known.stuck or now <= since + record.grace_seconds + STUCK_AFTER:
                continue
            found.append(record)
        for record in found:
            self._enter(record)
        return found

    def is_stuck(self, uid: str) -> bool:
        """Whether the pod should have ended long ago."""
        known = self.occupancy.get(uid)
        return known is not None and known.stuck

    def _enter(self, record: PodRecord) -> None:
        since = self._leaving_since.get(record.uid)
        stuck = since is not None and self._clock() > since + record.grace_seconds + STUCK_AFTER
        occupant = read_occupant(record, self.budgets.values())
        occupant = replace(
            occupant,
            protected=occupant.protected or self._spares(record),
            leaving=not stuck and (occupant.leaving or any(record.uid in each for each in self._condemned.values())),
            stuck=stuck,
        )
        self.occupancy.put(record.node, occupant)

    def _counting(self, record: PodRecord) -> list[BudgetRecord]:
        return [budget for budget in self.budgets.values() if budget.counts(record)]

    def _budget_changed(self, old: BudgetRecord | None, new: BudgetRecord | None) -> None:
        record = new or old
        assert record is not None
        namespace = record.namespace
        if old is None or new is None or (old.selector, old.disrupted) != (new.selector, new.disrupted):
            for pod in self._pods.values():
                if pod.namespace == namespace and pod.node and not pod.finished:
                    self._enter(pod)
        if new is None and old is not None:
            self._spent.pop(old.uid, None)
        self._allow()

    def _allow(self) -> None:
        allowed = {}
        for budget in self.budgets.values():
            version, uids = self._spent.get(budget.uid, (0, set[str]()))
            spent = len(uids) if version == budget.version else 0
            allowed[budget.key] = budget.allowed - spent
        self.occupancy.allow(allowed)
