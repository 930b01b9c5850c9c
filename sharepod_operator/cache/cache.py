"""What the operator knows of the cluster, and what it has decided but not yet seen come back.

One asyncio thread owns it; nothing here awaits. Observed pods and assumed ones are charged to one live Snapshot, from
which the scheduler decides. An *assumption* is a Binding in flight: it counts as done from the decision on. It is
confirmed when the pod is seen bound, forgotten on a definite refusal, and it never times out.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from sharepod_operator.cache.disruption import Disruption
from sharepod_operator.cache.store import Store
from sharepod_operator.cache.volumes import Volumes
from sharepod_operator.core.model import Allocation, Assigned
from sharepod_operator.core.ports import DEFAULT_PORTS
from sharepod_operator.core.snapshot import Snapshot
from sharepod_operator.manifest import names
from sharepod_operator.manifest.node import read_node
from sharepod_operator.manifest.pod import read_pod
from sharepod_operator.manifest.sharepod import SCHEDULERS, read_sharepod, with_new_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sharepod_operator.core.ports import PortRange
    from sharepod_operator.manifest.disruption import BudgetRecord
    from sharepod_operator.manifest.nomination import Nomination
    from sharepod_operator.manifest.records import Json, NodeRecord, PodRecord, SharePodRecord
    from sharepod_operator.manifest.volumes import ClaimRecord, StorageClassRecord, VolumeRecord

    AnyStore = (
        Store[PodRecord]
        | Store[NodeRecord]
        | Store[SharePodRecord]
        | Store[ClaimRecord]
        | Store[VolumeRecord]
        | Store[StorageClassRecord]
        | Store[BudgetRecord]
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The scheduler's latest word on a pod that waits."""

    reason: str
    """As in a SharePod's condition Scheduled: Unschedulable, Unsatisfiable, PortPoolExhausted."""
    message: str


class Listener(Protocol):
    """Whoever acts on changes. Calls are synchronous and must only note what is to do."""

    def pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        """A pod came, changed or went."""
        ...

    def node_changed(self, old: NodeRecord | None, new: NodeRecord | None) -> None:
        """A node came, changed or went."""
        ...

    def sharepod_changed(self, old: SharePodRecord | None, new: SharePodRecord | None) -> None:
        """A SharePod came, changed or went."""
        ...

    def verdict_changed(self, pod: PodRecord) -> None:
        """The scheduler has a new word on a waiting pod."""
        ...

    def claim_changed(self, key: str) -> None:
        """The claim namespace/name, which pods use, its volume or its class came, changed or went."""
        ...


