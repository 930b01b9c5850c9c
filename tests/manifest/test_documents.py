"""Reading JSON and YAML as kubectl does, and telling the place of a mistake."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sharepod_operator.manifest.documents import DocumentError, read_documents


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"a": 0.5}', [{"a": 0.5}]),
        ('\ufeff {"a": 1}', [{"a": 1}]),
        ("[1, 2]", [[1, 2]]),
        ("{a: 1}", [{"a": 1}]),
        ("a: 1\n---\n\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("", []),
        ("# nothing\n---\n", []),
        ("a: 1e-9", [{"a": 1e-9}]),
        ("a: 1e3", [{"a": 1000.0}]),
        ("a: .5", [{"a": 0.5}]),
        ("a: '0.5'", [{"a": "0.5"}]),
        ("a: 0.30000000000000001", [{"a": 0.3}]),
        ("a: 2026-01-01", [{"a": "2026-01-01"}]),
        ("a: 1:30", [{"a": "1:30"}]),
        ("a: 12Gi", [{"a": "12Gi"}]),
        ("1: x", [{"1": "x"}]),
        ("a: &x {b: 1}\nc: *x", [{"a": {"b": 1}, "c": {"b": 1}}]),
        ("a: {<<: {b: 1}, c: 2}", [{"a": {"b": 1, "c": 2}}]),
    ],
)
def test_text_is_read_as_kubectl_reads_it(written: str, expected: list[Any]) -> None:
    """Numbers with an exponent are numbers, dates and times are text, keys are text."""
    assert expected == read_documents(written)


def test_yaml_infinity_is_a_number_that_no_field_takes() -> None:
    """It gets through the reader and is refused where a number is expected."""
    assert math.isinf(read_documents("a: .inf")[0]["a"])


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ('{"a": 1,, }', ["line 1, column 9"]),
        ('{\n"a": 1\n"b": 2}', ["line 3"]),
        ('{"a": 1, "a": 2}', ['"a"', "twice"]),
        ("[NaN]", ["NaN is no number"]),
        ("a: [", ["line 2"]),
        ("a: 1\nb: 2\na: 3", ["line 3", '"a"', "twice"]),
        ("a:\n\tb: 1", ["line 2"]),
        ("? [1]\n: 2", ["line 1", "key must be text"]),
        ("!!python/object:os.system x", ["line 1"]),
        ("a: !!binary aGk=", ["line 1"]),
        ("a: &x [*x]", ["anchor", "within itself"]),
        ("[" * 100_000, ["nested too deeply"]),
        ("a: \x00", ["#x0000"]),
    ],
)
def test_mistake_is_told_with_its_place(written: str, words: list[str]) -> None:
    """One line, with line and column where the text has one."""
    with pytest.raises(DocumentError) as caught:
        read_documents(written)
    assert [] == [word for word in words if word not in str(caught.value)], str(caught.value)
