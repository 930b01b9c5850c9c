"""Carries out what the cycle decided: the Binding, and what becomes of the assumption after its answer.

A definite refusal takes the assumption back. After an unknown outcome the pod stays charged and one GET after the
other asks what became of it; a pod seen unbound gets the same Binding again, since the first one may still arrive
and the second is then refused by the API server itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from sharepod_operator.kube import errors
from sharepod_operator.kube.api import PODS
from sharepod_operator.manifest.pod import binding_annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sharepod_operator.cache.cache import Cache
    from sharepod_operator.core.model import Assigned
    from sharepod_operator.kube.api import Api
    from sharepod_operator.manifest.records import PodRecord

log = structlog.get_logger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Bound:
    """The Binding was accepted, or found to have been."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The pod is gone, on its way out, or somebody else bound it: nothing is to be tried again."""

    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The API server said no, or nothing was sent; the pod may be tried again."""

    message: str


BindOutcome = Bound | Lost | Refused


class Executor:
    """Binds assumed pods, at most `in_flight` at a time, and reports each outcome once to `done`."""

    def __init__(
        self,
        cache: Cache,
        api: Api,
        done: Callable[[PodRecord, Assigned, BindOutcome], None],
        *,
        in_flight: int = 96,
        sleep: Callable[[float], Coroutine[None, None, None]] = asyncio.sleep,
    ) -> None:
        self._cache = cache
        self._api = api
        self._done = done
        self._in_flight = in_flight
        self._sleep = sleep
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def has_room(self) -> bool:
        """Whether another Binding may be begun now."""
        return len(self._tasks) < self._in_flight

    @property
    def idle(self) -> bool:
        """Whether no Binding is in flight."""
        return not self._tasks

    def begin(self, group: asyncio.TaskGroup, record: PodRecord) -> None:
        """Bind the pod as it is assumed in the cache; the outcome reaches `done` later."""
        assigned = self._cache.assumptions[record.uid]
        task = group.create_task(self._bind(record, assigned), name=f"bind {record.key}")
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._ended)

    async def drained(self) -> None:
        """Returns when no Binding is in flight."""
        await self._idle.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()

    async def _bind(self, record: PodRecord, assigned: Assigned) -> None:
        outcome = await self._settle(record, assigned)
        if not isinstance(outcome, Bound):
            self._cache.forget(record.uid)
        self._tasks.discard(asyncio.current_task())  # room is free before `done` looks for it
        self._done(record, assigned, outcome)

    async def _settle(self, record: PodRecord, assigned: Assigned) -> BindOutcome:
        """Try until the fate of the Binding is known."""
        node = self._cache.node_named(assigned.node)
        annotations = binding_annotations(record, assigned, node.node.internal_ip if node else "")
        pause = FIRST_PAUSE
        while True:
            try:
                await self._api.create_binding(
                    record.namespace, record.name, uid=record.uid, node=assigned.node, annotations=annotations
                )
            except errors.NotFound:
                self._cache.forget_pod(record.uid)
                return Lost("the pod is gone")
            except (errors.Conflict, errors.AlreadyExists) as error:
                return await self._look(record, assigned) or Refused(error.message)
            except errors.UnknownOutcome as error:
                log.warning("BindUnknown", message="binding unanswered", pod=record.key, error=error.message)
            except errors.ApiError as error:
                return Refused(error.message)
            else:
                return Bound()
            fate = await self._look(record, assigned)
            if fate is not None:
                return fate
            await self._sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _look(self, record: PodRecord, assigned: Assigned) -> BindOutcome | None:
        """What the API server says of the pod now; None where it is there and unbound. Asks until there is an answer."""
        pause = FIRST_PAUSE
        while True:
            try:
                obj = await self._api.get(PODS, record.name, namespace=record.namespace)
            except errors.NotFound:
                self._cache.forget_pod(record.uid)
                return Lost("the pod is gone")
            except errors.ApiError as error:
                log.warning("BindUnknown", message="pod unreadable", pod=record.key, error=error.message)
                await self._sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            if obj["metadata"]["uid"] != record.uid:
                self._cache.forget_pod(record.uid)
                return Lost("the pod was replaced by another of its name")
            self._cache.observe_pod(obj)
            current = self._cache.pods.get(record.uid)
            if current is None:
                return Lost("the pod is gone")
            if current.node:
                ours = current.node == assigned.node and current.allocation == assigned.allocation
                return Bound() if ours else Lost(f"somebody else bound the pod to {current.node}")
            return Lost("the pod is being deleted") if current.deleting else None
