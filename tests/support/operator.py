"""The whole engine on an API server in memory, with Kopf's watches stood in for; for tests on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from sharepod_operator.engine import CACHES, WATCHED_THROUGH_KOPF, Engine
from sharepod_operator.kube.errors import ApiError
from sharepod_operator.observability.health import Health
from sharepod_operator.observability.metrics import Metrics
from sharepod_operator.settings import Settings
from tests.support.memory_api import Crash, MemoryApi
from tests.support.memory_server import ManualClock

if TYPE_CHECKING:
    from sharepod_operator.kube.api import Resource
    from tests.support.memory_server import MemoryServer

EPOCH = datetime(2026, 11, 30, 11, 0, tzinfo=UTC)
QUIET = 6.0
"""Virtual seconds without a write after which everything counts as done."""


class LoopClock(ManualClock):
    """Wall time that goes with the event loop's virtual time."""

    def __call__(self) -> datetime:
        return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())


class MemoryOperator:
    """One operator process; `crashed` tells whether a fault of its API killed it."""

    def __init__(self, server: MemoryServer, *, identity: str = "one", **settings: Any) -> None:
        self.server = server
        self.api = MemoryApi(server)
        self.leading = True
        self.crashed = False
        loop = asyncio.get_running_loop()
        self.engine = Engine(
            self.api,
            Settings(identity=identity, **settings),
            is_leading=lambda: self.leading,
            clock=loop.time,
            now=LoopClock(),
            rng=random.Random(7),
            metrics=Metrics(),
            health=Health(CACHES, clock=loop.time, resync_limit=1e9),
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Crash):
            await self._task

    async def settle(self, limit: float = 600.0) -> None:
        """Wait until nothing was written for a while, or the process was killed."""
        loop = asyncio.get_running_loop()
        started = last = loop.time()
        seen = len(self.server.writes)
        while loop.time() - last < QUIET and not self.crashed:
            assert loop.time() - started < limit, f"no rest after {limit} s: {self.server.writes[-10:]}"
            await asyncio.sleep(0.25)
            self.server.run_pods()
            self.server.finish_deletions()
            if len(self.server.writes) != seen:
                seen, last = len(self.server.writes), loop.time()
        if not self.crashed:
            self.engine.cache.validate()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.engine.run())
                for resource in WATCHED_THROUGH_KOPF:
                    group.create_task(self._as_kopf(resource))
        except* Crash:
            self.crashed = True

    async def _as_kopf(self, resource: Resource) -> None:
        """List, then watch; whatever goes wrong, list again: deletions in the gap are never reported."""
        while True:
            try:
                listing = await self.api.list(resource)
                for obj in listing.items:
                    self.engine.observe(resource.plural, {"type": None, "object": obj})
                async for event in self.api.watch(resource, resource_version=listing.resource_version):
                    if event.type != "BOOKMARK":
                        self.engine.observe(resource.plural, {"type": event.type, "object": event.object})
            except ApiError:
                await asyncio.sleep(0.1)
