"""JSON that is kept as text until somebody looks at it: as a tree of Python objects it takes five times the memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Self

import orjson

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PackedJson:
    """One JSON object. False where it is empty."""

    text: bytes = b"{}"

    @classmethod
    def of(cls, value: Json) -> Self:
        """The object as text, also what orjson refuses: lone surrogates, and integers of more than 64 bits, which become
        floats as they do in the API server.
        """
        try:
            text = orjson.dumps(value)
        except TypeError:
            text = json.dumps(value, default=str).encode()
        return cls(bytes(memoryview(text)))  # orjson's own answer keeps several times the memory that the text needs

    @property
    def value(self) -> Json:
        """The object, made anew each time: whoever changes it changes nobody else's."""
        try:
            found: Any = orjson.loads(self.text)
        except orjson.JSONDecodeError:
            found = json.loads(self.text)
        tree: Json = found
        return tree

    def __bool__(self) -> bool:
        return self.text != b"{}"
