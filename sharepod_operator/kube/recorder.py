"""Events for people, written in the background: never in the way of a decision, never a flood.

One-time events are named after their cause, so that a crash and a second try can't double them. Others repeat: the
same words about the same object become one event with a count, and a chatty object is held to client-go's limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

import structlog

from sharepod_operator.kube.api import EVENTS, Json
from sharepod_operator.kube.clock import Clock, micro_time, wall_clock
from sharepod_operator.kube.errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    NotFound,
    NotLeading,
    TooManyRequests,
    Unauthorized,
    UnknownOutcome,
    Unreachable,
)
from sharepod_operator.kube.event_limits import EventLimits
from sharepod_operator.manifest import names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from sharepod_operator.kube.api import Api

NOTE_BYTES = 1024
WORD_BYTES = 128
REMEMBERED = 16_384
"""Events remembered for counting repetitions; the least recent are forgotten first and then start anew."""
QUEUE = 16_384
"""Events that wait to be written, 2 KB each; a flood of ten thousand SharePods makes twenty thousand."""
WRITERS = 2
"""Event writes in flight: while pods wait to be bound, the API server is to bind them first and tell of it afterwards."""
ATTEMPTS = 4
_BACKOFF = 0.5

_log = structlog.get_logger("sharepod_operator.kube")
V = TypeVar("V")


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class Drop(StrEnum):
    """Why an event was not written."""

    QUEUE_FULL = "queue_full"
    RATE_LIMITED = "rate_limited"
    FORBIDDEN = "forbidden"
    NOT_LEADING = "not_leading"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """What an event is about. `namespace` is empty for cluster objects."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, body: Json) -> Self:
        """The reference to an object that carries apiVersion and kind."""
        metadata = body["metadata"]
        return cls(body["apiVersion"], body["kind"], metadata.get("namespace", ""), metadata["name"], metadata["uid"])

    def to_json(self) -> Json:
        reference = {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "uid": self.uid}
        return {**reference, "namespace": self.namespace} if self.namespace else reference


@dataclass(slots=True)
class _Entry:
    """One event of ours: as it was first written, how often it has happened, and how often it says so."""

    key: tuple[str, ...]
    body: Json
    count: int = 1
    last: str = ""
    written: int = 0
    """The count that the API server has; 0 until the event is there."""
    queued: bool = False

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.body["metadata"]["namespace"])

    @property
    def series(self) -> Json:
        return {"count": self.count, "lastObservedTime": self.last}


