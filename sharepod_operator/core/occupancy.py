"""Who holds room on which node, as preemption judges it, and how many disruptions the budgets still allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW: Final = 1 << 62
"""The start time of a pod that hasn't started, or of which it isn't known: later than every other."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A pod that holds room."""

    uid: str
    key: str
    priority: int = 0
    started: int = NOW
    """status.startTime in seconds of the Unix epoch."""
    protected: bool = False
    """Mirror pods, DaemonSets' pods, Holders, and whomever a setting spares."""
    leaving: bool = False
    """It has a deletionTimestamp, and isn't stuck: what it holds will be free."""
    stuck: bool = False
    """It should have been gone long ago: what it holds is neither free nor promised."""
    budgets: tuple[str, ...] = ()
    """The disruption budgets that match it and don't list it as disrupted already."""


class Occupancy:
    """The occupants by node, with a version for each node that tells whether anything there has changed."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Occupant]] = {}
        self._node: dict[str, str] = {}
        self._versions: dict[str, int] = {}
        self._budgets: dict[str, int] = {}
        self.budgets_version = 0

    def of(self, node: str) -> Mapping[str, Occupant]:
        """The occupants of a node, by uid."""
        return self._of.get(node, {})

    def get(self, uid: str) -> Occupant | None:
        """The occupant with this uid."""
        node = self._node.get(uid)
        return None if node is None else self._of[node][uid]

    def version(self, node: str) -> int:
        """Grows with every change of an occupant there."""
        return self._versions.get(node, 0)

    @property
    def budgets(self) -> Mapping[str, int]:
        """Disruptions that each budget still allows."""
        return self._budgets

    def put(self, node: str, occupant: Occupant) -> None:
        """Enter an occupant, or replace its record."""
        if self._node.get(occupant.uid, node) != node:
            self.remove(occupant.uid)
        there = self._of.setdefault(node, {})
        if there.get(occupant.uid) != occupant:
            there[occupant.uid] = occupant
            self._node[occupant.uid] = node
            self._versions[node] = self._versions.get(node, 0) + 1

    def remove(self, uid: str) -> None:
        """The pod holds nothing any more."""
        node = self._node.pop(uid, None)
        if node is not None:
            del self._of[node][uid]
            if not self._of[node]:
                del self._of[node]
            self._versions[node] = self._versions.get(node, 0) + 1

    def allow(self, budgets: Mapping[str, int]) -> None:
        """What the budgets allow from now on."""
        if budgets != self._budgets:
            self._budgets = dict(budgets)
            self.budgets_version += 1
