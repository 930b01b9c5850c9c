"""How many replicas there should be, which to add and which to take away.

The rules are those of Kubernetes' ReplicaSet controller, which faas-share copied: only active pods count, the order of
deletion is that of ActivePodsWithRanks, a pod on its way out is replaced at once. Three things differ:

- A replica has an *ordinal*, and each pod that served it an *incarnation*; both are in the pod's name. So a create that
  is repeated after a crash meets its own pod instead of making a second one, and a replacement has another name.
- A pod that ended as its restartPolicy allows is done: it is kept, keeps its ordinal, and is not made again.
- A pod that the kubelet or the node-lifecycle controller ended is a lost race, not a result. It is replaced after a delay
  that doubles with each loss of the same ordinal, and its object is deleted once the replacement exists, as the
  DaemonSet and StatefulSet controllers do: kept, such objects would pile up until the garbage collector's limit.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sharepod_operator.core.model import Allocation

MAX_REPLICAS = 1000

FIRST_REPLACEMENT_DELAY = timedelta(seconds=1)
LONGEST_REPLACEMENT_DELAY = timedelta(minutes=5)

LOST_REASONS = frozenset(
    {
        "Evicted",
        "NodeAffinity",
        "NodeLost",
        "NodeName",
        "NodePorts",
        "NodeShutdown",
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "Preempting",
        "Shutdown",
        "TaintToleration",
        "Terminated",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
        "UnexpectedPredicateFailureType",
    }
)
"""status.reason of a Failed pod that the kubelet or a node controller ended; `OutOf<resource>` belongs here as well."""

_PHASE_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One pod of a SharePod, as the controller decides about it and as the status shows it."""

    uid: str
    name: str
    ordinal: int = -1
    """Which replica it is, from 0; -1 where its annotation doesn't say."""
    incarnation: int = 0
    losses: int = 0
    """How often in a row this ordinal was lost before this pod was made."""
    node: str = ""
    phase: str = "Pending"
    deleting: bool = False
    ready: bool = False
    ready_since: datetime | None = None
    restarts: int = 0
    deletion_cost: int = 0
    created: datetime | None = None
    current: bool = True
    """It was made from the SharePod's present template."""
    restart_policy: str = "Always"
    reason: str = ""
    """status.reason, such as Evicted."""
    allocation: Allocation | None = None
    disrupted: bool = False
    """It was told to leave for a more important pod."""
    verdict_reason: str = ""
    """The scheduler's word on a pod that waits, as in the condition Scheduled; "" where it has none yet."""
    verdict_message: str = ""
    node_ready: bool = True
    unhealthy: tuple[str, ...] = ()
    """Its GPUs that are unhealthy or no longer in the node's inventory."""

    @property
    def finished(self) -> bool:
        """Its phase is final."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def active(self) -> bool:
        """It counts against `replicas`: neither finished nor on its way out."""
        return not self.finished and not self.deleting

    @property
    def lost(self) -> bool:
        """It was ended by the kubelet or a node controller, not by its own containers."""
        return self.phase == "Failed" and (self.reason in LOST_REASONS or self.reason.startswith("OutOf"))

    @property
    def done(self) -> bool:
        """It ended, and its restartPolicy says that this was it."""
        if self.deleting or not self.finished or self.lost:
            return False
        return self.restart_policy == "Never" or (self.restart_policy == "OnFailure" and self.phase == "Succeeded")


@dataclass(frozen=True, slots=True)
class Slot:
    """A pod to be made: its name follows from ordinal and incarnation."""

    ordinal: int
    incarnation: int = 0
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What brings the pods to the wanted number, seen from one moment."""

    create: tuple[Slot, ...] = ()
    delete: tuple[str, ...] = ()
    """Uids, first to go first."""
    outdated: tuple[str, ...] = ()
    """Uids of unbound pods of an earlier template, to be deleted as soon as the present one is known to be good."""
    look_again: timedelta | None = None
    """When there is more to do although nothing changes: the delay of a lost replica will be over."""


def wanted_replicas(replicas: int, floor: int) -> int:
    """The number of replicas to keep: `replicas`, raised to OpenFaaS' floor (0 for none). Zero stays zero."""
    return max(replicas, min(floor, MAX_REPLICAS)) if replicas > 0 else 0


def plan(
    wanted: int, pods: Iterable[ReplicaState], now: datetime, spent: Mapping[int, int] = MappingProxyType({})
) -> Plan:
    """The pods to create and to delete so that `wanted` replicas are active or done.

    A pod of an outdated template is replaced while it is unbound, or once it has ended; a bound one runs on.

    Args:
        wanted: the number of replicas.
        pods: those that are there, in whatever state.
        now: the time.
        spent: the last incarnation of each ordinal whose pods are gone, as far as somebody has seen them go. Whoever is
            late to delete such a pod by its name must not meet a new one.
    """
    everything = sorted(pods, key=lambda pod: pod.uid)
    outdated = [pod for pod in everything if pod.active and not pod.current and not pod.node]
    active = [pod for pod in everything if pod.active and (pod.current or pod.node)]
    done = [pod for pod in everything if pod.done and pod.current]
    surplus = scale_down_order(active, now)[: len(active) - wanted] if len(active) > wanted else []
    missing = max(0, wanted - len(active) - len(done))
    create, look_again = _vacancies(missing, everything, {pod.ordinal for pod in (*active, *done)}, now, spent)
    # What ended without being done goes as soon as nothing is missing any more: then its replacement is there.
    over = [pod for pod in everything if pod.finished and not pod.deleting and not (pod.done and pod.current)]
    delete = [*surplus, *(over if not missing else ())]
    return Plan(tuple(create), _uids(delete), _uids(outdated), look_again)


