"""What a real API server checks and fills in per kind, as far as the operator can notice it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharepod_operator.kube.api import (
    CONFIG_MAPS,
    CRDS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PDBS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    PRIORITY_CLASSES,
    SHAREPODS,
    STORAGE_CLASSES,
    Json,
    Resource,
)
from sharepod_operator.kube.errors import Forbidden, Invalid

if TYPE_CHECKING:
    from collections.abc import Callable

RESOURCES = (
    PODS,
    NODES,
    NAMESPACES,
    CONFIG_MAPS,
    PERSISTENT_VOLUMES,
    PERSISTENT_VOLUME_CLAIMS,
    STORAGE_CLASSES,
    PRIORITY_CLASSES,
    PDBS,
    EVENTS,
    LEASES,
    CRDS,
    SHAREPODS,
)
BY_KIND = {(resource.api_version, resource.kind): resource for resource in RESOURCES}
WITH_STATUS = frozenset({PODS, NODES, PDBS, SHAREPODS, NAMESPACES, PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, CRDS})
"""Resources whose status only the subresource writes."""
STATUS_DROPPED_ON_CREATE = frozenset({PODS, SHAREPODS, PDBS})
CUSTOM = frozenset({SHAREPODS})
FINAL_PHASES = frozenset({"Succeeded", "Failed"})
_EVENT_FROZEN = ("note", "reason", "type", "action", "related", "regarding", "eventTime", "reportingController")


def invalid(resource: Resource, name: str, field: str, message: str) -> Invalid:
    """A 422 in the server's own words, with its cause."""
    return Invalid(
        f'{resource.kind} "{name}" is invalid: {field}: {message}',
        status=422,
        reason="Invalid",
        details={"name": name, "kind": resource.kind, "causes": [{"field": field, "message": message}]},
    )


def admit_create(resource: Resource, body: Json, find: Callable[[Resource, str], Json | None]) -> None:
    """Fills in what admission and defaulting fill in, and raises what validation refuses."""
    if resource in STATUS_DROPPED_ON_CREATE:
        body.pop("status", None)
    if resource == PODS:
        _admit_pod(body, find)
    elif resource == EVENTS:
        check_event(body)
    elif resource == SHAREPODS:
        body.setdefault("spec", {}).setdefault("replicas", 1)
    if "spec" in body:
        body["metadata"]["generation"] = 1


def _admit_pod(body: Json, find: Callable[[Resource, str], Json | None]) -> None:
    name, spec = body["metadata"]["name"], body.setdefault("spec", {})
    if not spec.get("containers"):
        raise invalid(PODS, name, "spec.containers", "Required value")
    for index, container in enumerate(spec["containers"]):
        for field in ("name", "image"):
            if not container.get(field):
                raise invalid(PODS, name, f"spec.containers[{index}].{field}", "Required value")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    class_name = spec.get("priorityClassName")
    priority: Json = {}
    if class_name:
        found = find(PRIORITY_CLASSES, class_name)
        if found is None:
            raise Forbidden(
                f'pods "{name}" is forbidden: no PriorityClass with name {class_name} was found',
                status=403,
                reason="Forbidden",
                details={"name": name, "kind": "pods"},
            )
        priority = found
    spec["priority"] = priority.get("value", 0)
    spec.setdefault("preemptionPolicy", priority.get("preemptionPolicy", "PreemptLowerPriority"))
    body["status"] = {"phase": "Pending"}


def check_event(body: Json) -> None:
    """The rules of events.k8s.io/v1 that a recorder can trip over."""
    name, metadata = body["metadata"]["name"], body["metadata"]
    for field, most in (("note", 1024), ("reason", 128), ("action", 128), ("reportingInstance", 128)):
        value = body.get(field) or ""
        if field != "note" and not value:
            raise invalid(EVENTS, name, field, "Required value")
        if len(value.encode()) > most:
            raise invalid(EVENTS, name, field, f"can have at most {most} characters")
    if body.get("type") not in {"Normal", "Warning"}:
        raise invalid(EVENTS, name, "type", "has invalid value")
    if not str(body.get("eventTime", "")).endswith("Z"):
        raise invalid(EVENTS, name, "eventTime", "Required value")
    if "/" not in body.get("reportingController", ""):
        raise invalid(EVENTS, name, "reportingController", "must be a qualified name")
    wanted = (body.get("regarding") or {}).get("namespace") or "default"
    if metadata.get("namespace") != wanted:
        raise invalid(EVENTS, name, "regarding.namespace", "does not match event.namespace")


