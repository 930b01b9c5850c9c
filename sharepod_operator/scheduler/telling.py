"""What the scheduler tells the outside about what it did: metrics, events, and one log line per placement."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Self

import structlog

from sharepod_operator.core.quantity import format_bytes, format_milli
from sharepod_operator.core.reasons import message
from sharepod_operator.kube.recorder import EventType
from sharepod_operator.scheduler.reporter import pod_reference

if TYPE_CHECKING:
    from sharepod_operator.core.model import Assigned, Unschedulable
    from sharepod_operator.kube.recorder import Recorder
    from sharepod_operator.manifest.records import PodRecord
    from sharepod_operator.observability.metrics import AttemptOutcome, Metrics

log = structlog.get_logger(__name__)


WORDS_KEPT = 16


@dataclass(frozen=True, slots=True)
class _Words:
    """What is said of a refusal: a thousand equal pods share it, and it names every GPU of the cluster."""

    refused: Unschedulable
    text: str
    reasons: frozenset[str]

    @classmethod
    def of(cls, refused: Unschedulable, *, gpu: bool) -> Self:
        reason = attrgetter("reason")
        reasons = frozenset({*map(reason, refused.nodes.values()), *map(reason, refused.devices.values())})
        return cls(refused, message(refused, gpu=gpu), reasons)


class Telling:
    """The scheduler's observer in a running operator."""

    def __init__(self, metrics: Metrics, recorder: Recorder) -> None:
        self._metrics = metrics
        self._recorder = recorder
        self._words: dict[int, _Words] = {}

    def attempted(self, outcome: AttemptOutcome, seconds: float | None) -> None:
        """One decision was made, or failed before it was one."""
        self._metrics.attempt(outcome, seconds)

    def refused(self, refused: Unschedulable, *, gpu: bool) -> str:
        """A pod found no place: each reason counts once, however many nodes and GPUs gave it. Returns the sentence for it."""
        words = self._words.get(id(refused))
        if words is None or words.refused is not refused:
            words = self._words[id(refused)] = _Words.of(refused, gpu=gpu)
            if len(self._words) > WORDS_KEPT:
                del self._words[next(iter(self._words))]
        self._metrics.refused(words.reasons)
        return words.text

    def bound(self, record: PodRecord, assigned: Assigned, seconds: float) -> None:
        """The pod is bound: once in the log, once as an event named after the pod, so that no restart doubles it."""
        self._metrics.bound(seconds)
        text = placement_text(record, assigned)
        log.info("Scheduled", message=text, pod=record.key, node=assigned.node)
        self._recorder.emit(
            pod_reference(record), EventType.NORMAL, "Scheduled", text, action="Binding", once=(record.uid,)
        )

    def bind_failed(self, record: PodRecord, message: str) -> None:
        """The API server refused the Binding for a reason that the user should see."""
        self._recorder.emit(pod_reference(record), EventType.WARNING, "FailedScheduling", message, action="Binding")

    def preempting(self, record: PodRecord, text: str, victims: int) -> None:
        """Pods are made to leave for this one."""
        self._metrics.preempted(victims)
        log.info("Preempting", message=f"{record.key}: {text}", pod=record.key, victims=victims)
        self._recorder.emit(pod_reference(record), EventType.NORMAL, "WaitingForVictims", text, action="Preempting")

    def stuck(self, record: PodRecord) -> None:
        """A pod does not end: what it holds is neither free nor promised until it does."""
        text = f"{record.key} on node {record.node} should have ended minutes ago: nobody waits for its room any more"
        log.warning("VictimStuck", message=text, pod=record.key, node=record.node)
        self._recorder.emit(pod_reference(record), EventType.WARNING, "VictimStuck", text, action="Preempting")


def placement_text(record: PodRecord, assigned: Assigned) -> str:
    """`Assigned ml/bert to GPU-604ac76c on node gpu-a (request 0.500, memory 10Gi, port 50051)`."""
    allocation = assigned.allocation
    if allocation is None:
        return f"Assigned {record.key} to node {assigned.node}"
    first = allocation.charges[0]
    memory = ", ".join(dict.fromkeys(format_bytes(charge.memory) for charge in allocation.charges))
    amounts = f"request {format_milli(first.milli)}, memory {memory}, port {allocation.port}"
    return f"Assigned {record.key} to {', '.join(allocation.uuids)} on node {assigned.node} ({amounts})"
