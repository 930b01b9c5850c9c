"""Tells a waiting pod why it waits: the condition PodScheduled and one event, written only when the reason changes.

A pod that still does not fit for the same reason costs no write, however often it is tried.
"""

from __future__ import annotations

import asyncio
from datetime import UTC
from typing import TYPE_CHECKING

import structlog

from sharepod_operator.kube import errors
from sharepod_operator.kube.api import PODS, Patch
from sharepod_operator.kube.recorder import EventType, ObjectRef

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sharepod_operator.cache.cache import Cache
    from sharepod_operator.kube.api import Api
    from sharepod_operator.kube.recorder import Recorder
    from sharepod_operator.manifest.records import PodRecord

log = structlog.get_logger(__name__)

WORKERS = 4
RETRY_PAUSE = 2.0
UNSCHEDULABLE = "Unschedulable"
"""PodScheduled's reason, whatever ours is: autoscalers and other tools look for kube-scheduler's word."""


class Reporter:
    """Writes the cache's verdicts onto the pods that they are about."""

    def __init__(self, cache: Cache, api: Api, recorder: Recorder, *, now: Callable[[], datetime]) -> None:
        self._now = now
        self._cache = cache
        self._api = api
        self._recorder = recorder
        self._due: dict[str, None] = {}
        self._more = asyncio.Event()

    def report(self, uid: str) -> None:
        """The pod has a verdict; write it if it isn't written yet."""
        if self._is_news(uid):
            self._due[uid] = None
            self._more.set()

    async def run(self) -> None:
        """Write what is due, for ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._due:
                self._more.clear()
                await self._more.wait()
            uid = next(iter(self._due))
            del self._due[uid]
            try:
                await self._write(uid)
            except errors.ApiError as error:
                log.info("ReportFailed", message="reason not written", pod_uid=uid, error=error.message)
                await asyncio.sleep(RETRY_PAUSE)
                self.report(uid)

    def _is_news(self, uid: str) -> bool:
        record = self._cache.pods.get(uid)
        verdict = self._cache.verdict(uid)
        if record is None or verdict is None or record.node or record.deleting:
            return False
        return (record.scheduled_reason, record.scheduled_message) != (UNSCHEDULABLE, verdict.message)

    async def _write(self, uid: str) -> None:
        """One patch with the version that the verdict was seen beside: a pod bound meanwhile is left alone."""
        if not self._is_news(uid):
            return
        record = self._cache.pods[uid]
        verdict = self._cache.verdict(uid)
        assert verdict is not None
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": UNSCHEDULABLE,
            "message": verdict.message,
            "lastTransitionTime": self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        body = {
            "metadata": {"uid": uid, "resourceVersion": str(record.version)},
            "status": {"conditions": [condition]},
        }
        try:
            patched = await self._api.patch(
                PODS, record.name, body, namespace=record.namespace, subresource="status", content=Patch.STRATEGIC
            )
        except errors.NotFound:
            self._cache.forget_pod(uid)
            return
        except errors.Conflict:
            self._cache.observe_pod(await self._api.get(PODS, record.name, namespace=record.namespace))
            self.report(uid)
            return
        self._cache.observe_pod(patched)
        self._recorder.emit(
            pod_reference(record), EventType.WARNING, "FailedScheduling", verdict.message, action="Scheduling"
        )


def pod_reference(record: PodRecord) -> ObjectRef:
    """What an event about a pod refers to."""
    return ObjectRef("v1", "Pod", record.namespace, record.name, record.uid)
