"""Reading Nodes: their state, their size, and the GPUs of their inventory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sharepod_operator.core.model import Device, Resources, Taint
from sharepod_operator.manifest import names
from sharepod_operator.manifest.node import read_node
from tests.support.objects import node_object

Json = dict[str, Any]
GIB = 1 << 30


def inventory(*gpus: Any, source: str = "admin") -> Json:
    return {names.GPU_INVENTORY: json.dumps({"source": source, "gpus": list(gpus)})}


def gpu(uuid: Any = "GPU-a", memory: Any = "40Gi", **fields: Any) -> Json:
    return {"uuid": uuid, "memory": memory, **fields}


def devices(annotations: Json) -> tuple[Device, ...]:
    record = read_node(node_object(annotations=annotations))
    assert "" == record.inventory_error
    return record.node.devices


def test_state_and_size() -> None:
    """Readiness, cordon, taints, labels, allocatable, address."""
    status = {
        "allocatable": {
            "cpu": "7500m",
            "memory": "31Gi",
            "pods": "20",
            "ephemeral-storage": "1Ki",
            "example.com/fpga": "2",
        },
        "addresses": [{"type": "Hostname", "address": "x"}, {"type": "InternalIP", "address": "10.0.0.5"}],
    }
    body = node_object(unschedulable=True, taints=[{"key": "k", "effect": "NoSchedule"}], status=status)
    body["metadata"]["labels"] = {"zone": "east"}
    node = read_node(body).node
    assert Resources(7500, 31 * GIB, 1024, (("example.com/fpga", 2),)) == node.allocatable
    assert (20, "10.0.0.5", True, True) == (node.max_pods, node.internal_ip, node.ready, node.unschedulable)
    assert ((Taint("k", "", "NoSchedule"),), (("zone", "east"),)) == (node.taints, node.labels)


@pytest.mark.parametrize("status", ["False", "Unknown", None])
def test_node_without_ready_true_is_not_ready(status: str | None) -> None:
    """Unknown and unreported are no more ready than False."""
    conditions = [{"type": "Ready", "status": status}] if status else []
    assert False is read_node(node_object(status={"conditions": conditions})).node.ready


def test_inventory_in_json() -> None:
    """Memory as bytes or quantity; index, model and health have defaults."""
    found = devices(inventory(gpu(model="A100", index=3, healthy=False), gpu("GPU-b", 1000)))
    assert (Device("GPU-a", 40 * GIB, "A100", 3, healthy=False), Device("GPU-b", 1000, index=1)) == found


def test_inventory_in_the_seeds_form() -> None:
    """`UUID:MiB,` for each GPU, with or without the last comma; the JSON form wins where both are there."""
    seed = {names.KUBESHARE_GPU_INFO: "GPU-a:40960,GPU-b:24576,"}
    expected = (Device("GPU-a", 40 * GIB), Device("GPU-b", 24 * GIB, index=1))
    assert expected == devices(seed) == devices({names.KUBESHARE_GPU_INFO: "GPU-a:40960,GPU-b:24576"})
    assert (Device("GPU-c", 40 * GIB),) == devices({**seed, **inventory(gpu("GPU-c"))})
    assert () == devices({names.KUBESHARE_GPU_INFO: ""}) == devices({})


def test_cordoned_gpus() -> None:
    """The comma list cordons single GPUs, with blanks around or not."""
    annotations = {**inventory(gpu(), gpu("GPU-b"), gpu("GPU-c")), names.CORDONED_GPUS: "GPU-b, GPU-c,GPU-gone"}
    assert [False, True, True] == [device.cordoned for device in devices(annotations)]


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({names.GPU_INVENTORY: "{"}, ["gpu-inventory", "not JSON"]),
        ({names.GPU_INVENTORY: "[]"}, ["gpu-inventory", "gpus"]),
        (inventory("GPU-a"), ["gpus[0]", "object"]),
        (inventory(gpu(), gpu()), ["GPU-a", "twice"]),
        (inventory(gpu(uuid="")), ["gpus[0].uuid"]),
        (inventory(gpu(uuid="all")), ["gpus[0].uuid", '"all"']),
        (inventory(gpu(uuid="0")), ["gpus[0].uuid"]),
        (inventory(gpu(uuid="GPU-a,GPU-b")), ["gpus[0].uuid"]),
        (inventory(gpu(uuid="../etc")), ["gpus[0].uuid"]),
        (inventory(gpu(memory=0)), ["gpus[0].memory", "above 0"]),
        (inventory(gpu(memory="40Gb")), ["gpus[0].memory", '"40Gb"']),
        (inventory(gpu(memory=1.5)), ["gpus[0].memory", "1.5"]),
        (inventory(gpu(memory=None)), ["gpus[0].memory"]),
        (inventory(gpu(index=-1)), ["gpus[0].index"]),
        (inventory(gpu(healthy="yes")), ["gpus[0].healthy"]),
        (inventory(gpu(model=5)), ["gpus[0].model"]),
        ({names.KUBESHARE_GPU_INFO: "GPU-a"}, ["kubeshare/gpu_info"]),
        ({names.KUBESHARE_GPU_INFO: "GPU-a:x,"}, ["entry 1", "UUID:MiB"]),
        ({names.KUBESHARE_GPU_INFO: ":40960,"}, ["kubeshare/gpu_info", "UUID"]),
        ({names.KUBESHARE_GPU_INFO: "GPU-a:1,GPU-a:1,"}, ["GPU-a", "twice"]),
        ({names.KUBESHARE_GPU_INFO: "GPU-a:0,"}, ["entry 1"]),
    ],
)
def test_inventory_that_cannot_be_believed_offers_nothing(annotations: Json, words: list[str]) -> None:
    """One wrong entry and the node offers no GPU; the sentence names annotation, value and rule."""
    record = read_node(node_object(annotations=annotations))
    assert () == record.node.devices
    assert [] == [word for word in words if word not in record.inventory_error], record.inventory_error


@pytest.mark.parametrize(
    ("annotations", "allocatable", "capacity", "foreign"),
    [
        (inventory(gpu()), {}, {}, False),
        (inventory(gpu()), {"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": "0"}, False),
        (inventory(gpu()), {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "2"}, True),
        (inventory(gpu()), {"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": "2"}, True),
        ({}, {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "2"}, False),
    ],
)
def test_node_that_advertises_whole_gpus_has_other_users(
    annotations: Json,
    allocatable: Json,
    capacity: Json,
    foreign: bool,  # noqa: FBT001 - by name
) -> None:
    """A dedicated node must not offer nvidia.com/gpu to others as well."""
    status = {"allocatable": allocatable, "capacity": capacity}
    assert foreign is read_node(node_object(annotations=annotations, status=status)).node.foreign_gpu_users
