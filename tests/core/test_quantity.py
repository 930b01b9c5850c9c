"""Numbers and quantities are read exactly, rounded up once, and refused with one sentence."""

from __future__ import annotations

import contextlib
from decimal import ROUND_CEILING, Decimal, localcontext
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharepod_operator.core.quantity import (
    MAX_AMOUNT,
    QuantityError,
    format_bytes,
    format_cpu,
    format_milli,
    format_share,
    parse_amount,
    parse_count,
    parse_cpu,
    parse_milli,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0),
        ("1", 1000),
        ("0.5", 500),
        (".5", 500),
        ("1.", 1000),
        ("00.50", 500),
        ("5e-1", 500),
        ("5E-1", 500),
        ("0.05e+1", 500),
        ("1e-9", 1),
        ("0.3333", 334),
        ("0.30000000000000001", 301),
        ("0.299999999999999988897769753748", 300),
        ("0.50000000000000000000000000000000001", 501),
        ("0." + "0" * 900 + "1", 1),
        ("1e-999999999", 1),
        ("0e999999999", 0),
        ("1e999999999", MAX_AMOUNT),
        ("1e" + "9" * 900, MAX_AMOUNT),
        ("0." + "0" * 500 + "5e500", 500),
        ("9" * 900 + "e-900", 1000),
        (0, 0),
        (1, 1000),
        (0.5, 500),
        (0.1, 100),
        (0.3, 300),
        (0.1 + 0.2, 301),
        (1e-9, 1),
        (1e300, MAX_AMOUNT),
    ],
)
def test_a_decimal_number_in_thousandths(value: object, expected: int) -> None:
    """Text by its decimal digits, a JSON number by the shortest text that denotes it; ceil(x * 1000)."""
    assert expected == parse_milli(value)


@pytest.mark.parametrize(
    "value",
    [
        "", " ", ".", "e3", "1e", "1e+", "-1", "+1", "-0", " 1", "1 ", "1\n", "1_0", "0,5", "50%", "1.2.3", "0x1", "1/2",
        "nan", "NaN", "inf", "Infinity", "500m", "\uff11", "\u0661", "0.\uff15", "1e\uff11", "1" * 1001,
        None, True, False, [], {}, b"1", float("nan"), float("inf"), -1, -0.5,
    ],
)  # fmt: skip
def test_what_is_no_number(value: object) -> None:
    """No sign, blank, underscore, comma, percent, hex, NaN, suffix or foreign digit; no booleans and no other types."""
    with pytest.raises(QuantityError) as caught:
        parse_milli(value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_integers_that_python_does_not_write_out() -> None:
    """They are held at the bound, or refused, like any other."""
    assert MAX_AMOUNT == parse_milli(10**5000)
    with pytest.raises(QuantityError):
        parse_milli(-(10**5000))
    assert "a number of thousands of digits" == shown(10**5000)


def test_the_error_shows_the_value_and_what_would_be_right() -> None:
    """One sentence, quoted as it was written."""
    with pytest.raises(QuantityError, match=r'^"0,5" is not a number such as 0\.5$'):
        parse_milli("0,5")
    with pytest.raises(QuantityError, match=r'^"4 Gi" is not a quantity such as 512Mi or 10Gi$'):
        parse_amount("4 Gi")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("500m", 500), ("0.5", 500), ("2", 2000), (2, 2000), ("1u", 1), ("1500n", 1), ("1n", 1), ("0.0001", 1),
        ("1k", 10**6), ("1e3", 10**6), ("1Ki", 1_024_000), ("1.0001m", 2), ("0m", 0),
    ],
)  # fmt: skip
def test_cpus_in_milli(value: object, expected: int) -> None:
    """Any Kubernetes quantity, fractions of a milli rounded up."""
    assert expected == parse_cpu(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("40Gi", 42949672960), ("40G", 40 * 10**9), ("128974848", 128974848), ("129e6", 129 * 10**6), ("129M", 129 * 10**6),
        ("128974848000m", 128974848), ("123Mi", 123 * 2**20), ("1.5Gi", 3 * 2**29), (".5Ki", 512), ("5.Ki", 5120),
        ("1E", 10**18), ("1E3", 1000), ("1e3", 1000), ("1Ei", 2**60), ("16Ei", MAX_AMOUNT), ("1e99", MAX_AMOUNT),
        ("1m", 1), ("1n", 1), ("0.1", 1), ("1.1", 2), ("0.0000001Ki", 1), (110, 110), (1e3, 1000), ("0", 0),
    ],
)  # fmt: skip
def test_bytes_and_pieces(value: object, expected: int) -> None:
    """Decimal and binary suffixes or an exponent, rounded up, held at 2^63 - 1 as Kubernetes does."""
    assert expected == parse_amount(value)


