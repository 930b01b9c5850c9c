"""The CRD on a real API server: what `kubectl apply` accepts, and the sentence with which it refuses the rest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from sharepod_operator.localcluster.programs import Program
from sharepod_operator.manifest.sharepod import read_sharepod
from tests.support.objects import sharepod_object

if TYPE_CHECKING:
    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.cluster import Cluster

Json = dict[str, Any]
EXAMPLES = Path(__file__).parents[2] / "examples"


class Kubectl:
    """kubectl against the test's own control plane and namespace."""

    def __init__(self, cluster: Cluster, binaries: Binaries, namespace: str) -> None:
        self._base = [str(binaries[Program.KUBECTL]), f"--kubeconfig={cluster.kubeconfig}", f"--namespace={namespace}"]

    def __call__(self, *arguments: str, stdin: Json | None = None) -> tuple[int, str]:
        """Exit code and everything printed."""
        text = yaml.safe_dump(stdin) if stdin is not None else None
        run = subprocess.run(
            [*self._base, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        )
        return run.returncode, run.stdout + run.stderr

    def apply(self, body: Json, *options: str) -> tuple[int, str]:
        return self("apply", *options, "-f", "-", stdin=body)


@pytest.fixture
def kubectl(cluster: Cluster, binaries: Binaries, namespace: str) -> Kubectl:
    return Kubectl(cluster, binaries, namespace)


def manifest(name: str = "bert", **fields: Any) -> Json:
    """A SharePod as a person writes it: without what the API server fills in."""
    body = sharepod_object(name, **fields)
    kept = ("name", "labels", "annotations")
    return {**body, "metadata": {key: body["metadata"][key] for key in kept}}


@pytest.mark.parametrize(
    "body",
    [
        manifest(),
        manifest("x" * 57),
        manifest(gpu={"request": 0.5}),
        manifest(gpu={"request": 1, "limit": 1, "memory": 1000, "count": 64}),
        manifest(gpu={"request": 1e-9, "memory": "10Gi"}),
        manifest(gpu={"request": 0, "limit": 0.001, "memory": "0"}),
        manifest(gpu={"request": 0.5, "count": 2, "deviceIDs": ["GPU-a", "GPU-b"]}),
        manifest(gpu={"limit": 1}),
        manifest(gpu={"request": 0.5, "affinity": "a", "antiAffinity": "a", "exclusion": ""}),
        manifest(replicas=1000, selector={"matchLabels": {"app": "bert"}}),
        manifest(pod_spec={"containers": [{"name": "c", "resources": {"limits": {"cpu": 0.5}}, "anything": [1]}]}),
    ],
)
def test_right_manifests_are_accepted(kubectl: Kubectl, body: Json) -> None:
    """Integers where a number is meant, quantities as text or number, a podSpec as loose as people write it."""
    assert (0, True) == ((answer := kubectl.apply(body, "--dry-run=server"))[0], "created" in answer[1]), answer


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (manifest(gpu={"request": "0.5"}), "spec.gpu.request in body must be of type number"),
        (manifest(gpu={"request": 1.5}), "spec.gpu.request in body should be less than or equal to 1"),
        (manifest(gpu={"request": -0.1}), "spec.gpu.request in body should be greater than or equal to 0"),
        (manifest(gpu={"request": float("nan")}), "unsupported value: NaN"),
        (manifest(gpu={"request": float("inf")}), "unsupported value: +Inf"),
        (
            manifest(gpu={"request": 0.5, "limit": 0.4}),
            "spec.gpu.limit: Invalid value: gpu.limit must be at least gpu.request",
        ),
        (manifest(gpu={"request": 0.5, "limit": 0}), "spec.gpu.limit in body should be greater than 0"),
        (manifest(gpu={"request": 0.5, "limit": 1.1}), "spec.gpu.limit in body should be less than or equal to 1"),
        (manifest(gpu={"request": 0}), "gpu.request 0 is best effort and needs gpu.limit"),
        (
            manifest(gpu={"request": 0.5, "memory": "5x"}),
            'spec.gpu.memory: Invalid value: "5x": gpu.memory must be a number',
        ),
        (
            manifest(gpu={"request": 0.5, "memory": "-5Gi"}),
            'spec.gpu.memory: Invalid value: "-5Gi": gpu.memory must be',
        ),
        (
            manifest(gpu={"request": 0.5, "memory": "+5Gi"}),
            'spec.gpu.memory: Invalid value: "+5Gi": gpu.memory must be',
        ),
        (manifest(gpu={"request": 0.5, "memory": -5}), "spec.gpu.memory: Invalid value: -5: gpu.memory must be"),
        (manifest(gpu={"request": 0.5, "memory": ""}), "gpu.memory must be a number of bytes or a quantity"),
        (manifest(gpu={"request": 0.5, "count": 0}), "spec.gpu.count in body should be greater than or equal to 1"),
        (manifest(gpu={"request": 0.5, "count": 1.5}), "spec.gpu.count in body must be of type int32"),
        (
            manifest(gpu={"request": 0.5, "count": 2, "deviceIDs": ["GPU-a"]}),
            "gpu.deviceIDs must name at least gpu.count GPUs",
        ),
        (
            manifest(gpu={"request": 0.5, "deviceIDs": ["GPU-a", "GPU-a"]}),
            'spec.gpu.deviceIDs[1]: Duplicate value: "GPU-a"',
        ),
        (manifest(gpu={"request": 0.5, "affinity": "x" * 64}), "spec.gpu.affinity: Too long"),
        (manifest(gpu={"request": 0.5, "limits": 1}), 'unknown field "spec.gpu.limits"'),
        (manifest(warmPool=1), 'unknown field "spec.warmPool"'),
        (manifest(replicas=1001), "spec.replicas in body should be less than or equal to 1000"),
        (manifest(replicas=-1), "spec.replicas in body should be greater than or equal to 0"),
        (manifest("x" * 58), "metadata.name must be at most 57 characters"),
        (manifest(pod_spec={"containers": []}), "spec.podSpec.containers in body should have at least 1 items"),
        (manifest(pod_spec={"containers": [{"image": "x"}]}), "spec.podSpec.containers[0].name: Required value"),
    ],
)
def test_wrong_manifests_are_refused_with_a_sentence(kubectl: Kubectl, body: Json, sentence: str) -> None:
    """The first thing a person sees names the field and what is right."""
    code, printed = kubectl.apply(body, "--dry-run=server")
    assert 1 == code, printed
    assert sentence in printed


