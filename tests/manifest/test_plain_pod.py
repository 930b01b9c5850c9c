"""Plain Pods: those that no SharePod made, but a Deployment, a Job or a person."""

from __future__ import annotations

from typing import Any

import pytest

from sharepod_operator.core.model import GPURequest
from sharepod_operator.manifest import names
from sharepod_operator.manifest.ledger import encode_request
from sharepod_operator.manifest.pod import read_pod
from tests.support.objects import THREE_AMOUNTS, container, of_sharepod, pod_object, seeing

Json = dict[str, Any]
HALF: Json = {"resources": {"limits": {"koordinator.sh/gpu": "50"}}}
PINNED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-a"]}]},
            ]
        }
    }
}


def test_annotations_and_resources_are_read() -> None:
    """All three amounts of KubeShare, or container resources; the annotations come first."""
    record = read_pod(pod_object(annotations=THREE_AMOUNTS, containers=[seeing()]))
    assert ("", GPURequest(500, 1000, 1 << 30)) == (record.invalid, record.pod.shape.gpu)
    record = read_pod(pod_object(annotations={"kubeshare/sched_exclusion": "t"}, containers=[seeing(**HALF)]))
    assert GPURequest(500, 500, exclusion="t", memory_percent=50) == record.pod.shape.gpu
    assert record.wants_gpu


def test_a_pod_without_a_request_is_placed_for_its_cpu() -> None:
    """No GPU, no environment needed."""
    record = read_pod(pod_object())
    assert ("", None, False) == (record.invalid, record.pod.shape.gpu, record.wants_gpu)


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"kubeshare/gpu_request": "0.5"}, "all of kubeshare/gpu_request, kubeshare/gpu_limit, kubeshare/gpu_mem"),
        ({**THREE_AMOUNTS, "kubeshare/gpu_request": "50%"}, 'kubeshare/gpu_request: "50%"'),
        ({**THREE_AMOUNTS, "kubeshare/gpu_mem": "1Gi"}, "must be bytes in digits only"),
        ({"kubeshare/GPUID": "abcde"}, "pins a GPU, but no GPU is asked for"),
        ({**THREE_AMOUNTS, "kubeshare/GPUID": "abcde"}, "required node affinity"),
    ],
)
def test_a_request_that_cannot_be_read_makes_the_pod_invalid(annotations: Json, words: str) -> None:
    """Such a pod is never placed; the sentence speaks of Pods, not of spec.gpu."""
    record = read_pod(pod_object(annotations=annotations, containers=[seeing()]))
    assert words in record.invalid
    assert "spec.gpu" not in record.invalid
    assert (None, True) == (record.pod.shape.gpu, record.wants_gpu)


def test_a_virtual_gpu_counts_on_the_node_of_the_affinity() -> None:
    """A Pod can't state a wanted node otherwise."""
    pod = pod_object(annotations={**THREE_AMOUNTS, "kubeshare/GPUID": "abcde"}, containers=[seeing()], affinity=PINNED)
    record = read_pod(pod)
    assert ("", "gpu-a") == (record.invalid, record.pod.shape.constraints.node_name)


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [container(**HALF)]},
        {"containers": [seeing(**HALF), container("second")]},
        {"containers": [seeing(**HALF)], "initContainers": [container("init")]},
        {"containers": [seeing(**HALF)], "initContainers": [container("sidecar", restartPolicy="Always")]},
        {"containers": [seeing(**HALF, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])]},
        {
            "containers": [
                seeing(**HALF, env=[*seeing()["env"], {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
            ]
        },
    ],
)
def test_a_container_that_would_not_see_its_gpu_is_refused_by_name(spec: Json) -> None:
    """In every container, also in init containers and sidecars; of two values the kubelet takes the last."""
    record = read_pod(pod_object(**spec))
    kind = "initContainers[0]" if "initContainers" in spec else f"containers[{len(spec['containers']) - 1}]"
    assert record.invalid.startswith(f"spec.{kind} does not read its GPUs: apply the admission policies")
    assert "metadata.annotations['faasshare.tum/gpu-uuids']" in record.invalid
    assert None is record.pod.shape.gpu


def test_the_controllers_annotation_counts_only_on_pods_of_a_sharepod() -> None:
    """On any other Pod it would be a request past every check that a user's own has to pass."""
    annotations = {names.GPU_REQUEST: encode_request(GPURequest(1000, 1000))}
    assert None is read_pod(pod_object(annotations=annotations)).pod.shape.gpu
    mine = read_pod(pod_object(annotations={**annotations, **THREE_AMOUNTS}, metadata=of_sharepod()))
    assert GPURequest(1000, 1000) == mine.pod.shape.gpu


def test_a_gpu_pod_with_a_node_and_no_ledger_entry_was_bound_by_others() -> None:
    """Also where its request can't be honoured; a CPU-only pod can't be told apart and needn't be."""
    assert read_pod(pod_object(containers=[seeing(**HALF)], nodeName="n")).bound_by_others
    assert read_pod(pod_object(containers=[container(**HALF)], nodeName="n")).bound_by_others
    assert not read_pod(pod_object(containers=[seeing(**HALF)])).bound_by_others
    assert not read_pod(pod_object(nodeName="n")).bound_by_others
