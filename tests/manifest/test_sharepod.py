"""Reading SharePods: one request from two forms, and a sentence for everything that can't be honoured."""

from __future__ import annotations

from typing import Any

import pytest

from sharepod_operator.core.model import GPURequest
from sharepod_operator.manifest.sharepod import read_sharepod, with_new_status
from tests.support.objects import THREE_AMOUNTS, container, sharepod_object, sized

Json = dict[str, Any]
GIB = 1 << 30
UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"


@pytest.mark.parametrize(
    ("gpu", "annotations", "expected", "source"),
    [
        (None, {}, None, ""),
        (None, {"kubeshare/gpu_request": "", "kubeshare/gpu_limit": "", "kubeshare/gpu_mem": ""}, None, ""),
        ({"request": 0.5}, {}, GPURequest(500, 500), "spec"),
        ({"request": 1e-9, "limit": 1}, {}, GPURequest(1, 1000), "spec"),
        ({"request": 0, "limit": 0.1}, {}, GPURequest(0, 100), "spec"),
        ({"request": 1, "memory": "10Gi", "count": 2}, {}, GPURequest(1000, 1000, 10 * GIB, 2), "spec"),
        ({"request": 0.1, "memory": 1000}, {}, GPURequest(100, 100, 1000), "spec"),
        (None, THREE_AMOUNTS, GPURequest(500, 1000, GIB), "annotations"),
        ({"request": 0.3}, THREE_AMOUNTS, GPURequest(300, 1000, GIB), "spec+annotations"),
        ({"request": 0.3, "limit": 0.4, "memory": "2Gi"}, THREE_AMOUNTS, GPURequest(300, 400, 2 * GIB), "spec"),
        ({}, THREE_AMOUNTS, GPURequest(500, 1000, GIB), "spec+annotations"),
        ({"limit": 0.7}, {"kubeshare/gpu_request": "0.6"}, GPURequest(600, 700), "spec+annotations"),
        (
            {"request": 0.1, "affinity": "a", "antiAffinity": "b", "exclusion": "c", "deviceIDs": [UUID]},
            {},
            GPURequest(100, 100, affinity="a", anti_affinity="b", exclusion="c", device_ids=(UUID,)),
            "spec",
        ),
        (
            {"request": 0.1, "affinity": ""},
            {
                "kubeshare/sched_affinity": "red",
                "kubeshare/sched_exclusion": "",
                "kubeshare/sched_anti-affinity": "green",
            },
            GPURequest(100, 100, anti_affinity="green"),
            "spec+annotations",
        ),
        ({"request": 0.1}, {"kubeshare/GPUID": UUID}, GPURequest(100, 100, gpu_id=UUID), "spec+annotations"),
    ],
)
def test_request_is_read_typed_first_then_annotations_then_defaults(
    gpu: Json | None, annotations: Json, expected: GPURequest | None, source: str
) -> None:
    """Typed fields win field by field, annotations fill what they leave out, defaults come last; an empty tag is none."""
    record = read_sharepod(sharepod_object(gpu=gpu, annotations=annotations))
    assert (expected, source, ()) == (record.gpu, record.gpu_source, record.invalid)


