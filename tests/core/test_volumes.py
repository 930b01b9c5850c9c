"""What a pod's claims add to its constraints, and why a pod waits for one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from sharepod_operator.core.model import ClaimUse, Constraints, Pod, Requirement, SelectorTerm, Shape, Unschedulable
from sharepod_operator.core.volumes import Claim, ClaimPhase, StorageClass, Volume, with_volumes

ON_A = (SelectorTerm(fields=(Requirement("metadata.name", "In", ("a",)),)),)
EAST = (SelectorTerm((Requirement("zone", "In", ("east",)),)),)
BOUND = Claim("ml/data", ClaimPhase.BOUND, "pv")
POD = Pod("p", "ml", "bert", Shape(), claims=(ClaimUse("ml/data", "disk"),))
EPHEMERAL = replace(POD, claims=(ClaimUse("ml/bert-tmp", "tmp", ephemeral=True),))


@dataclass
class Known:
    """A cluster's volumes as plain tables."""

    claims: dict[str, Claim] = field(default_factory=dict)
    volumes: dict[str, Volume] = field(default_factory=dict)
    classes: dict[str, StorageClass] = field(default_factory=dict)
    user: str = ""

    def claim(self, key: str) -> Claim | None:
        return self.claims.get(key)

    def volume(self, name: str) -> Volume | None:
        return self.volumes.get(name)

    def storage_class(self, name: str) -> StorageClass | None:
        return self.classes.get(name)

    def user_of(self, key: str, but_not: str) -> str:
        assert but_not == "p"
        return self.user


def known(*claims: Claim, user: str = "") -> Known:
    """These claims, a volume `pv` on node a, and the classes `fast` (Immediate) and `local` (WaitForFirstConsumer)."""
    return Known(
        {claim.key: claim for claim in claims},
        {"pv": Volume("pv", "ml/data", (ON_A,)), "zonal": Volume("zonal", affinity=(EAST,)), "any": Volume("any")},
        {"fast": StorageClass("fast"), "local": StorageClass("local", waits_for_consumer=True)},
        user,
    )


def blocked(pod: Pod, cluster: Known) -> str:
    answer = with_volumes(pod, cluster)
    assert isinstance(answer, Unschedulable), answer
    return answer.blocked


def constraints(pod: Pod, cluster: Known) -> Constraints:
    answer = with_volumes(pod, cluster)
    assert isinstance(answer, Shape), answer
    return answer.constraints


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        (None, "does not exist"),
        (replace(BOUND, deleting=True), "is being deleted"),
        (replace(BOUND, phase=ClaimPhase.LOST), "has lost its PersistentVolume pv"),
        (replace(BOUND, volume="gone"), "is bound to PersistentVolume gone, which does not exist"),
        (Claim("ml/data", storage_class="fast"), "is not bound to a PersistentVolume yet"),
        (Claim("ml/data"), "is not bound to a PersistentVolume yet"),
        (Claim("ml/data", storage_class="unknown"), "is not bound to a PersistentVolume yet"),
        (Claim("ml/data", storage_class="local", volume="pv"), "is not bound to a PersistentVolume yet"),
        (Claim("ml/data", storage_class="local", deleting=True), "is being deleted"),
    ],
)
def test_a_claim_that_is_not_ready_blocks_the_pod(claim: Claim | None, sentence: str) -> None:
    """One sentence that names the claim; a class counts only where the claim isn't reserved for a volume already."""
    cluster = known() if claim is None else known(claim)
    assert f"PersistentVolumeClaim ml/data {sentence}" == blocked(POD, cluster)


def test_a_claim_that_a_scheduler_would_have_to_bind_is_refused_by_name() -> None:
    """It becomes a constraint that isn't implemented, beside those that the pod has already."""
    pod = replace(POD, shape=Shape(constraints=Constraints(unsupported=("podAffinity",))))
    expected = (
        "binding of WaitForFirstConsumer volumes (claim ml/data of StorageClass local is not bound)",
        "podAffinity",
    )
    assert expected == constraints(pod, known(Claim("ml/data", storage_class="local"))).unsupported


def test_bound_volumes_add_their_affinity_and_leave_the_rest_alone() -> None:
    """Each volume's terms once, in the order of the pod's volumes; one without an affinity adds nothing."""
    uses = tuple(ClaimUse(f"ml/{name}") for name in ("data", "other", "same", "free"))
    pod = replace(POD, claims=uses, shape=Shape(constraints=Constraints(node_name="a")))
    claims = [
        Claim(f"ml/{name}", ClaimPhase.BOUND, volume)
        for name, volume in (("data", "pv"), ("other", "zonal"), ("same", "pv"), ("free", "any"))
    ]
    assert Constraints(node_name="a", volume_affinity=(ON_A, EAST)) == constraints(pod, known(*claims))


def test_pods_of_one_volume_ask_the_same_question() -> None:
    """Resolved shapes are equal keys; a pod without a place of its volumes keeps its own shape."""
    other = replace(POD, uid="q", name="other")
    cluster = known(BOUND)
    assert 1 == len({with_volumes(POD, cluster): None, with_volumes(other, cluster): None})
    assert POD.shape is with_volumes(POD, known(replace(BOUND, volume="any")))
    assert POD.shape is with_volumes(replace(POD, claims=()), known())


def test_an_ephemeral_volumes_claim_must_be_the_pods_own() -> None:
    """Kubernetes makes it for the pod; one of the same name that somebody else made is not touched."""
    mine = Claim("ml/bert-tmp", ClaimPhase.BOUND, "pv", owner_uid="p")
    waiting = "PersistentVolumeClaim ml/bert-tmp for the ephemeral volume tmp has not been created yet"
    foreign = (
        "PersistentVolumeClaim ml/bert-tmp was not created for this pod's volume tmp; delete it or rename the volume"
    )
    unbound = Claim("ml/bert-tmp", storage_class="local", owner_uid="p")

    assert waiting == blocked(EPHEMERAL, known())
    assert foreign == blocked(EPHEMERAL, known(replace(mine, owner_uid="another")))
    assert (ON_A,) == constraints(EPHEMERAL, known(mine)).volume_affinity
    assert (
        "binding of WaitForFirstConsumer volumes (ephemeral volume tmp of StorageClass local is not bound)",
    ) == constraints(EPHEMERAL, known(unbound)).unsupported


def test_a_claim_for_one_pod_waits_for_the_other_pod() -> None:
    """ReadWriteOncePod and in use: wait; any other access mode is shared."""
    alone = replace(BOUND, single_pod=True)
    assert "PersistentVolumeClaim ml/data is ReadWriteOncePod and in use by pod ml/first" == blocked(
        POD, known(alone, user="ml/first")
    )
    assert (ON_A,) == constraints(POD, known(alone)).volume_affinity
    assert (ON_A,) == constraints(POD, known(BOUND, user="ml/first")).volume_affinity