@pytest.mark.parametrize(
    "value", ["", "Gi", "-1Gi", "1gi", "1GB", "1K", "1e3Gi", "1 Gi", "1Gii", "1mm", "\uff15Gi", None, True]
)
def test_what_is_no_quantity(value: object) -> None:
    """Unknown suffixes, two of them, signs and blanks."""
    with pytest.raises(QuantityError):
        parse_amount(value)


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1), ("2", 2), ("2.0", 2), ("20e-1", 2), (2.0, 2), ("0", 0), ("1e99", MAX_AMOUNT)]
)
def test_whole_numbers(value: object, expected: int) -> None:
    """Written like any number, so long as nothing is left behind the point."""
    assert expected == parse_count(value)


@pytest.mark.parametrize("value", ["1.5", 1.5, "0.0001", "1.00000000000000000000000000000001", "x", -1, True])
def test_what_is_no_whole_number(value: object) -> None:
    """A fraction, however small, is an error and not rounded."""
    with pytest.raises(QuantityError):
        parse_count(value)


@given(st.decimals(min_value=0, max_value=10**15, allow_nan=False, allow_infinity=False))
def test_any_decimal_equals_exact_arithmetic(value: Decimal) -> None:
    """The text of a decimal, also with an exponent, is rounded up as exact arithmetic does."""
    with localcontext() as context:
        context.prec = 1000
        expected = int((value * 1000).to_integral_value(ROUND_CEILING))
    assert min(expected, MAX_AMOUNT) == parse_milli(str(abs(value)))


@pytest.mark.parametrize("parse", [parse_milli, parse_cpu, parse_amount, parse_count])
@given(text=st.text(max_size=12))
def test_any_text_is_read_or_refused(parse: Callable[[object], int], text: str) -> None:
    """Never another exception, never a negative amount."""
    with contextlib.suppress(QuantityError):
        assert parse(text) >= 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e999999999", MAX_AMOUNT),
        ("1e-999999999", 1),
        ("9" * 999, MAX_AMOUNT),
        ("9" * 500 + "e" + "9" * 400, MAX_AMOUNT),
        ("9" * 500 + "e-" + "9" * 400, 1),
    ],
)
def test_hostile_numbers_cost_no_time(text: str, expected: int) -> None:
    """Huge exponents and long digits are never written out: a thousand of them are nothing."""
    for parse in (parse_milli, parse_cpu, parse_amount):
        assert {expected} == {parse(text) for _ in range(1000)}


def test_amounts_for_people() -> None:
    """Three places for a share, the shortest exact form for request/limit, the shortest exact form of bytes too."""
    assert ["0.500", "1.000", "0.001", "0.000", "-0.250"] == [format_milli(m) for m in (500, 1000, 1, 0, -250)]
    assert ["0.5/1", "0/0.25", "0.001/0.999"] == [format_share(*pair) for pair in ((500, 1000), (0, 250), (1, 999))]
    assert ["500m", "2", "0", "1500m"] == [format_cpu(milli) for milli in (500, 2000, 0, 1500)]
    assert ["10Gi", "1536Mi", "40G", "0", "1", "1001"] == [
        format_bytes(amount) for amount in (10 * 2**30, 3 * 2**29, 40 * 10**9, 0, 1, 1001)
    ]


@given(st.integers(0, 2**62))
def test_formatted_bytes_read_back(amount: int) -> None:
    """What people are shown is exact."""
    assert amount == parse_amount(format_bytes(amount))


def test_a_shown_value_stays_on_one_line() -> None:
    """Line breaks are escaped and long values cut."""
    assert '"a\\nb"' == shown("a\nb")
    assert 66 == len(shown("x" * 1000))
    assert "['a']" == shown(["a"])