class Recorder:
    """Writes events of events.k8s.io/v1.

    Args:
        instance: this process, for `reportingInstance`.
        controller: a qualified name, for `reportingController`.
        on_drop: called for each event that is not written, with the reason.
    """

    def __init__(  # time and chance are passed in
        self,
        api: Api,
        *,
        instance: str,
        controller: str = names.CONTROLLER_NAME,
        on_drop: Callable[[Drop], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = wall_clock,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._controller = controller
        self._instance = instance[:WORD_BYTES]
        self._on_drop = on_drop
        self._clock = Clock(clock, now, sleep, rng or random.Random())  # noqa: S311  # spreads retries, keeps no secret
        self._limits = EventLimits(clock=self._clock.monotonic, remembered=REMEMBERED)
        self._entries: OrderedDict[tuple[str, ...], _Entry] = OrderedDict()
        self._once: OrderedDict[tuple[str, ...], bool] = OrderedDict()
        """Causes of one-time events, and whether the API server has them; the events themselves are not kept."""
        self._queue: asyncio.Queue[_Entry] = asyncio.Queue(QUEUE)
        self._made = 0
        self._complained: set[Drop] = set()

    def emit(
        self,
        regarding: ObjectRef,
        kind: EventType,
        reason: str,
        note: str,
        *,
        action: str,
        related: ObjectRef | None = None,
        once: Sequence[str] = (),
    ) -> None:
        """Notes that something happened; returns at once and never fails.

        `once` is the cause of a one-time event, such as victim uid and preemptor uid: the same cause never makes a
        second event, also after a restart. It is empty for an event that may repeat.
        """
        if once:
            key: tuple[str, ...] = ("once", reason, *once)
            if key not in self._once:
                _remember(self._once, key, value=False)
                self._queue_up(self._entry(key, regarding, kind, reason, note, action, related))
            return
        combined = self._limits.combined((regarding.uid, kind, reason), note)
        key = (regarding.uid, kind, reason, "" if combined else note)
        entry = self._entries.get(key)
        if entry is not None:
            entry.count += 1
            entry.last = micro_time(self._clock.now())
            self._entries.move_to_end(key)
            if not entry.queued and self._limits.allowed(regarding.uid):
                self._queue_up(entry)
            return  # otherwise the count goes out with the next write
        if not self._limits.allowed(regarding.uid):
            self._on_drop(Drop.RATE_LIMITED)
            return
        text = f"(combined from similar events): {note}" if combined else note
        entry = self._entry(key, regarding, kind, reason, text, action, related)
        _remember(self._entries, key, value=entry)
        self._queue_up(entry)

    async def emit_once_now(
        self,
        regarding: ObjectRef,
        kind: EventType,
        reason: str,
        note: str,
        *,
        action: str,
        once: Sequence[str],
        related: ObjectRef | None = None,
    ) -> bool:
        """Writes a one-time event before the next step is taken; True when it is there, by this or an earlier write.

        Raises:
            NotLeading: the step isn't ours to take any more.
        """
        key = ("once", reason, *once)
        if self._once.get(key):
            return True
        drop = await self._written(self._entry(key, regarding, kind, reason, note, action, related))
        if drop is Drop.NOT_LEADING:
            raise NotLeading(f"event {reason} of {regarding.kind} {regarding.name} was not written")
        if drop is not None:
            self._on_drop(drop)
            return False
        _remember(self._once, key, value=True)
        return True

    async def run(self) -> NoReturn:
        """Writes what was emitted, until cancelled."""
        async with asyncio.TaskGroup() as writers:
            for _ in range(WRITERS):
                writers.create_task(self._work())
        raise AssertionError("writers never end")

    async def flush(self) -> None:
        """Returns when everything emitted so far is written or dropped; needs `run`."""
        await self._queue.join()

    def _entry(
        self,
        key: tuple[str, ...],
        regarding: ObjectRef,
        kind: EventType,
        reason: str,
        note: str,
        action: str,
        related: ObjectRef | None,
    ) -> _Entry:
        now = self._clock.now()
        cause = key if key[0] == "once" else (*key, self._instance, str(self._made), micro_time(now))
        self._made += 1
        digest = hashlib.sha256("\0".join(cause).encode()).hexdigest()[:16]
        body: Json = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            # kubectl looks for the events of cluster objects in `default`, and finds them only without a namespace.
            "metadata": {"name": f"{regarding.name[:200]}.{digest}", "namespace": regarding.namespace or "default"},
            "eventTime": micro_time(now),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": _cut(action, WORD_BYTES),
            "reason": _cut(reason, WORD_BYTES),
            "type": kind.value,
            "note": _cut(note, NOTE_BYTES),
            "regarding": regarding.to_json(),
        }
        if related is not None:
            body["related"] = related.to_json()
        return _Entry(key, body)

    def _queue_up(self, entry: _Entry) -> None:
        try:
            self._queue.put_nowait(entry)
        except asyncio.QueueFull:
            self._forget(entry, Drop.QUEUE_FULL)
        else:
            entry.queued = True

    def _forget(self, entry: _Entry, drop: Drop) -> None:
        """The event stays unwritten; the next one like it starts anew."""
        self._entries.pop(entry.key, None)
        self._once.pop(entry.key, None)
        self._on_drop(drop)

    async def _work(self) -> NoReturn:
        while True:
            entry = await self._queue.get()
            try:
                drop = await self._written(entry)
                entry.queued = False
                if drop is not None:
                    self._forget(entry, drop)
                elif entry.key in self._once:
                    self._once[entry.key] = True
                elif entry.count > entry.written and self._limits.allowed(entry.body["regarding"]["uid"]):
                    self._queue_up(entry)  # it happened again while it was being written
            finally:
                self._queue.task_done()

    async def _written(self, entry: _Entry) -> Drop | None:
        """Writes the event or its count; None when it is there. Repeating is safe: names and counts are fixed."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._send(entry)
            except NotLeading:
                return Drop.NOT_LEADING
            except (Forbidden, Unauthorized) as error:
                self._complain(Drop.FORBIDDEN, error)
                return Drop.FORBIDDEN
            except (UnknownOutcome, Unreachable, TooManyRequests):
                if attempt < ATTEMPTS:
                    await self._clock.sleep(self._clock.jittered(_BACKOFF * 2.0 ** (attempt - 1)))
            except ApiError as error:
                self._complain(Drop.REFUSED, error)
                return Drop.REFUSED
            else:
                return None
        return Drop.UNREACHABLE

    async def _send(self, entry: _Entry) -> None:
        count = entry.count
        if entry.written:
            try:
                await self._api.patch(EVENTS, entry.name, {"series": entry.series}, namespace=entry.namespace)
            except NotFound:  # events live for an hour only; this one begins again
                entry.written, entry.count = 0, 1
                entry.body["eventTime"] = entry.last
                count = 1
            else:
                entry.written = count
                return
        body = {**entry.body, "series": entry.series} if count > 1 else entry.body
        with contextlib.suppress(AlreadyExists):  # by an earlier try, or by an earlier life of this process
            await self._api.create(EVENTS, body, namespace=entry.namespace)
        entry.written = count

    def _complain(self, drop: Drop, error: ApiError) -> None:
        """Says once that events can't be written: the work goes on without them."""
        if drop not in self._complained:
            self._complained.add(drop)
            _log.warning(
                "EventDropped",
                message="event not written; further ones are only counted",
                reason=drop.value,
                error=error.message,
            )


def _remember(known: OrderedDict[tuple[str, ...], V], key: tuple[str, ...], *, value: V) -> None:
    """Keep it as the most recent one, and no more than REMEMBERED of them."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > REMEMBERED:
        known.popitem(last=False)


def _cut(text: str, limit: int) -> str:
    """One line of at most `limit` bytes of UTF-8, as the API server counts them."""
    line = " ".join(text.split())
    if len(line.encode()) <= limit:
        return line
    return line.encode()[: limit - 3].decode(errors="ignore") + "…"
