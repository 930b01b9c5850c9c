"""Reading fields of a file written by hand: a wrong type or an unknown key is an error that names its path."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from sharepod_operator.core.quantity import shown
from sharepod_operator.manifest.access import path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sharepod_operator.manifest.records import Json


class ScenarioError(ValueError):
    """The file says something that can't be so. The message is one line: the field's path, its value, what is right."""


def check_keys(body: Json, allowed: Sequence[str], where: str) -> None:
    """Refuse a key that means nothing here, with the nearest that does."""
    for key in body:
        if key not in allowed:
            near = get_close_matches(key, allowed, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it must be one of {', '.join(allowed)}"
            raise ScenarioError(f"{path(where, key)} is unknown; {hint}")


def refuse_twice(where: str, keys: Iterable[str], kind: str) -> None:
    """Refuse a name that stands twice."""
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise ScenarioError(f"{where}: {kind} {shown(key)} stands there twice; every {kind} must be listed once")
        seen.add(key)


def as_object(value: Any, where: str) -> Json:
    """The value, which must be an object."""
    if not isinstance(value, dict):
        raise ScenarioError(f"{where} is {shown(value)}; it must be an object")
    return value


def objects(body: Json, key: str, where: str) -> list[tuple[Json, str]]:
    """The objects of a list, each with its path; none where the field is absent or null."""
    value, here = body.get(key), path(where, key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ScenarioError(f"{here} is {shown(value)}; it must be a list")
    return [(as_object(item, f"{here}[{index}]"), f"{here}[{index}]") for index, item in enumerate(value)]


def object_at(body: Json, key: str, where: str) -> Json:
    """The object at a field; an empty one where the field is absent or null."""
    value = body.get(key)
    return {} if value is None else as_object(value, path(where, key))


def text_at(body: Json, key: str, where: str, default: str = "") -> str:
    """The text at a field; the default where the field is absent or null."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ScenarioError(f"{path(where, key)} is {shown(value)}; it must be text, write it in quotes")
    return value


def name_at(body: Json, where: str) -> str:
    """The name, which must be there."""
    name = text_at(body, "name", where)
    if not name:
        raise ScenarioError(f"{path(where, 'name')} is missing")
    return name


def flag_at(body: Json, key: str, where: str, *, default: bool) -> bool:
    """True or false; the default where the field is absent or null."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ScenarioError(f"{path(where, key)} is {shown(value)}; it must be true or false")
    return value


def integer_at(body: Json, key: str, where: str, default: int) -> int:
    """The integer at a field; the default where the field is absent or null."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ScenarioError(f"{path(where, key)} is {shown(value)}; it must be an integer")
    return value


def strings_at(body: Json, key: str, where: str) -> tuple[tuple[str, str], ...]:
    """A map of text to text, as sorted pairs."""
    pairs = object_at(body, key, where)
    return tuple(sorted((name, text_at(pairs, name, path(where, key))) for name in pairs))
