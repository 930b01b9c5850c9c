"""Whether this process does its work: a heartbeat of the scheduling loop, and the age of what it knows of the cluster.

A process can answer HTTP and be blind or stuck all the same, so health is judged by these two and by nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HEARTBEAT_LIMIT = 30.0
"""Seconds without a heartbeat after which the scheduling loop counts as stuck."""


@dataclass(frozen=True, slots=True)
class Report:
    """One answer of a probe."""

    ok: bool
    leading: bool
    problems: tuple[str, ...] = ()
    """One sentence each; empty where all is well."""


class Health:
    """Gathers signs of life; the owners of loop, caches and leadership report them here."""

    def __init__(
        self,
        caches: Iterable[str],
        *,
        clock: Callable[[], float],
        resync_limit: float,
        heartbeat_limit: float = HEARTBEAT_LIMIT,
    ) -> None:
        """Starts with nothing synced and not leading.

        Args:
            caches: names of what must be listed once before the process is ready, such as `pods` and `nodes`.
            clock: monotonic seconds.
            resync_limit: seconds since the last full list of a cache after which the process counts as blind; several
                times the resync interval, so that an API server that is away for some minutes costs no restart.
            heartbeat_limit: seconds without `beat` after which a leader counts as stuck.
        """
        self._clock = clock
        self._resync_limit = resync_limit
        self._heartbeat_limit = heartbeat_limit
        self._started = clock()
        self._synced: dict[str, float | None] = dict.fromkeys(caches)
        self._leading_beat: float | None = None

    @property
    def leading(self) -> bool:
        """Whether this process leads; a standby has no scheduling loop that could be stuck."""
        return self._leading_beat is not None

    def lead(self, *, leading: bool) -> None:
        """Leadership was won or lost; a new leader's loop has the full limit for its first heartbeat."""
        if leading != self.leading:
            self._leading_beat = self._clock() if leading else None

    def beat(self) -> None:
        """The scheduling loop has gone round, or woke up and found nothing to do."""
        if self.leading:
            self._leading_beat = self._clock()

    def resynced(self, cache: str) -> None:
        """This cache was just compared with a full list; `cache` is one of the names given at the start."""
        if cache not in self._synced:
            raise KeyError(f"no cache is called {cache!r}: {', '.join(sorted(self._synced))} are")
        self._synced[cache] = self._clock()

    def resync_age(self) -> float | None:
        """Seconds since the oldest comparison of a cache with a full list; None while one was never compared."""
        times = [time for time in self._synced.values() if time is not None]
        if not times or len(times) < len(self._synced):
            return None
        return self._clock() - min(times)

    def alive(self) -> Report:
        """For /healthz: not ok means that a restart would help."""
        now = self._clock()
        problems: list[str] = []
        if self._leading_beat is not None and now - self._leading_beat > self._heartbeat_limit:
            age = now - self._leading_beat
            problems.append(f"scheduling loop: no heartbeat for {age:.0f} s (limit {self._heartbeat_limit:.0f} s)")
        for cache, time in self._synced.items():
            age = now - (self._started if time is None else time)
            if age > self._resync_limit:
                what = "never listed" if time is None else "not compared with a full list"
                problems.append(f"{cache}: {what} for {age:.0f} s (limit {self._resync_limit:.0f} s)")
        return Report(not problems, self.leading, tuple(problems))

    def ready(self) -> Report:
        """For /readyz: ok once every cache was listed; a standby with warm caches is ready."""
        problems = tuple(f"{cache}: not listed yet" for cache, time in self._synced.items() if time is None)
        return Report(not problems, self.leading, problems)
