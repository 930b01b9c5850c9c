"""Reading files that people write: JSON or YAML, with the line of a mistake.

YAML is read as kubectl reads it: `1e-9` is a number, a date is text, and a key that stands twice is a mistake.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import yaml

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$", re.ASCII
)


class DocumentError(ValueError):
    """The text is neither JSON nor YAML. The message is one line and names the place."""


def read_documents(written: str) -> list[Any]:
    """All documents of a text: the one of a JSON text, or those of a YAML stream, empty ones left out.

    Raises:
        DocumentError: the text can't be read.
    """
    if written.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        try:
            return [_json(written)]
        except json.JSONDecodeError as error:
            mistake = DocumentError(f"line {error.lineno}, column {error.colno}: {error.msg}")
            try:
                return _yaml(written)  # flow style is YAML, too
            except DocumentError:
                raise mistake from None
    return _yaml(written)


def _json(written: str) -> Any:
    try:
        return json.loads(written.lstrip("\ufeff"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise DocumentError("the text is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise DocumentError(str(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DocumentError(f'the key "{twice}" stands twice in one object')
    return result


def _no_constant(word: str) -> NoReturn:
    raise DocumentError(f"{word} is no number")


def _yaml(written: str) -> list[Any]:
    try:
        documents = [document for document in yaml.load_all(written, Loader=_Loader) if document is not None]
        if "&" in written:
            _refuse_cycles(documents, set(), set())
        return documents  # noqa: TRY300 - the way out without an error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise DocumentError(f"{place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise DocumentError(" ".join(str(error).split())) from None
    except RecursionError:
        raise DocumentError("the text is nested too deeply") from None
    except ValueError as error:
        raise DocumentError(str(error)) from None


class _Loader(_Base):  # type: ignore[misc]
    """YAML's safe types, without dates, and with the numbers of JSON."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - PyYAML calls it so
        self.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
            key = key_node.value
            if key in result:
                raise yaml.constructor.ConstructorError(
                    None, None, f'the key "{key}" stands twice', key_node.start_mark
                )
            result[key] = self.construct_object(value_node, deep=deep)
        return result


def _construct_map(loader: Any, node: Any) -> Any:
    result: dict[str, Any] = {}
    yield result
    result.update(loader.construct_mapping(node))


def _refuse_cycles(value: Any, inside: set[int], done: set[int]) -> None:
    """An anchor may be used twice, but not within itself."""
    if not isinstance(value, dict | list) or id(value) in done:
        return
    if id(value) in inside:
        raise DocumentError("an anchor is used within itself")
    inside.add(id(value))
    for item in value.values() if isinstance(value, dict) else value:
        _refuse_cycles(item, inside, done)
    inside.discard(id(value))
    done.add(id(value))


_TAG = "tag:yaml.org,2002:"
_JSON_TYPES = frozenset(f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map"))
_NUMBERS = (f"{_TAG}int", f"{_TAG}float", f"{_TAG}timestamp")

_Loader.yaml_constructors = {
    tag: make for tag, make in _Base.yaml_constructors.items() if tag in _JSON_TYPES or tag is None
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))
_Loader.add_constructor(f"{_TAG}map", _construct_map)
