"""Fake GPU nodes: Node objects whose kubelet is played by kwok, with the GPU inventory that an administrator would write."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, Final

from sharepod_operator.localcluster.commands import KWOK_LABEL, KWOK_LABEL_VALUE
from sharepod_operator.manifest.names import GPU_INVENTORY

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB: Final = 1 << 30

# Registered as Ready, a thousand nodes cost kwok a thousand writes less.
_CONDITIONS: Final = tuple(
    {"type": kind, "status": status, "reason": reason, "message": message}
    for kind, status, reason, message in (
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    )
)
_NODE_INFO: Final = {
    "architecture": "amd64",
    "bootID": "",
    "containerRuntimeVersion": "kwok",
    "kernelVersion": "kwok",
    "kubeProxyVersion": "",
    "kubeletVersion": "kwok",
    "machineID": "",
    "operatingSystem": "linux",
    "osImage": "",
    "systemUUID": "",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU: UUID, memory in bytes, model name."""

    uuid: str
    memory: int
    model: str = "NVIDIA-A100-PCIE-40GB"
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class FakeNode:
    """A node to be created.

    Attributes:
        cpu: CPU as a quantity, both capacity and allocatable; `memory` likewise.
        resources: further entries of capacity and allocatable, such as `nvidia.com/gpu`.
        internal_ip: the node's InternalIP; empty derives one in 10.128.0.0/9 from the name.
        kubelet_port: where the API server asks for container logs; None where nobody answers.
    """

    name: str
    gpus: tuple[Gpu, ...] = ()
    cpu: str = "32"
    memory: str = "128Gi"
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    resources: Mapping[str, str] = field(default_factory=dict)
    internal_ip: str = ""
    kubelet_port: int | None = None


def gpu_uuid(node: str, index: int) -> str:
    """A UUID in NVIDIA's form, always the same for this GPU of this node."""
    digest = hashlib.sha256(f"{node}/{index}".encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def gpus_of(node: str, count: int, memory: int, model: str) -> tuple[Gpu, ...]:
    """Equal GPUs of a node, with invented UUIDs."""
    return tuple(Gpu(gpu_uuid(node, index), memory, model) for index in range(count))


def node_manifest(node: FakeNode, now: str) -> dict[str, Any]:
    """The Node object as a kubelet would register it at this time (RFC 3339)."""
    amounts = {"cpu": node.cpu, "memory": node.memory, "pods": str(node.pods), **node.resources}
    annotations = dict(node.annotations)
    if node.gpus:
        annotations.setdefault(GPU_INVENTORY, inventory(node.gpus))
    status: dict[str, Any] = {
        "phase": "Running",
        "conditions": [{**each, "lastHeartbeatTime": now, "lastTransitionTime": now} for each in _CONDITIONS],
        "nodeInfo": dict(_NODE_INFO),
        "capacity": amounts,
        "allocatable": amounts,
        "addresses": [
            {"type": "InternalIP", "address": node.internal_ip or _address(node.name)},
            {"type": "Hostname", "address": node.name},
        ],
    }
    if node.kubelet_port is not None:
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": node.kubelet_port}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {
                "kubernetes.io/hostname": node.name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                # The controller-manager would add these two, with a write of its own for each node.
                "beta.kubernetes.io/os": "linux",
                "beta.kubernetes.io/arch": "amd64",
                KWOK_LABEL: KWOK_LABEL_VALUE,
                **node.labels,
            },
            "annotations": annotations,
        },
        "spec": {"taints": [dict(taint) for taint in node.taints]} if node.taints else {},
        "status": status,
    }


def inventory(gpus: tuple[Gpu, ...]) -> str:
    """The value of the inventory annotation for these GPUs, as an administrator writes it."""
    entries = [
        {"uuid": gpu.uuid, "memory": gpu.memory, "model": gpu.model, "index": index, "healthy": gpu.healthy}
        for index, gpu in enumerate(gpus)
    ]
    return json.dumps({"source": "admin", "gpus": entries}, separators=(",", ":"))


def is_ready(node: Mapping[str, Any]) -> bool:
    """Ready, and no longer tainted as not ready, so that pods can land there."""
    taints = {taint["key"] for taint in node["spec"].get("taints", ())}
    conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "node.kubernetes.io/not-ready" not in taints


def _address(name: str) -> str:
    first = int(IPv4Address("10.128.0.0"))
    return str(IPv4Address(first + 1 + int(hashlib.sha256(name.encode()).hexdigest(), 16) % (2**23 - 2)))
