"""From a Node object to what the scheduler knows of a node."""

from __future__ import annotations

from sharepod_operator.core.model import Device, Node, Taint
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import mapping, mappings, string_pairs, text, version
from sharepod_operator.manifest.inventory import InventoryError, read_inventory
from sharepod_operator.manifest.records import Json, NodeRecord
from sharepod_operator.manifest.resources import DEFAULT_MAX_PODS, read_amounts


def read_node(obj: Json) -> NodeRecord:
    """The record of a Node. Never raises: what can't be read offers nothing, and `inventory_error` says why."""
    metadata, spec, status = (mapping(mapping(obj).get(key)) for key in ("metadata", "spec", "status"))
    devices, error = _devices(mapping(metadata.get("annotations")))
    problems: list[str] = []
    allocatable, pods, _ = read_amounts(mapping(status.get("allocatable")), "status.allocatable", problems)
    capacity, _, _ = read_amounts(mapping(status.get("capacity")), "status.capacity", [])
    advertised = max(dict(amounts.extended).get(names.NVIDIA_GPU, 0) for amounts in (allocatable, capacity))
    node = Node(
        name=text(metadata.get("name")),
        ready=_is_ready(status),
        unschedulable=spec.get("unschedulable") is True,
        labels=string_pairs(metadata.get("labels")),
        taints=_taints(spec),
        allocatable=allocatable,
        max_pods=DEFAULT_MAX_PODS if pods is None else pods,
        devices=devices,
        internal_ip=_internal_ip(status),
        foreign_gpu_users=bool(devices) and advertised > 0,
    )
    return NodeRecord(
        uid=text(metadata.get("uid")),
        name=node.name,
        version=version(metadata),
        node=node,
        inventory_error=error or (problems[0] if problems else ""),
    )


def _devices(annotations: Json) -> tuple[tuple[Device, ...], str]:
    try:
        return read_inventory(annotations), ""
    except InventoryError as error:
        return (), str(error)


def _is_ready(status: Json) -> bool:
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in mappings(status.get("conditions"))
    )


def _taints(spec: Json) -> tuple[Taint, ...]:
    return tuple(
        Taint(text(taint.get("key")), text(taint.get("value")), text(taint.get("effect")))
        for taint in mappings(spec.get("taints"))
    )


def _internal_ip(status: Json) -> str:
    for address in mappings(status.get("addresses")):
        if address.get("type") == "InternalIP":
            return text(address.get("address"))
    return ""
