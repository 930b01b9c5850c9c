"""The work queue loses no change, never runs one key twice at once, and slows down on failures."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from typing import TYPE_CHECKING

import pytest

from sharepod_operator.controller.workqueue import WorkQueue
from sharepod_operator.kube.errors import ServerError, TooManyRequests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.looptime


class Work:
    """A handler that notes when it worked on what; `act` is what it does then."""

    def __init__(self, act: Callable[[str], Awaitable[None]] | None = None) -> None:
        self.done: list[tuple[str, float]] = []
        self.queue = WorkQueue("test", self._handle, random.Random(1))
        self._act = act

    async def _handle(self, key: str) -> None:
        self.done.append((key, round(asyncio.get_running_loop().time(), 2)))
        if self._act is not None:
            await self._act(key)

    async def run(self, seconds: float, workers: int = 2) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.queue.run(workers)

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.done]


async def test_a_key_added_often_is_worked_on_once() -> None:
    """What waits already isn't put in line again."""
    work = Work()
    for key in ("a", "b", "a", "a"):
        work.queue.add(key)
    await work.run(1)

    assert ["a", "b"] == work.keys
    assert 0 == len(work.queue)


async def test_a_change_during_the_work_is_not_missed() -> None:
    """The key runs once more afterwards, however often it was added, and never twice at the same time."""
    running: set[str] = set()

    async def act(key: str) -> None:
        assert key not in running
        running.add(key)
        if len(work.done) == 1:
            for _ in range(3):
                work.queue.add(key)
        await asyncio.sleep(1)
        running.discard(key)

    work = Work(act)
    work.queue.add("a")
    await work.run(10)

    assert ["a", "a"] == work.keys


async def test_the_earliest_appointment_counts() -> None:
    """A later one changes nothing, an earlier one replaces, `add` is at once and cancels."""
    work = Work()
    work.queue.add_after("a", 5)
    work.queue.add_after("a", 9)
    work.queue.add_after("b", 9)
    work.queue.add_after("b", 4)
    work.queue.add_after("c", 3)
    work.queue.add("c")
    work.queue.add_after("d", 3)
    work.queue.forget("d")
    await work.run(60)

    assert [("c", 0.0), ("b", 4.0), ("a", 5.0)] == work.done


async def test_failures_wait_longer_each_time() -> None:
    """0.5 s, doubling up to a minute, with jitter; other keys aren't held up, and success starts anew."""

    async def act(key: str) -> None:
        if key == "bad":
            raise ServerError("no", status=500)

    work = Work(act)
    work.queue.add("bad")
    work.queue.add("good")
    await work.run(300, workers=1)
    times = [time for key, time in work.done if key == "bad"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]

    assert ("good", 0.0) in work.done
    for expected, gap in zip((0.5, 1, 2, 4, 8, 16, 32, 60, 60), gaps, strict=False):
        assert 0.79 * expected <= gap <= 1.21 * expected
    work.queue.succeeded("bad")
    assert work.queue.retry("bad") <= 0.6


async def test_the_servers_wish_for_patience_is_kept() -> None:
    """Retry-After is the least wait."""

    async def act(_: str) -> None:
        if len(work.done) == 1:
            raise TooManyRequests("slow down", retry_after=7)

    work = Work(act)
    work.queue.add("a")
    await work.run(60)

    assert [0.0, 7.0] == [time for _, time in work.done]


async def test_a_defect_in_one_key_stops_nothing() -> None:
    """An unexpected error is logged and retried like any other."""

    async def act(key: str) -> None:
        if len(work.done) == 1:
            raise KeyError(key)

    work = Work(act)
    work.queue.add("a")
    work.queue.add("b")
    await work.run(60)

    assert ["a", "b", "a"] == work.keys
