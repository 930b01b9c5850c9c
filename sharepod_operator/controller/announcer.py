"""The events on a SharePod: what changed, for the person who reads `kubectl describe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod_operator.core.status import Reason, complete, condition, one_line, verdicts
from sharepod_operator.kube.recorder import EventType, ObjectRef
from sharepod_operator.manifest import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharepod_operator.core.replicas import ReplicaState
    from sharepod_operator.core.status import SharePodView
    from sharepod_operator.kube.api import Json
    from sharepod_operator.kube.recorder import Recorder
    from sharepod_operator.manifest.records import SharePodRecord

REASONS_TOLD = 3
"""Different reasons of waiting replicas that get an event each; the rest stands in `placements`' pods."""


def reference(sharepod: SharePodRecord) -> ObjectRef:
    """The SharePod as events refer to it."""
    return ObjectRef(names.API_VERSION, names.KIND, sharepod.namespace, sharepod.name, sharepod.uid)


class Announcer:
    """Tells each thing once: what is told depends on the change between two statuses, never on how often it was looked at."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._synced: dict[str, int] = {}

    def name_taken(self, sharepod: SharePodRecord, name: str) -> None:
        """A foreign pod has the name of a replica; it is never adopted."""
        note = f'Resource "{name}" already exists and is not managed by SharePod'
        self._warn(sharepod, "ErrResourceExists", note, "Creating")

    def is_synced_due(self, sharepod: SharePodRecord, view: SharePodView, pods: Sequence[ReplicaState]) -> bool:
        """Whether this generation is fully placed and nobody was told yet."""
        return complete(view, pods) and self._synced.get(sharepod.uid) != sharepod.generation

    async def synced(self, sharepod: SharePodRecord) -> None:
        """Written before the status that shows the same, so that a crash in between can't lose it; its name makes it one.

        Raises:
            NotLeading: this process does not lead any more.
        """
        await self._recorder.emit_once_now(
            reference(sharepod),
            EventType.NORMAL,
            "Synced",
            "SharePod synced successfully",
            action="Syncing",
            once=(sharepod.uid, str(sharepod.generation)),
        )
        self._synced[sharepod.uid] = sharepod.generation

    def status_written(
        self, sharepod: SharePodRecord, view: SharePodView, pods: Sequence[ReplicaState], previous: Json, status: Json
    ) -> None:
        """Tell what is news in the new status."""
        if _changed(previous, status, "Accepted", "False") and view.refused is not None:
            self._warn(sharepod, view.refused.event, view.refused.message, "Validating")
        if _changed(previous, status, "Scheduled", "False"):
            self._tell_why_waiting(sharepod, view, pods)
        before, now = condition(previous, "Ready"), condition(status, "Ready")
        if now["reason"] == Reason.SCALED_TO_ZERO != before.get("reason"):
            ending = sum(pod.deleting for pod in pods)
            note = f"Scaled to zero, {ending} pods are ending" if ending else "Scaled to zero, no pod is left"
            self._recorder.emit(reference(sharepod), EventType.NORMAL, "ScaledToZero", note, action="Scaling")

    def forget(self, uid: str) -> None:
        """The SharePod is gone."""
        self._synced.pop(uid, None)

    def _tell_why_waiting(self, sharepod: SharePodRecord, view: SharePodView, pods: Sequence[ReplicaState]) -> None:
        if view.refused is not None:
            self._warn(sharepod, view.refused.event, view.refused.message, "Creating")
            return
        for reason, message, _ in verdicts(pods)[:REASONS_TOLD]:
            event = reason.value if reason is Reason.PORT_POOL_EXHAUSTED else "FailedScheduling"
            self._warn(sharepod, event, message, "Scheduling")

    def _warn(self, sharepod: SharePodRecord, reason: str, note: str, action: str) -> None:
        self._recorder.emit(reference(sharepod), EventType.WARNING, reason, one_line(note), action=action)


def _changed(previous: Json, status: Json, kind: str, state: str) -> bool:
    """Whether the condition is in this state now, and was not with the same words before."""
    before, now = condition(previous, kind), condition(status, kind)
    told = ("status", "reason", "message")
    return now.get("status") == state and any(before.get(key) != now[key] for key in told)
