"""Kubernetes objects as a person or the API server would write them, for tests of the readers."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

THREE_AMOUNTS = {"kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": "1073741824"}


def container(name: str = "app", **fields: Any) -> Json:
    return {"name": name, "image": "app:1", **fields}


def sized(name: str = "app", *, limits: Json | None = None, always: bool = False, **requests: Any) -> Json:
    """A container with resource requests; `always` makes an init container a sidecar."""
    resources: Json = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    return container(name, resources=resources, **({"restartPolicy": "Always"} if always else {}))


def sharepod_object(
    name: str = "bert",
    *,
    gpu: Any = None,
    annotations: Json | None = None,
    labels: Json | None = None,
    pod_spec: Json | None = None,
    **spec: Any,
) -> Json:
    body: Json = {"podSpec": {"containers": [container()], **(pod_spec or {})}, **spec}
    if gpu is not None:
        body["gpu"] = gpu
    return {
        "apiVersion": "faasshare.tum/v1",
        "kind": "SharePod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": "uid-1",
            "resourceVersion": "7",
            "generation": 2,
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": body,
    }


def pod_object(
    name: str = "bert-abcde",
    *,
    annotations: Json | None = None,
    status: Json | None = None,
    metadata: Json | None = None,
    **spec: Any,
) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": "pod-1",
            "resourceVersion": "12",
            "annotations": annotations or {},
            **(metadata or {}),
        },
        "spec": {"containers": [container()], **spec},
        "status": status or {},
    }


def of_sharepod() -> Json:
    """Metadata of a pod that the controller has made."""
    owner = {"apiVersion": "faasshare.tum/v1", "kind": "SharePod", "name": "bert", "uid": "uid-1", "controller": True}
    return {"ownerReferences": [owner]}


def seeing(**fields: Any) -> Json:
    """A container that reads its GPUs, as the admission policy makes it."""
    path = "metadata.annotations['faasshare.tum/gpu-uuids']"
    env = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    return container(**{"env": [env], **fields})


def node_object(
    name: str = "gpu-a", *, annotations: Json | None = None, status: Json | None = None, **spec: Any
) -> Json:
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": "node-1", "resourceVersion": "3", "annotations": annotations or {}},
        "spec": spec,
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}], **(status or {})},
    }
