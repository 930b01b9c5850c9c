"""Readers meet anything that a cluster or a person may send, and never raise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sharepod_operator.cli.simulation import Outcome, place_all
from sharepod_operator.core.model import GPURequest
from sharepod_operator.core.score import policy
from sharepod_operator.manifest import names
from sharepod_operator.manifest.cluster_objects import read_scenario
from sharepod_operator.manifest.documents import DocumentError, read_documents
from sharepod_operator.manifest.ledger import decode_request, encode_request
from sharepod_operator.manifest.node import read_node
from sharepod_operator.manifest.pod import read_pod
from sharepod_operator.manifest.render import render_pod
from sharepod_operator.manifest.sharepod import read_sharepod
from sharepod_operator.manifest.strict import ScenarioError
from sharepod_operator.manifest.volumes import read_claim, read_storage_class, read_volume
from tests.support.objects import node_object, of_sharepod, pod_object, seeing, sharepod_object

SLOW = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["0.5", "1Gi", "5x", "-1", "GPU-a", "Always", "True", "DoNotSchedule", "Ready", "\uff11"])
)
field_names = st.sampled_from(
    [
        *("metadata", "spec", "status", "name", "namespace", "labels", "annotations", "podSpec", "gpu", "containers"),
        *(
            "initContainers",
            "resources",
            "requests",
            "limits",
            "cpu",
            "memory",
            "env",
            "volumes",
            "affinity",
            "nodeName",
        ),
        *("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "matchFields"),
        *(
            "tolerations",
            "request",
            "limit",
            "count",
            "deviceIDs",
            "selector",
            "matchLabels",
            "conditions",
            "allocatable",
        ),
        *("capacity", "taints", "gpus", "uuid", "nodes", "pods", "replicas", "ownerReferences", "controller", "ports"),
        *(
            "topologySpreadConstraints",
            "resourceClaims",
            "nvidia.com/gpu",
            "overhead",
            "node",
            "GPUID",
            "items",
            "kind",
        ),
    ]
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(field_names | st.text(max_size=5), inner, max_size=5),
    max_leaves=25,
)


def spoil(body: dict[str, Any]) -> st.SearchStrategy[Any]:
    """A right object in which one place, anywhere, is replaced by something else."""
    paths = list(_paths(body))

    def replaced(path: tuple[Any, ...], value: Any) -> Any:
        copy = json.loads(json.dumps(body))
        if not path:
            return value
        inner = copy
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return copy

    return st.builds(replaced, st.sampled_from(paths), anything)


def _paths(value: Any, here: tuple[Any, ...] = ()) -> Any:
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*here, key))


SHAREPOD = sharepod_object(
    gpu={"request": 0.5, "limit": 1, "memory": "1Gi", "count": 1, "affinity": "a", "deviceIDs": ["GPU-a"]},
    annotations={"kubeshare/GPUID": "GPU-a", "kubeshare/gpu_mem": "5"},
    labels={"com.openfaas.scale.min": "2"},
    selector={"matchLabels": {"app": "bert"}, "matchExpressions": [{"key": "app", "operator": "Exists", "values": []}]},
    pod_spec={
        "nodeName": "n",
        "containers": [
            {
                "name": "c",
                "env": [{"name": "A", "value": "b"}],
                "ports": [{"hostPort": 80}],
                "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}, "claims": []},
            }
        ],
        "initContainers": [{"name": "i", "restartPolicy": "Always"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": [{"key": "k", "operator": "In", "values": ["v"]}]}]
                }
            },
            "podAffinity": {},
        },
        "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "os": {"name": "linux"},
        "overhead": {"cpu": "1"},
        "resources": {"requests": {"cpu": "1"}},
    },
    replicas=2,
)
POD = pod_object(
    annotations={
        names.ALLOCATION: '{"gpus": [{"uuid": "GPU-a", "milli": 1, "memory": 2}], "port": 1, "limitMilli": 5}',
        names.GPU_REQUEST: encode_request(GPURequest(500, 500)),
        names.POD_DELETION_COST: "5",
    },
    nodeName="n",
    status={
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "app", "restartCount": 1, "allocatedResources": {"cpu": "1"}}],
    },
    metadata={**of_sharepod(), "deletionTimestamp": "x"},
    priority=5,
)
PLAIN_POD = pod_object(
    annotations={names.KUBESHARE_AFFINITY: "x", names.KUBESHARE_GPU_ID: "GPU-a"},
    containers=[seeing(resources={"limits": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "1Gi"}})],
    status={"nominatedNodeName": "n"},
    schedulingGates=[{"name": "g"}],
)
NODE = node_object(
    annotations={names.GPU_INVENTORY: '{"gpus": [{"uuid": "GPU-a", "memory": 5}]}', names.CORDONED_GPUS: "GPU-a"},
    taints=[{"key": "k", "effect": "NoSchedule"}],
    status={"addresses": [{"type": "InternalIP", "address": "1.2.3.4"}], "capacity": {"nvidia.com/gpu": "1"}},
)
CLAIM = {
    "metadata": {"name": "d", "namespace": "ml", "uid": "c", "resourceVersion": "1", "ownerReferences": []},
    "spec": {"volumeName": "v", "storageClassName": "s", "accessModes": ["ReadWriteOncePod"]},
    "status": {"phase": "Bound"},
}
VOLUME = {
    "metadata": {"name": "v", "uid": "v", "labels": {"topology.kubernetes.io/zone": "a__b"}},
    "spec": {
        "claimRef": {"namespace": "ml", "name": "d"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [{"key": "k", "values": ["v"]}]}]}},
    },
}


@SLOW
@given(anything | spoil(SHAREPOD))
def test_sharepod_reader_never_raises_and_what_it_accepts_can_be_rendered(body: Any) -> None:
    """Whatever arrives gives a record; a valid one gives a Pod that reads back with the same request."""
    record = read_sharepod(body)
    assert 0 <= record.replicas <= 1000
    assert 0 <= record.wanted <= 1000
    assert [] == [line for line in record.invalid if "\n" in line]
    pod = read_pod(render_pod(record, "x"))
    if not record.invalid:
        assert record.gpu == pod.pod.shape.gpu
        assert ("", ()) == (pod.invalid, pod.pod.shape.constraints.unsupported)


@SLOW
@given(anything | spoil(POD) | spoil(PLAIN_POD))
def test_pod_reader_never_raises(body: Any) -> None:
    """Whatever arrives gives a record whose amounts are integers and not negative."""
    record = read_pod(body)
    amounts = [record.charged.cpu_milli, record.charged.memory, record.whole_gpus]
    assert [] == [amount for amount in amounts if type(amount) is not int or amount < 0]


@SLOW
@given(anything | spoil(NODE))
def test_node_reader_never_raises(body: Any) -> None:
    """Whatever arrives gives a record; an inventory that is told to be wrong offers nothing."""
    record = read_node(body)
    uuids = [device.uuid for device in record.node.devices]
    assert len(uuids) == len(set(uuids))
    assert [] == [device for device in record.node.devices if device.memory <= 0]


@SLOW
@given(anything | spoil(CLAIM) | spoil(VOLUME))
def test_volume_readers_never_raise(body: Any) -> None:
    """Whatever arrives gives records that can be keys."""
    records = (read_claim(body), read_volume(body), read_storage_class(body))
    assert 3 == len(dict.fromkeys(records))


@SLOW
@given(st.text(max_size=60))
def test_annotations_of_any_text_are_read_or_told(written: str) -> None:
    """Inventory and ledger annotations are texts that anybody may have written: what isn't read is told, never half used."""
    for key in (names.GPU_INVENTORY, names.KUBESHARE_GPU_INFO):
        node = read_node(node_object(annotations={key: written}))
        assert not (node.inventory_error and node.node.devices)
    assert "\n" not in read_node(node_object(annotations={names.CORDONED_GPUS: written})).inventory_error
    for key in (names.ALLOCATION, names.GPU_REQUEST, names.POD_DELETION_COST):
        pod = read_pod(pod_object(annotations={key: written}, nodeName="n"))
        assert pod.allocation is None or not pod.ledger_error
    for key in names.KUBESHARE_REQUEST_KEYS:
        sharepod = read_sharepod(sharepod_object(annotations={key: written}))
        assert sharepod.gpu is None or not sharepod.invalid


