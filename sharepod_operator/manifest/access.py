"""Reading JSON that may be anything: what has another type than expected counts as absent."""

from __future__ import annotations

from typing import Any

from sharepod_operator.manifest.records import Json, Owner


def mapping(value: Any) -> Json:
    """The object, or an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[Json]:
    """The objects of a list; entries that are none are left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: Any) -> str:
    """The string, or an empty one."""
    return value if isinstance(value, str) else ""


def texts(value: Any) -> tuple[str, ...]:
    """The strings of a list."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def integer(value: Any, default: int = 0) -> int:
    """The integer, or the default; true and false are no integers."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def string_pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """A map of strings as sorted pairs, as labels and annotations are kept."""
    if not isinstance(value, dict):
        return ()
    return tuple(sorted((k, v) for k, v in value.items() if isinstance(k, str) and isinstance(v, str)))


def version(metadata: Json) -> int:
    """metadata.resourceVersion as an integer; 0 where it is none, as in a manifest that no server has seen."""
    stated = text(metadata.get("resourceVersion"))
    return int(stated) if stated.isascii() and stated.isdigit() and len(stated) <= 20 else 0


def controlling_owner(metadata: Json) -> Owner | None:
    """The ownerReference with controller: true."""
    for reference in mappings(metadata.get("ownerReferences")):
        if reference.get("controller") is True:
            return Owner(
                api_version=text(reference.get("apiVersion")),
                kind=text(reference.get("kind")),
                name=text(reference.get("name")),
                uid=text(reference.get("uid")),
            )
    return None


def path(where: str, key: str) -> str:
    """The path of a field within the one at `where`, which is "" for the whole; for sentences, so on one line."""
    shown = key if key.isprintable() else ascii(key)[1:-1]
    return f"{where}.{shown}" if where else shown
