"""One resource type, mirrored: a list, then a watch that goes on from it, for ever.

Kopf's watcher reports no deletions that fell between a broken watch and the next list. This one hands every full list
to the sink as such, so that the sink can drop what is no longer there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, NoReturn, Protocol

import structlog

from sharepod_operator.kube.clock import Clock
from sharepod_operator.kube.errors import ApiError, Forbidden, Gone, NotFound, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sharepod_operator.kube.api import Api, Json, Resource

SILENCE = 70.0
"""Seconds without an event or bookmark after which the watch is given up: bookmarks come about once a minute."""
PATIENCE = 8
"""Failures in a row after which a refusal that won't mend itself (401, 403, 404) ends the process, with its reason."""
_SETTLED = 5.0
"""Seconds that a watch must have lived to be followed by the next one without a pause."""
_EXTEND = 1.0
"""Seconds between two extensions of the silence limit: moving a timer for every event would be waste."""
_BACKOFF = 0.5
_BACKOFF_MAX = 30.0

_log = structlog.get_logger("sharepod_operator.kube")


class Sink(Protocol):
    """Who wants to know. Both methods are called from the loop, return at once and must not fail."""

    def replace(self, items: Sequence[Json], resource_version: str) -> None:
        """This is everything there is as of the version; what isn't in it and isn't newer is gone."""
        ...

    def observe(self, kind: str, body: Json) -> None:
        """One ADDED, MODIFIED or DELETED."""
        ...


class Reflector:
    """List and watch of one resource type into a sink.

    Args:
        silence: seconds without a sign of life after which the watch is opened again.
        page: objects per page of the list; None fetches it whole.
        on_synced: called after each full list has reached the sink, and `synced` says so unless the next one is due.
        count: told what came, as the type of the events (`LISTED` for the objects of a list) and how many there were.

    Attributes:
        synced: set while the sink's view comes from a full list and none is due; deciding waits for it.
        last_sync: `clock()` when the last full list was taken, None before the first.
        last_seen: `clock()` of the last sign of life: a list, an event, a bookmark.
    """

    def __init__(  # noqa: PLR0913  # time and chance are passed in
        self,
        api: Api,
        resource: Resource,
        sink: Sink,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        silence: float = SILENCE,
        page: int | None = None,
        on_synced: Callable[[], None] = lambda: None,
        count: Callable[[str, int], None] = lambda _kind, _number: None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self.last_sync: float | None = None
        self.last_seen: float | None = None
        self._api = api
        self._sink = sink
        self._namespace = namespace
        self._label_selector = label_selector
        self._silence = silence
        self._page = page
        self._on_synced = on_synced
        self._count = count
        self._clock = Clock(clock, sleep=sleep, rng=rng or random.Random())  # noqa: S311  # spreads retries, keeps no secret
        self._wanted = 1
        self._done = 0
        self._listed = asyncio.Condition()
        self._watching: asyncio.Timeout | None = None
        self._version: str | None = None
        self._failures = 0

    @property
    def resync_due(self) -> bool:
        """Whether a full list was asked for that hasn't been taken yet."""
        return self._done < self._wanted

    def sync_age(self) -> float:
        """Seconds since the last full list; infinite before the first."""
        return float("inf") if self.last_sync is None else self._clock.monotonic() - self.last_sync

    def request_resync(self) -> None:
        """Asks for a full list that starts after this call; one that is under way doesn't count."""
        self._wanted += 1
        self.synced.clear()
        if self._watching is not None and not self._watching.expired():
            self._watching.reschedule(asyncio.get_running_loop().time())

    async def resync(self) -> None:
        """Asks for a full list and returns when one that started after this call has reached the sink."""
        self.request_resync()
        mine = self._wanted
        async with self._listed:
            await self._listed.wait_for(lambda: self._done >= mine)

    async def run(self) -> NoReturn:
        """Mirrors until cancelled.

        Raises:
            Forbidden, NotFound, Unauthorized: the server refused again and again, and it won't mend itself.
        """
        while True:
            try:
                if self._version is None or self.resync_due:
                    await self._list()
                if self.resync_due:
                    continue  # asked for while the list was under way
                opened = self._clock.monotonic()
                await self._follow()
            except Gone:
                self._version = None
                self.request_resync()
                self._failures += 1
                if self._failures > 1:  # a list from which no watch can go on would be asked for without end
                    await self._clock.sleep(self._pause())
            except ApiError as error:
                await self._failed(error)
            else:
                if self._clock.monotonic() - opened < _SETTLED and not self.resync_due:
                    self._failures += 1  # a server that closes at once must not be asked hundreds of times a second
                    await self._clock.sleep(self._pause())

    async def _list(self) -> None:
        wanted = self._wanted
        listing = await self._api.list(
            self.resource, namespace=self._namespace, label_selector=self._label_selector, limit=self._page
        )
        self._version = listing.resource_version
        self._count("LISTED", len(listing.items))
        self._sink.replace(listing.items, listing.resource_version)
        self.last_sync = self.last_seen = self._clock.monotonic()
        self._done = wanted
        if not self.resync_due:
            self.synced.set()
        self._on_synced()
        async with self._listed:
            self._listed.notify_all()

    async def _follow(self) -> None:
        """Passes events on until the server closes the stream, a resync is due, or it stays silent for too long."""
        assert self._version is not None
        loop = asyncio.get_running_loop()
        events = self._api.watch(
            self.resource,
            resource_version=self._version,
            namespace=self._namespace,
            label_selector=self._label_selector,
        )
        try:
            async with contextlib.aclosing(events), asyncio.timeout(self._silence) as self._watching:
                extended = loop.time()
                async for kind, body in events:
                    now = loop.time()
                    if now > extended + _EXTEND and not self.resync_due:
                        self._watching.reschedule(now + self._silence)
                        extended = now
                    self._version = body["metadata"]["resourceVersion"]
                    self.last_seen = self._clock.monotonic()
                    self._failures = 0
                    if kind != "BOOKMARK":
                        self._count(kind, 1)
                        self._sink.observe(kind, body)
        except TimeoutError:
            if not self.resync_due:
                _log.warning(
                    "WatchSilent",
                    message="the watch was silent; it is opened again",
                    resource=str(self.resource),
                    seconds=self._silence,
                )
        finally:
            self._watching = None

    async def _failed(self, error: ApiError) -> None:
        self._failures += 1
        if isinstance(error, (Forbidden, NotFound, Unauthorized)) and self._failures > PATIENCE:
            raise error
        if self._failures > 1:
            self._version = None  # perhaps it is the version that the server can't serve
            self.request_resync()
        pause = self._pause()
        _log.warning(
            "WatchInterrupted",
            message=f"watch interrupted: {error.message}",
            resource=str(self.resource),
            retry_in=round(pause, 1),
        )
        await self._clock.sleep(pause)

    def _pause(self) -> float:
        return self._clock.jittered(min(_BACKOFF_MAX, _BACKOFF * 2.0 ** min(self._failures - 1, 10)))