@pytest.mark.parametrize(
    ("gpu", "annotations", "words"),
    [
        (None, {"kubeshare/gpu_request": "0.5"}, ["kubeshare/gpu_limit and kubeshare/gpu_mem", "missing"]),
        (None, {**THREE_AMOUNTS, "kubeshare/gpu_mem": "1Gi"}, ["kubeshare/gpu_mem", '"1Gi"', "digits only"]),
        (None, {**THREE_AMOUNTS, "kubeshare/gpu_mem": "1_0"}, ["kubeshare/gpu_mem", '"1_0"', "digits only"]),
        (None, {**THREE_AMOUNTS, "kubeshare/gpu_mem": "9" * 19}, ["kubeshare/gpu_mem", "digits only"]),
        (None, {**THREE_AMOUNTS, "kubeshare/gpu_request": "0,5"}, ["kubeshare/gpu_request", '"0,5"']),
        (None, {**THREE_AMOUNTS, "kubeshare/gpu_request": "50%"}, ["kubeshare/gpu_request", '"50%"']),
        (None, {**THREE_AMOUNTS, "kubeshare/gpu_request": "\uff10.\uff15"}, ["kubeshare/gpu_request", "\uff10.\uff15"]),
        (None, {**THREE_AMOUNTS, "kubeshare/gpu_request": "NaN"}, ["kubeshare/gpu_request", '"NaN"']),
        (None, {**THREE_AMOUNTS, "kubeshare/gpu_limit": "inf"}, ["kubeshare/gpu_limit", '"inf"']),
        (
            None,
            {**THREE_AMOUNTS, "kubeshare/gpu_limit": "0.4"},
            ["kubeshare/gpu_limit", '"0.4"', "at least the request"],
        ),
        (None, {"kubeshare/GPUID": UUID}, ["kubeshare/GPUID", "no GPU is asked for"]),
        (None, {**THREE_AMOUNTS, "kubeshare/GPUID": "abcde"}, ["kubeshare/GPUID", '"abcde"', "spec.podSpec.nodeName"]),
        ({"request": "0.5"}, {}, ["spec.gpu.request", '"0.5"', "without quotes"]),
        ({"request": 1.5}, {}, ["spec.gpu.request", "1.5", "between 0 and 1"]),
        ({"request": True}, {}, ["spec.gpu.request", "True"]),
        ({"request": float("nan")}, {}, ["spec.gpu.request", "nan"]),
        ({"request": 0.5, "limit": 0.4}, {}, ["spec.gpu.limit", "0.4", "at least the request"]),
        ({"request": 0}, {}, ["spec.gpu.limit", "needs a limit"]),
        ({"request": 0.5, "memory": "5x"}, {}, ["spec.gpu.memory", '"5x"', "quantity"]),
        ({"request": 0.5, "count": 0}, {}, ["spec.gpu.count", "at least 1"]),
        ({"request": 0.5, "count": 2, "deviceIDs": [UUID]}, {}, ["spec.gpu.deviceIDs", "at least spec.gpu.count, 2"]),
        ({"request": 0.5, "deviceIDs": ["a,b"]}, {}, ["spec.gpu.deviceIDs[0]", '"a,b"']),
        ({"request": 0.5, "affinity": 7}, {}, ["spec.gpu.affinity", "7", "text"]),
        ({"memory": "1Gi"}, {}, ["spec.gpu.request", "missing"]),
        ("half", {}, ["spec.gpu", '"half"', "object"]),
    ],
)
def test_bad_request_is_one_sentence_with_field_value_and_rule(gpu: Any, annotations: Json, words: list[str]) -> None:
    """What can't be read gives no request and exactly one sentence that names the place."""
    record = read_sharepod(sharepod_object(gpu=gpu, annotations=annotations))
    assert (None, 1) == (record.gpu, len(record.invalid)), record.invalid
    assert [] == [word for word in words if word not in record.invalid[0]], record.invalid
    assert "\n" not in record.invalid[0]


def test_virtual_gpu_is_fine_with_a_pinned_node() -> None:
    """A GPUID that is no UUID names a virtual GPU where the node is pinned too."""
    annotations = {**THREE_AMOUNTS, "kubeshare/GPUID": "abcde"}
    record = read_sharepod(sharepod_object(annotations=annotations, pod_spec={"nodeName": "gpu-a"}))
    assert ((), GPURequest(500, 1000, GIB, gpu_id="abcde")) == (record.invalid, record.gpu)


REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
HARD_SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}