def scale_down_order(active: Iterable[ReplicaState], now: datetime) -> list[ReplicaState]:
    """The pods in the order of ActivePodsWithRanks: whom to delete first comes first.

    Two pods are compared exactly as Kubernetes does, uids last. That comparison can run in a circle among three pods
    (uids decide between ages of the same magnitude), so the pods are put in order of uid before: the result depends on
    nothing else than the pods.
    """
    pods = sorted(active, key=lambda pod: pod.uid)
    ranks: dict[str, int] = {}
    for pod in pods:
        ranks[pod.node] = ranks.get(pod.node, 0) + 1

    def compare(a: ReplicaState, b: ReplicaState) -> int:
        return _compare(a, b, ranks, now)

    return sorted(pods, key=functools.cmp_to_key(compare))


def replacement_delay(losses: int) -> timedelta:
    """How long after its creation a lost pod may be replaced, when its ordinal had been lost `losses` times before it."""
    return min(FIRST_REPLACEMENT_DELAY * (1 << min(losses, 20)), LONGEST_REPLACEMENT_DELAY)


def _vacancies(
    missing: int, pods: Iterable[ReplicaState], taken: set[int], now: datetime, spent: Mapping[int, int]
) -> tuple[list[Slot], timedelta | None]:
    """The slots for the missing replicas, lowest free ordinals first, and when the next delayed one is due."""
    if not missing:
        return [], None
    last: dict[int, ReplicaState] = {}
    for pod in pods:
        if pod.ordinal not in last or pod.incarnation > last[pod.ordinal].incarnation:
            last[pod.ordinal] = pod
    slots: list[Slot] = []
    waits: list[timedelta] = []
    ordinal = -1
    while len(slots) + len(waits) < missing:
        ordinal += 1
        if ordinal in taken:
            continue
        before = last.get(ordinal)
        if before is None:
            slots.append(Slot(ordinal, spent.get(ordinal, -1) + 1))
            continue
        wait = _delay_left(before, now)
        if wait > timedelta(0):
            waits.append(wait)
        else:
            last_used = max(before.incarnation, spent.get(ordinal, -1))
            slots.append(Slot(ordinal, last_used + 1, _losses_after(before, now)))
    return slots, min(waits, default=None)


def _delay_left(pod: ReplicaState, now: datetime) -> timedelta:
    """How long its replacement must wait; only a quick loss has to, since the delay counts from the pod's creation."""
    if not _failed(pod) or pod.created is None:
        return timedelta(0)
    return pod.created + replacement_delay(pod.losses) - now


def _losses_after(pod: ReplicaState, now: datetime) -> int:
    """A pod that had lived long starts the count anew."""
    if not _failed(pod):
        return 0
    lived_long = pod.created is not None and now - pod.created > 2 * LONGEST_REPLACEMENT_DELAY
    return 1 if lived_long else pod.losses + 1


def _uids(pods: Iterable[ReplicaState]) -> tuple[str, ...]:
    return tuple(pod.uid for pod in pods)


def _failed(pod: ReplicaState) -> bool:
    """It ended, is not done, and what made it end may do the same to the next one."""
    return pod.finished and not pod.done and not pod.deleting and pod.current


def _compare(a: ReplicaState, b: ReplicaState, ranks: Mapping[str, int], now: datetime) -> int:
    """Negative where `a` goes first; the numbers are those of the rules in Kubernetes' comments."""
    differences = (
        bool(a.node) - bool(b.node),  # 1. not assigned before assigned
        _PHASE_RANK.get(a.phase, 0) - _PHASE_RANK.get(b.phase, 0),  # 2. Pending, Unknown, Running
        a.ready - b.ready,  # 3. not ready before ready
        a.deletion_cost - b.deletion_cost,  # 4. lower deletion cost
        ranks[b.node] - ranks[a.node],  # 5. more pods of this SharePod on the same node
    )
    for difference in differences:
        if difference:
            return difference
    if a.ready and b.ready and a.ready_since != b.ready_since:  # 6. ready for a shorter time
        return _younger_first(a, b, a.ready_since, b.ready_since, now)
    if a.restarts != b.restarts:  # 7. more restarts
        return b.restarts - a.restarts
    if a.created != b.created:  # 8. created more recently
        return _younger_first(a, b, a.created, b.created, now)
    return _by_uid(a, b)


def _younger_first(
    a: ReplicaState, b: ReplicaState, time_a: datetime | None, time_b: datetime | None, now: datetime
) -> int:
    """Compares two different times by the logarithm of their ages, so that pods of about one age go in random order."""
    if time_a is None or time_b is None:
        return -1 if time_a is None else 1
    return _magnitude(now - time_a) - _magnitude(now - time_b) or _by_uid(a, b)


def _magnitude(age: timedelta) -> int:
    """floor(log2(age in ns)), -1 for an age that isn't above zero."""
    nanoseconds = age // timedelta(microseconds=1) * 1000
    return max(0, nanoseconds).bit_length() - 1


def _by_uid(a: ReplicaState, b: ReplicaState) -> int:
    return (a.uid > b.uid) - (a.uid < b.uid)
