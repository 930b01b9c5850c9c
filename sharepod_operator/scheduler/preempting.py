"""What happens to a head that fits nowhere: it waits for pods that leave for it, makes others leave, or nothing helps.

The decision is `core.preemption`'s and is made in the same turn as the refusal. Promised room is charged from that turn
on; the `Evictor` writes it down and carries it out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from sharepod_operator.cache.cache import Verdict
from sharepod_operator.core.placement import place_on
from sharepod_operator.core.preemption import Evictions, Patience, Preemptor, TrialMemory, is_resolvable, preempt
from sharepod_operator.core.preemption_text import why_nobody
from sharepod_operator.kube import errors
from sharepod_operator.manifest.nomination import Nomination, Victim
from sharepod_operator.scheduler.evictor import Evictor, Nominated, NotNominated, Unfinished

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from sharepod_operator.cache.cache import Cache
    from sharepod_operator.core.model import Placed, Shape
    from sharepod_operator.core.preemption import Answer
    from sharepod_operator.core.score import Policy
    from sharepod_operator.kube.api import Api
    from sharepod_operator.kube.recorder import Recorder
    from sharepod_operator.manifest.records import PodRecord
    from sharepod_operator.scheduler.evictor import EvictionOutcome
    from sharepod_operator.scheduler.telling import Telling

log = structlog.get_logger(__name__)

WAITING = "WaitingForVictims"
NAMED = 5
"""Victims that a message names; the rest is counted."""


class Preempting:
    """Decides for refused heads, and keeps the promises made to them."""

    def __init__(
        self,
        cache: Cache,
        api: Api,
        recorder: Recorder,
        telling: Telling,
        policy: Policy,
        retry: Callable[[PodRecord], None],
        *,
        now: Callable[[], datetime],
    ) -> None:
        """`retry` is told of a pod that is to be looked at again after its back-off."""
        self._cache = cache
        self._telling = telling
        self._policy = policy
        self._retry = retry
        self._memory = TrialMemory()
        self._evictor = Evictor(cache, api, recorder, self._evicted, now=now)

    @property
    def idle(self) -> bool:
        """Whether no eviction is under way."""
        return self._evictor.idle

    def place(self, record: PodRecord, shape: Shape) -> Placed | None:
        """The promised GPUs, if they are free by now; or whatever else fits on that node. Own promise taken aside."""
        nomination = self._cache.nomination(record.uid)
        if nomination is None:
            return None
        snapshot = self._cache.snapshot
        if shape.gpu is not None and nomination.allocation is not None and not shape.gpu.gpu_id:
            pinned = replace(shape.gpu, device_ids=nomination.allocation.uuids)
            placed = place_on(snapshot, replace(shape, gpu=pinned), self._policy, (nomination.node,))
            if placed is not None:
                return placed
        return place_on(snapshot, shape, self._policy, (nomination.node,))

    def refused(self, group: asyncio.TaskGroup, record: PodRecord, shape: Shape, text: str) -> Verdict | None:
        """Make room for a pod that was refused with this text, or say why not.

        Returns:
            The verdict on it, or None where preemption has nothing to add to the refusal's word: then `text` with
            `explain` is what there is to say.
        """
        promised = self._cache.nomination(record.uid)
        if promised is not None and is_resolvable(self._cache.snapshot, shape, promised.node):
            left = self._left(promised)
            if left and not any(self._cache.disruption.is_stuck(victim.uid) for victim in left):
                self._go_on(group, record, promised, left)
                return Verdict(WAITING, self._waiting_text(record, promised))
        answer = self._ask(record, shape)
        if isinstance(answer, Evictions):
            return self._evict(group, record, answer, 1 if promised is None else promised.attempt + 1)
        if promised is not None and isinstance(answer, Patience) and answer.placed.node == promised.node:
            return Verdict(WAITING, self._waiting_text(record, promised))  # others leave there as well
        if promised is not None or record.nomination is not None:  # taken back before it was written, it is there still
            self._take_back(group, record)
        why = why_nobody(answer, gpu=shape.gpu is not None)
        return Verdict("Unschedulable", f"{text} preemption: {why}") if why else None

    # Decisions

    def _ask(self, record: PodRecord, shape: Shape) -> Answer:
        preemptor = Preemptor(shape, record.pod.priority, never=record.never_preempts)
        with self._cache.nominations_of(record.pod.priority, record.uid):
            return preempt(
                self._cache.snapshot, preemptor, self._cache.disruption.occupancy, self._policy, self._memory
            )

    def _evict(self, group: asyncio.TaskGroup, record: PodRecord, found: Evictions, attempt: int) -> Verdict:
        chosen = [self._cache.pods[pod.uid] for pod in found.victims]
        victims = tuple(Victim(pod.namespace, pod.name, pod.uid) for pod in chosen)
        nomination = Nomination(found.placed.node, found.placed.allocation, victims, attempt)
        self._cache.nominate(record.uid, nomination)
        for pod in chosen:
            self._cache.disruption.evicted(pod)
        text = self._waiting_text(record, nomination)
        self._evictor.begin(group, record, nomination, text)
        self._telling.preempting(record, text, len(found.victims))
        self._outrank(group, record, nomination)
        return Verdict(WAITING, text)

    def _outrank(self, group: asyncio.TaskGroup, record: PodRecord, nomination: Nomination) -> None:
        """Who was promised the same GPUs, or the same node's CPU, and is less important looks for room anew."""
        taken = set(nomination.allocation.uuids) if nomination.allocation is not None else set()
        for uid, other in self._cache.nominations.items():
            lower = self._cache.pods.get(uid)
            if lower is None or uid == record.uid or other.node != nomination.node:
                continue
            promised = set(other.allocation.uuids) if other.allocation is not None else set()
            if lower.pod.priority < record.pod.priority and (not promised or promised & taken):
                self._take_back(group, lower)

    def _go_on(
        self, group: asyncio.TaskGroup, record: PodRecord, nomination: Nomination, left: Iterable[Victim]
    ) -> None:
        """A crash, or a refusal of the API server, may have left somebody untold."""
        untold = [victim for victim in left if not self._cache.pods[victim.uid].deleting]
        if untold and not self._evictor.is_busy(record.uid):
            self._evictor.begin(group, record, nomination, self._waiting_text(record, nomination))

    def _left(self, nomination: Nomination) -> list[Victim]:
        """The victims that hold their room still."""
        return [
            victim
            for victim in nomination.victims
            if (pod := self._cache.pods.get(victim.uid)) is not None and not pod.finished
        ]

    def _take_back(self, group: asyncio.TaskGroup, record: PodRecord) -> None:
        """The promise makes no sense any more: its room is free for others at once, the pod's annotation soon."""
        self._cache.nominate(record.uid, None)
        group.create_task(self._clear(record), name=f"clear nomination of {record.key}")

    async def _clear(self, record: PodRecord) -> None:
        current = self._cache.pods.get(record.uid)
        if current is None or current.node or current.nomination is None:
            return
        try:
            await self._evictor.clear(current)
        except errors.ApiError as error:
            log.info("NominationStays", message=f"{record.key}: {error.message}", pod=record.key)
            self._retry(record)

    def _evicted(self, record: PodRecord, nomination: Nomination, outcome: EvictionOutcome) -> None:
        match outcome:
            case NotNominated(message=text):
                log.info("NotNominated", message=f"{record.key}: {text}", pod=record.key, node=nomination.node)
                if self._cache.nomination(record.uid) == nomination:
                    self._cache.nominate(record.uid, None)
                self._retry(record)
            case Nominated() if self._cache.nomination(record.uid) == nomination:
                pass
            case Nominated() | Unfinished():
                self._retry(record)

    def stuck(self) -> list[PodRecord]:
        """Pods that turned out just now to hang in their deletion; whoever waits for them looks for room anew."""
        return self._cache.disruption.find_stuck()

    # Words

    def _waiting_text(self, record: PodRecord, nomination: Nomination) -> str:
        """`Evicting 2 pods with lower priority from GPU-604ac76c on node gpu-a: batch/sweep-k9 (0), …; own priority 1000`."""
        named = [
            f"{victim.key} ({self._cache.pods[victim.uid].pod.priority})"
            if victim.uid in self._cache.pods
            else victim.key
            for victim in nomination.victims[:NAMED]
        ]
        more = len(nomination.victims) - len(named)
        if more:
            named.append(f"and {more} more")
        count = len(nomination.victims)
        cards = f"{', '.join(nomination.allocation.uuids)} on " if nomination.allocation is not None else ""
        return (
            f"Evicting {count} pod{'' if count == 1 else 's'} with lower priority from {cards}node {nomination.node}: "
            f"{', '.join(named)}; own priority {record.pod.priority}"
        )
