"""How many events one object may cause: the limits of client-go, as pure bookkeeping over a clock."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BURST = 25
"""Event writes that one object may cause at once."""
REFILL = 300.0
"""Seconds after which it may cause one more."""
SIMILAR = 10
"""Different notes of one reason on one object that are told apart within the window; further ones are combined."""
SIMILAR_WINDOW = 600.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled: float


@dataclass(slots=True)
class EventLimits:
    """Decides per object and reason. Remembers a bounded number of each; the least recent are forgotten first."""

    clock: Callable[[], float]
    remembered: int
    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)
    _notes: OrderedDict[tuple[str, str, str], dict[str, float]] = field(default_factory=OrderedDict)

    def allowed(self, uid: str) -> bool:
        """Whether the object may cause one more write now; counts it when it may."""
        now = self.clock()
        bucket = self._buckets.setdefault(uid, _Bucket(BURST, now))
        self._buckets.move_to_end(uid)
        if len(self._buckets) > self.remembered:
            self._buckets.popitem(last=False)
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.filled) / REFILL)
        bucket.filled = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def combined(self, group: tuple[str, str, str], note: str) -> bool:
        """Whether this note of (uid, type, reason) is one too many to stand alone."""
        now = self.clock()
        notes = self._notes.setdefault(group, {})
        self._notes.move_to_end(group)
        if len(self._notes) > self.remembered:
            self._notes.popitem(last=False)
        for old in [text for text, seen in notes.items() if now - seen > SIMILAR_WINDOW]:
            del notes[old]
        if note not in notes and len(notes) >= SIMILAR:
            return True
        notes[note] = now
        return False
