"""How an API server merges a PATCH into an object: merge-patch, strategic merge, json-patch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from sharepod_operator.kube.api import Json, Patch
from sharepod_operator.kube.errors import ApiError, Invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "containerStatuses": "name",
    "env": "name",
    "volumes": "name",
    "ownerReferences": "uid",
    "taints": "key",
}
"""Lists of built-in types that strategic merge joins by a key; all others are replaced."""


def copied(value: Any) -> Any:
    """A deep copy of plain JSON; fails on anything that is none."""
    return orjson.loads(orjson.dumps(value))


def patched(before: Json, body: Json | Sequence[Json], content: Patch) -> Json:
    """The object after the patch; `before` stays as it is."""
    match content:
        case Patch.JSON:
            assert not isinstance(body, dict)
            return _json_patch(copied(before), list(body))
        case Patch.STRATEGIC:
            assert isinstance(body, dict)
            return _strategic(copied(before), copied(body))
        case _:
            assert isinstance(body, dict)
            return _merge(copied(before), copied(body))


def _merge(target: Json, change: Json) -> Json:
    for key, value in change.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            inner = target.get(key)
            target[key] = _merge(inner if isinstance(inner, dict) else {}, value)
        else:
            target[key] = value
    return target


def _strategic(target: Json, change: Json) -> Json:
    for key, value in change.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            inner = target.get(key)
            target[key] = _strategic(inner if isinstance(inner, dict) else {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS:
            target[key] = _join(target.get(key) or [], value, MERGE_KEYS[key])
        else:
            target[key] = value
    return target


def _join(before: list[Json], changes: list[Json], by: str) -> list[Json]:
    joined = {item[by]: item for item in before}
    for change in changes:
        if change.get("$patch") == "delete":
            joined.pop(change[by], None)
        else:
            joined[change[by]] = _strategic(joined.get(change[by], {}), change)
    return list(joined.values())


def _json_patch(target: Json, operations: list[Json]) -> Json:
    for operation in operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        holder: Any = target
        for step in way:
            holder = holder[int(step)] if isinstance(holder, list) else holder.get(step)
            if holder is None:
                raise Invalid(f"the server rejected our request: missing path {operation['path']}", status=422)
        _apply(holder, last, operation)
    return target


def _apply(holder: Any, last: str, operation: Json) -> None:
    key: Any = last
    if isinstance(holder, list):
        key = len(holder) if last == "-" else int(last)
    match operation["op"]:
        case "add" if isinstance(holder, list):
            holder.insert(key, operation["value"])
        case "add":
            holder[key] = operation["value"]
        case "replace":
            holder[key] = operation["value"]
        case "remove":
            del holder[key]
        case "test":
            there = holder.get(key) if isinstance(holder, dict) else holder[key]
            if there != operation["value"]:
                raise Invalid(f"testing value {operation['path']} failed", status=422, reason="Invalid")
        case unknown:
            raise ApiError(f"unknown json-patch operation {unknown!r}", status=400)