def test_selector_is_immutable(kubectl: Kubectl) -> None:
    """It can be neither changed, added nor removed: pods would be lost from sight."""
    first, other = {"matchLabels": {"app": "bert"}}, {"matchLabels": {"controller": "bert"}}
    assert 0 == kubectl.apply(manifest(selector=first))[0]
    assert "selector can't be changed" in kubectl.apply(manifest(selector=other))[1]
    assert "neither added nor removed" in kubectl.apply(manifest())[1]
    assert 0 == kubectl.apply(manifest("late"))[0]
    assert "neither added nor removed" in kubectl.apply(manifest("late", selector=first))[1]
    assert 0 == kubectl.apply(manifest("late", replicas=3))[0]


def test_scale_columns_and_short_name(kubectl: Kubectl) -> None:
    """`kubectl scale shp/x`, `kubectl get shp -o wide` and `kubectl get all` know SharePods."""
    assert 0 == kubectl.apply(manifest(pod_spec={"priorityClassName": "high"}))[0]
    assert (0, "sharepod.faasshare.tum/bert scaled\n") == kubectl("scale", "shp/bert", "--replicas=5")
    code, table = kubectl("get", "shp", "-o", "wide")
    header = "NAME DESIRED READY GPU MEM STATUS PLACEMENT AGE PRIORITY PORTS MESSAGE"
    rows = [line.split() for line in table.splitlines()]
    assert (0, header.split()) == (code, rows[0])
    assert ["bert", "5"] == rows[1][:2]
    assert "high" in rows[1]
    assert "sharepod.faasshare.tum/bert" in kubectl("get", "all", "-o", "name")[1]


def test_every_field_is_explained(kubectl: Kubectl) -> None:
    """`kubectl explain` has a sentence for each field, those of the status too."""
    for field in ("sharepod", "sharepod.spec", "sharepod.spec.gpu", "sharepod.status", "sharepod.status.placements"):
        code, printed = kubectl("explain", field)
        assert (0, False) == (code, "<no description>" in printed), printed


def test_status_takes_everything_that_the_operator_reports(cluster: Cluster, kubectl: Kubectl, namespace: str) -> None:
    """The closed schema has each field; with strict validation one that it lacks would be an error."""
    assert 0 == kubectl.apply(manifest())[0]
    status = {
        "observedGeneration": 1,
        "replicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "selector": "faasshare.tum/sharepod=bert",
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "reason": "AllReplicasReady",
                "message": "All replicas are ready",
            }
        ],
        "placements": [
            {
                "pod": "bert-7f9kq",
                "node": "gpu-a",
                "gpus": ["GPU-604ac76c", "GPU-9b1f02de"],
                "port": 50051,
                "request": "0.500",
                "memory": "10Gi",
                "state": "Running",
            }
        ],
        "summary": "gpu-a/GPU-604ac76c +1",
        "ports": "50051",
        "gpu": {"share": "0.5/1x2", "memory": "10Gi", "source": "spec"},
        "boundDeviceIDs": {"bert-7f9kq": "GPU-604ac76c,GPU-9b1f02de"},
        "podManagerPort": {"bert-7f9kq": 50051},
        "usage": {"bert-7f9kq": {"gpu": "0.500x2", "totalMemoryBytes": 21474836480}},
        "pod2node": {"bert-7f9kq": "gpu-a"},
        "node2Id": [{"node": "gpu-a", "gpu": "GPU-604ac76c,GPU-9b1f02de"}],
        "prewarmPool": [],
    }
    path = f"/apis/faasshare.tum/v1/namespaces/{namespace}/sharepods/bert"
    cluster.client.request(
        "PATCH",
        f"{path}/status",
        body={"status": status},
        content_type="application/merge-patch+json",
        query={"fieldValidation": "Strict"},
    )
    live = cluster.client.get(path)
    assert status == live["status"]
    assert ((), "bert") == (read_sharepod(live).invalid, read_sharepod(live).name)


@pytest.mark.parametrize(
    "example", ["batch", "fraction", "kubeshare", "pinned-gpu", "preemption", "several-gpus", "tags"]
)
def test_examples_are_accepted(kubectl: Kubectl, example: str) -> None:
    """What a newcomer applies first."""
    code, printed = kubectl("apply", "--dry-run=server", "-f", str(EXAMPLES / f"{example}.yaml"))
    assert (0, True) == (code, "created" in printed), printed


def test_invalid_example_is_refused_as_its_comment_says(kubectl: Kubectl) -> None:
    """The comment in the file shows the very line."""
    code, printed = kubectl("apply", "--dry-run=server", "-f", str(EXAMPLES / "invalid.yaml"))
    assert 1 == code
    assert printed.strip() in (EXAMPLES / "invalid.yaml").read_text(encoding="utf-8")
