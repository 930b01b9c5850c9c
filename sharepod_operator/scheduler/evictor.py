"""Carries out a preemption, in steps that can each be repeated: the nomination first, then each victim's end.

What was decided is on the preemptor before anybody is deleted. Whoever leads after a crash reads it there and does the
rest: the condition merges, the event has a name of its own, and the DELETE is for one uid.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

import structlog

from sharepod_operator.kube import errors
from sharepod_operator.kube.api import PODS, Patch
from sharepod_operator.kube.recorder import EventType, ObjectRef
from sharepod_operator.manifest import names
from sharepod_operator.manifest.nomination import encode_nomination
from sharepod_operator.scheduler.reporter import UNSCHEDULABLE, pod_reference

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sharepod_operator.cache.cache import Cache
    from sharepod_operator.kube.api import Api, Json
    from sharepod_operator.kube.recorder import Recorder
    from sharepod_operator.manifest.nomination import Nomination, Victim
    from sharepod_operator.manifest.records import PodRecord

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Nominated:
    """The nomination is on the preemptor, and every victim was told to go."""


@dataclass(frozen=True, slots=True)
class NotNominated:
    """Nobody was evicted: the preemptor changed, is gone, lost its promise, or the API server refused."""

    message: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The nomination is written, or may be; somebody is still to be told to go. To be tried again."""

    message: str


EvictionOutcome = Nominated | NotNominated | Unfinished


class Evictor:
    """Nominates preemptors and evicts their victims, one task for each preemptor."""

    def __init__(
        self,
        cache: Cache,
        api: Api,
        recorder: Recorder,
        done: Callable[[PodRecord, Nomination, EvictionOutcome], None],
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._cache = cache
        self._api = api
        self._recorder = recorder
        self._done = done
        self._now = now
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._tasks

    def is_busy(self, uid: str) -> bool:
        """Whether this preemptor's evictions are under way."""
        return uid in self._tasks

    def begin(self, group: asyncio.TaskGroup, record: PodRecord, nomination: Nomination, message: str) -> None:
        """Write the nomination, unless the preemptor carries it already, and evict; `done` is told once."""
        if record.uid in self._tasks:
            return
        task = group.create_task(self._carry_out(record, nomination, message), name=f"evict for {record.key}")
        self._tasks[record.uid] = task

    async def _carry_out(self, record: PodRecord, nomination: Nomination, message: str) -> None:
        try:
            outcome = await self._outcome(record, nomination, message)
        finally:
            self._tasks.pop(record.uid, None)
        self._done(record, nomination, outcome)

    async def _outcome(self, record: PodRecord, nomination: Nomination, message: str) -> EvictionOutcome:
        if record.nomination != nomination:
            try:
                await self._nominate(record, nomination, message)
            except errors.UnknownOutcome as error:
                return Unfinished(error.message)
            except errors.NotFound:
                self._cache.forget_pod(record.uid)
                return NotNominated("the pod is gone")
            except errors.ApiError as error:
                return NotNominated(error.message)
        if self._cache.nomination(record.uid) != nomination:
            return NotNominated("the room went to a more important pod meanwhile")
        failures: list[str] = []
        async with asyncio.TaskGroup() as group:
            for victim in nomination.victims:
                group.create_task(self._evict(record, nomination, victim, failures))
        return Unfinished(failures[0]) if failures else Nominated()

    async def _nominate(self, record: PodRecord, nomination: Nomination, message: str) -> None:
        """One patch, checked by resourceVersion: what the decision was made for must still be so."""
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": UNSCHEDULABLE,
            "message": message,
            "lastTransitionTime": self._stamp(),
        }
        body: Json = {
            "metadata": {
                "resourceVersion": str(record.version),
                "annotations": {names.NOMINATION: encode_nomination(nomination)},
            },
            "status": {"nominatedNodeName": nomination.node, "conditions": [condition]},
        }
        self._cache.observe_pod(await self._patch_status(record.namespace, record.name, body))

    async def clear(self, record: PodRecord) -> None:
        """Take a nomination back that makes no sense any more.

        Raises:
            ApiError: it is still there, or may be.
        """
        body: Json = {
            "metadata": {"resourceVersion": str(record.version), "annotations": {names.NOMINATION: ""}},
            "status": {"nominatedNodeName": ""},
        }
        try:
            self._cache.observe_pod(await self._patch_status(record.namespace, record.name, body))
        except errors.NotFound:
            self._cache.forget_pod(record.uid)

    async def _evict(self, record: PodRecord, nomination: Nomination, victim: Victim, failures: list[str]) -> None:
        """Condition, event, DELETE; a victim that is gone or leaving already needs none of them."""
        known = self._cache.pods.get(victim.uid)
        if known is None or known.deleting or known.finished:
            return
        try:
            await self._mark(victim)
            await self._tell(record, nomination, known)
            answer = await self._api.delete(PODS, victim.name, namespace=victim.namespace, uid=victim.uid)
        except (errors.NotFound, errors.Conflict):
            self._cache.forget_pod(victim.uid)
        except errors.ApiError as error:
            log.info("VictimStays", message=f"{victim.key} is not deleted yet: {error.message}", preemptor=record.key)
            failures.append(error.message)
        else:
            self._cache.observe_deletion(victim.uid, answer)

    async def _mark(self, victim: Victim) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": names.BY_SCHEDULER,
            "message": f"{names.SCHEDULER_NAME}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": self._stamp(),
        }
        body: Json = {"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}}
        try:
            self._cache.observe_pod(await self._patch_status(victim.namespace, victim.name, body))
        except errors.Invalid:  # 422 where the uid is another's: the victim is gone
            raise errors.NotFound(f"{victim.key} is another pod now") from None

    async def _tell(self, record: PodRecord, nomination: Nomination, victim: PodRecord) -> None:
        """The victim's one event, and a copy on its SharePod; named by both uids, so that no second try doubles it."""
        text = f"Preempted by {record.key} on node {nomination.node}"
        preemptor = pod_reference(record)
        await self._recorder.emit_once_now(
            pod_reference(victim),
            EventType.NORMAL,
            "Preempted",
            text,
            action="Preempting",
            related=preemptor,
            once=(victim.uid, record.uid),
        )
        owner = victim.owner
        if owner is not None and owner.kind == names.KIND:
            sharepod = ObjectRef(owner.api_version, owner.kind, victim.namespace, owner.name, owner.uid)
            self._recorder.emit(
                sharepod,
                EventType.NORMAL,
                "Preempted",
                f"{victim.name}: {text}",
                action="Preempting",
                related=preemptor,
                once=(victim.uid, record.uid, owner.uid),
            )

    async def _patch_status(self, namespace: str, name: str, body: Json) -> Json:
        return await self._api.patch(
            PODS, name, body, namespace=namespace, subresource="status", content=Patch.STRATEGIC
        )

    def _stamp(self) -> str:
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
