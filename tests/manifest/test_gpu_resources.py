"""Requests written as container resources: legal sets, units, whole GPUs, and what they give way to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.core.model import GPURequest, Resources
from sharepod_operator.manifest.pod import read_pod
from sharepod_operator.manifest.sharepod import read_sharepod
from tests.support.objects import THREE_AMOUNTS, seeing, sharepod_object, sized

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import SharePodRecord

Json = dict[str, Any]
GI = 1 << 30
GPU, CORE, BYTES, RATIO = (f"koordinator.sh/{name}" for name in ("gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio"))


def read(*limits: Json, gpu: Any = None, annotations: Json | None = None, **pod_spec: Any) -> SharePodRecord:
    """A SharePod whose containers have these limits."""
    containers = [sized(f"c{index}", limits=each) for index, each in enumerate(limits)]
    return read_sharepod(
        sharepod_object(gpu=gpu, annotations=annotations, pod_spec={"containers": containers, **pod_spec})
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: 50}, GPURequest(500, 500, memory_percent=50)),
        ({GPU: "100"}, GPURequest(1000, 1000, memory_percent=100)),
        ({GPU: 1}, GPURequest(10, 10, memory_percent=1)),
        ({GPU: 200}, GPURequest(1000, 1000, count=2, memory_percent=100)),
        ({CORE: 30, RATIO: 60}, GPURequest(300, 300, memory_percent=60)),
        ({CORE: 30, BYTES: "8Gi"}, GPURequest(300, 300, 8 * GI)),
        ({CORE: 200, RATIO: 200}, GPURequest(1000, 1000, count=2, memory_percent=100)),
        ({CORE: 200, RATIO: 100}, GPURequest(1000, 1000, count=2, memory_percent=50)),
        ({CORE: 50, RATIO: 200}, GPURequest(250, 250, count=2, memory_percent=100)),
        ({CORE: 200, BYTES: "16Gi"}, GPURequest(1000, 1000, 8 * GI, 2)),
        ({CORE: 300, BYTES: 10}, GPURequest(1000, 1000, 4, 3)),
        ({BYTES: "4Gi"}, GPURequest(0, 1000, 4 * GI)),
        ({RATIO: 25}, GPURequest(0, 1000, memory_percent=25)),
        ({RATIO: 200}, GPURequest(0, 1000, count=2, memory_percent=100)),
        ({GPU: 50, CORE: 0, "nvidia.com/gpu": 0}, GPURequest(500, 500, memory_percent=50)),
        ({GPU: "1k"}, GPURequest(1000, 1000, count=10, memory_percent=100)),
    ],
)
def test_legal_sets_become_a_request(limits: Json, expected: GPURequest) -> None:
    """100 is one whole GPU, more means whole GPUs; memory alone is best effort; what is 0 counts as not written."""
    record = read(limits)
    assert ((), expected, "resources") == (record.invalid, record.gpu, record.gpu_source)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({CORE: 50}, "koordinator.sh/gpu-core: it needs koordinator.sh/gpu-memory or"),
        ({GPU: 50, CORE: 50}, "koordinator.sh/gpu with koordinator.sh/gpu-core: the pod must ask for"),
        ({CORE: 1, BYTES: 1, RATIO: 1}, "the pod must ask for"),
        ({BYTES: 1, RATIO: 1}, "the pod must ask for"),
        ({GPU: 150}, "koordinator.sh/gpu: 150 is more than one GPU, so it must be a multiple of 100"),
        ({CORE: 50, RATIO: 101}, "koordinator.sh/gpu-memory-ratio: 101 is more than one GPU"),
        ({CORE: 300, RATIO: 50}, "koordinator.sh/gpu-memory-ratio: 50 can't be divided equally among 3 GPUs"),
        ({GPU: "0.5"}, 'koordinator.sh/gpu is "0.5"; it must be a whole number such as 50'),
        ({GPU: "50%"}, 'koordinator.sh/gpu is "50%"'),
        ({GPU: -50}, "koordinator.sh/gpu is -50"),
        ({"koordinator.sh/gpu.shared": 2, GPU: 50}, "resource koordinator.sh/gpu.shared isn't read"),
        ({"nvidia.com/gpu": 1}, "resource nvidia.com/gpu takes whole GPUs away from sharing"),
    ],
)
def test_what_is_not_legal_is_refused_by_name(limits: Json, words: str) -> None:
    """One sentence names the resource, its value, and what would be right."""
    record = read(limits)
    assert None is record.gpu or len(record.invalid) > 0
    assert 1 == len(record.invalid), record.invalid
    assert words in record.invalid[0]


def test_no_resource_of_these_names_is_no_request() -> None:
    """Zero amounts ask for nothing."""
    record = read({GPU: 0, CORE: "0"}, {"cpu": 1})
    assert (None, "", ()) == (record.gpu, record.gpu_source, record.invalid)


def test_containers_are_combined_as_kubernetes_does() -> None:
    """App containers and sidecars add up; an init step counts where it is larger; the node's resources don't see them."""
    record = read({GPU: 20}, {GPU: 30}, initContainers=[sized("i", limits={GPU: 40})])
    assert GPURequest(500, 500, memory_percent=50) == record.gpu
    record = read({GPU: 20}, initContainers=[sized("i", limits={GPU: 70}), sized("s", limits={GPU: 10}, always=True)])
    assert GPURequest(700, 700, memory_percent=70) == record.gpu
    record = read({CORE: 20}, {RATIO: 30})
    assert GPURequest(200, 200, memory_percent=30) == record.gpu


def test_typed_fields_win_field_by_field_then_annotations_then_resources() -> None:
    """Bytes and percent are one field, and the limit that comes with a share goes with that share."""
    record = read({GPU: 50}, gpu={"memory": "2Gi"})
    assert (GPURequest(500, 500, 2 * GI), "spec+resources") == (record.gpu, record.gpu_source)
    record = read({GPU: 50}, gpu={"request": 0.8})
    assert (GPURequest(800, 800, memory_percent=50), "spec+resources") == (record.gpu, record.gpu_source)
    record = read({GPU: 200}, annotations=THREE_AMOUNTS)
    assert (GPURequest(500, 1000, GI, 2), "annotations+resources") == (record.gpu, record.gpu_source)
    record = read({GPU: 50}, annotations={"kubeshare/sched_affinity": "x", "kubeshare/GPUID": "GPU-1"})
    assert GPURequest(500, 500, affinity="x", gpu_id="GPU-1", memory_percent=50) == record.gpu
    record = read({GPU: 50}, annotations={"kubeshare/gpu_mem": "5"})
    assert "kubeshare/gpu_request and kubeshare/gpu_limit: missing" in record.invalid[0]


def test_the_nodes_resources_leave_them_out() -> None:
    """They are a way to write a request: nothing has to advertise them."""
    record = read_pod({"metadata": {}, "spec": {"containers": [seeing(resources={"limits": {GPU: "50", "cpu": "1"}})]}})
    assert (Resources(cpu_milli=1000), "") == (record.pod.shape.resources, record.invalid)
    assert GPURequest(500, 500, memory_percent=50) == record.pod.shape.gpu
