"""The GPU request of a SharePod or a plain Pod, gathered from where people write it: `spec.gpu`, KubeShare's annotations,
and container resources.

Typed fields win field by field, then annotations, then resources, and defaults come last. Without `spec.gpu` the
annotations have to be whole, as KubeShare demands: all three amounts, or none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from sharepod_operator.core.quantity import MAX_AMOUNT, shown
from sharepod_operator.core.request import RequestFields, RequestLabels, build_request
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import mapping, text
from sharepod_operator.manifest.gpu_env import VISIBLE_DEVICES, annotation_path, first_without_allocation
from sharepod_operator.manifest.gpu_resources import RESOURCE, fill_in, read_resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod_operator.core.model import GPURequest
    from sharepod_operator.manifest.gpu_resources import Stated
    from sharepod_operator.manifest.records import Json

_SOURCES: Final = {
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
_ANNOTATION: Final = "annotation "
_DEVICE: Final = re.compile(r"(GPU|MIG)-[A-Za-z0-9._-]+", re.ASCII)
_BYTES: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Words:
    """How sentences name what a SharePod and a plain Pod call differently."""

    all_needed: str
    ask: str
    pin: str


_SHAREPOD: Final = _Words("without spec.gpu all of", " or spec.gpu", "set spec.podSpec.nodeName")
_POD: Final = _Words(
    "all of", "", "name the node in a required node affinity, as matchFields with key metadata.name and one value"
)


def read_gpu(spec: Json, annotations: dict[str, str], problems: list[str]) -> tuple[GPURequest | None, str]:
    """The request of each replica of a SharePod and where it was written: `spec`, `annotations`, `resources`, several
    of them joined by `+`, or "".

    None without a sentence in `problems` means that no GPU is asked for.
    """
    typed = spec.get("gpu")
    if typed is not None and not isinstance(typed, dict):
        problems.append(f"spec.gpu is {shown(typed)}; it must be an object with request, limit and memory")
        return None, ""
    pod_spec = mapping(spec.get("podSpec"))
    return _read(typed, annotations, pod_spec, text(pod_spec.get("nodeName")), _SHAREPOD, problems)


def read_plain_gpu(spec: Json, annotations: Json, node: str, problems: list[str]) -> GPURequest | None:
    """The request of a Pod that no SharePod made, from its annotations and resources; `node` is the one it is pinned to.

    The environment of such a Pod is its own: where a container would not see the GPUs that the pod is charged for, the
    pod is refused rather than started without them.
    """
    before = len(problems)
    given = {key: value for key, value in annotations.items() if isinstance(value, str)}
    request, _ = _read(None, given, spec, node, _POD, problems)
    if request is not None:
        blind = first_without_allocation(spec)
        if blind:
            problems.append(
                f"{blind} does not read its GPUs: apply the admission policies (manifests/policies.yaml), or give every "
                f"container the env var {VISIBLE_DEVICES} with fieldRef {annotation_path(names.GPU_UUIDS)}"
            )
    return request if len(problems) == before else None


def looks_like_device(gpu_id: str) -> bool:
    """Whether a GPUID has the form of a UUID; any other may name a virtual GPU."""
    return _DEVICE.fullmatch(gpu_id) is not None


def _read(
    typed: Json | None, annotations: dict[str, str], pod_spec: Json, node: str, words: _Words, problems: list[str]
) -> tuple[GPURequest | None, str]:
    before = len(problems)
    _check_keys(annotations, problems)
    given = {key: value for key, value in annotations.items() if key in names.KUBESHARE_REQUEST_KEYS and value}
    asked = read_resources(pod_spec, problems)
    if typed is None:
        whole = _whole(given, bool(asked) or len(problems) > before, words, problems)
        if not whole and not asked:
            return None, "" if len(problems) == before else "annotations" if given else "resources"
    values, labels = _gather(mapping(typed), given, asked)
    _check_forms(values, labels, mapping(typed), problems)
    source = _source(typed is not None, values, labels)
    request = build_request(RequestFields(**values), RequestLabels(**labels)) if len(problems) == before else []
    if isinstance(request, list):
        problems.extend(request)
        return None, source
    _check_pin(request, node, words, problems)
    return (request, source) if len(problems) == before else (None, source)


def _whole(given: Mapping[str, str], elsewhere: bool, words: _Words, problems: list[str]) -> bool:  # noqa: FBT001
    """Whether annotations alone make a request; what they leave out is told. `elsewhere`: resources ask for a GPU."""
    missing = [key for key in names.KUBESHARE_AMOUNTS if key not in given]
    if not missing:
        return True
    needed = ", ".join(names.KUBESHARE_AMOUNTS)
    if len(missing) < len(names.KUBESHARE_AMOUNTS):
        problems.append(f"annotation {' and '.join(missing)}: missing; {words.all_needed} {needed} are needed")
    elif given and not elsewhere:
        key = names.KUBESHARE_GPU_ID if names.KUBESHARE_GPU_ID in given else min(given)
        does = "pins a GPU" if key == names.KUBESHARE_GPU_ID else "says beside whom on a GPU"
        problems.append(
            f"annotation {key}: {shown(given[key])} {does}, but no GPU is asked for; add {needed}{words.ask}"
        )
    return False


def _check_keys(annotations: Mapping[str, str], problems: list[str]) -> None:
    """A misspelt key would be no request at all, and the pod would start without a GPU."""
    for key in sorted(annotations):
        if key.startswith(names.KUBESHARE_PREFIX) and key not in names.KUBESHARE_REQUEST_KEYS:
            close = get_close_matches(key, names.KUBESHARE_REQUEST_KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(names.KUBESHARE_REQUEST_KEYS)}"
            problems.append(f"annotation {key}: no request has this key; {hint}")


def _gather(
    typed: Json, given: Mapping[str, str], asked: Mapping[str, Stated]
) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for field, (name, annotation) in _SOURCES.items():
        stated = typed.get(name) if name else None
        if stated is None and annotation in given:
            values[field], labels[field] = given[annotation], f"{_ANNOTATION}{annotation}"
        else:
            values[field] = stated
            labels[field] = f"spec.gpu.{name}" if name else f"{_ANNOTATION}{annotation}"
    fill_in(values, labels, asked)
    return values, labels


def _source(typed: bool, values: Mapping[str, Any], labels: Mapping[str, str]) -> str:  # noqa: FBT001
    kinds = {"annotations": _ANNOTATION, "resources": RESOURCE}
    found = [
        kind
        for kind, prefix in kinds.items()
        if any(values[field] is not None and label.startswith(prefix) for field, label in labels.items())
    ]
    return "+".join(["spec", *found] if typed else found)


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


def _check_pin(request: GPURequest, node: str, words: _Words, problems: list[str]) -> None:
    """A GPUID that is no UUID names a virtual GPU, which is one card of one node: the node has to be known."""
    if request.gpu_id and not looks_like_device(request.gpu_id) and not node:
        problems.append(
            f"annotation {names.KUBESHARE_GPU_ID}: {shown(request.gpu_id)} is no GPU's UUID and so names a virtual GPU, "
            f"which needs the node as well; {words.pin}"
        )
    if request.device_ids and len(request.device_ids) < request.count:
        problems.append(
            f"spec.gpu.deviceIDs: a list of {len(request.device_ids)} must name at least spec.gpu.count, {request.count}"
        )
