"""Keys that wait to be worked on: each at most once, never two workers on one key, failures with growing delay.

The same contract as client-go's work queue, for one asyncio loop: a key added while it is being worked on is worked on
once more afterwards, so that no change is missed, however many arrive.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from sharepod_operator.kube.errors import ApiError, NotLeading, TooManyRequests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

log = structlog.get_logger(__name__)

FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 60.0


class WorkQueue:
    """One handler for all keys; `run` works until it is cancelled."""

    def __init__(self, name: str, handle: Callable[[str], Awaitable[None]], rng: Random) -> None:
        self._name = name
        self._handle = handle
        self._rng = rng
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}

    def __len__(self) -> int:
        """Keys that are to be worked on now, or are being worked on; those that wait for a time don't count."""
        return len(self._queued | self._working | self._again)

    def add(self, key: str) -> None:
        """Work on the key as soon as a worker is free."""
        self._cancel_timer(key)
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Work on the key after so many seconds; an earlier appointment stays."""
        if seconds <= 0:
            self.add(key)
            return
        if key in self._queued:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        timer = self._timers.get(key)
        if timer is None or timer.when() > due:
            self._cancel_timer(key)
            self._timers[key] = loop.call_at(due, self._due, key)

    def retry(self, key: str, *, at_least: float = 0.0, cap: float = LONGEST_BACKOFF) -> float:
        """Work on the key again after its back-off, which doubles each time until `succeeded`; returns the delay."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(FIRST_BACKOFF * 2.0 ** min(failures - 1, 30), cap)
        delay = max(at_least, delay * self._rng.uniform(0.8, 1.2))
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: str) -> None:
        """The next failure of the key counts as its first."""
        self._failures.pop(key, None)

    def forget(self, key: str) -> None:
        """The key's object is gone: nothing more is planned for it."""
        self._cancel_timer(key)
        self._failures.pop(key, None)
        self._again.discard(key)

    async def run(self, workers: int) -> None:
        """Work on keys, at most `workers` at a time."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work())
        finally:
            for key in list(self._timers):
                self._cancel_timer(key)

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            self._working.add(key)
            try:
                await self._handle(key)
            except NotLeading as error:
                log.debug("NotLeading", message=error.message, queue=self._name, key=key)
                self.retry(key)
            except TooManyRequests as error:
                self.retry(key, at_least=error.retry_after)
            except ApiError as error:
                delay = self.retry(key)
                log.info("WriteFailed", message=error.message, queue=self._name, key=key, retry_in=round(delay, 1))
            except Exception:
                delay = self.retry(key)
                log.exception("UnexpectedError", queue=self._name, key=key, retry_in=round(delay, 1))
            finally:
                self._working.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    def _due(self, key: str) -> None:
        del self._timers[key]
        self.add(key)

    def _cancel_timer(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
