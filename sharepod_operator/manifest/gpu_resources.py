"""A GPU request written as container resources, in Koordinator's words: `koordinator.sh/gpu: 50` and its relatives.

The amounts of all containers are combined as Kubernetes combines every other resource. 100 is one whole GPU; an
amount above 100 is a multiple of 100 and means that many GPUs of one node, among which the other amount is divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sharepod_operator.core.quantity import format_milli
from sharepod_operator.manifest import names
from sharepod_operator.manifest.resources import gpu_amounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod_operator.manifest.records import Json

RESOURCE: Final = "resource "
"""How a label begins that names a resource."""
WHOLE: Final = 100
"""Percent of one GPU."""
_BOTH, _CORE, _BYTES, _RATIO = names.KOORDINATOR_RESOURCES
LEGAL_SETS: Final = (
    frozenset({_BOTH}),
    frozenset({_CORE, _BYTES}),
    frozenset({_CORE, _RATIO}),
    frozenset({_BYTES}),
    frozenset({_RATIO}),
)
_LEGAL: Final = f"{_BOTH}, {_BYTES} or {_RATIO} alone, or {_CORE} with {_BYTES} or {_RATIO}"


@dataclass(frozen=True, slots=True)
class Stated:
    """One field of a request as the resources state it, and the resource that does."""

    value: object
    resource: str


def read_resources(spec: Json, problems: list[str]) -> dict[str, Stated]:
    """The fields of a GPU request that the resources of a pod's containers state; empty where they ask for no GPU.

    A zero amount is no request. A set that is none of LEGAL_SETS, or an amount that can't be divided into whole GPUs,
    is told in `problems`.
    """
    amounts = {key: amount for key, amount in gpu_amounts(spec).items() if amount}
    asked = {key: amount for key, amount in amounts.items() if key in names.KOORDINATOR_RESOURCES}
    if not asked:
        return {}
    if set(asked) == {_CORE}:
        problems.append(f"resource {_CORE}: it needs {_BYTES} or {_RATIO} beside it; {_BOTH} asks for both at once")
        return {}
    if frozenset(asked) not in LEGAL_SETS:
        problems.append(f"resource {' with '.join(sorted(asked))}: the pod must ask for {_LEGAL}")
        return {}
    if _BOTH in asked:
        asked = {_CORE: asked[_BOTH], _RATIO: asked[_BOTH]}
    shown = {key: key if key in amounts else _BOTH for key in asked}
    uneven = [key for key in (_CORE, _RATIO) if asked.get(key, 0) > WHOLE and asked[key] % WHOLE]
    if uneven:
        problems.append(
            f"resource {shown[uneven[0]]}: {asked[uneven[0]]} is more than one GPU, so it must be a multiple of {WHOLE}"
        )
        return {}
    return _divided(asked, shown, problems)


def fill_in(values: dict[str, Any], labels: dict[str, str], stated: Mapping[str, Stated]) -> None:
    """Fill the fields of a request that are still None with what the resources state, each with its label."""
    taken = dict(stated)
    if values["request"] is not None:  # the limit that comes with a share belongs to that share
        taken.pop("limit", None)
    if values["memory"] is not None:  # bytes and percent are one field
        taken.pop("memory_percent", None)
    for field, item in taken.items():
        if values.get(field) is None:
            values[field], labels[field] = item.value, f"{RESOURCE}{item.resource}"


def _divided(asked: Mapping[str, int], shown: Mapping[str, str], problems: list[str]) -> dict[str, Stated]:
    """What each of the GPUs gives. Percents have to divide; bytes are rounded up, so that the sum is at least theirs."""
    core, ratio = asked.get(_CORE, 0), asked.get(_RATIO, 0)
    count = max(1, -(-max(core, ratio) // WHOLE))
    for key in (_CORE, _RATIO):
        if asked.get(key, 0) % count:
            problems.append(f"resource {shown[key]}: {asked[key]} can't be divided equally among {count} GPUs")
            return {}
    larger = shown[_CORE if core >= ratio and core else _RATIO if ratio else _BYTES]
    if core:
        share = Stated(format_milli(core * 10 // count), shown[_CORE])
        fields = {"request": share, "limit": share}
    else:  # memory alone: nothing of the compute is guaranteed, all of it may be used
        fields = {"request": Stated("0", larger), "limit": Stated("1", larger)}
    if _RATIO in asked:
        fields["memory_percent"] = Stated(ratio // count, shown[_RATIO])
    else:
        fields["memory"] = Stated(-(-asked[_BYTES] // count), shown[_BYTES])
    if count > 1:
        fields["count"] = Stated(count, larger)
    return fields
