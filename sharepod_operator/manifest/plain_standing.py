"""What a scenario in the plain form says of who may be evicted for whom: priorities, labels, starts, and budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sharepod_operator.core.model import Pod, Shape
from sharepod_operator.core.quantity import shown
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import path
from sharepod_operator.manifest.disruption import BudgetRecord
from sharepod_operator.manifest.records import PodRecord
from sharepod_operator.manifest.strict import (
    ScenarioError,
    check_keys,
    flag_at,
    integer_at,
    name_at,
    object_at,
    objects,
    refuse_twice,
    strings_at,
    text_at,
)

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

STANDING_KEYS = (
    "name",
    "namespace",
    "priority",
    "preemptionPolicy",
    "labels",
    "startTime",
    "terminating",
    "disruptionTarget",
    "protected",
    "nominatedNode",
)
_BUDGET_KEYS = ("name", "namespace", "matchLabels", "disruptionsAllowed", "disruptedPods")
_POLICIES = ("PreemptLowerPriority", "Never")
_LAST_SECOND = 253402300799
"""9999-12-31T23:59:59Z, the last that RFC 3339 can say."""


def read_standing(pod: Json, where: str) -> PodRecord:
    """The record of a pod with what preemption asks of it, and no more: amounts and node are read elsewhere.

    Raises:
        ScenarioError: a field is wrong.
    """
    namespace, name = text_at(pod, "namespace", where, "default"), name_at(pod, where)
    policy = text_at(pod, "preemptionPolicy", where, _POLICIES[0])
    if policy not in _POLICIES:
        raise ScenarioError(f"{where}.preemptionPolicy is {shown(policy)}; it must be one of {', '.join(_POLICIES)}")
    key = f"{namespace}/{name}"
    return PodRecord(
        uid=key,
        namespace=namespace,
        name=name,
        version=0,
        pod=Pod(key, namespace, name, Shape(), integer_at(pod, "priority", where, 0)),
        never_preempts=policy == "Never",
        labels=strings_at(pod, "labels", where),
        start_time=_start(pod, where),
        deleting=flag_at(pod, "terminating", where, default=False),
        disrupted=_is_disrupted(pod, where),
        protected=flag_at(pod, "protected", where, default=False),
        nominated=text_at(pod, "nominatedNode", where),
    )


def read_plain_budgets(body: Json) -> list[BudgetRecord]:
    """The podDisruptionBudgets.

    Raises:
        ScenarioError: a field is wrong, or one stands there twice.
    """
    budgets = [_budget(budget, where) for budget, where in objects(body, "podDisruptionBudgets", "")]
    refuse_twice("podDisruptionBudgets", (budget.key for budget in budgets), "budget")
    return budgets


def _budget(body: Json, where: str) -> BudgetRecord:
    check_keys(body, _BUDGET_KEYS, where)
    namespace, name = text_at(body, "namespace", where, "default"), name_at(body, where)
    labels = dict(strings_at(body, "matchLabels", where))
    return BudgetRecord(
        uid=f"{namespace}/{name}",
        namespace=namespace,
        name=name,
        version=0,
        selector={"matchLabels": labels} if labels else {},
        allowed=integer_at(body, "disruptionsAllowed", where, 0),
        disrupted=_disrupted_pods(body, where),
    )


def _disrupted_pods(body: Json, where: str) -> frozenset[str]:
    """Names of pods: a list of them, or the map from name to time that Kubernetes keeps."""
    written = body.get("disruptedPods")
    if not isinstance(written, list):
        return frozenset(object_at(body, "disruptedPods", where))
    for index, name in enumerate(written):
        if not isinstance(name, str):
            raise ScenarioError(f"{where}.disruptedPods[{index}] is {shown(name)}; it must be the name of a pod")
    return frozenset(written)


def _start(pod: Json, where: str) -> str:
    """status.startTime in RFC 3339; seconds of the Unix epoch will do as well. "" where it isn't known."""
    written, here = pod.get("startTime"), path(where, "startTime")
    wrong = f"{here} is {shown(written)}; it must be a time such as 2026-01-31T12:00:00Z"
    if written is None:
        return ""
    if isinstance(written, int) and not isinstance(written, bool) and 0 <= written <= _LAST_SECOND:
        return datetime.fromtimestamp(written, UTC).isoformat()
    try:
        started = datetime.fromisoformat(written)
    except (TypeError, ValueError):
        raise ScenarioError(wrong) from None
    if started.tzinfo is None:
        raise ScenarioError(f"{wrong}, with its time zone")
    return str(written)


def _is_disrupted(pod: Json, where: str) -> bool:
    """Whether it has the condition DisruptionTarget of a scheduler: true, or the condition's reason."""
    written = pod.get("disruptionTarget")
    return (
        written == names.BY_SCHEDULER
        if isinstance(written, str)
        else flag_at(pod, "disruptionTarget", where, default=False)
    )
