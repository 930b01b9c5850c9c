"""The environment of a GPU pod's containers: what each isolation backend puts there, and whose names they are.

The values that depend on the placement read annotations that arrive with the Binding. A pod that was never bound by
this operator finds them empty, and an empty NVIDIA_VISIBLE_DEVICES means no GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import mapping, mappings

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
GPU_PREFIXES: Final = ("NVIDIA_", "CUDA_MPS_")
GPU_NAMES: Final = ("LD_PRELOAD", "POD_MANAGER_IP", "POD_MANAGER_PORT", "POD_NAME")
"""Names that are ours on a GPU pod; a user's own entries of these names, or with the prefixes above, are removed."""


def annotation_path(annotation: str) -> str:
    """The fieldPath by which an env var reads an annotation of its pod."""
    return f"metadata.annotations['{annotation}']"


def _from_annotation(name: str, annotation: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": annotation_path(annotation)}}}


BACKEND_ENV: Final[dict[str, tuple[Json, ...]]] = {
    "none": (
        _from_annotation(VISIBLE_DEVICES, names.GPU_UUIDS),
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        _from_annotation("POD_MANAGER_IP", names.POD_MANAGER_IP),
        _from_annotation("POD_MANAGER_PORT", names.POD_MANAGER_PORT),
        _from_annotation("POD_NAME", names.CLIENT_ID),
    ),
}
"""What each isolation backend puts into every container of a GPU pod."""


def with_gpu_env(container: Any, env: tuple[Json, ...]) -> Any:
    """The container with our env first, so that its own later entries may refer to it, and its own of the same names gone.

    Without `env` the pod has no GPU: it loses variables that would open GPUs to it, and gets nothing.
    """
    if not isinstance(container, dict):
        return container
    own = container.get("env")
    if own is not None and not isinstance(own, list):
        return container
    kept = [entry for entry in own or () if not _is_ours(entry, gpu=bool(env))]
    if not env and own is None:
        return container
    return {**container, "env": [*(dict(entry) for entry in env), *kept]}


def first_without_allocation(spec: Json) -> str:
    """The path of the first container, init containers and sidecars among them, that does not read its GPUs; else ""."""
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(mappings(spec.get(kind))):
            if not _reads_allocation(container):
                return f"spec.{kind}[{index}]"
    return ""


def _reads_allocation(container: Json) -> bool:
    """Whether the GPUs that its processes see are those of the ledger; of equal names the kubelet takes the last."""
    stated = [entry for entry in mappings(container.get("env")) if entry.get("name") == VISIBLE_DEVICES]
    if not stated:
        return False
    reference = mapping(mapping(stated[-1].get("valueFrom")).get("fieldRef"))
    return bool(reference.get("fieldPath") == annotation_path(names.GPU_UUIDS))


def _is_ours(entry: Any, *, gpu: bool) -> bool:
    name = mapping(entry).get("name")
    return isinstance(name, str) and (name.startswith(GPU_PREFIXES) or (gpu and name in GPU_NAMES))
