"""What a scrape of the operator's metrics brings, read as Prometheus reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from sharepod_operator.kube.api import PODS
from sharepod_operator.observability.metrics import AttemptOutcome, GPUSample, Metrics, Sources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client.metrics_core import Metric

GPU = GPUSample("gpu-a", "GPU-604ac76c", "A100", 500, 10 << 30, 40 << 30)
GPU_LABELS = {"node": "gpu-a", "gpu_uuid": "GPU-604ac76c", "model": "A100"}


def families(metrics: Metrics) -> dict[str, Metric]:
    text = metrics.render(metrics.state()).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(metrics: Metrics, name: str, labels: Mapping[str, str] | None = None) -> float | None:
    for family in families(metrics).values():
        for sample in family.samples:
            if sample.name == name and sample.labels == (labels or {}):
                return sample.value
    return None


def everything() -> Metrics:
    """Metrics with every series that there can be."""
    metrics = Metrics()
    metrics.connect(
        Sources(
            gpus=lambda: [GPU],
            ports_used=lambda: {"gpu-a": 3},
            pending_pods=lambda: {"InsufficientShare": 2},
            queue_depths=lambda: {"ready": 1, "waiting": 2},
            sharepods=lambda: {"AllReplicasReady": 4},
            leading=lambda: True,
            resync_age=lambda: 12.5,
            dropped_events=lambda: 7,
        )
    )
    metrics.attempt(AttemptOutcome.PLACED, 60e-6)
    metrics.refused({"InsufficientShare", "NotReady"})
    metrics.bound(1.5)
    metrics.api_request("create", PODS, 201, 0.02)
    metrics.watch_event("pods", "ADDED")
    metrics.watch_event("pods", "LISTED", 5)
    metrics.event_loop_lag(0.002)
    return metrics
