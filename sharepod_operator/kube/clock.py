"""Time and chance, passed in: tests replace them, and a seed replays exactly."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def wall_clock() -> datetime:
    """The time of day, with its zone: for what people read, never for measuring."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """The process's own time. Everything that is measured or waited for uses `monotonic`; `now` is for people only."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = wall_clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)

    def jittered(self, seconds: float) -> float:
        """Between half of `seconds` and all of it, so that clients don't come back all at once."""
        return seconds * self.rng.uniform(0.5, 1.0)


def micro_time(moment: datetime) -> str:
    """metav1.MicroTime: `2026-11-30T11:00:00.000000Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