def admit_change(resource: Resource, before: Json, after: Json, subresource: str | None) -> Json:
    """The object that a write of `after` leaves, with what this endpoint ignores put back; raises on a frozen field."""
    name = before["metadata"]["name"]
    metadata = before["metadata"] if subresource == "status" and resource in CUSTOM else after["metadata"]
    if subresource == "status":
        after = {**before, "status": after.get("status", {})}
    elif resource in WITH_STATUS:
        after = {**after, "status": before["status"]} if "status" in before else _without(after, "status")
    after["metadata"] = _kept_metadata(resource, before["metadata"], metadata)
    if resource == PODS:
        _check_pod(before, after, name)
    elif resource == EVENTS:
        _check_event_change(before, after, name)
    if after.get("spec") != before.get("spec") and "generation" in before["metadata"]:
        after["metadata"]["generation"] += 1
    return after


def _kept_metadata(resource: Resource, before: Json, after: Json) -> Json:
    """The metadata wanted, with what only the server sets as it was."""
    for frozen in ("uid", "name", "namespace"):
        if after.get(frozen, before.get(frozen)) != before.get(frozen):
            raise invalid(resource, before["name"], f"metadata.{frozen}", "field is immutable")
    by_server = (
        "uid",
        "name",
        "namespace",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    )
    own = {key: value for key, value in after.items() if key not in by_server}
    return own | {key: before[key] for key in by_server if key in before}


def _check_event_change(before: Json, after: Json, name: str) -> None:
    for field in _EVENT_FROZEN:
        if after.get(field) != before.get(field):
            raise invalid(EVENTS, name, field, "field is immutable")
    if "series" in after and after["series"].get("count", 0) < 2:
        raise invalid(EVENTS, name, "series.count", "should be at least 2")


def _check_pod(before: Json, after: Json, name: str) -> None:
    nominated = after.get("status", {}).get("nominatedNodeName")
    changed = nominated != before.get("status", {}).get("nominatedNodeName")
    if nominated and changed and before["spec"].get("nodeName"):
        raise invalid(PODS, name, "status.nominatedNodeName", "may not be set on a bound pod")
    if after["spec"].get("nodeName") != before["spec"].get("nodeName"):
        raise invalid(PODS, name, "spec", "Forbidden: pod updates may not change fields other than image and a few")


def _without(value: Json, key: str) -> Json:
    return {name: inner for name, inner in value.items() if name != key}


def matches_labels(selector: str | None, body: Json) -> bool:
    """Equality and set selectors as `kubectl -l` takes them: `a=b`, `a!=b`, `a`, `!a`, `a in (x, y)`."""
    labels: dict[str, str] = body["metadata"].get("labels") or {}
    return all(_label_term(term, labels) for term in _terms(selector))


def _terms(selector: str | None) -> list[str]:
    terms, depth, current = [], 0, ""
    for letter in selector or "":
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            terms.append(current.strip())
            current = ""
        else:
            current += letter
    return [term for term in [*terms, current.strip()] if term]


def _label_term(term: str, labels: dict[str, str]) -> bool:
    if "(" in term:
        key, operator, *_ = term.split()
        values = {value.strip() for value in term[term.index("(") + 1 : term.rindex(")")].split(",")}
        return (labels.get(key) in values) == (operator == "in")
    if "!=" in term:
        key, _, value = term.partition("!=")
        return labels.get(key.strip()) != value.strip()
    if "=" in term:
        key, _, value = term.replace("==", "=").partition("=")
        return labels.get(key.strip()) == value.strip()
    return term[1:] not in labels if term.startswith("!") else term in labels


def matches_fields(selector: str | None, body: Json) -> bool:
    """Field selectors `path=value` and `path!=value`; a missing field is the empty string."""
    for term in _terms(selector):
        negated = "!=" in term
        path, _, value = term.partition("!=" if negated else "=")
        there: Any = body
        for step in path.strip().split("."):
            there = there.get(step) if isinstance(there, dict) else None
        if ((there or "") == value.strip().lstrip("=")) == negated:
            return False
    return True