SCENARIO = {
    "nodes": [
        {
            "name": "a",
            "ready": True,
            "labels": {"zone": "east"},
            "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": 10},
            "gpus": [{"uuid": "GPU-a", "memory": "40Gi", "healthy": True, "cordoned": False}],
        }
    ],
    "pods": [
        {"name": "h", "node": "a", "gpus": [{"uuid": "GPU-a"}], "gpu": {"request": "0.5"}, "phase": "Running"},
        {
            "name": "p",
            "priority": 1,
            "cpu": "1",
            "gpu": {"request": "0.5", "deviceIDs": ["GPU-a"], "GPUID": "GPU-a"},
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "nodeSelector": {"zone": "east"},
            "nodeName": "a",
        },
        {"name": "q", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}], "affinity": {}},
        {
            "name": "r",
            "priority": 9,
            "resources": {"koordinator.sh/gpu": "100"},
            "nominatedNode": "a",
            "preemptionPolicy": "PreemptLowerPriority",
        },
        {
            "name": "s",
            "node": "a",
            "labels": {"app": "s"},
            "startTime": "2026-01-01T00:00:00Z",
            "terminating": True,
            "disruptionTarget": "PreemptionByScheduler",
            "protected": False,
        },
    ],
    "podDisruptionBudgets": [
        {"name": "b", "matchLabels": {"app": "s"}, "disruptionsAllowed": 1, "disruptedPods": ["h"]},
    ],
}
PRIORITY_CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
    "globalDefault": True,
    "preemptionPolicy": "Never",
}
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "b", "namespace": "ml"},
    "spec": {"selector": {"matchLabels": {"app": "s"}}},
    "status": {"disruptionsAllowed": 1, "disruptedPods": {"h": "2026-01-01T00:00:00Z"}},
}


