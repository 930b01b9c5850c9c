"""A cluster's objects as users and administrators write them, for tests of the whole operator."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sharepod_operator.manifest import names

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

GIB = 1 << 30


def node(name: str, gpus: int) -> Json:
    """A node of so many GPUs of 40Gi."""
    inventory = {
        "source": "admin",
        "gpus": [
            {"uuid": f"GPU-{name}-{index}", "memory": 40 * GIB, "model": "A100", "index": index, "healthy": True}
            for index in range(gpus)
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {names.GPU_INVENTORY: json.dumps(inventory)}},
        "status": {
            "allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def priority_class(name: str, value: int) -> Json:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}


def sharepod(name: str, replicas: int, *, priority: str = "", **gpu: Any) -> Json:
    """A SharePod of so many replicas, half a GPU each unless said otherwise."""
    more = {"priorityClassName": priority} if priority else {}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "gpu": {"request": 0.5, "memory": "10Gi", **gpu},
            "podSpec": {"containers": [{"name": "main", "image": "busybox"}], **more},
        },
    }
