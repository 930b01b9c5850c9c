"""What Prometheus can ask: counts and durations of what happened, and the state at the moment of the scrape.

Names follow Prometheus' rules: prefix `sharepod_`, base units (seconds, bytes, ratio), `_total` on counters. Outcomes and
reasons are the closed lists of the events and conditions, so a label's values are few. State is read from its owners
when asked (`Sources`), so nothing that is gone leaves a series behind.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.registry import Collector

from sharepod_operator import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sharepod_operator.kube.api import Resource

__all__ = ["CONTENT_TYPE", "AttemptOutcome", "GPUSample", "Metrics", "Sources", "State", "sample_event_loop_lag"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

OTHER = "other"
LABEL_VALUES_LIMIT = 64
"""Distinct values of one label that isn't a name of the cluster (verbs, resources, reasons, codes); the rest is `other`."""
MODEL_LIMIT = 64
"""Characters of a GPU's model, which an administrator may have written by hand."""

_DECISION_BUCKETS = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1.0)
_BIND_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400)
_REQUEST_BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LAG_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


class AttemptOutcome(StrEnum):
    """How one attempt to place a pod ended; `error` is a failure of ours or of the API server, not of the pod."""

    PLACED = "placed"
    UNSCHEDULABLE = "unschedulable"
    INVALID = "invalid"
    ERROR = "error"


class GPUSample(NamedTuple):
    """One physical GPU as the ledger has it: share in milli, memory in bytes."""

    node: str
    uuid: str
    model: str
    allocated_milli: int
    allocated_memory: int
    memory: int


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the state of a scrape comes from. Each is called on the event loop, must be quick, and must not await."""

    gpus: Callable[[], Iterable[GPUSample]] = tuple
    ports_used: Callable[[], Mapping[str, int]] = dict
    """Pod-manager ports in use, by node."""
    pending_pods: Callable[[], Mapping[str, int]] = dict
    """Unbound pods of ours by the reason's word."""
    queue_depths: Callable[[], Mapping[str, int]] = dict
    """Pods by the queue that they are in, such as `ready` and `waiting`."""
    sharepods: Callable[[], Mapping[str, int]] = dict
    """SharePods by the reason of their condition Ready."""
    leading: Callable[[], bool] = bool
    resync_age: Callable[[], float | None] = lambda: None
    """Seconds since the oldest of the caches was last compared with a full list; None before the first time."""
    dropped_events: Callable[[], int] = int
    """Kubernetes Events given up since the process started."""


@dataclass(frozen=True, slots=True)
class State:
    """What `Sources` said at one moment; a source that failed has left its part empty."""

    gpus: tuple[GPUSample, ...] = ()
    ports_used: Mapping[str, int] = field(default_factory=dict)
    pending_pods: Mapping[str, int] = field(default_factory=dict)
    queue_depths: Mapping[str, int] = field(default_factory=dict)
    sharepods: Mapping[str, int] = field(default_factory=dict)
    leading: bool = False
    resync_age: float | None = None
    dropped_events: int = 0