@SLOW
@given(
    anything
    | spoil(SCENARIO)
    | spoil(SHAREPOD)
    | spoil(POD)
    | spoil(NODE)
    | spoil({"apiVersion": "v1", "kind": "List", "items": [NODE, BUDGET, PRIORITY_CLASS, POD, SHAREPOD]})
)
def test_simulation_of_any_file_ends_in_results_or_one_line(body: Any) -> None:
    """A file is placed, or refused with a sentence on one line; nothing else happens."""
    try:
        scenario = read_scenario(body if isinstance(body, list) else [body])
    except ScenarioError as error:
        sentence = str(error)
    else:
        sentence = ""
    assert "\n" not in sentence
    if sentence:
        return
    results = place_all(scenario, policy("bestFit"))
    assert len(results) == len(scenario.candidates)
    assert [] == [result for result in results if result.outcome is Outcome.PLACED and result.node is None]


@SLOW
@given(st.text(max_size=80) | st.text(alphabet="{}[]:,-&*!\"' \n#|>?%@a1.eE~<", max_size=40))
def test_any_text_is_read_or_refused(written: str) -> None:
    """Texts that are neither JSON nor YAML are refused as such, whatever they hold."""
    try:
        read = json.dumps(read_documents(written))
    except DocumentError as error:
        read = str(error)
    assert read


@SLOW
@given(
    st.builds(
        GPURequest,
        milli=st.integers(0, 500),
        limit_milli=st.integers(500, 1000),
        memory=st.integers(0, 2**62),
        count=st.integers(1, 64),
        affinity=st.text(max_size=9),
        anti_affinity=st.text(max_size=9),
        exclusion=st.text(max_size=9),
        device_ids=st.lists(st.text(min_size=1, max_size=5)).map(tuple),
        gpu_id=st.text(max_size=9),
    )
)
def test_every_request_survives_the_annotation(request_: GPURequest) -> None:
    """The scheduler reads exactly what the controller meant."""
    try:
        written = encode_request(request_)
    except TypeError:  # lone surrogates are no text that the API server would deliver
        with pytest.raises(UnicodeEncodeError):
            str(request_).encode()
        return
    assert request_ == decode_request(written)
