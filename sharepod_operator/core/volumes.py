"""What a pod's PersistentVolumeClaims ask of its node: the node affinity of the volumes that they are bound to.

Volumes are never bound here: a claim that isn't bound is waited for, or refused where it waits for a scheduler to bind
it. Words and rules are those of kube-scheduler's plugins VolumeBinding, VolumeZone and VolumeRestrictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from sharepod_operator.core.model import Unschedulable

if TYPE_CHECKING:
    from sharepod_operator.core.model import ClaimUse, Pod, SelectorTerm, Shape


class ClaimPhase(StrEnum):
    """How far a claim is."""

    PENDING = "Pending"
    """Not bound yet, or not seen as bound."""
    BOUND = "Bound"
    LOST = "Lost"
    """Its PersistentVolume is gone, and its data with it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim."""

    key: str
    """namespace/name."""
    phase: ClaimPhase = ClaimPhase.PENDING
    volume: str = ""
    """The PersistentVolume that it is bound to, or reserved for while it is Pending."""
    storage_class: str = ""
    """"" where it names none."""
    deleting: bool = False
    single_pod: bool = False
    """Access mode ReadWriteOncePod: for one pod at a time."""
    owner_uid: str = ""
    """Its controller: for a generic ephemeral volume, the pod."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume."""

    name: str
    claim_key: str = ""
    """namespace/name of the claim that it is bound to or reserved for."""
    affinity: tuple[tuple[SelectorTerm, ...], ...] = ()
    """Groups of node selector terms: one term of each group must hold."""


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass."""

    name: str
    waits_for_consumer: bool = False
    """volumeBindingMode WaitForFirstConsumer: a scheduler has to bind its claims."""


class KnownVolumes(Protocol):
    """What is known of the cluster's volumes."""

    def claim(self, key: str) -> Claim | None:
        """The claim namespace/name."""
        ...

    def volume(self, name: str) -> Volume | None:
        """The PersistentVolume of that name."""
        ...

    def storage_class(self, name: str) -> StorageClass | None:
        """The StorageClass of that name."""
        ...

    def user_of(self, key: str, but_not: str) -> str:
        """namespace/name of a pod, other than the one with uid `but_not`, that is placed with this claim; "" for none."""
        ...


def with_volumes(pod: Pod, known: KnownVolumes) -> Shape | Unschedulable:
    """The pod's shape with what its claims add to the constraints, or why no node is worth asking yet.

    A claim that only a scheduler could bind is a constraint that isn't implemented; every other one that isn't ready
    blocks the pod with one sentence, until that claim, its volume or its class changes.
    """
    groups: dict[tuple[SelectorTerm, ...], None] = {}
    unsupported: list[str] = []
    for use in pod.claims:
        claim = known.claim(use.key)
        if claim is None:
            return _blocked(_missing(use))
        if _must_be_bound_by_scheduler(claim, known):
            unsupported.append(_unbound(use, claim))
            continue
        problem = _problem(pod, use, claim, known)
        if problem:
            return _blocked(problem)
        volume = known.volume(claim.volume)
        if volume is None:
            return _blocked(f"{_shown(use)} is bound to PersistentVolume {claim.volume}, which does not exist")
        groups.update(dict.fromkeys(volume.affinity))
    if not groups and not unsupported:
        return pod.shape
    constraints = pod.shape.constraints
    return replace(
        pod.shape,
        constraints=replace(
            constraints,
            volume_affinity=tuple(groups),
            unsupported=tuple(sorted({*constraints.unsupported, *unsupported})),
        ),
    )


def _problem(pod: Pod, use: ClaimUse, claim: Claim, known: KnownVolumes) -> str:
    if use.ephemeral and claim.owner_uid != pod.uid:
        return f"{_shown(use)} was not created for this pod's volume {use.volume}; delete it or rename the volume"
    if claim.deleting:
        return f"{_shown(use)} is being deleted"
    if claim.phase is ClaimPhase.LOST:
        return f"{_shown(use)} has lost its PersistentVolume {claim.volume}"
    if claim.phase is not ClaimPhase.BOUND:
        return f"{_shown(use)} is not bound to a PersistentVolume yet"
    user = known.user_of(use.key, pod.uid) if claim.single_pod else ""
    if user:
        return f"{_shown(use)} is ReadWriteOncePod and in use by pod {user}"
    return ""


def _must_be_bound_by_scheduler(claim: Claim, known: KnownVolumes) -> bool:
    """As the volume controller sees it: a claim reserved for a volume, or of no or an unknown class, is bound at once."""
    if claim.phase is not ClaimPhase.PENDING or claim.volume or claim.deleting or not claim.storage_class:
        return False
    storage_class = known.storage_class(claim.storage_class)
    return storage_class is not None and storage_class.waits_for_consumer


def _missing(use: ClaimUse) -> str:
    if use.ephemeral:
        return f"{_shown(use)} for the ephemeral volume {use.volume} has not been created yet"
    return f"{_shown(use)} does not exist"


def _unbound(use: ClaimUse, claim: Claim) -> str:
    """The same for all replicas, whose ephemeral claims have different names."""
    what = f"ephemeral volume {use.volume}" if use.ephemeral else f"claim {use.key}"
    return f"binding of WaitForFirstConsumer volumes ({what} of StorageClass {claim.storage_class} is not bound)"


def _shown(use: ClaimUse) -> str:
    return f"PersistentVolumeClaim {use.key}"


def _blocked(sentence: str) -> Unschedulable:
    return Unschedulable(blocked=sentence)