class Metrics:
    """All metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` gauge beside each counter doubles the series and helps nobody here
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._sources = Sources()
        self._failed: set[str] = set()
        self._labels = _BoundedLabels()
        build = Gauge("sharepod_build_info", "The operator's version; the value is 1.", ["version"], registry=registry)
        build.labels(__version__).set(1)
        self._attempts = Counter(
            "sharepod_scheduling_attempts", "Attempts to place a pod, by outcome.", ["outcome"], registry=registry
        )
        for outcome in AttemptOutcome:
            self._attempts.labels(outcome)
        self._preemptions = Counter(
            "sharepod_preemption_attempts",
            "Decisions that made pods leave for a more important one.",
            registry=registry,
        )
        self._victims = Counter(
            "sharepod_preemption_victims", "Pods that were told to leave for a more important one.", registry=registry
        )
        self._refusals = Counter(
            "sharepod_scheduling_refusals",
            "Attempts that found no place, once for each reason that any node or GPU gave.",
            ["reason"],
            registry=registry,
        )
        self._decision = Histogram(
            "sharepod_scheduling_decision_duration_seconds",
            "Time of one decision of the scheduling cycle, without any API call.",
            registry=registry,
            buckets=_DECISION_BUCKETS,
        )
        self._bind = Histogram(
            "sharepod_pod_bind_duration_seconds",
            "From when a waiting Pod was first seen until it was bound.",
            registry=registry,
            buckets=_BIND_BUCKETS,
        )
        self._requests = Counter(
            "sharepod_api_requests",
            "Requests to the API server by HTTP status; code 0 is no answer. What was not sent is not counted.",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self._request_time = Histogram(
            "sharepod_api_request_duration_seconds",
            "Time until the API server answered, watches left out.",
            ["verb", "resource"],
            registry=registry,
            buckets=_REQUEST_BUCKETS,
        )
        self._watch_events = Counter(
            "sharepod_watch_events",
            "Objects received by watches and, as type LISTED, by lists of watchers.",
            ["resource", "type"],
            registry=registry,
        )
        self._lag = Histogram(
            "sharepod_event_loop_lag_seconds",
            "How late a timer of the event loop was; high values mean that something blocks the loop.",
            registry=registry,
            buckets=_LAG_BUCKETS,
        )

    def preempted(self, victims: int) -> None:
        """A decision made room for a pod; `victims` were told to leave for it."""
        self._preemptions.inc()
        self._victims.inc(victims)

    def attempt(self, outcome: AttemptOutcome, seconds: float | None = None) -> None:
        """Counts one attempt, and its decision's time where a decision was made."""
        self._attempts.labels(outcome).inc()
        if seconds is not None:
            self._decision.observe(seconds)

    def refused(self, reasons: Iterable[str]) -> None:
        """Counts one attempt that found no place under each of these words of `core.reasons`."""
        for reason in reasons:
            self._refusals.labels(self._labels("refusal", reason)).inc()

    def bound(self, seconds: float) -> None:
        """A Pod was bound this long after it was first seen waiting."""
        self._bind.observe(max(0.0, seconds))

    def api_request(self, verb: str, resource: Resource, code: int, seconds: float) -> None:
        """The gateway's `observe`: one answer, or code 0 for none. How long a watch stayed open is no measure of speed."""
        known = self._labels
        verb, name = known("verb", verb), known("resource", str(resource))
        self._requests.labels(verb, name, known("code", str(code))).inc()
        if verb != "watch":
            self._request_time.labels(verb, name).observe(seconds)

    def watch_event(self, resource: str, kind: str, number: int = 1) -> None:
        """Events of a watch, by resource (`pods`) and type; an object that a list brought has type `LISTED`."""
        self._watch_events.labels(self._labels("resource", resource), self._labels("type", kind)).inc(number)

    def event_loop_lag(self, seconds: float) -> None:
        """One sample of how late a timer was."""
        self._lag.observe(max(0.0, seconds))

    def connect(self, sources: Sources) -> None:
        """From now on the state comes from these."""
        self._sources = sources

    def state(self) -> State:
        """Asks every source; to be called on the event loop. A source that raises is left out, and that is logged once."""
        ask = self._sources
        return State(
            gpus=self._ask("gpus", lambda: tuple(ask.gpus()), ()),
            ports_used=self._ask("ports_used", lambda: dict(ask.ports_used()), {}),
            pending_pods=self._ask("pending_pods", lambda: dict(ask.pending_pods()), {}),
            queue_depths=self._ask("queue_depths", lambda: dict(ask.queue_depths()), {}),
            sharepods=self._ask("sharepods", lambda: dict(ask.sharepods()), {}),
            leading=self._ask("leading", ask.leading, default=False),
            resync_age=self._ask("resync_age", ask.resync_age, None),
            dropped_events=self._ask("dropped_events", ask.dropped_events, 0),
        )

    def render(self, state: State) -> bytes:
        """Everything in Prometheus' text format 0.0.4. Touches no state but its own, so a thread may do it."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_StateCollector(state, self._labels))
        return generate_latest(self._registry) + generate_latest(registry)

    def _ask(self, name: str, source: Callable[[], T], default: T) -> T:
        try:
            return source()
        except Exception:  # noqa: BLE001  # a broken gauge must not take the counters with it; it is logged once
            if name not in self._failed:
                self._failed.add(name)
                _log.exception("Metrics can't be read from %s; they are left out of scrapes while that lasts", name)
            return default


class _BoundedLabels:
    """Lets through the first values of each label, and calls the rest `other`, so that no input can make series without end."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}

    def __call__(self, label: str, value: str) -> str:
        seen = self._seen.setdefault(label, set())
        if value in seen:
            return value
        if len(seen) >= LABEL_VALUES_LIMIT or not (value.isascii() and value.isprintable() and 0 < len(value) <= 64):
            return OTHER
        seen.add(value)
        return value


