"""Fake GPU nodes look as a kubelet and an administrator would have written them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sharepod_operator.localcluster.nodes import GIB, FakeNode, Gpu, gpus_of, is_ready, node_manifest
from sharepod_operator.manifest.names import GPU_INVENTORY

NOW = "2026-01-02T03:04:05Z"


def test_a_gpu_node_carries_its_inventory_in_bytes() -> None:
    node = FakeNode("a", (Gpu("GPU-1", 40 * GIB, "A100"), Gpu("GPU-2", 24 * GIB, "A10", healthy=False)))
    assert {
        "source": "admin",
        "gpus": [
            {"uuid": "GPU-1", "memory": 42949672960, "model": "A100", "index": 0, "healthy": True},
            {"uuid": "GPU-2", "memory": 25769803776, "model": "A10", "index": 1, "healthy": False},
        ],
    } == json.loads(node_manifest(node, NOW)["metadata"]["annotations"][GPU_INVENTORY])


def test_a_node_without_gpus_has_no_inventory() -> None:
    assert {} == node_manifest(FakeNode("a"), NOW)["metadata"]["annotations"]


def test_capacity_is_allocatable_and_may_hold_other_resources() -> None:
    status = node_manifest(FakeNode("a", cpu="8", memory="16Gi", pods=20, resources={"nvidia.com/gpu": "2"}), NOW)[
        "status"
    ]
    expected = {"cpu": "8", "memory": "16Gi", "pods": "20", "nvidia.com/gpu": "2"}
    assert expected == status["capacity"] == status["allocatable"]


def test_labels_taints_address_and_kubelet_port_are_taken_over() -> None:
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    node = FakeNode("a", labels={"zone": "z"}, taints=(taint,), internal_ip="127.0.0.1", kubelet_port=10250)
    manifest = node_manifest(node, NOW)
    assert "z" == manifest["metadata"]["labels"]["zone"]
    assert [taint] == manifest["spec"]["taints"]
    assert {"type": "InternalIP", "address": "127.0.0.1"} == manifest["status"]["addresses"][0]
    assert {"kubeletEndpoint": {"Port": 10250}} == manifest["status"]["daemonEndpoints"]


def test_invented_uuids_and_addresses_are_stable_and_differ() -> None:
    """The same demo shows the same UUIDs every time."""
    assert gpus_of("a", 2, GIB, "x") == gpus_of("a", 2, GIB, "x")
    assert 4 == len({gpu.uuid for name in "ab" for gpu in gpus_of(name, 2, GIB, "x")})
    addresses = [node_manifest(FakeNode(name), NOW)["status"]["addresses"][0]["address"] for name in ("a", "b", "a")]
    assert addresses[0] == addresses[2] != addresses[1]


@pytest.mark.parametrize(
    ("conditions", "taints", "expected"),
    [
        ([{"type": "Ready", "status": "True"}], [], True),
        ([{"type": "Ready", "status": "True"}], [{"key": "mine", "effect": "NoSchedule"}], True),
        (
            [{"type": "Ready", "status": "True"}],
            [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
            False,
        ),
        ([{"type": "Ready", "status": "Unknown"}], [], False),
        ([], [], False),
    ],
)
def test_ready_means_that_pods_can_land(conditions: list[Any], taints: list[Any], expected: bool) -> None:  # noqa: FBT001
    assert expected is is_ready({"spec": {"taints": taints}, "status": {"conditions": conditions}})
