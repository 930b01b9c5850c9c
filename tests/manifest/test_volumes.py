"""Claims, PersistentVolumes and StorageClasses as the API server gives them."""

from __future__ import annotations

from sharepod_operator.core.model import ClaimUse, Requirement, SelectorTerm
from sharepod_operator.core.volumes import Claim, ClaimPhase, Volume
from sharepod_operator.manifest.pod import read_pod
from sharepod_operator.manifest.volumes import read_claim, read_storage_class, read_volume
from tests.support.objects import pod_object


def test_a_claim() -> None:
    """Phase, volume, class, access mode and owner; it is known as namespace/name."""
    record = read_claim(
        {
            "metadata": {
                "name": "data",
                "namespace": "ml",
                "uid": "c1",
                "resourceVersion": "9",
                "deletionTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [{"kind": "Pod", "uid": "p1", "controller": True}],
            },
            "spec": {"volumeName": "pv", "storageClassName": "fast", "accessModes": ["ReadWriteOncePod"]},
            "status": {"phase": "Bound"},
        }
    )
    expected = Claim("ml/data", ClaimPhase.BOUND, "pv", "fast", deleting=True, single_pod=True, owner_uid="p1")
    assert ("c1", "ml/data", 9, expected) == (record.uid, record.name, record.version, record.claim)


def test_a_claim_without_a_status_is_pending_and_the_old_annotation_names_its_class() -> None:
    """volume.beta.kubernetes.io/storage-class wins over the field, as in Kubernetes."""
    annotations = {"volume.beta.kubernetes.io/storage-class": "old"}
    metadata = {"name": "data", "namespace": "ml", "annotations": annotations}
    claim = read_claim({"metadata": metadata, "spec": {"storageClassName": "new"}}).claim
    assert (ClaimPhase.PENDING, "old") == (claim.phase, claim.storage_class)


def test_a_volume_is_where_its_affinity_and_its_zone_labels_say() -> None:
    """Required terms are alternatives; an old volume's labels name its zones, several of them joined by `__`."""
    terms = [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]},
    ]
    volume = read_volume(
        {
            "metadata": {"name": "pv", "labels": {"topology.kubernetes.io/zone": "east__west"}},
            "spec": {
                "claimRef": {"namespace": "ml", "name": "data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            },
        }
    ).volume
    written = (
        SelectorTerm((Requirement("kubernetes.io/hostname", "In", ("a",)),)),
        SelectorTerm(fields=(Requirement("metadata.name", "In", ("b",)),)),
    )
    zones = (SelectorTerm((Requirement("topology.kubernetes.io/zone", "In", ("east", "west")),)),)
    assert Volume("pv", "ml/data", (written, zones)) == volume
    assert Volume("free") == read_volume({"metadata": {"name": "free"}, "spec": {}}).volume


def test_a_class_that_waits_for_its_consumer() -> None:
    """The default is to bind at once."""
    waiting = {"metadata": {"name": "local"}, "volumeBindingMode": "WaitForFirstConsumer"}
    assert read_storage_class(waiting).storage_class.waits_for_consumer
    assert not read_storage_class({"metadata": {"name": "fast"}}).storage_class.waits_for_consumer


def test_the_claims_of_a_pod() -> None:
    """Named claims, and the pod's own for each generic ephemeral volume; all other volumes have none."""
    volumes = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "disk", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
    ]
    expected = (ClaimUse("ml/data", "disk"), ClaimUse("ml/bert-abcde-tmp", "tmp", ephemeral=True))
    record = read_pod(pod_object(volumes=volumes))
    assert expected == record.pod.claims
    assert () == record.pod.shape.constraints.unsupported