class _StateCollector(Collector):
    """One scrape's gauges. GPU and node labels are as many as the cluster has of them, and go with them."""

    def __init__(self, state: State, labels: _BoundedLabels) -> None:
        self._state = state
        self._labels = labels

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        yield from self._gpus()
        state = self._state
        yield self._by("sharepod_node_ports_used", "Pod-manager ports in use on the node.", "node", state.ports_used)
        yield self._few("sharepod_pending_pods", "Pods that wait for a node, by reason.", "reason", state.pending_pods)
        yield self._few("sharepod_queue_depth", "Pods in the scheduling queue.", "queue", state.queue_depths)
        yield self._few(
            "sharepod_sharepods", "SharePods by the reason of their Ready condition.", "reason", state.sharepods
        )
        yield GaugeMetricFamily(
            "sharepod_leader", "1 where this process leads, 0 where it is a standby.", value=float(state.leading)
        )
        if state.resync_age is not None:
            yield GaugeMetricFamily(
                "sharepod_resync_age_seconds",
                "Time since the oldest of the caches was last compared with a full list.",
                value=state.resync_age,
            )
        yield CounterMetricFamily(
            "sharepod_dropped_events", "Kubernetes Events given up by the recorder.", value=state.dropped_events
        )

    def _gpus(self) -> Iterator[GaugeMetricFamily]:
        labels = ("node", "gpu_uuid", "model")
        share = GaugeMetricFamily(
            "sharepod_gpu_allocated_ratio", "Part of the GPU's compute that is promised to pods, 0 to 1.", labels=labels
        )
        memory = GaugeMetricFamily(
            "sharepod_gpu_allocated_memory_bytes", "GPU memory that is promised to pods.", labels=labels
        )
        size = GaugeMetricFamily("sharepod_gpu_memory_bytes", "GPU memory that the card has.", labels=labels)
        for gpu in self._state.gpus:
            values = (gpu.node, gpu.uuid, gpu.model[:MODEL_LIMIT])
            share.add_metric(values, gpu.allocated_milli / 1000)
            memory.add_metric(values, gpu.allocated_memory)
            size.add_metric(values, gpu.memory)
        yield from (share, memory, size)

    def _few(self, name: str, text: str, label: str, counts: Mapping[str, int]) -> GaugeMetricFamily:
        known: dict[str, int] = {}
        for word, count in counts.items():
            word_or_other = self._labels(label, word)
            known[word_or_other] = known.get(word_or_other, 0) + count
        return self._by(name, text, label, known)

    @staticmethod
    def _by(name: str, text: str, label: str, counts: Mapping[str, int]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=(label,))
        for value, count in sorted(counts.items()):
            family.add_metric((value,), count)
        return family


async def sample_event_loop_lag(metrics: Metrics, *, interval: float = 0.5) -> None:
    """Measures, until cancelled, by how much the loop is late; one sample each `interval` seconds."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval
        await asyncio.sleep(interval)
        metrics.event_loop_lag(loop.time() - due)