class Cache:
    """Observed objects, assumptions, and the Snapshot that both are charged to."""

    def __init__(
        self,
        ports: PortRange = DEFAULT_PORTS,
        schedulers: frozenset[str] = SCHEDULERS,
        *,
        spares_others: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Empty.

        Args:
            ports: the pod-manager ports of a node.
            schedulers: the names under which we serve; a SharePod that names another is refused.
            spares_others: whether pods that other schedulers placed are never evicted.
            clock: monotonic seconds.
        """
        self.snapshot = Snapshot(ports=ports)
        self._schedulers = schedulers
        self._nominated: dict[str, int] = {}
        self._decided: dict[str, Nomination | None] = {}
        self._pods: Store[PodRecord] = Store(self._read_pod, self._pod_changed)
        self.disruption = Disruption(
            self._pods, lambda pod: spares_others and pod.scheduler_name not in schedulers, clock
        )
        """Who may be made to leave, and what the disruption budgets say to that."""
        self._nodes: Store[NodeRecord] = Store(read_node, self._node_changed)
        self._sharepods: Store[SharePodRecord] = Store(self._read_sharepod, self._sharepod_changed)
        self._pod_uids: dict[tuple[str, str], str] = {}
        self._node_uids: dict[str, str] = {}
        self._owned: dict[str, set[str]] = {}
        self._assumed: dict[str, Assigned] = {}
        self._charged: dict[str, Assigned] = {}
        self.volumes = Volumes(self._claim_changed, self._charged)
        """Claims, PersistentVolumes and StorageClasses, and which pods use which claim."""
        self._verdicts: dict[str, Verdict] = {}
        self._listeners: list[Listener] = []

    # What is there

    @property
    def pods(self) -> Mapping[str, PodRecord]:
        """Every Pod of the cluster, by uid."""
        return self._pods

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        """Every Node, by uid."""
        return self._nodes

    @property
    def sharepods(self) -> Mapping[str, SharePodRecord]:
        """Every SharePod, by uid."""
        return self._sharepods

    @property
    def assumptions(self) -> Mapping[str, Assigned]:
        """Bindings in flight, by pod uid."""
        return self._assumed

    @property
    def assignments(self) -> Mapping[str, Assigned]:
        """Everything that is charged now, by pod uid."""
        return self._charged

    def pods_of(self, owner_uid: str) -> list[PodRecord]:
        """Pods whose controlling owner has this uid, in whatever phase, by name."""
        return sorted((self._pods[uid] for uid in self._owned.get(owner_uid, ())), key=lambda record: record.name)

    def pod_count(self, owner_uid: str) -> int:
        """How many pods have this controlling owner, in whatever phase."""
        return len(self._owned.get(owner_uid, ()))

    def pod_named(self, namespace: str, name: str) -> PodRecord | None:
        """The newest pod of that name."""
        uid = self._pod_uids.get((namespace, name))
        return None if uid is None else self._pods.get(uid)

    def node_named(self, name: str) -> NodeRecord | None:
        """The newest node of that name."""
        uid = self._node_uids.get(name)
        return None if uid is None else self._nodes.get(uid)

    def verdict(self, uid: str) -> Verdict | None:
        """The scheduler's latest word on a waiting pod; None once it is assumed, bound or gone, or not judged yet."""
        return self._verdicts.get(uid)

    def subscribe(self, listener: Listener) -> None:
        """Call the listener on every change from now on."""
        self._listeners.append(listener)

    # What is observed

    def store(self, plural: str) -> AnyStore:
        """The store that a feed of this resource fills."""
        match plural:
            case "pods":
                return self._pods
            case "nodes":
                return self._nodes
            case "sharepods":
                return self._sharepods
            case "persistentvolumeclaims":
                return self.volumes.claims
            case "persistentvolumes":
                return self.volumes.volumes
            case "poddisruptionbudgets":
                return self.disruption.budgets
            case "storageclasses":
                return self.volumes.classes
        raise KeyError(plural)

    def observe_pod(self, obj: Json) -> None:
        """Take in the body that a write or a GET of ours returned."""
        self._pods.observe(None, obj)

    def observe_sharepod(self, obj: Json) -> None:
        """Take in the body that a write of ours returned."""
        self._sharepods.observe(None, obj)

    def observe_deletion(self, uid: str, answer: Json) -> None:
        """Take in what a DELETE of ours was answered: a pod that still ends, or one that is gone by it."""
        metadata = answer.get("metadata") or {}
        waits = metadata.get("deletionGracePeriodSeconds") or metadata.get("finalizers")
        if metadata.get("uid") == uid and metadata.get("deletionTimestamp") and waits:
            self.observe_pod(answer)
        else:
            self.forget_pod(uid)

    def forget_pod(self, uid: str) -> None:
        """The API server says that there is no such pod (any more)."""
        self._pods.remove(uid)

    def forget_sharepod(self, uid: str) -> None:
        """The API server says that there is no such SharePod (any more)."""
        self._sharepods.remove(uid)

    # What is decided

    def assume(self, uid: str, node: str, allocation: Allocation | None) -> None:
        """Charge a pod to the node and GPUs decided for it, from now until it is confirmed or forgotten.

        Raises:
            KeyError: the pod isn't in the cache, so nothing may be decided for it.
        """
        record = self._pods[uid]
        self._assumed[uid] = Assigned(uid, node, record.pod.shape.resources, record.host_ports, allocation)
        self._verdicts.pop(uid, None)
        self._charge(uid, record)

    def forget(self, uid: str) -> None:
        """The Binding was definitely refused or never sent: what was assumed is free again."""
        if self._assumed.pop(uid, None) is not None:
            self._charge(uid, self._pods.get(uid))

    def nomination(self, uid: str) -> Nomination | None:
        """The room promised to a pod that waits: as decided here, though not yet seen on it, else as it stands there."""
        if uid in self._decided:
            return self._decided[uid]
        record = self._pods.get(uid)
        return record.nomination if record is not None and self._is_ours(record) else None

    def nominate(self, uid: str, nomination: Nomination | None) -> None:
        """Promise room to a pod that waits, from now on; None takes a promise back."""
        self._decided[uid] = nomination
        self._charge(uid, self._pods.get(uid))

    @property
    def nominations(self) -> Mapping[str, Nomination]:
        """All promises of ours, by preemptor uid."""
        return {uid: promised for uid in self._nominated if (promised := self.nomination(uid)) is not None}

    @contextmanager
    def nominations_of(self, priority: int, uid: str) -> Iterator[None]:
        """Within it the Snapshot lacks the room promised to pods of lower priority than this, and to the pod itself."""
        lower = [other for other, rank in self._nominated.items() if rank < priority or other == uid]
        aside = [pod for other in lower if (pod := self.snapshot.remove(other)) is not None]
        try:
            yield
        finally:
            for pod in aside:
                self.snapshot.add(pod)

    def judge(self, uid: str, verdict: Verdict) -> None:
        """Record why a pod waits."""
        record = self._pods.get(uid)
        if record is not None and self._verdicts.get(uid) != verdict:
            self._verdicts[uid] = verdict
            for listener in self._listeners:
                listener.verdict_changed(record)

    def validate(self) -> None:
        """Assert that what is charged equals what the records say, and that the Snapshot agrees. For tests."""
        expected = {}
        for uid, record in self._pods.items():
            assigned = self._assignment(uid, record)
            if assigned is not None:
                expected[uid] = assigned
        assert expected == self._charged, (expected, self._charged)
        self.snapshot.validate()

    # How a change is taken in

    def _read_pod(self, obj: Json) -> PodRecord:
        """A ledger entry is written once, by the Binding. Whoever changes it afterwards changes nothing that is charged."""
        record = read_pod(obj)
        known = self._pods.get(record.uid)
        if known is None or not known.node or known.allocation is None or record.allocation == known.allocation:
            return record
        changed = (
            f"annotation {names.ALLOCATION} was changed after the pod was bound; what it was bound with stays charged"
        )
        return replace(record, allocation=known.allocation, ledger_error=changed)

    def _read_sharepod(self, obj: Json) -> SharePodRecord:
        known = self._sharepods.get(obj["metadata"]["uid"])
        same = None if known is None else with_new_status(known, obj)
        return same if same is not None else read_sharepod(obj, self._schedulers)

    def _pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        if old is not None:
            self._unindex_pod(old)
        if new is not None:
            self._pod_uids[new.namespace, new.name] = new.uid
            if new.owner is not None:
                self._owned.setdefault(new.owner.uid, set()).add(new.uid)
            self.volumes.use(new.pod)
        record = new if new is not None else old
        assert record is not None
        if new is None or new.node or new.finished:
            self._assumed.pop(record.uid, None)
            self._verdicts.pop(record.uid, None)
            self._decided.pop(record.uid, None)
        elif record.uid in self._decided and self._decided[record.uid] == new.nomination:
            del self._decided[record.uid]
        self.disruption.pod_changed(old, new)
        self._charge(record.uid, new)
        self._tell(lambda listener: listener.pod_changed(old, new))

    def _unindex_pod(self, old: PodRecord) -> None:
        if self._pod_uids.get((old.namespace, old.name)) == old.uid:
            del self._pod_uids[old.namespace, old.name]
        if old.owner is not None:
            owned = self._owned[old.owner.uid]
            owned.discard(old.uid)
            if not owned:
                del self._owned[old.owner.uid]
        self.volumes.release(old.pod)

    def _node_changed(self, old: NodeRecord | None, new: NodeRecord | None) -> None:
        if new is not None:
            self._node_uids[new.name] = new.uid
            if old is None or old.node != new.node:
                self.snapshot.set_node(new.node)
        elif old is not None and self._node_uids.get(old.name) == old.uid:
            del self._node_uids[old.name]
            self.snapshot.remove_node(old.name)
        self._tell(lambda listener: listener.node_changed(old, new))

    def _claim_changed(self, key: str) -> None:
        self._tell(lambda listener: listener.claim_changed(key))

    def _sharepod_changed(self, old: SharePodRecord | None, new: SharePodRecord | None) -> None:
        self._tell(lambda listener: listener.sharepod_changed(old, new))

    def _tell(self, call: Callable[[Listener], None]) -> None:
        for listener in self._listeners:
            call(listener)

    def _charge(self, uid: str, record: PodRecord | None) -> None:
        """Bring the Snapshot to what the pod takes now: what it is bound with, else what is assumed, else nothing."""
        assigned = self._assignment(uid, record)
        promised = self.nomination(uid) if record is not None and record.active and not record.node else None
        self.disruption.condemn(uid, frozenset(victim.uid for victim in promised.victims) if promised else frozenset())
        if record is not None and assigned is not None and not record.node and uid not in self._assumed:
            self._nominated[uid] = record.pod.priority
        else:
            self._nominated.pop(uid, None)
        if assigned == self._charged.get(uid):
            return
        if self._charged.pop(uid, None) is not None:
            self.snapshot.remove(uid)
        if assigned is not None:
            self._charged[uid] = assigned
            self.snapshot.add(assigned)

    def _assignment(self, uid: str, record: PodRecord | None) -> Assigned | None:
        if record is None or record.finished:
            return None
        if record.node:
            return Assigned(uid, record.node, record.charged, record.host_ports, record.allocation)
        if self._promised_elsewhere(record):
            return Assigned(uid, record.nominated, record.charged, record.host_ports)
        if uid in self._assumed:
            return self._assumed[uid]
        nomination = self.nomination(uid)
        if nomination is None or not record.active:
            return None
        # Nobody may count on the presence of a pod that isn't there yet: its tags keep others out and let nobody in.
        allocation = nomination.allocation
        if allocation is not None:
            allocation = replace(allocation, port=0, affinity="", virtual_id="")
        return Assigned(uid, nomination.node, record.charged, record.host_ports, allocation)

    def _is_ours(self, record: PodRecord) -> bool:
        return record.scheduler_name in self._schedulers

    def _promised_elsewhere(self, record: PodRecord) -> bool:
        """Another scheduler evicts pods for it, or is about to bind it: the room is spoken for, its GPUs are not ours."""
        return bool(record.nominated) and record.active and not self._is_ours(record)
