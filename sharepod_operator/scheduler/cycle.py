"""The one place that decides.

A cycle takes the head of the queue, decides from the live Snapshot, records the assumption and hands the Binding to
the executor, all without an `await`: nobody can change the ground between the look and the decision. Everything
slow happens afterwards, and its outcome comes back as a call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from sharepod_operator.cache.cache import Verdict
from sharepod_operator.core.model import Placed, Shape, Unschedulable
from sharepod_operator.core.placement import decide, place_on
from sharepod_operator.core.ports import next_port
from sharepod_operator.core.queue import Change, Hint, Queue
from sharepod_operator.core.reasons import NodeReason
from sharepod_operator.core.volumes import with_volumes
from sharepod_operator.observability.metrics import AttemptOutcome
from sharepod_operator.scheduler.executor import Bound, Executor, Lost, Refused
from sharepod_operator.scheduler.preempting import WAITING, Preempting
from sharepod_operator.scheduler.reporter import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sharepod_operator.cache.cache import Cache
    from sharepod_operator.core.model import Allocation, Assigned, Decision, Node
    from sharepod_operator.core.score import Policy
    from sharepod_operator.kube.api import Api
    from sharepod_operator.kube.recorder import Recorder
    from sharepod_operator.manifest.records import NodeRecord, PodRecord, SharePodRecord
    from sharepod_operator.scheduler.executor import BindOutcome
    from sharepod_operator.scheduler.telling import Telling

log = structlog.get_logger(__name__)

HEADS_PER_TURN = 16
"""Decisions made before the event loop gets a turn; more would delay the watch, fewer would cost throughput."""

STUCK_INTERVAL = 15.0


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """What an administrator may set."""

    scheduler_names: frozenset[str]
    policy: Policy
    binds_in_flight: int = 96
    initial_backoff: float = 1.0
    max_backoff: float = 10.0
    leftover_after: float = 300.0
    """Seconds; a pod that nothing has woken is looked at again after these."""


class Scheduler:
    """Places the unbound pods that name us. A Listener of the cache; it acts only while `may_plan()` says so.

    `beat` is called each time the loop goes round, at least once a second.
    """

    def __init__(  # noqa: PLR0913  # the one place where the scheduler's parts meet
        self,
        cache: Cache,
        api: Api,
        recorder: Recorder,
        telling: Telling,
        options: SchedulerOptions,
        *,
        now: Callable[[], datetime],
        may_plan: Callable[[], bool],
        beat: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._reporter = Reporter(cache, api, recorder, now=now)
        self._telling = telling
        self._options = options
        self._may_plan = may_plan
        self._beat = beat
        self._clock = clock
        self._executor = Executor(cache, api, self._bind_done, in_flight=options.binds_in_flight)
        self._preempting = Preempting(cache, api, recorder, telling, options.policy, self._try_again, now=now)
        self._group: asyncio.TaskGroup | None = None
        self._work = asyncio.Event()
        self._hints: set[Hint] = set()
        self._cursors: dict[str, int] = {}
        self._seen: dict[str, float] = {}
        self.queue = Queue(options.initial_backoff, options.max_backoff, options.leftover_after)
        cache.subscribe(self)

    async def run(self) -> None:
        """Decide whatever there is to decide, for ever."""
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._reporter.run(), name="reporter")
            self._group.create_task(self._look_for_stuck(), name="stuck victims")
            while True:
                self._beat()
                await self._wait_for_work()
                for _ in range(HEADS_PER_TURN):
                    if not self._cycle():
                        break
                await asyncio.sleep(0)

    async def drained(self) -> None:
        """Wait until no Binding is in flight."""
        await self._executor.drained()

    def poke(self) -> None:
        """Look again whether there is work: leadership was won, or a resync is through."""
        self._work.set()

    @property
    def idle(self) -> bool:
        """Nothing waits for its decision and no Binding is in flight."""
        return self._executor.idle and self._preempting.idle and not self.queue.ready and not self._hints

    # The cycle

    def _cycle(self) -> bool:
        """One head, from the queue to its assumption. Returns whether there may be another."""
        if not self._may_plan() or not self._executor.has_room:
            return False
        # 1. Changes since the last time wake those whom they can help.
        now = self._clock()
        if self._hints:
            self.queue.wake(self._hints, now)
            self._hints.clear()
        # 2. The head: highest priority, then oldest.
        pod = self.queue.pop(now)
        if pod is None:
            return False
        record = self._cache.pods.get(pod.uid)
        if record is None or not self._is_head(record):
            self.queue.remove(pod.uid)
            return True
        # 3. What can't be read is never placed.
        if record.invalid:
            self._wait_for_edit(record, record.invalid)
            return True
        # 4. The decision, from the live Snapshot.
        shape = with_volumes(pod, self._cache.volumes) if pod.claims else pod.shape
        decision = self._decide(record, shape)
        outcome = AttemptOutcome.PLACED if isinstance(decision, Placed) else AttemptOutcome.UNSCHEDULABLE
        self._telling.attempted(outcome, self._clock() - now)
        # 5. Assume, and carry it out elsewhere; or wait for room.
        match decision:
            case Placed():
                self._assume(record, decision)
            case Unschedulable():
                self._refuse(record, shape, decision, now)
        return True

    def _decide(self, record: PodRecord, shape: Shape | Unschedulable) -> Decision:
        """Where the pod goes, with its volumes; a claim that isn't ready spares the nodes the question.

        The room promised to it is taken first; else, as with kube-scheduler, the node that somebody nominated for it,
        whatever the score.
        """
        if isinstance(shape, Unschedulable):
            return shape
        snapshot, policy, nominated = self._cache.snapshot, self._options.policy, record.nominated
        with self._cache.nominations_of(record.pod.priority, record.uid):
            there = self._preempting.place(record, shape)
            if there is None and nominated:
                there = place_on(snapshot, shape, policy, (nominated,))
            return there or decide(snapshot, shape, policy)

    def _assume(self, record: PodRecord, placed: Placed) -> None:
        assert self._group is not None
        allocation = placed.allocation
        if allocation is not None:
            allocation = self._completed(placed.node, allocation)
        self._cache.assume(record.uid, placed.node, allocation)
        self._executor.begin(self._group, record)

    def _completed(self, node: str, allocation: Allocation) -> Allocation:
        """The ledger entry: with the next free port of the node, round robin, and the size of each card as it is now."""
        snapshot = self._cache.snapshot
        drawn = next_port(snapshot.taken_ports(node), self._cursors.get(node, 0), snapshot.ports)
        assert drawn is not None, f"node {node} passed its filters without a free port"
        port, self._cursors[node] = drawn
        cards = snapshot.nodes[node].devices
        charges = tuple(replace(charge, card_memory=cards[charge.uuid].device.memory) for charge in allocation.charges)
        return replace(allocation, port=port, charges=charges)

    def _refuse(self, record: PodRecord, shape: Shape | Unschedulable, refused: Unschedulable, now: float) -> None:
        """Nothing takes it: perhaps somebody less important can leave for it. If not, it waits and says why."""
        assert self._group is not None
        self.queue.refuse(record.pod, refused, now, shape if isinstance(shape, Shape) else None)
        text = self._telling.refused(refused, gpu=record.pod.shape.gpu is not None)
        verdict = None
        if not isinstance(shape, Unschedulable) and not refused.unsatisfiable:
            verdict = self._preempting.refused(self._group, record, shape, text)
        word = _word(refused)
        if verdict is None:
            verdict = Verdict(word, text)
        elif verdict.reason == "Unschedulable":
            verdict = replace(verdict, reason=word)
        self._cache.judge(record.uid, verdict)
        if verdict.reason != WAITING:  # the nomination's own patch says that one
            self._reporter.report(record.uid)

    def _wait_for_edit(self, record: PodRecord, sentence: str) -> None:
        """Nothing but a change of the pod itself can help; that comes as a new pod to the queue."""
        self._telling.attempted(AttemptOutcome.INVALID, None)
        self.queue.remove(record.uid)
        self._cache.judge(record.uid, Verdict("Unsatisfiable", sentence))
        self._reporter.report(record.uid)

    def _bind_done(self, record: PodRecord, assigned: Assigned, outcome: BindOutcome) -> None:
        now = self._clock()
        match outcome:
            case Bound():
                self._telling.bound(record, assigned, now - self._seen.pop(record.uid, now))
                self.queue.remove(record.uid)
            case Lost(message=text):
                log.info("BindLost", message="pod lost", pod=record.key, reason=text)
                self.queue.remove(record.uid)
            case Refused(message=text):
                log.warning("BindRefused", message="binding refused", pod=record.key, node=assigned.node, reason=text)
                self._telling.attempted(AttemptOutcome.ERROR, None)
                self._telling.bind_failed(record, text)
                current = self._cache.pods.get(record.uid)
                if current is not None and self._is_head(current):
                    self.queue.requeue(current.pod, now)
        if not isinstance(outcome, Bound):
            self._hint(Change.FREED, assigned)
            self._unclaim(record)
        self._work.set()

    def _try_again(self, record: PodRecord) -> None:
        """Something that was to make room failed: the pod is looked at again after its back-off."""
        current = self._cache.pods.get(record.uid)
        if current is not None and self._is_head(current) and record.uid not in self._cache.assumptions:
            self.queue.requeue(current.pod, self._clock())
            self._work.set()

    async def _look_for_stuck(self) -> None:
        """Whoever waits for a pod that doesn't end looks elsewhere."""
        while True:
            await asyncio.sleep(STUCK_INTERVAL)
            for stuck in self._preempting.stuck():
                self._telling.stuck(stuck)
                self._free(stuck.node, stuck.allocation)

    # What changes bring

    def pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        """Queue the pods that want a place; note what a pod frees, and whom it lets join."""
        if new is not None and self._is_head(new):
            self._seen.setdefault(new.uid, self._clock())
            if new.uid not in self._cache.assumptions:
                self.queue.add(new.pod)
                self._work.set()
        elif old is not None or new is not None:
            record = new or old
            assert record is not None
            self.queue.remove(record.uid)
            if new is None or new.node:
                self._seen.pop(record.uid, None)
        if old is not None and old.node and not old.finished and (new is None or new.finished):
            self._free(old.node, old.allocation)
            self._unclaim(old)
        elif old is not None and old.nominated and (new is None or new.nominated != old.nominated):
            self._free(old.nominated, None)
        if new is not None and new.node and (old is None or not old.node) and _joinable(new.allocation):
            self._note(Hint(Change.TAGGED, new.node, new.allocation.uuids if new.allocation else ()))

    def node_changed(self, old: NodeRecord | None, new: NodeRecord | None) -> None:
        """A new or different node may take pods that wait; what was promised on one that is gone is to be looked for anew."""
        record = new or old
        assert record is not None
        if old is not None and new is not None and old.node == new.node:
            return
        if old is None or new is None or not _differ_in_gates_alone(old.node, new.node):
            self._note(Hint(Change.NODE, record.name))
            return
        self._note(Hint(Change.GATE, record.name))
        for uid, promised in self._cache.nominations.items():
            if promised.node == record.name:
                self._try_again(self._cache.pods[uid])

    def sharepod_changed(self, old: SharePodRecord | None, new: SharePodRecord | None) -> None:
        """SharePods are the controller's."""

    def verdict_changed(self, pod: PodRecord) -> None:
        """Verdicts are ours."""

    def claim_changed(self, key: str) -> None:
        """A claim that is ready now, or different, may let the pods go on that wait with it."""
        if any(uid in self.queue for uid in self._cache.volumes.users(key)):
            self._note(Hint(Change.CLAIM, claim=key))

    def _is_head(self, record: PodRecord) -> bool:
        """Whether the pod waits for us: it names us, isn't gated, and has no node yet."""
        return (
            not record.node
            and record.active
            and not record.gated
            and record.scheduler_name in self._options.scheduler_names
        )

    def _hint(self, change: Change, assigned: Assigned) -> None:
        self._note(Hint(change, assigned.node, assigned.allocation.uuids if assigned.allocation else ()))

    def _free(self, node: str, allocation: Allocation | None) -> None:
        self._note(Hint(Change.FREED, node, allocation.uuids if allocation else ()))

    def _unclaim(self, record: PodRecord) -> None:
        """What a pod used alone is free for the next one."""
        for use in record.pod.claims:
            self.claim_changed(use.key)

    def _note(self, hint: Hint) -> None:
        self._hints.add(hint)
        self._work.set()

    async def _wait_for_work(self) -> None:
        """Until something happens or a back-off is over, and never longer than a second."""
        if self._may_plan() and self._executor.has_room and (self.queue.ready or self._hints):
            return
        due = self.queue.next_due()
        pause = 1.0 if due is None else min(1.0, max(0.0, due - self._clock()))
        self._work.clear()
        try:
            async with asyncio.timeout(pause):
                await self._work.wait()
        except TimeoutError:
            pass


def _differ_in_gates_alone(old: Node, new: Node) -> bool:
    return replace(old, ready=new.ready, unschedulable=new.unschedulable, taints=new.taints) == new


def _word(refused: Unschedulable) -> str:
    """The reason of the SharePod's condition Scheduled."""
    if refused.unsatisfiable:
        return "Unsatisfiable"
    exhausted = [refusal for refusal in refused.nodes.values() if refusal.reason == NodeReason.PORT_POOL_EXHAUSTED]
    if exhausted and not refused.devices:
        return "PortPoolExhausted"
    return "Unschedulable"


def _joinable(allocation: Allocation | None) -> bool:
    return allocation is not None and bool(allocation.affinity or allocation.virtual_id)
