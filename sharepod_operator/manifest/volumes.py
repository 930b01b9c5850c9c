"""From PersistentVolumes, their claims and StorageClasses to what the scheduler asks of them.

The readers never raise: what can't be read counts as absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharepod_operator.core.model import ClaimUse, Requirement, SelectorTerm
from sharepod_operator.core.volumes import Claim, ClaimPhase, StorageClass, Volume
from sharepod_operator.manifest.access import controlling_owner, mapping, mappings, text, texts, version
from sharepod_operator.manifest.constraints import selector_terms

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
"""Wins over spec.storageClassName, as in Kubernetes."""
_ZONE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
"""Labels that say where an old PersistentVolume without a node affinity is; `__` separates several values."""
_PHASES = frozenset(ClaimPhase)


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """A PersistentVolumeClaim as the cache keeps it."""

    uid: str
    name: str
    """namespace/name."""
    version: int
    claim: Claim


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """A PersistentVolume as the cache keeps it."""

    uid: str
    name: str
    version: int
    volume: Volume


@dataclass(frozen=True, slots=True)
class StorageClassRecord:
    """A StorageClass as the cache keeps it."""

    uid: str
    name: str
    version: int
    storage_class: StorageClass


def read_claim(obj: Json) -> ClaimRecord:
    """The record of a PersistentVolumeClaim; one without a status is Pending."""
    metadata, spec, status = (mapping(mapping(obj).get(key)) for key in ("metadata", "spec", "status"))
    key = f"{text(metadata.get('namespace'))}/{text(metadata.get('name'))}"
    phase, owner = text(status.get("phase")), controlling_owner(metadata)
    annotated = text(mapping(metadata.get("annotations")).get(_CLASS_ANNOTATION))
    claim = Claim(
        key=key,
        phase=ClaimPhase(phase) if phase in _PHASES else ClaimPhase.PENDING,
        volume=text(spec.get("volumeName")),
        storage_class=annotated or text(spec.get("storageClassName")),
        deleting=bool(metadata.get("deletionTimestamp")),
        single_pod="ReadWriteOncePod" in texts(spec.get("accessModes")),
        owner_uid=owner.uid if owner is not None else "",
    )
    return ClaimRecord(text(metadata.get("uid")), key, version(metadata), claim)


def read_volume(obj: Json) -> VolumeRecord:
    """The record of a PersistentVolume."""
    metadata, spec = (mapping(mapping(obj).get(key)) for key in ("metadata", "spec"))
    name, reference = text(metadata.get("name")), mapping(spec.get("claimRef"))
    required = mapping(spec.get("nodeAffinity")).get("required")
    terms = (selector_terms(required),) if isinstance(required, dict) else ()
    volume = Volume(
        name=name,
        claim_key=f"{text(reference.get('namespace'))}/{text(reference.get('name'))}" if reference else "",
        affinity=terms + _zones(mapping(metadata.get("labels"))),
    )
    return VolumeRecord(text(metadata.get("uid")), name, version(metadata), volume)


def read_storage_class(obj: Json) -> StorageClassRecord:
    """The record of a StorageClass."""
    body = mapping(obj)
    metadata = mapping(body.get("metadata"))
    name = text(metadata.get("name"))
    waits = body.get("volumeBindingMode") == "WaitForFirstConsumer"
    return StorageClassRecord(text(metadata.get("uid")), name, version(metadata), StorageClass(name, waits))


def read_claim_uses(spec: Json, namespace: str, pod_name: str) -> tuple[ClaimUse, ...]:
    """The claims that a pod's volumes use, in the order of its volumes; a generic ephemeral volume has one of its own."""
    uses: list[ClaimUse] = []
    for volume in mappings(spec.get("volumes")):
        name = text(volume.get("name"))
        claim = volume.get("persistentVolumeClaim")
        if isinstance(claim, dict):
            uses.append(ClaimUse(f"{namespace}/{text(claim.get('claimName'))}", name))
        elif volume.get("ephemeral") is not None:
            uses.append(ClaimUse(f"{namespace}/{pod_name}-{name}", name, ephemeral=True))
    return tuple(uses)


def _zones(labels: Json) -> tuple[tuple[SelectorTerm, ...], ...]:
    return tuple(
        (SelectorTerm((Requirement(key, "In", tuple(text(labels[key]).split("__"))),)),)
        for key in _ZONE_LABELS
        if text(labels.get(key))
    )
