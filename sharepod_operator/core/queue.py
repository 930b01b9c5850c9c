"""Which waiting pod is decided next, and when one that did not fit is looked at again.

As in kube-scheduler: the head is the pod of highest priority, then the oldest; among those created in the same second,
which is as exact as creation times are, the one that was seen first. A pod that did not fit
waits; each failed attempt doubles its back-off. A change in the cluster wakes only pods that it can help, and not
before their back-off is over; a pod that nothing wakes is looked at again after a long while, in case one was missed.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from sharepod_operator.core.reasons import DeviceReason, NodeReason

if TYPE_CHECKING:
    from collections.abc import Collection

    from sharepod_operator.core.model import Pod, Shape, Unschedulable


class Change(StrEnum):
    """What happened in the cluster that may let a waiting pod fit."""

    NODE = "node"
    """A node came, or something of it changed that placement looks at."""
    GATE = "gate"
    """A node's readiness, cordon or taints changed, and nothing else: under load nodes come and go by the hundred."""
    FREED = "freed"
    """A pod's room on a node is free again."""
    TAGGED = "tagged"
    """A pod with an affinity tag or a virtual GPU's name took its place, where others want to join it."""
    CLAIM = "claim"
    """A PersistentVolumeClaim, its volume or its class changed, or a pod that used it is gone."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One change, with the node and GPUs, or the claim namespace/name, that it is about."""

    change: Change
    node: str = ""
    uuids: tuple[str, ...] = ()
    claim: str = ""


_HELD_BY_PODS = frozenset(
    {
        NodeReason.INSUFFICIENT_CPU,
        NodeReason.INSUFFICIENT_MEMORY,
        NodeReason.TOO_MANY_PODS,
        NodeReason.INSUFFICIENT_EPHEMERAL_STORAGE,
        NodeReason.INSUFFICIENT_RESOURCE,
        NodeReason.HOST_PORT_CONFLICT,
        NodeReason.PORT_POOL_EXHAUSTED,
    }
)
_GATES = frozenset({NodeReason.NOT_READY, NodeReason.UNSCHEDULABLE, NodeReason.TAINT})
_JOINABLE = frozenset({DeviceReason.AFFINITY_MISMATCH, DeviceReason.DEVICE_PIN})


def can_help(hint: Hint, refused: Unschedulable | None, claims: Collection[str] = ()) -> bool:
    """Whether a pod refused in this way may fit after the change. Never wrong with "no"; "yes" costs one more decision.

    Args:
        hint: the change.
        refused: why the pod does not fit; None where that isn't known any more.
        claims: namespace/name of the claims that the pod uses.
    """
    if hint.change is Change.CLAIM:
        return hint.claim in claims
    if refused is None:
        return True
    if refused.blocked:
        return False
    if hint.change is Change.NODE:
        return True
    if refused.unsatisfiable:
        return False
    node = refused.nodes.get(hint.node)
    if hint.change is Change.GATE:
        return node is not None and node.reason in _GATES  # for any other reason it was open, and did not help
    if hint.change is Change.FREED:
        if node is not None:
            return node.reason in _HELD_BY_PODS
        return any(
            uuid not in refused.devices or refused.devices[uuid].reason != DeviceReason.UNHEALTHY for uuid in hint.uuids
        )
    return any(uuid in refused.devices and refused.devices[uuid].reason in _JOINABLE for uuid in hint.uuids)


MAX_REFUSALS = 64
"""Different refusals remembered. One names every node and GPU of the cluster: of thousands of pods that wait for
different things, each with its own, the memory would have no bound."""


@dataclass(slots=True)
class _Refusal:
    """Why all pods that ask for the same do not fit, as of the last time that one of them was looked at."""

    why: Unschedulable | None
    """None where too many others are remembered since."""


_Head = tuple[int, str, int, str]
"""Priority (negated), creation time, arrival, uid: the smallest is next."""


