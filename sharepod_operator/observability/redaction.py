"""What a log line may hold: plain values of bounded size, without secrets, environments or pod specs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import lru_cache
from typing import Any

REDACTED = "[redacted]"
TEXT_LIMIT = 1024
"""Characters of one value; the API server's own messages are long enough to need it."""
ITEMS_LIMIT = 32
DEPTH_LIMIT = 4

_SECRET_KEYS = frozenset({"env", "envfrom", "environ", "environment", "podspec", "podtemplate", "body", "stringdata"})
_SECRET_PARTS = (
    "token",
    "password",
    "passwd",
    "secret",
    "authorization",
    "credential",
    "apikey",
    "privatekey",
    "podspec",
    "cookie",
)
_SUSPECT = re.compile(r"token|passw|secret|authorization|credential|api_?key|bearer|basic|eyj|private", re.IGNORECASE)
"""Quick to say no: most texts have none of these words."""
_SECRET_TEXT = re.compile(
    r"(?P<scheme>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"  # a JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?P<name>(?:token|password|passwd|secret|authorization|credential|api_?key)\w{0,32}[\"']?\s*)"
    r"(?:(?P<sign>=\s*)(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)|(?P<colon>:\s*)(?:\"[^\"]*\"|'[^']*'))",
    re.IGNORECASE | re.DOTALL,
)


def safe(value: Any, *, limit: int = TEXT_LIMIT, depth: int = DEPTH_LIMIT) -> Any:
    """The value in JSON's types, cut to bounds, with everything secret in it replaced.

    A mapping's entry is dropped by its key (`env`, `podSpec`, anything with `token`, `password`, `secret`, …), a text's
    part by its look (bearer tokens, JSON web tokens, private keys, `password=…`).
    """
    match value:
        case None | bool():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Enum():
            return safe(value.value, limit=limit, depth=depth)
        case int():
            return value if -(2**63) <= value < 2**63 else cut(str(value), limit)
        case str():
            return cut(without_secrets(value[: 4 * limit]), limit)
        case bytes() | bytearray() | memoryview():
            return f"{len(value)} bytes"
        case Mapping() | AbstractSet() | list() | tuple() if depth == 0:
            return f"({len(value)} entries)"
        case Mapping():
            return _safe_mapping(value, limit, depth)
        case AbstractSet() | list() | tuple():
            items = list(value)
            kept = [safe(item, limit=limit, depth=depth - 1) for item in items[:ITEMS_LIMIT]]
            return kept if len(items) <= ITEMS_LIMIT else [*kept, f"… {len(items) - ITEMS_LIMIT} more"]
        case _:
            return safe(str(value), limit=limit, depth=depth)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters, with an ellipsis as the last where some are missing."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _safe_mapping(value: Mapping[Any, Any], limit: int, depth: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, item in value.items():
        if len(kept) == ITEMS_LIMIT:
            kept["…"] = f"{len(value) - ITEMS_LIMIT} more"
            break
        name = cut(str(key), 128)
        kept[name] = REDACTED if _is_secret(name) else safe(item, limit=limit, depth=depth - 1)
    return kept


@lru_cache(maxsize=1024)
def _is_secret(key: str) -> bool:
    word = re.sub(r"[^a-z0-9]", "", key.lower())
    return word in _SECRET_KEYS or any(part in word for part in _SECRET_PARTS)


def without_secrets(text: str) -> str:
    """The text with everything in it replaced that looks like a credential."""
    return _SECRET_TEXT.sub(_replacement, text) if _SUSPECT.search(text) else text


def _replacement(found: re.Match[str]) -> str:
    before = found["scheme"] or "".join(found[part] or "" for part in ("name", "sign", "colon"))
    return before + REDACTED
