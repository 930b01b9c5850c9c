"""The GPUs of a node, from the annotation that an administrator or an agent wrote.

Read strictly: an inventory with one wrong entry offers no GPU at all, since a wrong size or a UUID listed twice would
be charged wrongly for as long as nobody looks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from sharepod_operator.core.model import Device
from sharepod_operator.core.quantity import parse_amount, shown
from sharepod_operator.manifest import names

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

_MIB = 1 << 20
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_NOT_ONE_DEVICE = frozenset({"all", "none", "void"})
"""Words that NVIDIA's runtime takes for something else than one GPU."""


class InventoryError(ValueError):
    """An inventory that can't be believed; the text is one sentence that names the annotation."""


def read_inventory(annotations: Json) -> tuple[Device, ...]:
    """The GPUs of `faasshare.tum/gpu-inventory`, or of the seed's `kubeshare/gpu_info` where the first is absent.

    Raises:
        InventoryError: an entry is malformed, or a UUID stands there twice.
    """
    cordoned = _cordoned(annotations.get(names.CORDONED_GPUS))
    written, seed = annotations.get(names.GPU_INVENTORY), annotations.get(names.KUBESHARE_GPU_INFO)
    if isinstance(written, str) and written.strip():
        devices = _json_inventory(written, cordoned)
        annotation = names.GPU_INVENTORY
    elif isinstance(seed, str):
        devices = _seed_inventory(seed, cordoned)
        annotation = names.KUBESHARE_GPU_INFO
    else:
        return ()
    seen: set[str] = set()
    for device in devices:
        if device.uuid in seen:
            raise InventoryError(f"{annotation}: UUID {device.uuid} stands there twice; every GPU must be listed once")
        seen.add(device.uuid)
    return tuple(devices)


def device_uuid(value: Any, where: str) -> str:
    """The value as a GPU's UUID.

    Raises:
        InventoryError: it is none; `where` names its place in the sentence.
    """
    if not isinstance(value, str) or not _UUID.fullmatch(value) or value.isdigit() or value.lower() in _NOT_ONE_DEVICE:
        raise InventoryError(
            f"{where} is {shown(value)}; it must be a GPU's UUID such as GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
        )
    return value


def _cordoned(value: Any) -> frozenset[str]:
    return frozenset(part.strip() for part in value.split(",")) if isinstance(value, str) else frozenset()


def _json_inventory(written: str, cordoned: frozenset[str]) -> list[Device]:
    name = names.GPU_INVENTORY
    try:
        body = orjson.loads(written)
    except orjson.JSONDecodeError as error:
        raise InventoryError(f"{name}: it is not JSON: {error}") from None
    gpus = body.get("gpus") if isinstance(body, dict) else None
    if not isinstance(gpus, list):
        raise InventoryError(f'{name}: it must be an object with a list "gpus"')
    return [_json_device(gpu, f"{name}: gpus[{index}]", index, cordoned) for index, gpu in enumerate(gpus)]


def _json_device(gpu: Any, where: str, position: int, cordoned: frozenset[str]) -> Device:
    if not isinstance(gpu, dict):
        raise InventoryError(f"{where} is {shown(gpu)}; it must be an object with uuid and memory")
    uuid = device_uuid(gpu.get("uuid"), f"{where}.uuid")
    model, index, healthy = gpu.get("model", ""), gpu.get("index", position), gpu.get("healthy", True)
    if not isinstance(model, str):
        raise InventoryError(f"{where}.model is {shown(model)}; it must be a string")
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise InventoryError(f"{where}.index is {shown(index)}; it must be an integer of at least 0")
    if not isinstance(healthy, bool):
        raise InventoryError(f"{where}.healthy is {shown(healthy)}; it must be true or false")
    memory = device_memory(gpu.get("memory"), f"{where}.memory")
    return Device(uuid, memory, model=model, index=index, healthy=healthy, cordoned=uuid in cordoned)


def device_memory(value: Any, where: str) -> int:
    """A GPU's size in bytes, from an integer or a quantity.

    Raises:
        InventoryError: it is neither, or not above 0.
    """
    rule = "it must be bytes as an integer, or a quantity such as 40Gi, above 0"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InventoryError(f"{where} is {shown(value)}; {rule}")
    try:
        memory = parse_amount(value)
    except ValueError:
        raise InventoryError(f"{where} is {shown(value)}; {rule}") from None
    if memory <= 0:
        raise InventoryError(f"{where} is {shown(value)}; {rule}")
    return memory


def _seed_inventory(written: str, cordoned: frozenset[str]) -> list[Device]:
    name = names.KUBESHARE_GPU_INFO
    devices: list[Device] = []
    for index, part in enumerate(part for part in written.strip().split(",") if part.strip()):
        uuid, _, mebibytes = part.strip().rpartition(":")
        where = f"{name}: entry {index + 1}"
        device_uuid(uuid, f"the UUID of {where}")
        if not (mebibytes.isascii() and mebibytes.isdigit() and len(mebibytes) <= 12 and int(mebibytes)):
            raise InventoryError(f"{where} is {shown(part)}; it must read UUID:MiB, such as GPU-604ac76c:40960")
        devices.append(Device(uuid, int(mebibytes) * _MIB, index=index, cordoned=uuid in cordoned))
    return devices
