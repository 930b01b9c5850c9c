"""Everything between an API server and the decisions, wired together: one cache, who fills it, and who acts on it.

It knows nothing of Kopf, HTTP or process start; the runtime gives it an API, clocks and the word on leadership. The
tests run the same engine against an API server in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import structlog

from sharepod_operator.cache.cache import Cache
from sharepod_operator.cache.feed import Feed, StoreSink
from sharepod_operator.controller.sharepods import SharePodController
from sharepod_operator.controller.watchman import Watchman
from sharepod_operator.core.model import MILLI_PER_GPU
from sharepod_operator.core.ports import PortRange
from sharepod_operator.core.score import policy
from sharepod_operator.kube.api import (
    LIST_PAGE,
    NODES,
    PDBS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SHAREPODS,
    STORAGE_CLASSES,
)
from sharepod_operator.kube.recorder import Recorder
from sharepod_operator.kube.reflector import Reflector
from sharepod_operator.manifest import names
from sharepod_operator.manifest.render import Rendering
from sharepod_operator.observability.metrics import GPUSample, Sources
from sharepod_operator.scheduler.cycle import Scheduler, SchedulerOptions
from sharepod_operator.scheduler.repair import Repair
from sharepod_operator.scheduler.telling import Telling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from random import Random
    from typing import Any

    from sharepod_operator.kube.api import Api
    from sharepod_operator.kube.recorder import Drop
    from sharepod_operator.observability.health import Health
    from sharepod_operator.observability.metrics import Metrics
    from sharepod_operator.settings import Settings

log = structlog.get_logger(__name__)

WATCHED_THROUGH_KOPF = (NODES, SHAREPODS, PDBS, PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES)
EVENTS_GRACE = 3.0
"""Seconds that events get to be written when the operator stops; after a flood most of them would take minutes."""
CACHES = (PODS.plural, *(resource.plural for resource in WATCHED_THROUGH_KOPF))
"""What must have been listed once before anything is planned."""
MISSING_CRD = f"the resource {names.CRD_NAME} is not installed: kubectl apply -f crds/; the operator goes on as soon as it is there"


class Engine:
    """The operator without its process."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        *,
        is_leading: Callable[[], bool],
        clock: Callable[[], float],
        now: Callable[[], datetime],
        rng: Random,
        metrics: Metrics,
        health: Health,
    ) -> None:
        """`clock` is monotonic seconds, `now` the wall clock for what people read."""
        self.settings = settings
        self.metrics = metrics
        self.health = health
        self._is_leading = is_leading
        self._dropped_events = 0
        self.cache = Cache(
            PortRange(settings.port_base + 1, settings.port_slots - 1),
            frozenset(settings.scheduler_names),
            spares_others=settings.victims == "own",
            clock=clock,
        )
        self.recorder = Recorder(
            api,
            controller=names.CONTROLLER_NAME,
            instance=settings.identity,
            on_drop=self._count_drop,
            clock=clock,
            now=now,
            rng=rng,
        )
        self.pods, self.feeds = self._watches(api, clock, rng)
        self.scheduler = Scheduler(
            self.cache,
            api,
            self.recorder,
            Telling(self.metrics, self.recorder),
            _scheduler_options(settings),
            now=now,
            may_plan=self.may_plan,
            beat=health.beat,
            clock=clock,
        )
        self.repair = Repair(
            self.cache,
            api,
            self.recorder,
            may_plan=self.may_plan,
            scheduler_names=frozenset(settings.scheduler_names),
        )
        rendering = Rendering(settings.isolation_backend, settings.gpu_runtime_class_name, settings.scheduler_names[0])
        self.controller = SharePodController(
            self.cache, api, self.recorder, may_act=self.may_plan, now=now, rng=rng, rendering=rendering
        )
        self.watchman = Watchman(self.cache, self.recorder, may_act=self.may_plan)
        self.metrics.connect(self._sources())

    def _watches(self, api: Api, clock: Callable[[], float], rng: Random) -> tuple[Reflector, dict[str, Feed]]:
        """Who fills the cache: a reflector for Pods, and what Kopf watches for everything else."""
        pods = Reflector(
            api,
            PODS,
            StoreSink(self.cache.store(PODS.plural)),
            page=LIST_PAGE,
            on_synced=partial(self._resynced, PODS.plural),
            count=partial(self.metrics.watch_event, PODS.plural),
            clock=clock,
            rng=rng,
        )
        feeds = {
            resource.plural: Feed(
                self.cache.store(resource.plural),
                api,
                resource,
                interval=self.settings.resync_interval,
                clock=clock,
                rng=rng,
                on_synced=partial(self._resynced, resource.plural),
                missing=MISSING_CRD if resource is SHAREPODS else "",
            )
            for resource in WATCHED_THROUGH_KOPF
        }
        return pods, feeds

    @property
    def synced(self) -> bool:
        """Every cache equals a full list, apart from what the watches brought since."""
        return self.pods.synced.is_set() and all(feed.synced for feed in self.feeds.values())

    def may_plan(self) -> bool:
        """Whether decisions may be made: this process leads, and no resync is due."""
        return self._is_leading() and self.synced

    def observe(self, plural: str, event: Mapping[str, Any]) -> None:
        """One event of a resource that is watched through Kopf."""
        self.metrics.watch_event(plural, event["type"] or "LISTED")
        self.feeds[plural].kopf_event(event)

    def leadership_won(self) -> None:
        """What is cached may be old by now, and the former leader may have written since: list before planning."""
        self.pods.request_resync()
        for feed in self.feeds.values():
            feed.request_resync()

    async def run(self) -> None:
        """Fill the cache and act on it until cancelled. Ends with the first part that fails."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.recorder.run(), name="recorder")
            group.create_task(self.pods.run(), name="pods")
            group.create_task(self._resync_pods(), name="pods resync")
            for plural, feed in self.feeds.items():
                group.create_task(feed.run(), name=f"{plural} resync")
            group.create_task(self.scheduler.run(), name="scheduler")
            group.create_task(self.repair.run(), name="repair")
            group.create_task(self.controller.run(), name="controller")

    async def drain(self, limit: float) -> None:
        """Wait until no Binding is in flight, at most `limit` seconds, and then a little for events; for when nothing more
        is decided.
        """
        try:
            async with asyncio.timeout(limit):
                await self.scheduler.drained()
        except TimeoutError:
            log.warning(
                "Undrained", message=f"Bindings were still in flight after {limit:.0f} s; the next leader looks again"
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVENTS_GRACE):
                await self.recorder.flush()

    async def _resync_pods(self) -> None:
        """The reflector lists when it has to; this makes it list now and then although nothing seems wrong."""
        while True:
            await asyncio.sleep(self.settings.resync_interval)
            self.pods.request_resync()

    def _resynced(self, plural: str) -> None:
        self.health.resynced(plural)
        if self.may_plan():
            self.watchman.look()
            self.scheduler.poke()
            self.controller.poke()

    def _count_drop(self, _: Drop) -> None:
        self._dropped_events += 1

    # What Prometheus asks

    def _sources(self) -> Sources:
        return Sources(
            gpus=self._gpu_samples,
            ports_used=self._ports_used,
            pending_pods=self._pending_pods,
            queue_depths=lambda: {"ready": self.scheduler.queue.ready, "waiting": self.scheduler.queue.waiting},
            sharepods=self._sharepods_by_reason,
            leading=self._is_leading,
            resync_age=self.health.resync_age,
            dropped_events=lambda: self._dropped_events,
        )

    def _gpu_samples(self) -> Iterable[GPUSample]:
        for name, state in self.cache.snapshot.nodes.items():
            for uuid, card in state.devices.items():
                device = card.device
                yield GPUSample(
                    name, uuid, device.model, MILLI_PER_GPU - card.free, device.memory - card.memory_free, device.memory
                )

    def _ports_used(self) -> Mapping[str, int]:
        snapshot = self.cache.snapshot
        return {name: snapshot.used_ports(name).bit_count() for name, state in snapshot.nodes.items() if state.devices}

    def _pending_pods(self) -> Mapping[str, int]:
        served = self.settings.scheduler_names
        waiting = [
            pod for pod in self.cache.pods.values() if pod.scheduler_name in served and pod.active and not pod.node
        ]
        words = Counter[str]()
        for pod in waiting:
            verdict = self.cache.verdict(pod.uid)
            if pod.gated:
                words["SchedulingGated"] += 1
                continue
            words["Assumed" if pod.uid in self.cache.assumptions else verdict.reason if verdict else "Queued"] += 1
        return words

    def _sharepods_by_reason(self) -> Mapping[str, int]:
        return Counter(sharepod.ready_reason or "Unknown" for sharepod in self.cache.sharepods.values())


def _scheduler_options(settings: Settings) -> SchedulerOptions:
    return SchedulerOptions(
        frozenset(settings.scheduler_names),
        policy(settings.policy),
        settings.bind_in_flight,
        settings.initial_backoff,
        settings.max_backoff,
        settings.leftover_after,
    )
