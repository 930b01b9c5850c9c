"""Making a valid GPURequest of what people wrote, or saying what is wrong with it, field by field."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from sharepod_operator.core.model import MILLI_PER_GPU, GPURequest
from sharepod_operator.core.quantity import QuantityError, parse_amount, parse_count, parse_milli, shown

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE_PERCENT: Final = 100
MAX_TAG_LENGTH: Final = 63
MAX_DEVICE_IDS: Final = 256
_DEVICE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_DEVICE_ID_RULE: Final = "at most 64 letters, digits, dots, dashes or underscores, the first a letter or digit"


@dataclass(frozen=True, slots=True)
class RequestFields:
    """The values as they were written, text or JSON; None means absent."""

    request: object = None
    limit: object = None
    memory: object = None
    count: object = None
    affinity: object = None
    anti_affinity: object = None
    exclusion: object = None
    device_ids: object = None
    gpu_id: object = None
    memory_percent: object = None
    """Percent of a card's own memory, 1..100; an integer that was read already. Not beside `memory`."""


@dataclass(frozen=True, slots=True)
class RequestLabels:
    """What each field is called where it was written, for the errors."""

    request: str = "spec.gpu.request"
    limit: str = "spec.gpu.limit"
    memory: str = "spec.gpu.memory"
    count: str = "spec.gpu.count"
    affinity: str = "spec.gpu.affinity"
    anti_affinity: str = "spec.gpu.antiAffinity"
    exclusion: str = "spec.gpu.exclusion"
    device_ids: str = "spec.gpu.deviceIDs"
    gpu_id: str = "kubeshare/GPUID"
    memory_percent: str = "koordinator.sh/gpu-memory-ratio"


TYPED: Final = RequestLabels()


def build_request(raw: RequestFields, labels: RequestLabels = TYPED) -> GPURequest | list[str]:
    """The request that the fields state, or all that is wrong with them, one sentence each.

    Absent fields: limit = request, count = 1, memory = 0, no tags, any GPU. A request of 0 is best effort and needs a
    limit of its own.
    """
    errors: list[str] = []
    milli = _number(raw.request, labels.request, parse_milli, errors)
    limit = _number(raw.limit, labels.limit, parse_milli, errors)
    memory = _number(raw.memory, labels.memory, parse_amount, errors)
    count = _number(raw.count, labels.count, parse_count, errors)
    if raw.request is None:
        errors.append(f"{labels.request}: it is missing, say how much of a GPU is wanted, such as 0.5")
    _check_share(raw, labels, milli, limit, errors)
    if count is not None and count < 1:
        errors.append(f"{labels.count}: {shown(raw.count)} must be at least 1")
    tags = {name: _tag(getattr(raw, name), getattr(labels, name), errors) for name in _TAGS}
    device_ids = _device_ids(raw.device_ids, labels.device_ids, errors)
    gpu_id = "" if raw.gpu_id is None or raw.gpu_id == "" else _device_id(raw.gpu_id, labels.gpu_id, errors)
    if gpu_id and count is not None and count > 1:
        errors.append(f"{labels.gpu_id}: {shown(gpu_id)} names one GPU, but {labels.count} is {count}")
    percent = raw.memory_percent
    if percent is not None and not (isinstance(percent, int) and 0 < percent <= WHOLE_PERCENT):
        errors.append(f"{labels.memory_percent}: {shown(percent)} must be from 1 to {WHOLE_PERCENT}")
    if errors or milli is None:
        return errors
    return GPURequest(
        milli=milli,
        limit_milli=milli if limit is None else limit,
        memory=memory or 0,
        count=1 if count is None else count,
        device_ids=device_ids,
        gpu_id=gpu_id,
        memory_percent=percent if isinstance(percent, int) and raw.memory is None else 0,
        **tags,
    )


_TAGS: Final = ("affinity", "anti_affinity", "exclusion")
assert [field.name for field in fields(RequestFields)] == [field.name for field in fields(RequestLabels)]


def _number(value: object, label: str, parse: Callable[[object], int], errors: list[str]) -> int | None:
    if value is None:
        return None
    try:
        return parse(value)
    except QuantityError as error:
        errors.append(f"{label}: {error}")
        return None


def _check_share(
    raw: RequestFields, labels: RequestLabels, milli: int | None, limit: int | None, errors: list[str]
) -> None:
    if milli is not None and milli > MILLI_PER_GPU:
        errors.append(f"{labels.request}: {shown(raw.request)} must be between 0 and 1")
    if limit is not None and not 0 < limit <= MILLI_PER_GPU:
        errors.append(f"{labels.limit}: {shown(raw.limit)} must be above 0 and at most 1")
    elif limit is not None and milli is not None and milli <= MILLI_PER_GPU and limit < milli:
        errors.append(f"{labels.limit}: {shown(raw.limit)} must be at least the request, {shown(raw.request)}")
    if milli == 0 and raw.limit is None:
        errors.append(
            f"{labels.limit}: it is missing, a request of 0 (best effort) needs a limit above 0 and at most 1"
        )


def _tag(value: object, label: str, errors: list[str]) -> str:
    if value is None or value == "":
        return ""
    if not isinstance(value, str):
        errors.append(f"{label}: {shown(value)} must be text, write it in quotes")
        return ""
    if len(value) > MAX_TAG_LENGTH:
        errors.append(f"{label}: {shown(value)} must be at most {MAX_TAG_LENGTH} characters long")
    elif not value.isprintable():
        errors.append(f"{label}: {shown(value)} must not contain line breaks or other control characters")
    return value


def _device_ids(value: object, label: str, errors: list[str]) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        errors.append(f"{label}: {shown(value)} must be a list of GPU UUIDs")
        return ()
    if len(value) > MAX_DEVICE_IDS:
        errors.append(f"{label}: a list of {len(value)} must name at most {MAX_DEVICE_IDS} GPUs")
        return ()
    names = [_device_id(item, f"{label}[{place}]", errors) for place, item in enumerate(value)]
    return tuple(dict.fromkeys(names))


def _device_id(value: object, label: str, errors: list[str]) -> str:
    if isinstance(value, str) and _DEVICE_ID.fullmatch(value):
        return value
    errors.append(f"{label}: {shown(value)} must be {_DEVICE_ID_RULE}")
    return ""
