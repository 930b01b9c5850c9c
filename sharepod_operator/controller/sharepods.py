"""Keeps the wanted number of Pods of every SharePod.

One reconcile reads the cache and plans without an `await` in between, writes one batch, and plans again from the cache,
into which each answer has gone meanwhile. So nothing is done twice on a stale view: what this process wrote it knows
before the watch tells, and what the watch tells late is older than what is known.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from sharepod_operator.controller.announcer import Announcer
from sharepod_operator.controller.replica_writer import ReplicaWriter, refusal_of, trouble_of
from sharepod_operator.controller.status_writer import StatusWriter
from sharepod_operator.controller.view import problem_of, replica_states, sharepod_view, slot_of
from sharepod_operator.controller.workqueue import LONGEST_BACKOFF, WorkQueue
from sharepod_operator.core.replicas import Plan, Slot, plan
from sharepod_operator.core.status import Reason, next_available
from sharepod_operator.kube.api import SHAREPODS
from sharepod_operator.kube.errors import ApiError, NotFound, NotLeading
from sharepod_operator.manifest import names
from sharepod_operator.manifest.render import DEFAULT_RENDERING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import datetime
    from random import Random

    from sharepod_operator.cache.cache import Cache
    from sharepod_operator.core.replicas import ReplicaState
    from sharepod_operator.core.status import Refused
    from sharepod_operator.kube.api import Api
    from sharepod_operator.kube.recorder import Recorder
    from sharepod_operator.manifest.records import NodeRecord, PodRecord, SharePodRecord
    from sharepod_operator.manifest.render import Rendering

log = structlog.get_logger(__name__)
T = TypeVar("T")

WORKERS = 64
"""SharePods that Pods are made for at a time."""
IN_FLIGHT = 64
"""Pods of one SharePod that are created or deleted at a time: a Binding must not wait behind five hundred of them."""
COLLECT = 0.05
COLLECT_PER_POD = 0.0005
"""Seconds in which changes of a SharePod's pods are taken together, which look at all of its pods: a thousand replicas
starting are not a thousand plans."""
INVALID_RETRY = 300.0
"""Seconds after which a template that the API server called invalid is tried again: a policy may have changed."""
FIRST_REFUSAL_RETRY = 1.0
TROUBLES_UNTOLD = 4
"""Failed rounds before the status tells of them."""
MAX_BATCHES = 64


@dataclass(slots=True)
class _Known:
    """What was learned of a SharePod's template. Only memory: a restart learns it again."""

    template_hash: str = ""
    accepted: bool = False
    """The API server takes Pods of it."""
    refused: Refused | None = None
    refusals: int = 0
    retry_at: float = 0.0
    """On the loop's clock."""
    troubles: int = 0
    """Rounds in a row in which a create failed for reasons that say nothing about the SharePod."""


