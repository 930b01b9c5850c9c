"""The exposition that Prometheus reads, and the naming rules that dashboards rely on."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from sharepod_operator import __version__
from sharepod_operator.kube.api import PODS, SHAREPODS
from sharepod_operator.observability.metrics import (
    LABEL_VALUES_LIMIT,
    AttemptOutcome,
    Metrics,
    Sources,
    sample_event_loop_lag,
)
from tests.support.exposition import GPU, GPU_LABELS, everything, families, value

if TYPE_CHECKING:
    import pytest


def test_state_is_what_the_sources_say() -> None:
    """Gauges hold the sources' answers in base units: a share of 500 milli is 0.5."""
    metrics = everything()
    assert 0.5 == value(metrics, "sharepod_gpu_allocated_ratio", GPU_LABELS)
    assert 10 << 30 == value(metrics, "sharepod_gpu_allocated_memory_bytes", GPU_LABELS)
    assert 40 << 30 == value(metrics, "sharepod_gpu_memory_bytes", GPU_LABELS)
    assert 3 == value(metrics, "sharepod_node_ports_used", {"node": "gpu-a"})
    assert 2 == value(metrics, "sharepod_pending_pods", {"reason": "InsufficientShare"})
    assert 1 == value(metrics, "sharepod_queue_depth", {"queue": "ready"})
    assert 4 == value(metrics, "sharepod_sharepods", {"reason": "AllReplicasReady"})
    assert 1 == value(metrics, "sharepod_leader")
    assert 12.5 == value(metrics, "sharepod_resync_age_seconds")
    assert 7 == value(metrics, "sharepod_dropped_events_total")


def test_counts_and_durations() -> None:
    """What happened is counted by its labels, and its time goes into the histogram of the right scale."""
    metrics = everything()
    metrics.attempt(AttemptOutcome.INVALID)
    metrics.bound(-3)
    metrics.api_request("patch_status", SHAREPODS, 0, 30)
    assert 1 == value(metrics, "sharepod_scheduling_attempts_total", {"outcome": "placed"})
    assert 1 == value(metrics, "sharepod_scheduling_attempts_total", {"outcome": "invalid"})
    assert 0 == value(metrics, "sharepod_scheduling_attempts_total", {"outcome": "error"})
    assert 1 == value(metrics, "sharepod_scheduling_refusals_total", {"reason": "InsufficientShare"})
    assert 1 == value(metrics, "sharepod_scheduling_decision_duration_seconds_count")
    assert 0 == value(metrics, "sharepod_scheduling_decision_duration_seconds_bucket", {"le": "5e-05"})
    assert 1 == value(metrics, "sharepod_scheduling_decision_duration_seconds_bucket", {"le": "0.0001"})
    assert (2, 1.5) == (
        value(metrics, "sharepod_pod_bind_duration_seconds_count"),
        value(metrics, "sharepod_pod_bind_duration_seconds_sum"),
    )
    labels = {"verb": "create", "resource": "pods", "code": "201"}
    assert 1 == value(metrics, "sharepod_api_requests_total", labels)
    labels = {"verb": "patch_status", "resource": "sharepods.faasshare.tum", "code": "0"}
    assert 1 == value(metrics, "sharepod_api_requests_total", labels)
    assert 1 == value(metrics, "sharepod_watch_events_total", {"resource": "pods", "type": "ADDED"})
    assert 5 == value(metrics, "sharepod_watch_events_total", {"resource": "pods", "type": "LISTED"})
    assert 1 == value(metrics, "sharepod_build_info", {"version": __version__})


def test_a_watch_is_counted_and_not_timed() -> None:
    """It stays open for minutes on purpose, which says nothing about how fast the API server answers."""
    metrics = Metrics()
    metrics.api_request("watch", PODS, 200, 300.0)
    metrics.api_request("list", PODS, 200, 0.1)
    for verb in ("watch", "list"):
        assert 1 == value(metrics, "sharepod_api_requests_total", {"verb": verb, "resource": "pods", "code": "200"})
    name = "sharepod_api_request_duration_seconds_count"
    assert 1 == value(metrics, name, {"verb": "list", "resource": "pods"})
    assert None is value(metrics, name, {"verb": "watch", "resource": "pods"})


def test_what_is_gone_leaves_no_series() -> None:
    """A GPU, node or reason that the sources no longer name is no longer exposed."""
    metrics = everything()
    metrics.connect(Sources())
    assert None is value(metrics, "sharepod_gpu_memory_bytes", GPU_LABELS)
    assert None is value(metrics, "sharepod_node_ports_used", {"node": "gpu-a"})
    assert None is value(metrics, "sharepod_pending_pods", {"reason": "InsufficientShare"})
    assert None is value(metrics, "sharepod_resync_age_seconds")
    assert 0 == value(metrics, "sharepod_leader")


