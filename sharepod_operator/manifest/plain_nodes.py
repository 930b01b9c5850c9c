"""The nodes of a scenario in the plain form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharepod_operator.core.model import Device, Node, Taint
from sharepod_operator.core.quantity import shown
from sharepod_operator.manifest.inventory import InventoryError, device_memory, device_uuid
from sharepod_operator.manifest.resources import DEFAULT_MAX_PODS, read_amounts
from sharepod_operator.manifest.strict import (
    ScenarioError,
    check_keys,
    flag_at,
    integer_at,
    name_at,
    object_at,
    objects,
    strings_at,
    text_at,
)

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

_NODE_KEYS = ("name", "ready", "unschedulable", "labels", "taints", "allocatable", "gpus")
_GPU_KEYS = ("uuid", "memory", "healthy", "model", "index", "cordoned")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def read_plain_node(node: Json, where: str) -> Node:
    """The node at this path of the file.

    Raises:
        ScenarioError: it says something that can't be.
    """
    check_keys(node, _NODE_KEYS, where)
    problems: list[str] = []
    allocatable, pods, _ = read_amounts(object_at(node, "allocatable", where), f"{where}.allocatable", problems)
    if problems:
        raise ScenarioError(problems[0])
    gpus = objects(node, "gpus", where)
    return Node(
        name=name_at(node, where),
        ready=flag_at(node, "ready", where, default=True),
        unschedulable=flag_at(node, "unschedulable", where, default=False),
        labels=strings_at(node, "labels", where),
        taints=tuple(_taint(taint, here) for taint, here in objects(node, "taints", where)),
        allocatable=allocatable,
        max_pods=DEFAULT_MAX_PODS if pods is None else pods,
        devices=tuple(_device(gpu, here, index) for index, (gpu, here) in enumerate(gpus)),
    )


def _taint(taint: Json, where: str) -> Taint:
    check_keys(taint, ("key", "value", "effect"), where)
    effect = text_at(taint, "effect", where)
    if effect not in _EFFECTS:
        raise ScenarioError(f"{where}.effect is {shown(effect)}; it must be one of {', '.join(_EFFECTS)}")
    return Taint(text_at(taint, "key", where), text_at(taint, "value", where), effect)


def _device(gpu: Json, where: str, position: int) -> Device:
    check_keys(gpu, _GPU_KEYS, where)
    try:
        uuid = device_uuid(gpu.get("uuid"), f"{where}.uuid")
        memory = device_memory(gpu.get("memory"), f"{where}.memory")
    except InventoryError as error:
        raise ScenarioError(str(error)) from None
    return Device(
        uuid,
        memory,
        model=text_at(gpu, "model", where),
        index=integer_at(gpu, "index", where, position),
        healthy=flag_at(gpu, "healthy", where, default=True),
        cordoned=flag_at(gpu, "cordoned", where, default=False),
    )
