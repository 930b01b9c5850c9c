"""Says aloud what is wrong with nodes and ledger entries, where people look: events on the object, and one log line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from sharepod_operator.kube.recorder import EventType, ObjectRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod_operator.cache.cache import Cache
    from sharepod_operator.kube.recorder import Recorder
    from sharepod_operator.manifest.records import NodeRecord, PodRecord, SharePodRecord

log = structlog.get_logger(__name__)


class Watchman:
    """A Listener of the cache. A standby says nothing: the leader sees the same."""

    def __init__(self, cache: Cache, recorder: Recorder, *, may_act: Callable[[], bool]) -> None:
        self._cache = cache
        self._recorder = recorder
        self._may_act = may_act
        self._said: dict[str, str] = {}
        cache.subscribe(self)

    def look(self) -> None:
        """Say what is wrong now: leadership was won, or a resync is through."""
        for node in self._cache.nodes.values():
            self.node_changed(None, node)
        for pod in self._cache.pods.values():
            if pod.ledger_error:
                self.pod_changed(None, pod)

    def node_changed(self, old: NodeRecord | None, new: NodeRecord | None) -> None:
        """An inventory that can't be read, or that claims another node's GPU, offers nothing."""
        record = new or old
        assert record is not None
        if new is None:
            self._said.pop(record.uid, None)
            return
        problem = new.inventory_error or self._claimed_twice(new)
        reference = ObjectRef("v1", "Node", "", new.name, new.uid)
        self._warn(reference, "InvalidInventory", f"Node {new.name}: {problem}" if problem else "")

    def pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        """A ledger entry that somebody changed, or that can't be read."""
        record = new or old
        assert record is not None
        if new is None:
            self._said.pop(record.uid, None)
        elif new.ledger_error or record.uid in self._said:
            reference = ObjectRef("v1", "Pod", new.namespace, new.name, new.uid)
            self._warn(reference, "LedgerChanged", new.ledger_error)

    def sharepod_changed(self, old: SharePodRecord | None, new: SharePodRecord | None) -> None:
        """SharePods tell of themselves in their status."""

    def verdict_changed(self, pod: PodRecord) -> None:
        """Waiting pods tell of themselves."""

    def claim_changed(self, key: str) -> None:
        """Claims are the scheduler's."""

    def _claimed_twice(self, record: NodeRecord) -> str:
        for device in record.node.devices:
            owners = self._cache.snapshot.owners(device.uuid)
            if len(owners) > 1:
                return (
                    f"GPU {device.uuid} stands in the inventories of {' and '.join(sorted(owners))}: it takes no new pods "
                    "until only one of them has it"
                )
        return ""

    def _warn(self, reference: ObjectRef, reason: str, text: str) -> None:
        """Once for each problem; what is mended may be said again."""
        if not self._may_act() or self._said.get(reference.uid, "") == text:
            return
        if not text:
            del self._said[reference.uid]
            return
        self._said[reference.uid] = text
        log.warning(reason, message=text)
        self._recorder.emit(reference, EventType.WARNING, reason, text, action="Observing")
