"""Repairs what no decision of one process could have made: pods bound by two operators onto the same share or port.

Every sweep checks the rules that hold always against the bound pods. Where two can't both stay, the one bound last is
deleted, with an event; its controller makes a new one, which is then placed where there is room. A GPU pod of ours that
somebody else bound is only reported: it sees no GPU, and is charged for what it takes of its node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from sharepod_operator.core.audit import Holding, violations
from sharepod_operator.kube import errors
from sharepod_operator.kube.api import PODS
from sharepod_operator.kube.recorder import EventType
from sharepod_operator.manifest.sharepod import SCHEDULERS
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

    def __init__(
        self,
        cache: Cache,
        api: Api,
        recorder: Recorder,
        *,
        may_plan: Callable[[], bool],
        scheduler_names: frozenset[str] = SCHEDULERS,
    ) -> None:
        self._cache = cache
        self._api = api
        self._recorder = recorder
        self._may_plan = may_plan
        self._scheduler_names = scheduler_names
        self._reported: set[str] = set()

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
        self._report_foreign_bindings()

    def _holdings(self) -> list[Holding]:
        return [
            Holding(record.uid, record.key, record.node, record.allocation, record.bound_at or record.pod.created)
            for record in self._cache.pods.values()
            if record.node and not record.finished and record.allocation is not None
        ]

    def _report_foreign_bindings(self) -> None:
        """Once for each pod: by name of the event also across restarts."""
        found = [
            record
            for record in self._cache.pods.values()
            if record.bound_by_others and record.active and record.scheduler_name in self._scheduler_names
        ]
        for record in found:
            if record.uid not in self._reported:
                text = (
                    f"Bound to node {record.node} by somebody else than {record.scheduler_name}: it has no GPU, and is "
                    "charged for its CPU and memory; delete it to have it placed"
                )
                log.warning("ForeignBinding", message=text, pod=record.key, node=record.node)
                self._recorder.emit(
                    pod_reference(record),
                    EventType.WARNING,
                    "ForeignBinding",
                    text,
                    action="Scheduling",
                    once=(record.uid,),
                )
        self._reported = {record.uid for record in found}

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
            answer = await self._api.delete(PODS, record.name, namespace=record.namespace, uid=record.uid)
            self._cache.observe_deletion(record.uid, answer)
        except errors.NotFound:
            self._cache.forget_pod(record.uid)
        except errors.ApiError as error:
            log.warning("DoubleBooked", message=f"not deleted yet: {error.message}", pod=record.key)
