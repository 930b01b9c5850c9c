"""Writes the status of SharePods: rarely, never needlessly, and never older than what was written before.

A PATCH of a status is the dearest write there is, so changes are collected for a while that depends on who waits for
them: nobody needs to read that a pod is about to start, somebody does need to read why it can't.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sharepod_operator.controller.view import replica_states, sharepod_view
from sharepod_operator.controller.workqueue import WorkQueue
from sharepod_operator.core.status import at_rest, merge_patch, render_status, settled, waiting
from sharepod_operator.kube import errors
from sharepod_operator.kube.api import SHAREPODS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from random import Random

    from sharepod_operator.cache.cache import Cache
    from sharepod_operator.controller.announcer import Announcer
    from sharepod_operator.core.replicas import ReplicaState
    from sharepod_operator.core.status import Refused, SharePodView
    from sharepod_operator.kube.api import Api, Json
    from sharepod_operator.manifest.records import SharePodRecord

WORKERS = 4
"""Statuses written at a time: while pods wait to be bound, the API server is to bind them first."""
MIN_INTERVAL = 1.0
"""Seconds between two writes of one SharePod's status."""
AFTER_CONFLICT = 0.1
FEW = 50
"""Replicas up to which details are cheap: more make tens of kilobytes, each time that one of them starts."""
PATIENCE = 10.0
"""Seconds for which a first status that isn't the last one gives way to others that are due."""
STALLED = 5.0
"""Seconds without any move after which details are written although replicas wait, or start."""


class Pace(Enum):
    """How many seconds a change may wait to be written with others."""

    SETTLED = 0.0
    """Nothing more is expected soon."""
    WAITING = 0.5
    """A replica waits, and the user wants to know why."""
    MOVING = 1.0
    """Replicas are being placed, or start, or end."""
    FRESH = 2.0
    """As MOVING, and no status was ever written: usually all is well before one is needed."""


def pace_of(sharepod: SharePodRecord, view: SharePodView, pods: Sequence[ReplicaState]) -> Pace:
    """How urgent the present state is."""
    if settled(view, pods):
        return Pace.SETTLED
    if waiting(pods):
        return Pace.WAITING
    return Pace.MOVING if sharepod.status else Pace.FRESH


@dataclass(frozen=True, slots=True)
class _Acted:
    """What the controller has acted on: the status is about nothing newer."""

    generation: int
    template_hash: str
    refused: Refused | None


