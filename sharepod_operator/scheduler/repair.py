"""Repairs what no decision of one process could have made: pods bound by two operators onto the same share or port.

Every sweep checks the rules that hold always against the bound pods. Where two can't both stay, the one bound last is
deleted, with an event; its controller makes a new one, which is then placed where there is room.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from sharepod_operator.core.audit import Holding, violations
from sharepod_operator.kube import errors
from sharepod_operator.kube.api import PODS
from sharepod_operator.kube.recorder import EventType
from sharepod_operator.scheduler.reporter import pod_reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod_operator.cache.cache import Cache
    from sharepod_operator.core.audit import Violation
    from sharepod_operator.kube.api import Api
    from sharepod_operator.kube.recorder import Recorder
    from sharepod_operator.manifest.records import PodRecord

log = structlog.get_logger(__name__)

INTERVAL = 15.0


class Repair:
    """Sweeps while this process may plan."""

    def __init__(self, cache: Cache, api: Api, recorder: Recorder, *, may_plan: Callable[[], bool]) -> None:
        self._cache = cache
        self._api = api
        self._recorder = recorder
        self._may_plan = may_plan

    async def run(self) -> None:
        """Sweep every few seconds, for ever."""
        while True:
            await asyncio.sleep(INTERVAL)
            if self._may_plan():
                await self.sweep()

    async def sweep(self) -> None:
        """Delete each pod that breaks a rule beside older ones; one that is leaving already is left alone."""
        for violation in violations(self._holdings()):
            record = self._cache.pods.get(violation.uid)
            if record is not None and not record.deleting:
                await self._evict(record, violation)

    def _holdings(self) -> list[Holding]:
        return [
            Holding(record.uid, record.key, record.node, record.allocation, record.bound_at or record.pod.created)
            for record in self._cache.pods.values()
            if record.node and not record.finished and record.allocation is not None
        ]

    async def _evict(self, record: PodRecord, violation: Violation) -> None:
        log.error(
            "DoubleBooked", message=f"deleting {record.key}: {violation.sentence}", pod=record.key, node=record.node
        )
        self._recorder.emit(
            pod_reference(record),
            EventType.WARNING,
            "DoubleBooked",
            f"Deleted, two operators placed pods at once: {violation.sentence}",
            action="Repairing",
            once=(record.uid,),
        )
        try:
            await self._api.delete(PODS, record.name, namespace=record.namespace, uid=record.uid)
        except errors.NotFound:
            self._cache.forget_pod(record.uid)
        except errors.ApiError as error:
            log.warning("DoubleBooked", message=f"not deleted yet: {error.message}", pod=record.key)
