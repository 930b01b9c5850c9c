"""From a SharePod to the Pod of one replica: the whole podSpec, plus what makes it a replica and a GPU client.

The Pod is created unbound. Its environment reads node, GPUs and port from annotations that arrive with the Binding; a
pod that was never bound by this operator finds them empty, and an empty NVIDIA_VISIBLE_DEVICES means no GPU.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import mapping, mappings
from sharepod_operator.manifest.gpu_env import BACKEND_ENV, with_gpu_env
from sharepod_operator.manifest.ledger import encode_request

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json, SharePodRecord

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SUFFIX_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_SUFFIX_LENGTH = 5

BACKENDS = tuple(BACKEND_ENV)


@dataclass(frozen=True, slots=True)
class Rendering:
    """The cluster's settings that go into each Pod."""

    backend: str = "none"
    """The isolation backend, one of BACKENDS; it decides on the environment of GPU pods."""
    runtime_class: str = ""
    """The runtime class of GPU pods that name none."""
    scheduler: str = names.SCHEDULER_NAME


DEFAULT_RENDERING = Rendering()


def render_pod(
    sharepod: SharePodRecord, name: str, rendering: Rendering = DEFAULT_RENDERING, *, replica: str = ""
) -> Json:
    """The Pod of one replica, ready to be created.

    Args:
        sharepod: a valid SharePod.
        name: the Pod's name, see `replica_name`.
        rendering: the cluster's settings.
        replica: the value of the annotation faasshare.tum/replica; left out where empty.

    Raises:
        KeyError: there is no such backend.
    """
    annotations = _annotations(sharepod)
    if replica:
        annotations[names.REPLICA] = replica
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": sharepod.namespace,
            "labels": pod_labels(sharepod.name, dict(sharepod.labels)),
            "annotations": annotations,
            "ownerReferences": [_owner(sharepod)],
        },
        "spec": _spec(sharepod, rendering),
    }


def pod_labels(sharepod: str, labels: dict[str, str]) -> dict[str, str]:
    """The labels of a replica: faas-share's, then the SharePod's own, then the two that nobody can override."""
    return {
        names.LABEL_FAAS_FUNCTION: sharepod,
        names.LABEL_APP: sharepod,
        **labels,
        names.LABEL_CONTROLLER: sharepod,
        names.LABEL_SHAREPOD: sharepod,
    }


def template_hash(sharepod: SharePodRecord) -> str:
    """A short hash of everything that a replica's Pod is made of; a replica with another hash is out of date.

    The floor label is left out: raising the floor is no reason to restart what runs.
    """
    parts = (
        sharepod.pod_spec.value,
        [pair for pair in sharepod.labels if pair[0] != names.LABEL_MIN_REPLICAS],
        sorted(_copied_annotations(sharepod).items()),
        encode_request(sharepod.gpu) if sharepod.gpu else "",
    )
    written = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def replica_name(sharepod: str, uid: str, ordinal: int, incarnation: int) -> str:
    """The name of a replica: `<sharepod>-<5 of 0-9a-z>`, always the same for the same arguments.

    `incarnation` counts the pods that this ordinal has had, so that a create repeated after a crash meets its own pod
    and a replacement gets another name.
    """
    digest = hashlib.sha256(f"{uid}/{ordinal}/{incarnation}".encode("utf-8", "surrogatepass")).digest()
    number = int.from_bytes(digest[:8], "big")
    letters: list[str] = []
    for _ in range(_SUFFIX_LENGTH):
        number, index = divmod(number, len(_SUFFIX_ALPHABET))
        letters.append(_SUFFIX_ALPHABET[index])
    return f"{sharepod}-{''.join(letters)}"


def _owner(sharepod: SharePodRecord) -> Json:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": sharepod.name,
        "uid": sharepod.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _copied_annotations(sharepod: SharePodRecord) -> dict[str, str]:
    """The SharePod's annotations, without ours: copied, they would be a ledger entry written by a user.

    KubeShare's request goes along where it is the whole request. Beside typed fields or resources it may be a part that
    makes no sense by itself, which on a Pod would be refused.
    """
    partial = names.KUBESHARE_REQUEST_KEYS if sharepod.gpu_source != "annotations" else ()
    return {
        key: value
        for key, value in sharepod.annotations
        if not key.startswith(f"{names.GROUP}/") and key != _LAST_APPLIED and key not in partial
    }


def _annotations(sharepod: SharePodRecord) -> dict[str, str]:
    annotations = _copied_annotations(sharepod)
    if sharepod.gpu is not None:
        annotations[names.GPU_REQUEST] = encode_request(sharepod.gpu)
    annotations[names.TEMPLATE_HASH] = sharepod.template_hash
    return annotations


def _spec(sharepod: SharePodRecord, rendering: Rendering) -> Json:
    spec = sharepod.pod_spec.value
    gpu = sharepod.gpu is not None
    env = BACKEND_ENV[rendering.backend]
    spec["schedulerName"] = rendering.scheduler
    for kind in ("initContainers", "containers"):
        if isinstance(spec.get(kind), list):
            spec[kind] = [with_gpu_env(item, env if gpu else ()) for item in spec[kind]]
    if gpu and rendering.runtime_class and not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = rendering.runtime_class
    node = spec.pop("nodeName", "")
    if node:
        spec["affinity"] = _pinned(mapping(spec.get("affinity")), node)
    return spec


def _pinned(affinity: Json, node: str) -> Json:
    """The affinity with the node as a further condition of every required term.

    A Pod created with spec.nodeName would be bound from birth and pass the ledger by.
    """
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    node_affinity = mapping(affinity.get("nodeAffinity"))
    required = node_affinity.get(_REQUIRED)
    terms: list[Json] = (
        mappings(required.get("nodeSelectorTerms")) if isinstance(required, dict) else [{"matchFields": []}]
    )
    pinned = [
        {**term, "matchFields": [*mappings(term.get("matchFields")), field]}
        if term
        else term  # an empty term matches nothing
        for term in terms
    ]
    return {**affinity, "nodeAffinity": {**node_affinity, _REQUIRED: {"nodeSelectorTerms": pinned}}}
