"""From Pods and PodDisruptionBudgets to what preemption asks of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from sharepod_operator.core.occupancy import NOW, Occupant
from sharepod_operator.manifest.access import integer, mapping, text, version
from sharepod_operator.manifest.selector import matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sharepod_operator.manifest.records import Json, PodRecord


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """A PodDisruptionBudget as the cache keeps it."""

    uid: str
    namespace: str
    name: str
    version: int
    selector: Json
    allowed: int
    """status.disruptionsAllowed."""
    disrupted: frozenset[str]
    """Names of pods that are about to go and are reckoned with already."""

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    def counts(self, pod: PodRecord) -> bool:
        """Whether the pod's end would use one of its disruptions. As in kube-scheduler, an empty selector takes nobody here,
        and neither is a pod without labels taken.
        """
        return (
            pod.namespace == self.namespace
            and bool(self.selector)
            and bool(pod.labels)
            and pod.name not in self.disrupted
            and matches(self.selector, dict(pod.labels))
        )


def read_budget(obj: Json) -> BudgetRecord:
    """The record of a PodDisruptionBudget. Never raises: what can't be read allows nothing."""
    body = mapping(obj)
    metadata, spec, status = mapping(body.get("metadata")), mapping(body.get("spec")), mapping(body.get("status"))
    selector = mapping(spec.get("selector"))
    return BudgetRecord(
        uid=text(metadata.get("uid")),
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        version=version(metadata),
        selector=selector if selector.get("matchLabels") or selector.get("matchExpressions") else {},
        allowed=integer(status.get("disruptionsAllowed")),
        disrupted=frozenset(mapping(status.get("disruptedPods"))),
    )


def read_occupant(record: PodRecord, budgets: Iterable[BudgetRecord]) -> Occupant:
    """The pod as preemption judges it. Whether it is stuck, or leaves for a pod that was promised its room, isn't on it."""
    return Occupant(
        record.uid or record.key,
        record.key,
        record.pod.priority,
        start_seconds(record.start_time),
        protected=record.protected,
        leaving=record.deleting,
        budgets=tuple(sorted(budget.key for budget in budgets if budget.counts(record))),
    )


@lru_cache(maxsize=4096)
def start_seconds(written: str) -> int:
    """An RFC 3339 time in seconds of the Unix epoch; NOW where there is none."""
    try:
        return int(datetime.fromisoformat(written).timestamp())
    except ValueError:
        return NOW
