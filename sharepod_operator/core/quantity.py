"""Amounts as people write them, read exactly: Kubernetes quantities and the decimal numbers of GPU requests.

No float takes part. A value is kept as decimal digits and a power of ten, and rounded up once, at the end, so that
`1e-9` of a GPU is 1 milli and `0.30000000000000001` is 301. Values beyond 2^63 - 1 are held at that bound, as
Kubernetes does, so that `1e999999999` costs neither time nor memory.
"""

from __future__ import annotations

import re
from typing import Final

MAX_AMOUNT: Final = 2**63 - 1
MAX_LENGTH: Final = 1000
"""Longest text that is read as a number, in characters."""

_NUMBER: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?", re.ASCII)
_QUANTITY: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]))?", re.ASCII)
_POWERS_OF_TEN: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_POWERS_OF_1024: Final = {suffix: 1024 ** (place + 1) for place, suffix in enumerate(_BINARY)}
_MILLI_PER_UNIT: Final = 1000
_FAR: Final = 10_000
"""Powers of ten beyond this, either way, can't be told apart: no text of MAX_LENGTH digits reaches back."""


class QuantityError(ValueError):
    """The text is no number, or no quantity. The message is one sentence about the value, without the field's name."""


def parse_milli(value: object) -> int:
    """A decimal number, such as a share of a GPU, in thousandths, rounded up.

    Text is digits with at most one point and an optional exponent: no sign, blank, underscore, NaN, hex or percent.
    A JSON number counts as the shortest text that denotes it.

    Raises:
        QuantityError: the value is neither.
    """
    digits, power, _ = _split(value, _NUMBER, "a number such as 0.5")
    return _ceil(digits, power, _MILLI_PER_UNIT)


def parse_count(value: object) -> int:
    """A whole number, written like any other number.

    Raises:
        QuantityError: the value is no number, or not whole.
    """
    digits, power, _ = _split(value, _NUMBER, "a whole number such as 2")
    milli = _ceil(digits, power, _MILLI_PER_UNIT)
    units = _ceil(digits, power, 1)
    if units < MAX_AMOUNT and milli != units * _MILLI_PER_UNIT and milli < MAX_AMOUNT:
        raise QuantityError(f"{shown(value)} is not a whole number")
    return units


def parse_cpu(value: object) -> int:
    """A Kubernetes quantity of CPUs (`500m`, `0.5`, `2`) in milli, rounded up.

    Raises:
        QuantityError: the value is no quantity.
    """
    digits, power, factor = _split(value, _QUANTITY, "a quantity such as 500m or 2")
    return _ceil(digits, power, factor * _MILLI_PER_UNIT)


def parse_amount(value: object) -> int:
    """A Kubernetes quantity of bytes or pieces (`40Gi`, `1e3`, `110`) in whole units, rounded up.

    Raises:
        QuantityError: the value is no quantity.
    """
    digits, power, factor = _split(value, _QUANTITY, "a quantity such as 512Mi or 10Gi")
    return _ceil(digits, power, factor)


def format_milli(milli: int) -> str:
    """Thousandths with three places: 500 is `0.500`."""
    sign = "-" if milli < 0 else ""
    whole, rest = divmod(abs(milli), _MILLI_PER_UNIT)
    return f"{sign}{whole}.{rest:03d}"


def format_share(request_milli: int, limit_milli: int) -> str:
    """Request and limit of a GPU as briefly as they are exact: `0.5/1`."""
    return f"{_brief(request_milli)}/{_brief(limit_milli)}"


def format_cpu(milli: int) -> str:
    """CPUs as Kubernetes writes them: `500m`, `2`."""
    return f"{milli}m" if milli % _MILLI_PER_UNIT else str(milli // _MILLI_PER_UNIT)


def format_bytes(amount: int) -> str:
    """Bytes in the shortest exact form, binary units before decimal ones: `10Gi`, `1536Mi`, `40G`, `1001`."""
    if not amount:
        return "0"
    units = {**_POWERS_OF_1024, **{suffix: 10 ** _POWERS_OF_TEN[suffix] for suffix in "kMGTPE"}, "": 1}
    return min((f"{amount // size}{unit}" for unit, size in units.items() if amount % size == 0), key=len)


def shown(value: object) -> str:
    """A value as an error shows it: quoted like JSON text, without line breaks, cut where it is long."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # an integer of more digits than Python writes out
        text = "a number of thousands of digits"
    if len(text) > 64:
        text = text[:61] + "..."
    quoted = text if text.isprintable() else ascii(text)[1:-1]
    return f'"{quoted}"' if isinstance(value, str) else quoted


def _brief(milli: int) -> str:
    return format_milli(milli).rstrip("0").rstrip(".")


def _split(value: object, grammar: re.Pattern[str], wanted: str) -> tuple[str, int, int]:
    """The significant digits ("" for zero), the power of ten of the last one, and the suffix's factor."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise QuantityError(f"{shown(value)} is not {wanted}")
    if isinstance(value, int) and abs(value) > MAX_AMOUNT:
        value = MAX_AMOUNT if value > 0 else -1
    text = value if isinstance(value, str) else repr(value)
    if len(text) > MAX_LENGTH:
        raise QuantityError(f"{shown(value)} is longer than the {MAX_LENGTH} characters that are read as a number")
    match = grammar.fullmatch(text)
    if match is None or not (match[1] or match[2]):
        raise QuantityError(f"{shown(value)} is not {wanted}")
    suffix = match[4] if grammar is _QUANTITY else None
    fraction = match[2] or ""
    digits = (match[1] + fraction).lstrip("0")
    power = _exponent(match[3]) - len(fraction) + _POWERS_OF_TEN.get(suffix or "", 0)
    return digits, power, _POWERS_OF_1024.get(suffix or "", 1)


def _exponent(text: str | None) -> int:
    if not text:
        return 0
    size = text.lstrip("+-").lstrip("0") or "0"
    bounded = int(size) if len(size) < 6 else _FAR  # a longer one is beyond every bound anyway
    return -min(bounded, _FAR) if text[0] == "-" else min(bounded, _FAR)


def _ceil(digits: str, power: int, factor: int) -> int:
    """The digits times 10^power * factor, rounded up to an integer and held at MAX_AMOUNT."""
    if not digits:
        return 0
    if len(digits) + power > 20:
        return MAX_AMOUNT
    if len(digits) + power < -40:
        return 1
    scaled = int(digits) * factor
    tens: int = 10 ** abs(power)
    return min(scaled * tens if power >= 0 else -(-scaled // tens), MAX_AMOUNT)
