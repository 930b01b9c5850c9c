"""The two JSON annotations of ours on a Pod: the request that the controller read, and the ledger entry.

Both are written by the operator alone and read strictly: what does not look exactly as written raises LedgerError,
since a guess would charge a wrong amount.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from sharepod_operator.core.model import MILLI_PER_GPU, Allocation, Charge, GPURequest

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json


_REMEMBERED = 8192
"""Texts whose meaning is kept: a pod comes by with each of its events, its entry the same each time."""


class LedgerError(ValueError):
    """An annotation of ours that was not written by this operator, or was changed since."""


def encode_request(request: GPURequest) -> str:
    """The GPURequest as JSON; equal requests give equal texts."""
    body = {
        "requestMilli": request.milli,
        "limitMilli": request.limit_milli,
        "memory": request.memory,
        "count": request.count,
        **_given(affinity=request.affinity, antiAffinity=request.anti_affinity, exclusion=request.exclusion),
        **_given(deviceIDs=list(request.device_ids), gpuID=request.gpu_id, memoryPercent=request.memory_percent),
    }
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS).decode()


@lru_cache(maxsize=_REMEMBERED)
def decode_request(written: str) -> GPURequest:
    """The GPURequest of `encode_request`.

    Raises:
        LedgerError: the text is not such a request.
    """
    body = _object(written)
    request = GPURequest(
        milli=_number(body, "requestMilli", 0, MILLI_PER_GPU),
        limit_milli=_number(body, "limitMilli", 1, MILLI_PER_GPU),
        memory=_number(body, "memory", 0, None),
        count=_number(body, "count", 1, None),
        affinity=_string(body, "affinity"),
        anti_affinity=_string(body, "antiAffinity"),
        exclusion=_string(body, "exclusion"),
        device_ids=_strings(body, "deviceIDs"),
        gpu_id=_string(body, "gpuID"),
        memory_percent=_number(body, "memoryPercent", 1, 100) if "memoryPercent" in body else 0,
    )
    if request.memory and request.memory_percent:
        raise LedgerError(f"memoryPercent is {request.memory_percent} beside memory {request.memory}; one of them is 0")
    if request.limit_milli < request.milli:
        raise LedgerError(f"limitMilli is {request.limit_milli}; it must be at least requestMilli, {request.milli}")
    return request


def encode_allocation(allocation: Allocation) -> str:
    """The ledger entry as JSON."""
    body = {
        "gpus": [
            {"uuid": charge.uuid, "milli": charge.milli, "memory": charge.memory, "cardMemory": charge.card_memory}
            for charge in allocation.charges
        ],
        "port": allocation.port,
        "limitMilli": allocation.limit_milli,
        **_given(affinity=allocation.affinity, antiAffinity=allocation.anti_affinity, exclusion=allocation.exclusion),
        **_given(virtualID=allocation.virtual_id),
    }
    return orjson.dumps(body).decode()


@lru_cache(maxsize=_REMEMBERED)
def decode_allocation(written: str) -> Allocation:
    """The ledger entry of `encode_allocation`.

    Raises:
        LedgerError: the text is no ledger entry.
    """
    body = _object(written)
    gpus = body.get("gpus")
    if not isinstance(gpus, list) or not gpus or not all(isinstance(gpu, dict) for gpu in gpus):
        raise LedgerError("gpus must be a list of at least one object")
    charges = tuple(
        Charge(
            _required(gpu, "uuid"),
            _number(gpu, "milli", 0, MILLI_PER_GPU),
            _number(gpu, "memory", 0, None),
            _number(gpu, "cardMemory", 0, None),
        )
        for gpu in gpus
    )
    if len({charge.uuid for charge in charges}) < len(charges):
        raise LedgerError("gpus names the same GPU twice")
    return Allocation(
        charges=charges,
        port=_number(body, "port", 0, 65535),
        limit_milli=_number(body, "limitMilli", 1, MILLI_PER_GPU),
        affinity=_string(body, "affinity"),
        anti_affinity=_string(body, "antiAffinity"),
        exclusion=_string(body, "exclusion"),
        virtual_id=_string(body, "virtualID"),
    )


def _given(**values: Any) -> Json:
    return {key: value for key, value in values.items() if value}


def _object(written: str) -> Json:
    try:
        body = orjson.loads(written)
    except orjson.JSONDecodeError as error:
        raise LedgerError(f"it is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise LedgerError("it is no JSON object")
    return body


def _number(body: Json, key: str, least: int, most: int | None) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise LedgerError(f"{key} must be an integer {bounds}")
    return value


def _string(body: Json, key: str) -> str:
    value = body.get(key, "")
    if not isinstance(value, str):
        raise LedgerError(f"{key} must be a string")
    return value


def _required(body: Json, key: str) -> str:
    value = _string(body, key)
    if not value:
        raise LedgerError(f"{key} is missing")
    return value


def _strings(body: Json, key: str) -> tuple[str, ...]:
    value = body.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise LedgerError(f"{key} must be a list of strings")
    return tuple(value)
