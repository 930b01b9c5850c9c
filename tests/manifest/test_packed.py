"""Packed JSON gives back exactly what it was made of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharepod_operator.manifest.packed import PackedJson

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
TREES = st.dictionaries(
    st.text(), st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
)


@given(TREES.filter(lambda tree: not _has_huge_integers(tree)))
def test_what_comes_out_is_what_went_in(tree: dict[str, Any]) -> None:
    """Types included: 1 and 1.0 and true stay apart."""
    packed = PackedJson.of(tree)

    assert repr(tree) == repr(packed.value)
    assert bool(tree) == bool(packed)


@pytest.mark.parametrize("odd", ["\ud800", 2**70], ids=["half a surrogate pair", "more than 64 bits"])
def test_what_orjson_refuses_is_packed_too(odd: Any) -> None:
    """Kopf reads with Python's json, which lets these pass; a handler must not fail for them. An integer becomes a float."""
    assert odd == PackedJson.of({"a": odd}).value["a"]


def test_changing_what_came_out_changes_nothing() -> None:
    """Each look makes a tree of its own."""
    packed = PackedJson.of({"list": [1]})
    packed.value["list"].append(2)

    assert {"list": [1]} == packed.value


def _has_huge_integers(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(map(_has_huge_integers, tree.values()))
    if isinstance(tree, list):
        return any(map(_has_huge_integers, tree))
    return isinstance(tree, int) and not -(2**63) <= tree < 2**64
