"""Keeps one store of the cache true: what Kopf's watch brings, checked against a full list again and again.

A watch may stall, and Kopf reports no deletions that fell into a re-list. So the list is the authority: at start,
whenever Kopf listed anew, every few minutes, and whenever somebody asks. While one is due nothing is planned.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from sharepod_operator.kube import errors
from sharepod_operator.kube.api import LIST_PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random
    from typing import Any

    from sharepod_operator.cache.cache import AnyStore
    from sharepod_operator.kube.api import Api, Json, Resource

log = structlog.get_logger(__name__)

RETRY_PAUSE = 2.0
EMPTY_INTERVAL = 5.0
"""Seconds between two lists of a resource that may not be installed, while there is nothing of it.

Kopf looks once after each change of a CRD what the API server serves, and the API server is a little late with it; what
Kopf missed then it never watches. A watch that isn't there and one that has nothing to say can't be told apart.
"""
SETTLE_PAUSE = 0.5
"""Kopf reports a list object by object; one resync answers them all."""


class Feed:
    """Fills the store of one resource that is watched through Kopf."""

    def __init__(
        self,
        store: AnyStore,
        api: Api,
        resource: Resource,
        *,
        interval: float,
        clock: Callable[[], float],
        rng: Random,
        on_synced: Callable[[], None],
        missing: str = "",
    ) -> None:
        """`missing` is the sentence for the log where the server doesn't know the resource at all."""
        self._store = store
        self._api = api
        self._resource = resource
        self._interval = interval
        self._clock = clock
        self._rng = rng
        self._on_synced = on_synced
        self._missing = missing
        self._due = asyncio.Event()
        self._due.set()
        self._watched = False
        self.last_sync: float | None = None
        """When the last full list was taken in, on the caller's clock."""

    @property
    def synced(self) -> bool:
        """The store equals a full list, apart from what the watch brought since."""
        return self.last_sync is not None and not self._due.is_set()

    def kopf_event(self, event: Mapping[str, Any]) -> None:
        """One event as Kopf hands it over; type None means that Kopf has listed (again)."""
        event_type = event["type"]
        if event_type is None and self._watched:
            self._due.set()
        elif event_type is not None:
            self._watched = True
        self._store.observe(event_type, event["object"])
        if event_type == "DELETED" and self._missing and not len(self._store):
            self._due.set()  # the last one, or the whole resource

    def request_resync(self) -> None:
        """Take in a full list before anything else is planned."""
        self._due.set()

    async def run(self) -> None:
        """Resync when due, and every `interval` seconds give or take a tenth, for ever."""
        while True:
            if self.last_sync is not None:
                await self._until_due()
                await asyncio.sleep(SETTLE_PAUSE)
            await self._resync()

    async def _until_due(self) -> None:
        interval = min(self._interval, EMPTY_INTERVAL) if self._missing and not len(self._store) else self._interval
        try:
            async with asyncio.timeout(interval * self._rng.uniform(0.9, 1.1)):
                await self._due.wait()
        except TimeoutError:
            self._due.set()

    async def _resync(self) -> None:
        complained = False
        while True:
            self._due.clear()
            known = self._store.highest_version
            try:
                listing = await self._api.list(self._resource, limit=LIST_PAGE)
            except errors.ApiError as error:
                self._due.set()
                if not complained:
                    complained = True
                    self._complain(error)
                await asyncio.sleep(RETRY_PAUSE * self._rng.uniform(0.8, 1.2))
                continue
            self._store.replace(listing.items, int(listing.resource_version), known)
            self.last_sync = self._clock()
            self._on_synced()
            return

    def _complain(self, error: errors.ApiError) -> None:
        text = self._missing if self._missing and isinstance(error, errors.NotFound) else error.message
        if isinstance(error, errors.Forbidden):
            text = f"{text}; nothing is planned until the operator may list and watch {self._resource}"
        log.warning("ListFailed", message="list failed", resource=str(self._resource), error=text)


class StoreSink:
    """Takes what a reflector brings into a store. Its list and its watch are one sequence: a list is never older than
    the events before it, unless etcd was restored from a snapshot.
    """

    def __init__(self, store: AnyStore) -> None:
        self._store = store
        self._seen = 0

    def replace(self, items: Sequence[Json], resource_version: str) -> None:
        """A full list."""
        self._store.replace(items, int(resource_version), self._seen)
        self._seen = int(resource_version)

    def observe(self, kind: str, body: Json) -> None:
        """One watch event."""
        self._seen = max(self._seen, int(body["metadata"]["resourceVersion"]))
        self._store.observe(kind, body)