@pytest.mark.parametrize(
    ("pod_spec", "word"),
    [
        ({"affinity": {"podAffinity": REQUIRED}}, "podAffinity"),
        ({"affinity": {"podAntiAffinity": REQUIRED}}, "podAntiAffinity"),
        ({"topologySpreadConstraints": [HARD_SPREAD]}, "topologySpreadConstraints"),
        ({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}]}, "topologySpreadConstraints"),
        ({"resourceClaims": [{"name": "gpu"}]}, "resourceClaims"),
        ({"containers": [container(resources={"claims": [{"name": "gpu"}]})]}, "resourceClaims"),
        ({"containers": [sized(limits={"nvidia.com/gpu": 1})]}, "nvidia.com/gpu"),
        ({"initContainers": [sized(limits={"koordinator.sh/gpu.shared": 2})]}, "koordinator.sh/gpu.shared isn't read"),
        ({"volumes": [{"name": "d", "gcePersistentDisk": {"pdName": "d"}}]}, "gcePersistentDisk volume"),
        ({"os": {"name": "windows"}}, "os.name windows"),
        ({"tolerations": [{"key": "a", "operator": "Gt", "value": "1"}]}, "tolerations with operator Gt"),
        ({"schedulerName": "default-scheduler"}, "schedulerName"),
        ({"containers": [sized(cpu="half")]}, "spec.podSpec.containers[0].resources.requests.cpu"),
        ({"containers": [sized(memory="-1Gi")]}, "spec.podSpec.containers[0].resources.requests.memory"),
        ({"containers": []}, "spec.podSpec.containers"),
        ({"nodeName": 5}, "spec.podSpec.nodeName"),
    ],
)
def test_pod_spec_that_cannot_be_honoured_is_refused_by_name(pod_spec: Json, word: str) -> None:
    """Constraints that the scheduler does not implement are named, never ignored."""
    invalid = read_sharepod(sharepod_object(gpu={"request": 0.5}, pod_spec=pod_spec)).invalid
    assert 1 == len(invalid), invalid
    assert word in invalid[0]


def test_soft_constraints_and_harmless_volumes_are_accepted() -> None:
    """Preferences are no constraints; volumes without a place of their own hinder nothing, and claims are judged later."""
    pod_spec = {
        "affinity": {"podAffinity": PREFERRED, "podAntiAffinity": PREFERRED},
        "topologySpreadConstraints": [{**HARD_SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}],
        "volumes": [
            {"name": "a", "emptyDir": {}},
            {"name": "b", "configMap": {"name": "b"}},
            {"name": "c", "hostPath": {}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "d"}},
            {"name": "e", "ephemeral": {}},
        ],
        "schedulerName": "sharepod-scheduler",
        "os": {"name": "linux"},
    }
    assert () == read_sharepod(sharepod_object(pod_spec=pod_spec)).invalid


@pytest.mark.parametrize(
    ("replicas", "floor", "wanted"),
    [
        (None, None, 1),
        (3, None, 3),
        (0, None, 0),
        (1, "4", 4),
        (6, "4", 6),
        (0, "4", 0),
        (2, "0", 2),
        (2, "", 2),
        (2, "5000", 1000),
        (2, "9" * 60, 1000),
    ],
)
def test_floor_raises_the_wanted_number_but_never_from_zero(
    replicas: int | None, floor: str | None, wanted: int
) -> None:
    """com.openfaas.scale.min raises what is kept, up to 1000, and leaves spec.replicas and a scale to zero alone."""
    labels = {} if floor is None else {"com.openfaas.scale.min": floor}
    spec: Json = {} if replicas is None else {"replicas": replicas}
    record = read_sharepod(sharepod_object(labels=labels, **spec))
    assert ((), wanted, 1 if replicas is None else replicas) == (record.invalid, record.wanted, record.replicas)


@pytest.mark.parametrize("floor", ["two", "-1", "1.5", "²"])
def test_floor_that_is_no_number_is_told(floor: str) -> None:
    """A floor that can't be kept is a sentence, not ignored."""
    record = read_sharepod(sharepod_object(labels={"com.openfaas.scale.min": floor}))
    assert 1 == len(record.invalid)
    assert "com.openfaas.scale.min" in record.invalid[0]


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ({"matchLabels": {"faasshare.tum/sharepod": "bert"}}, []),
        ({"matchLabels": {"app": "bert", "controller": "bert"}}, []),
        ({"matchLabels": {"tier": "gpu"}}, []),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gpu", "cpu"]}]}, []),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, []),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gpu"]}]}, ["does not match"]),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, ["does not match"]),
        ({"matchLabels": {"app": "other"}}, ["spec.selector", "does not match"]),
        ({}, ["spec.selector is empty"]),
        (["app"], ["spec.selector", "label selector"]),
    ],
)
def test_selector_must_take_the_pods(selector: Any, words: list[str]) -> None:
    """A selector that misses the rendered labels would make scale and autoscaler blind; an empty one takes all pods."""
    record = read_sharepod(sharepod_object(labels={"tier": "gpu"}, selector=selector))
    assert bool(words) == bool(record.invalid)
    assert [] == [word for word in words if word not in record.invalid[0]]


