"""The composition root: settings, connection, leadership, engine and HTTP, started and stopped in this order."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import kopf
import structlog

from sharepod_operator import __version__
from sharepod_operator.engine import CACHES, Engine
from sharepod_operator.kube.api import LIST_PAGE
from sharepod_operator.kube.auth import connect
from sharepod_operator.kube.gateway import Gateway
from sharepod_operator.kube.leader import Leader, Terms
from sharepod_operator.kube.transport import Limits
from sharepod_operator.manifest import names
from sharepod_operator.observability.health import Health
from sharepod_operator.observability.http import HttpServer, HttpUnavailable
from sharepod_operator.observability.logging import configure
from sharepod_operator.observability.metrics import Metrics, sample_event_loop_lag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sharepod_operator.settings import Settings

log = structlog.get_logger(__name__)

BLIND_AFTER_INTERVALS = 4
"""Resync intervals without a full list after which the process counts as blind and asks to be restarted."""
GC_THRESHOLD = 50_000
KOPF_IDLE = 0.5
"""Seconds for which Kopf holds on to an object, and to a task for it, after the last that it heard of it."""
GRACE = 10.0
"""Seconds that writes in flight get when the operator stops."""


def collect_garbage_rarely() -> None:
    """Python's collector looks at everything again and again while thousands of records are read that all stay.

    What the program consists of is left out for good, and a collection is due after so many new objects as there are in
    some hundred events instead of in one.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    """Kopf as a mere watcher: no peering, no events, no waiting for ever, and no more objects at a time than it must."""
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.process.ultimate_exiting_timeout = 20
    settings.persistence.finalizer = f"{names.GROUP}/kopf-finalizer"
    settings.persistence.diffbase_storage = _NothingCompared()
    settings.persistence.progress_storage = _NothingRemembered()
    settings.watching.chunk_size = LIST_PAGE  # as one list ten thousand SharePods take 200 MiB for a moment
    settings.queueing.idle_timeout = KOPF_IDLE


class _NothingCompared(kopf.DiffBaseStorage):
    """Kopf copies every object several times to tell handlers what changed; ours don't ask, and it took a fifth of its time."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[kopf.FieldSpec] | None = None) -> kopf.BodyEssence:  # noqa: ARG002
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:  # noqa: ARG002
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is kept on the objects."""


class _NothingRemembered(kopf.ProgressStorage):
    """Handlers that only look have no progress, and looking for it in every object took Kopf a tenth of its time."""

    def fetch(self, *, key: kopf.HandlerId, body: kopf.Body) -> kopf.ProgressRecord | None:  # noqa: ARG002
        return None

    def store(self, *, key: kopf.HandlerId, record: kopf.ProgressRecord, body: kopf.Body, patch: kopf.Patch) -> None:
        """Nothing is kept on the objects."""

    def purge(self, *, key: kopf.HandlerId, body: kopf.Body, patch: kopf.Patch) -> None:
        """Nothing was kept."""

    def touch(self, *, body: kopf.Body, patch: kopf.Patch, value: str | None) -> None:
        """No object is written to be looked at again."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


class Runtime:
    """One running operator process."""

    def __init__(self, settings: Settings, gateway: Gateway, metrics: Metrics) -> None:
        self.settings = settings
        self.failure: BaseException | None = None
        """Why the process ends by itself; None while all is well and after an ordinary stop."""
        self._gateway = gateway
        self._metrics = metrics
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        rng = random.Random()  # noqa: S311  # spreads retries, keeps no secret
        self.health = Health(
            CACHES,
            clock=time.monotonic,
            resync_limit=BLIND_AFTER_INTERVALS * settings.resync_interval,
        )
        self.leader = Leader(
            gateway,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            identity=settings.identity,
            terms=Terms(settings.lease_duration, settings.renew_deadline, settings.retry_period),
            on_started=self._leading,
            on_stopped=self._standing_by,
            rng=rng,
        )
        gateway.use_gate(self.leader.gate)
        self.engine = Engine(
            gateway,
            settings,
            is_leading=self._may_write,
            clock=time.monotonic,
            now=lambda: datetime.now(UTC),
            rng=rng,
            metrics=metrics,
            health=self.health,
        )
        self._http = HttpServer(health=self.health, metrics=metrics, host=settings.http_host, port=settings.http_port)

    @classmethod
    async def start(cls, settings: Settings) -> Runtime:
        """Connect, listen, and begin to work.

        Raises:
            AuthError: no API server is known, or the credentials are of no use.
        """
        configure(settings.log_level, settings.log_format)
        collect_garbage_rarely()
        connection = await connect(kubeconfig=settings.kubeconfig, context=settings.context)
        metrics = Metrics()
        gateway = Gateway(
            connection,
            observe=metrics.api_request,
            user_agent=f"sharepod-operator/{__version__}",
            limits=Limits(writes_in_flight=settings.writes_in_flight),
        )
        runtime = cls(settings, gateway, metrics)
        await runtime._open()
        log.info(
            "Started",
            message=f"sharepod-operator {__version__} on {connection.server} ({connection.source})",
            identity=settings.identity,
            policy=settings.policy,
            schedulers=",".join(settings.scheduler_names),
        )
        return runtime

    async def stop(self) -> None:
        """Decide nothing more, let what is in flight finish, give the Lease back, close everything."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=GRACE + 5)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stack.aclose()
        if self.failure is None:
            freed = self.leader.holder != self.settings.identity
            log.info("Stopped", message="stopped" + ("" if freed else "; the Lease is still ours until it expires"))

    async def kopf_login(self) -> kopf.ConnectionInfo:
        """Credentials for Kopf's own watches."""
        return await self._gateway.connection.kopf_info()

    def observe(self, plural: str, event: Mapping[str, Any]) -> None:
        """One event of a resource that is watched through Kopf."""
        self.engine.observe(plural, event)

    def probe(self) -> str:
        """For Kopf's liveness endpoint.

        Raises:
            RuntimeError: with the sentence that /healthz shows.
        """
        report = self.health.alive()
        if not report.ok:
            raise RuntimeError("; ".join(report.problems))
        return "leading" if report.leading else "standing by"

    async def _open(self) -> None:
        await self._stack.enter_async_context(self._gateway)
        self._task = asyncio.create_task(self._run(), name="sharepod-operator")
        try:
            port = await self._http.start()
        except HttpUnavailable as error:
            log.warning("HttpUnavailable", message=str(error))
        else:
            self._stack.push_async_callback(self._http.stop)
            log.info("Listening", message=f"/healthz, /readyz and /metrics on port {port}", port=port)

    async def _run(self) -> None:
        """Work until stopped; a failure of any part ends the process, since a restart is what can mend it."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(sample_event_loop_lag(self._metrics), name="event loop lag"),
                    group.create_task(self.engine.run(), name="engine"),
                ]
                leader = group.create_task(self.leader.run(), name="leader")
                await self._stopping.wait()
                await self.engine.drain(GRACE)
                for task in (*tasks, leader):
                    task.cancel()
        except Exception as error:
            self.failure = error
            log.exception("Failed", message="the operator ends; its restart goes on from what the API server holds")
            os.kill(os.getpid(), signal.SIGTERM)

    # Leadership

    def _may_write(self) -> bool:
        return self.leader.is_leading and not self._stopping.is_set()

    def _leading(self) -> None:
        self.health.lead(leading=True)
        self.engine.leadership_won()

    def _standing_by(self) -> None:
        self.health.lead(leading=False)