class StatusWriter:
    """One writer for all SharePods; `acted` says that there may be news, the writer looks whether there are."""

    def __init__(
        self,
        cache: Cache,
        api: Api,
        announcer: Announcer,
        *,
        may_act: Callable[[], bool],
        now: Callable[[], datetime],
        rng: Random,
    ) -> None:
        self._cache = cache
        self._api = api
        self._announcer = announcer
        self._may_act = may_act
        self._now = now
        self._queue = WorkQueue("status", self._write, rng)
        self._acted: dict[str, _Acted] = {}
        self._written: dict[str, float] = {}
        self._moved: dict[str, float] = {}
        """When something last changed, as far as this process saw."""
        self._unwritten: dict[str, float] = {}
        """Since when there is something to say of a SharePod without any status."""

    def __len__(self) -> int:
        """Statuses that are to be written now."""
        return len(self._queue)

    async def run(self) -> None:
        """Write what is due, for ever."""
        await self._queue.run(WORKERS)

    def acted(self, sharepod: SharePodRecord, refused: Refused | None, pods: Sequence[ReplicaState]) -> None:
        """The controller did what there was to do for the SharePod as it stands here."""
        self._acted[sharepod.uid] = _Acted(sharepod.generation, sharepod.template_hash, refused)
        if not sharepod.status:
            self._unwritten.setdefault(sharepod.uid, asyncio.get_running_loop().time())
        wait = pace_of(sharepod, sharepod_view(sharepod, refused), pods).value
        self._queue.add_after(sharepod.uid, max(wait, self._pause_left(sharepod.uid)))

    def forget(self, uid: str) -> None:
        """The SharePod is gone."""
        self._queue.forget(uid)
        self._acted.pop(uid, None)
        self._written.pop(uid, None)
        self._moved.pop(uid, None)
        self._unwritten.pop(uid, None)
        self._announcer.forget(uid)

    async def _write(self, uid: str) -> None:
        seen = self._look(uid)
        if seen is None:
            return
        if self._gives_way(seen):
            self._queue.add_after(uid, Pace.FRESH.value)
            return
        if not seen.details:
            self._queue.add_after(uid, STALLED)
        if not merge_patch(seen.previous, seen.status):
            return
        if self._announcer.is_synced_due(seen.sharepod, seen.view, seen.pods):
            await self._announcer.synced(seen.sharepod)
            seen = self._look(uid)
            if seen is None:
                return
        sharepod = seen.sharepod
        body = {
            "metadata": {"uid": uid, "resourceVersion": str(sharepod.version)},
            "status": merge_patch(seen.previous, seen.status),
        }
        try:
            answer = await self._api.patch(
                SHAREPODS, sharepod.name, body, namespace=sharepod.namespace, subresource="status", strict=True
            )
        except errors.NotFound:
            return  # the watch will tell that it is gone
        except errors.Conflict:
            await self._read_again(sharepod)
            self._queue.add_after(uid, AFTER_CONFLICT)
            return
        self._written[uid] = asyncio.get_running_loop().time()
        self._queue.succeeded(uid)
        self._moved[uid] = self._written[uid]
        self._unwritten.pop(uid, None)
        self._cache.observe_sharepod(answer)
        self._announcer.status_written(sharepod, seen.view, seen.pods, seen.previous, seen.status)

    def _look(self, uid: str) -> _Seen | None:
        """The status as it ought to be now; None where this isn't the time to write one."""
        sharepod, acted = self._cache.sharepods.get(uid), self._acted.get(uid)
        if sharepod is None or acted is None or sharepod.deleting or not self._may_act():
            return None
        if (sharepod.generation, sharepod.template_hash) != (acted.generation, acted.template_hash):
            return None  # the controller acts on the newer one first
        view, pods = sharepod_view(sharepod, acted.refused), replica_states(sharepod, self._cache)
        details = self._is_worth_details(view, pods) or self._is_stalled(uid)
        previous = sharepod.status.value
        status = render_status(view, pods, previous, self._now(), details=details)
        return _Seen(sharepod, view, pods, previous, status, details)

    def _gives_way(self, seen: _Seen) -> bool:
        """Whether others are due and this one will have better news soon: where many start, each then needs one write."""
        if pace_of(seen.sharepod, seen.view, seen.pods) is not Pace.FRESH or len(self._queue) <= WORKERS:
            return False
        return asyncio.get_running_loop().time() - self._unwritten.get(seen.sharepod.uid, 0.0) < PATIENCE

    @staticmethod
    def _is_worth_details(view: SharePodView, pods: Sequence[ReplicaState]) -> bool:
        """Whether what grows with the replicas won't change again in a moment, or is small."""
        return at_rest(view, pods) if len(pods) <= FEW else settled(view, pods)

    def _is_stalled(self, uid: str) -> bool:
        now = asyncio.get_running_loop().time()
        return now - self._moved.setdefault(uid, now) >= STALLED

    async def _read_again(self, sharepod: SharePodRecord) -> None:
        try:
            found = await self._api.get(SHAREPODS, sharepod.name, namespace=sharepod.namespace)
        except errors.NotFound:
            return
        if found["metadata"]["uid"] == sharepod.uid:
            self._cache.observe_sharepod(found)

    def _pause_left(self, uid: str) -> float:
        written = self._written.get(uid)
        return 0.0 if written is None else written + MIN_INTERVAL - asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class _Seen:
    """A SharePod, and the status that it should have."""

    sharepod: SharePodRecord
    view: SharePodView
    pods: list[ReplicaState]
    previous: Json
    status: Json
    details: bool
    """Whether it says more than counters and conditions."""