class SharePodController:
    """Turns SharePods into Pods, and what became of them into status. A Listener of the cache."""

    def __init__(
        self,
        cache: Cache,
        api: Api,
        recorder: Recorder,
        *,
        may_act: Callable[[], bool],
        now: Callable[[], datetime],
        rng: Random,
        rendering: Rendering = DEFAULT_RENDERING,
    ) -> None:
        self._cache = cache
        self._api = api
        self._may_act = may_act
        self._now = now
        self._rng = rng
        announcer = Announcer(recorder)
        self._writer = ReplicaWriter(cache, api, announcer, rendering)
        self._status = StatusWriter(cache, api, announcer, may_act=may_act, now=now, rng=rng)
        self._queue = WorkQueue("sharepods", self._reconcile, rng)
        self._known: dict[str, _Known] = {}
        self._doubted: set[str] = set()
        """SharePods of which a pod went away: perhaps because they are gone themselves, and nobody has told us."""
        self._spent: dict[str, dict[int, int]] = {}
        """The last incarnation of each ordinal of which this process saw a pod go."""
        cache.subscribe(self)

    async def run(self) -> None:
        """Work for ever; what changes while nobody may act is left for `poke`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(WORKERS))
            group.create_task(self._status.run())

    def enqueue(self, uid: str) -> None:
        """Look at this SharePod soon."""
        self._queue.add(uid)

    def poke(self) -> None:
        """Look at every SharePod: leadership was won, or a resync is through."""
        for uid in (*self._cache.sharepods, *(uid for uid in self._known if uid not in self._cache.sharepods)):
            self._queue.add(uid)

    @property
    def idle(self) -> bool:
        """Nothing is to be looked at or written now; something may still wait for its time."""
        return not len(self._queue) and not len(self._status)

    # What the cache tells

    def sharepod_changed(self, old: SharePodRecord | None, new: SharePodRecord | None) -> None:
        """A SharePod came, changed or went; a change of its status alone is no hurry."""
        record = new or old
        assert record is not None
        if old is not None and new is not None and _asks_the_same(old, new):
            self._queue.add_after(record.uid, COLLECT)
        else:
            self._queue.add(record.uid)

    def pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        """A pod came, changed or went; whoever owned or owns it is looked at."""
        for record in (old, new):
            if record is not None and record.owner is not None and record.owner.kind == names.KIND:
                pods = self._cache.pod_count(record.owner.uid)
                self._queue.add_after(record.owner.uid, COLLECT + COLLECT_PER_POD * pods)
                if new is None or new.deleting:
                    self._doubted.add(record.owner.uid)
        if old is not None and new is None:
            self._note_spent(old)

    def verdict_changed(self, pod: PodRecord) -> None:
        """The scheduler has a new word on a waiting pod."""
        self.pod_changed(None, pod)

    def claim_changed(self, key: str) -> None:
        """Claims are the scheduler's."""

    def node_changed(self, old: NodeRecord | None, new: NodeRecord | None) -> None:
        """A node's health shows in the status of the SharePods that have replicas on it."""
        if _health(old) == _health(new):
            return
        name = new.name if new is not None else old.name if old is not None else ""
        for record in self._cache.pods.values():
            if record.node == name:
                self.pod_changed(None, record)

    # One SharePod

    async def _reconcile(self, uid: str) -> None:
        sharepod = self._cache.sharepods.get(uid)
        if sharepod is None:
            self._forget(uid)
            return
        if sharepod.deleting or not self._may_act():
            return  # the garbage collector removes the pods of a deleted one
        problem = problem_of(sharepod)
        if problem is not None:
            self._known.pop(uid, None)
            self._status.acted(sharepod, problem, replica_states(sharepod, self._cache))
            self._queue.succeeded(uid)
            return
        await self._converge(uid)

    async def _converge(self, uid: str) -> None:
        """Plan and write, batch by batch, until nothing is to be done now."""
        batch = 1
        for _ in range(MAX_BATCHES):
            sharepod = self._cache.sharepods.get(uid)
            if sharepod is None or sharepod.deleting or problem_of(sharepod) or not self._may_act():
                self._queue.add(uid)
                return
            known = self._knowledge(sharepod)
            pods = replica_states(sharepod, self._cache)
            todo = plan(sharepod.wanted, pods, self._now(), self._spent.get(uid, {}))
            if not todo.delete and not self._is_blocked(known) and _must_be_validated(known, todo, pods):
                await self._validate(sharepod, known, todo)
                continue
            deletes = [self._cache.pods[pod] for pod in (*todo.delete, *self._replaceable(known, todo))]
            slots = () if self._is_blocked(known) else todo.create[:batch]
            if not deletes and not slots:
                self._rest(sharepod, known, pods, todo)
                return
            if slots and uid in self._doubted:
                await self._confirm(sharepod)
                continue
            await self._delete(deletes)
            went_well = await self._create(sharepod, known, slots)
            self._report(sharepod, known)
            batch = batch * 2 if went_well else 1
        self._queue.retry(uid)  # never reached by work that makes progress

    async def _confirm(self, sharepod: SharePodRecord) -> None:
        """See that the SharePod is there before its pods are replaced.

        A watch may lose the deletion of a SharePod. Then the garbage collector takes its pods as fast as they are made,
        until the next full list; one GET for each loss ends that at once.
        """
        self._doubted.discard(sharepod.uid)
        try:
            found = await self._api.get(SHAREPODS, sharepod.name, namespace=sharepod.namespace)
        except NotFound:
            self._cache.forget_sharepod(sharepod.uid)
            return
        if found["metadata"]["uid"] != sharepod.uid:
            self._cache.forget_sharepod(sharepod.uid)
        self._cache.observe_sharepod(found)

    def _knowledge(self, sharepod: SharePodRecord) -> _Known:
        known = self._known.get(sharepod.uid)
        if known is None or known.template_hash != sharepod.template_hash:
            known = self._known[sharepod.uid] = _Known(sharepod.template_hash)
        return known

    def _is_blocked(self, known: _Known) -> bool:
        """Whether the API server refused a Pod of this template and it is too early to ask again."""
        return known.refused is not None and asyncio.get_running_loop().time() < known.retry_at

    @staticmethod
    def _replaceable(known: _Known, todo: Plan) -> Sequence[str]:
        """Unbound pods of an earlier template, which stay for as long as the present one is not known to be good."""
        return todo.outdated if known.accepted else ()

    def _rest(self, sharepod: SharePodRecord, known: _Known, pods: Sequence[ReplicaState], todo: Plan) -> None:
        """Nothing is to be done now: show it, and come back when time alone makes a difference."""
        self._queue.succeeded(sharepod.uid)
        self._status.acted(sharepod, known.refused, pods)
        available = next_available(sharepod_view(sharepod, known.refused), pods, self._now())
        waits = [wait / timedelta(seconds=1) for wait in (todo.look_again, available) if wait is not None]
        if known.refused is not None:
            waits.append(known.retry_at - asyncio.get_running_loop().time())
        if waits:
            self._queue.add_after(sharepod.uid, max(COLLECT, min(waits)))

    def _report(self, sharepod: SharePodRecord, known: _Known) -> None:
        """While replicas are being made the counters move; the SharePod as it was planned for is what they are about."""
        self._status.acted(sharepod, known.refused, replica_states(sharepod, self._cache))

    async def _validate(self, sharepod: SharePodRecord, known: _Known, todo: Plan) -> None:
        """Have the API server judge a template of which no Pod is wanted yet, or for which waiting ones must go first."""
        slot = todo.create[0] if todo.create else Slot(0)
        try:
            await self._writer.validate(sharepod, slot)
        except ApiError as error:
            refused = refusal_of(error)
            if refused is None:
                raise
            if refused.reason is not Reason.UNSCHEDULABLE:
                self._refuse(known, refused)
                return
            # Room is short, which matters only to a Pod that is really made; the template itself is fine.
        known.accepted, known.refused, known.refusals = True, None, 0

    async def _delete(self, pods: Sequence[PodRecord]) -> None:
        failed = await _all(self._writer.delete, pods)
        if failed:
            raise failed[0]

    async def _create(self, sharepod: SharePodRecord, known: _Known, slots: Sequence[Slot]) -> bool:
        """One batch at once; whether all of it went well.

        Raises:
            ApiError: something failed that says nothing about the SharePod.
        """
        failed = await _all(partial(self._writer.create, sharepod), slots)
        refusals = [refused for refused in map(refusal_of, failed) if refused is not None]
        if refusals:
            self._refuse(known, refusals[0])
        elif len(failed) < len(slots):
            known.accepted, known.refused, known.refusals = True, None, 0
        unclear = [error for error in failed if refusal_of(error) is None]
        if unclear:
            self._tell_of_trouble(sharepod, known, unclear[0])
            raise unclear[0]
        known.troubles = 0
        return not failed

    def _tell_of_trouble(self, sharepod: SharePodRecord, known: _Known, error: ApiError) -> None:
        """Failures that only are to be repeated become visible when they don't stop, as those of a broken webhook."""
        known.troubles += 1
        if known.troubles >= TROUBLES_UNTOLD and not isinstance(error, NotLeading):
            self._status.acted(sharepod, trouble_of(error), replica_states(sharepod, self._cache))

    def _refuse(self, known: _Known, refused: Refused) -> None:
        """Remember the refusal and when to ask again: rarely what is invalid, with growing delay what may change soon."""
        known.refusals += 1
        known.refused = refused
        if refused.reason is Reason.INVALID_POD_SPEC:
            delay = INVALID_RETRY
        else:
            delay = min(FIRST_REFUSAL_RETRY * 2.0 ** min(known.refusals - 1, 30), LONGEST_BACKOFF)
        known.retry_at = asyncio.get_running_loop().time() + delay * self._rng.uniform(0.8, 1.2)
        if known.refusals == 1:
            log.info("PodRefused", message=refused.message, reason=refused.reason.value)

    def _note_spent(self, pod: PodRecord) -> None:
        slot = slot_of(pod)
        if pod.owner is None or pod.owner.uid not in self._cache.sharepods or slot is None:
            return
        spent = self._spent.setdefault(pod.owner.uid, {})
        spent[slot.ordinal] = max(slot.incarnation, spent.get(slot.ordinal, 0))

    def _forget(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._doubted.discard(uid)
        self._spent.pop(uid, None)
        self._queue.forget(uid)
        self._status.forget(uid)


def _must_be_validated(known: _Known, todo: Plan, pods: Iterable[ReplicaState]) -> bool:
    """Whether a dry run is due: only where a create would not tell in time, since it costs as much as one."""
    if known.accepted or (todo.create and not todo.outdated):
        return False
    if any(pod.current for pod in pods):
        known.accepted = True  # such a Pod was taken before
        return False
    return True


def _asks_the_same(old: SharePodRecord, new: SharePodRecord) -> bool:
    return (old.generation, old.template_hash, old.wanted, old.deleting) == (
        new.generation,
        new.template_hash,
        new.wanted,
        new.deleting,
    )


def _health(record: NodeRecord | None) -> object:
    if record is None:
        return None
    return record.node.ready, frozenset(device.uuid for device in record.node.devices if device.healthy)


async def _all(call: Callable[[T], Awaitable[None]], items: Sequence[T]) -> list[ApiError]:
    """Make the call for each item, IN_FLIGHT at a time, and return the errors of those that failed."""
    failed: list[ApiError] = []
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            try:
                await call(item)
            except ApiError as error:
                failed.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(IN_FLIGHT, len(items))):
            group.create_task(work())
    return failed