def test_names_follow_prometheus_rules() -> None:
    """Prefix, help, base units, `_total` on counters alone, no reserved or redundant words, one kind per name."""
    units = {"seconds", "bytes", "ratio"}
    wrong = re.compile(
        r"(milli|micro|nano|kilo|mega|giga|_ms\b|_mib|_gib|percent|minutes|hours|_info_|gauge|counter|histogram)"
    )
    ours = {name: family for name, family in families(everything()).items() if not name.startswith("process_")}
    assert 19 <= len(ours)
    for name, family in ours.items():
        assert re.fullmatch(r"sharepod_[a-z0-9]+(_[a-z0-9]+)*", name)
        assert not wrong.search(name), name
        assert family.documentation.endswith("."), name
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_created")), name
        if family.type == "counter":
            assert all(sample.name == f"{name}_total" for sample in family.samples), name
        if family.type == "histogram" or "duration" in name or "age" in name.split("_") or "lag" in name:
            assert name.endswith("_seconds"), name
        if "memory" in name:
            assert name.endswith("_bytes"), name
        assert not (units & set(name.split("_")[:-1])), f"{name}: a unit stands at the end"
        for sample in family.samples:
            assert all(re.fullmatch(r"[a-z_]+", label) for label in sample.labels), name
            assert sample.value >= 0


def test_labels_stay_few() -> None:
    """Values without end, or with anything but plain text in them, become `other`; sums stay right."""
    metrics = Metrics()
    reasons = {f"Reason{number}": 1 for number in range(1000)} | {"two\nlines": 1, "x" * 200: 1, "": 1}
    metrics.connect(Sources(pending_pods=lambda: reasons, gpus=lambda: [GPU._replace(model="m" * 5000)]))
    for number in range(1000):
        metrics.api_request(f"verb{number}", PODS, number, 0.1)
    exposed = families(metrics)
    pending = exposed["sharepod_pending_pods"].samples
    assert (LABEL_VALUES_LIMIT + 1, 1003) == (len(pending), sum(sample.value for sample in pending))
    requests = exposed["sharepod_api_requests"].samples
    assert len(requests) <= LABEL_VALUES_LIMIT + 1
    assert 1000 == sum(sample.value for sample in requests)
    assert 64 == len(exposed["sharepod_gpu_memory_bytes"].samples[0].labels["model"])


def test_odd_label_text_is_escaped() -> None:
    """Quotes, backslashes and line breaks of a model's name can't break the exposition."""
    metrics = Metrics()
    model = 'A"1\\0\n0'
    metrics.connect(Sources(gpus=lambda: [GPU._replace(model=model)]))
    assert model == families(metrics)["sharepod_gpu_memory_bytes"].samples[0].labels["model"]


def test_failing_source_costs_only_its_own_part(caplog: pytest.LogCaptureFixture) -> None:
    """A bug behind one gauge leaves the rest of the scrape alone, and is logged once, not with each scrape."""

    def broken() -> dict[str, int]:
        raise LookupError("nothing there")

    metrics = Metrics()
    metrics.connect(Sources(sharepods=broken, gpus=lambda: [GPU]))
    for _ in range(3):
        assert 0.5 == value(metrics, "sharepod_gpu_allocated_ratio", GPU_LABELS)
    assert ["Metrics can't be read from sharepods; they are left out of scrapes while that lasts"] == [
        record.getMessage() for record in caplog.records
    ]


def test_two_instances_share_nothing() -> None:
    """Each has its own registry, so tests and two operators in one process don't disturb each other."""
    first, second = everything(), Metrics()
    assert 1 == value(first, "sharepod_scheduling_attempts_total", {"outcome": "placed"})
    assert 0 == value(second, "sharepod_scheduling_attempts_total", {"outcome": "placed"})


async def test_lag_sampler_measures_until_cancelled() -> None:
    """The sampler takes one sample per interval and ends with its task group."""
    metrics = Metrics()
    name = "sharepod_event_loop_lag_seconds_count"
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        task = group.create_task(sample_event_loop_lag(metrics, interval=0.001))
        while (value(metrics, name) or 0) < 3:  # noqa: ASYNC110  # the sampler tells nobody else
            await asyncio.sleep(0.001)
        task.cancel()
    assert task.cancelled()