@pytest.mark.parametrize("replicas", [-1, 1001, "2", 1.5, True])
def test_replicas_out_of_range_is_told(replicas: Any) -> None:
    """The API server refuses these; a reader that meets them all the same says why."""
    assert ["spec.replicas" in line for line in read_sharepod(sharepod_object(replicas=replicas)).invalid] == [True]


def test_name_must_leave_room_for_the_suffix() -> None:
    """57 characters, a dash and five more make 63, the limit of a label's value."""
    assert () == read_sharepod(sharepod_object("x" * 57)).invalid
    assert 1 == len(read_sharepod(sharepod_object("x" * 58)).invalid)


def test_every_problem_is_told_at_once() -> None:
    """A person fixes a manifest once, not problem by problem."""
    body = sharepod_object(
        gpu={"request": 2, "memory": "x"}, pod_spec={"schedulerName": "other", "os": {"name": "windows"}}, replicas=5000
    )
    assert 5 == len(read_sharepod(body).invalid)


def test_record_carries_metadata_and_status() -> None:
    """What the controller compares and counts with is taken over as it stands."""
    body = {**sharepod_object(minReadySeconds=3), "status": {"replicas": 1}}
    body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    record = read_sharepod(body)
    assert ("uid-1", "ml/bert", 7, 2, 3) == (
        record.uid,
        record.key,
        record.version,
        record.generation,
        record.min_ready_seconds,
    )
    assert ("2026-01-01T00:00:00Z", False, {"replicas": 1}) == (record.created, record.deleting, record.status.value)


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        (
            {"kubeshare/sched_affinity": "x"},
            'annotation kubeshare/sched_affinity: "x" says beside whom on a GPU, but no GPU',
        ),
        ({"kubeshare/gpu_requests": "0.1"}, "annotation kubeshare/gpu_requests: no request has this key; did you mean"),
    ],
)
def test_annotations_that_make_no_request_are_told(annotations: dict[str, str], sentence: str) -> None:
    """A tag without amounts, or a misspelt key, would start a pod that finds no GPU."""
    record = read_sharepod(sharepod_object(annotations=annotations))

    assert record.invalid[0].startswith(sentence)


CHANGES: dict[str, dict[str, object]] = {
    "nothing": {},
    "generation": {"generation": 3},
    "labels": {"labels": {"com.openfaas.scale.min": "2"}},
    "annotations": {"annotations": {"kubeshare/gpu_request": "0.5"}},
    "deletion": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
}


@pytest.mark.parametrize("changed", CHANGES)
def test_a_new_status_alone_needs_no_reading(changed: str) -> None:
    """The short cut is taken only where it ends in the very record that reading would give."""
    known = read_sharepod(sharepod_object(gpu={"request": 0.5}))
    ready = {"type": "Ready", "status": "True", "reason": "AllReplicasReady"}
    body = {**sharepod_object(gpu={"request": 0.5}), "status": {"replicas": 1, "conditions": [ready]}}
    body["metadata"] |= {"resourceVersion": "8"} | CHANGES[changed]
    short = with_new_status(known, body)

    assert (changed == "nothing") == (short is not None)
    assert short in (None, read_sharepod(body))
    assert "AllReplicasReady" == read_sharepod(body).ready_reason


def test_without_generations_everything_is_read() -> None:
    """A SharePod that no API server has seen has none, so that nothing says whether its spec has changed."""
    body = sharepod_object()
    del body["metadata"]["generation"]

    assert with_new_status(read_sharepod(body), body) is None