@dataclass(slots=True)
class Queue:
    """The pods that wait for a decision. Times are seconds of one monotonic clock, handed in by the caller."""

    initial_backoff: float = 1.0
    max_backoff: float = 10.0
    leftover_after: float = 300.0
    _pods: dict[str, Pod] = field(default_factory=dict)
    _attempts: dict[str, int] = field(default_factory=dict)
    _arrivals: dict[str, int] = field(default_factory=dict)
    _arrived: int = 0
    _ready: dict[str, _Head] = field(default_factory=dict)
    _heads: list[_Head] = field(default_factory=list)
    _refused: dict[str, tuple[_Refusal, float]] = field(default_factory=dict)
    _refusals: OrderedDict[tuple[Shape, int], _Refusal] = field(default_factory=OrderedDict)
    _due: dict[str, float] = field(default_factory=dict)
    _timers: list[tuple[float, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods

    @property
    def ready(self) -> int:
        """How many pods wait for their decision now."""
        return len(self._ready)

    @property
    def waiting(self) -> int:
        """How many pods did not fit, or failed otherwise, and wait for a change or for their back-off."""
        return len(self._pods) - len(self._ready)

    def add(self, pod: Pod) -> None:
        """A pod that wants a place; a known one is looked at afresh only if it changed what it asks for."""
        known = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        if pod.uid not in self._arrivals:
            self._arrived += 1
            self._arrivals[pod.uid] = self._arrived
        if known is None or known.shape != pod.shape:
            self._attempts.pop(pod.uid, None)
            self._activate(pod.uid)

    def remove(self, uid: str) -> None:
        """The pod wants no place any more: it is bound, gone or changed hands."""
        for known in (self._pods, self._arrivals, self._attempts, self._ready, self._refused, self._due):
            known.pop(uid, None)

    def pop(self, now: float) -> Pod | None:
        """Take out the next head, or None. It comes back by `refuse` or `requeue`, or its attempt ends by `remove`."""
        self._wake_due(now)
        while self._heads:
            head = heapq.heappop(self._heads)
            uid = head[3]
            if self._ready.get(uid) == head:
                del self._ready[uid]
                return self._pods.pop(uid)
        return None

    def next_due(self) -> float | None:
        """When the next waiting pod is looked at again; None where none waits."""
        while self._timers and self._due.get(self._timers[0][1]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def refuse(self, pod: Pod, refused: Unschedulable, now: float, shape: Shape | None = None) -> None:
        """The pod did not fit: it waits for a change that can help it, at least as long as its back-off.

        `shape` is what was decided on where that is more than the pod's own, with its volumes.
        """
        self._pods[pod.uid] = pod
        refusal = self._remembered(refused, (shape or pod.shape, pod.priority))
        self._refused[pod.uid] = (refusal, now + self._next_backoff(pod.uid))
        self._set_timer(pod.uid, now + self.leftover_after)

    def requeue(self, pod: Pod, now: float) -> None:
        """The attempt failed for another reason than room: try again after the back-off."""
        self._pods[pod.uid] = pod
        self._set_timer(pod.uid, now + self._next_backoff(pod.uid))

    def wake(self, hints: Collection[Hint], now: float) -> None:
        """Let every pod that one of the changes can help be looked at again once its back-off is over."""
        answers: dict[tuple[int, tuple[str, ...]], bool] = {}
        for uid, (refusal, not_before) in list(self._refused.items()):
            claims = tuple(use.key for use in self._pods[uid].claims)
            helped = answers.get((id(refusal), claims))
            if helped is None:
                helped = answers[id(refusal), claims] = any(can_help(hint, refusal.why, claims) for hint in hints)
            if not helped:
                continue
            if not_before <= now:
                self._activate(uid)
            else:
                del self._refused[uid]
                self._set_timer(uid, not_before)

    def _remembered(self, refused: Unschedulable, asked: tuple[Shape, int]) -> _Refusal:
        """The refusal, shared by all who ask for the same: what keeps the latest of them out keeps out the others."""
        if refused.blocked or refused.unsatisfiable:
            return _Refusal(replace(refused, nodes={}, devices={}, short={}))  # no single node or GPU matters
        refusal = self._refusals.pop(asked, None) or _Refusal(refused)
        refusal.why = refused
        self._refusals[asked] = refusal
        if len(self._refusals) > MAX_REFUSALS:
            self._refusals.popitem(last=False)[1].why = None
        return refusal

    def _next_backoff(self, uid: str) -> float:
        attempts = self._attempts[uid] = self._attempts.get(uid, 0) + 1
        return min(self.initial_backoff * 2.0 ** min(attempts - 1, 30), self.max_backoff)

    def _activate(self, uid: str) -> None:
        self._refused.pop(uid, None)
        self._due.pop(uid, None)
        pod = self._pods[uid]
        head = (-pod.priority, pod.created, self._arrivals[uid], uid)
        if self._ready.get(uid) != head:
            self._ready[uid] = head
            heapq.heappush(self._heads, head)

    def _set_timer(self, uid: str, when: float) -> None:
        self._due[uid] = when
        heapq.heappush(self._timers, (when, uid))

    def _wake_due(self, now: float) -> None:
        while (due := self.next_due()) is not None and due <= now:
            self._activate(heapq.heappop(self._timers)[1])
