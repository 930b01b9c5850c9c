"""The GPU request of a SharePod, gathered from where people write it: `spec.gpu`, and KubeShare's annotations.

Typed fields win field by field, then annotations, and defaults come last. Without `spec.gpu` the annotations have to
be whole, as KubeShare demands: all three amounts, or none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sharepod_operator.core.quantity import MAX_AMOUNT, shown
from sharepod_operator.core.request import RequestFields, RequestLabels, build_request
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import mapping, text

if TYPE_CHECKING:
    from sharepod_operator.core.model import GPURequest
    from sharepod_operator.manifest.records import Json

_SOURCES = {
    "request": ("request", names.KUBESHARE_REQUEST),
    "limit": ("limit", names.KUBESHARE_LIMIT),
    "memory": ("memory", names.KUBESHARE_MEMORY),
    "count": ("count", ""),
    "affinity": ("affinity", names.KUBESHARE_AFFINITY),
    "anti_affinity": ("antiAffinity", names.KUBESHARE_ANTI_AFFINITY),
    "exclusion": ("exclusion", names.KUBESHARE_EXCLUSION),
    "device_ids": ("deviceIDs", ""),
    "gpu_id": ("", names.KUBESHARE_GPU_ID),
}
"""Field of a request: its name under spec.gpu, and its annotation."""
_ANNOTATION = "annotation "
_DEVICE = re.compile(r"(GPU|MIG)-[A-Za-z0-9._-]+", re.ASCII)
_BYTES = re.compile(r"[0-9]{1,19}", re.ASCII)


def read_gpu(spec: Json, annotations: dict[str, str], problems: list[str]) -> tuple[GPURequest | None, str]:
    """The request of each replica and where it was written: `spec`, `annotations`, `spec+annotations` or "".

    None without a sentence in `problems` means that no GPU is asked for.
    """
    before = len(problems)
    typed = spec.get("gpu")
    if typed is not None and not isinstance(typed, dict):
        problems.append(f"spec.gpu is {shown(typed)}; it must be an object with request, limit and memory")
        return None, ""
    given = {key: value for key, value in annotations.items() if key in names.KUBESHARE_REQUEST_KEYS and value}
    if typed is None and not _whole(given, problems):
        return None, "" if len(problems) == before else "annotations"
    values, labels = _gather(mapping(typed), given)
    _check_forms(values, labels, mapping(typed), problems)
    filled = any(values[field] is not None and label.startswith(_ANNOTATION) for field, label in labels.items())
    source = "annotations" if typed is None else "spec+annotations" if filled else "spec"
    request = build_request(RequestFields(**values), RequestLabels(**labels)) if len(problems) == before else []
    if isinstance(request, list):
        problems.extend(request)
        return None, source
    _check_pin(request, mapping(spec.get("podSpec")), problems)
    return (request, source) if len(problems) == before else (None, source)


def looks_like_device(gpu_id: str) -> bool:
    """Whether a GPUID has the form of a UUID; any other may name a virtual GPU."""
    return _DEVICE.fullmatch(gpu_id) is not None


def _whole(given: dict[str, str], problems: list[str]) -> bool:
    """Whether annotations alone make a request; what they leave out is told."""
    missing = [key for key in names.KUBESHARE_AMOUNTS if key not in given]
    if not missing:
        return True
    if len(missing) < len(names.KUBESHARE_AMOUNTS):
        problems.append(
            f"annotation {' and '.join(missing)}: missing; without spec.gpu all of {', '.join(names.KUBESHARE_AMOUNTS)} are needed"
        )
    elif names.KUBESHARE_GPU_ID in given:
        problems.append(
            f"annotation {names.KUBESHARE_GPU_ID}: {shown(given[names.KUBESHARE_GPU_ID])} pins a GPU, but no GPU is "
            f"asked for; add {', '.join(names.KUBESHARE_AMOUNTS)} or spec.gpu"
        )
    return False


def _gather(typed: Json, given: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for field, (name, annotation) in _SOURCES.items():
        stated = typed.get(name) if name else None
        if stated is None and annotation in given:
            values[field], labels[field] = given[annotation], f"{_ANNOTATION}{annotation}"
        else:
            values[field] = stated
            labels[field] = f"spec.gpu.{name}" if name else f"{_ANNOTATION}{annotation}"
    return values, labels


def _check_forms(values: dict[str, Any], labels: dict[str, str], typed: Json, problems: list[str]) -> None:
    problems.extend(
        f"spec.gpu.{name}: {shown(typed[name])} must be a number, write it without quotes"
        for name in ("request", "limit")
        if isinstance(typed.get(name), str)
    )
    memory, label = values["memory"], labels["memory"]
    if memory is None or not label.startswith(_ANNOTATION):
        return
    if not _BYTES.fullmatch(memory) or int(memory) > MAX_AMOUNT:
        problems.append(f"{label}: {shown(memory)} must be bytes in digits only, such as 10737418240")


def _check_pin(request: GPURequest, pod_spec: Json, problems: list[str]) -> None:
    """A GPUID that is no UUID names a virtual GPU, which is one card of one node: the node has to be known."""
    if request.gpu_id and not looks_like_device(request.gpu_id) and not text(pod_spec.get("nodeName")):
        problems.append(
            f"annotation {names.KUBESHARE_GPU_ID}: {shown(request.gpu_id)} is no GPU's UUID and so names a virtual GPU, "
            "which needs the node as well; set spec.podSpec.nodeName"
        )
    if request.device_ids and len(request.device_ids) < request.count:
        problems.append(
            f"spec.gpu.deviceIDs: a list of {len(request.device_ids)} must name at least spec.gpu.count, {request.count}"
        )
