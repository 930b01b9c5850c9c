"""Reading Pods: what they take, where they may run, and what the ledger says of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sharepod_operator.core.model import (
    Allocation,
    Assigned,
    Charge,
    GPURequest,
    HostPort,
    Requirement,
    Resources,
    SelectorTerm,
    Toleration,
)
from sharepod_operator.manifest import names
from sharepod_operator.manifest.ledger import (
    LedgerError,
    decode_allocation,
    decode_request,
    encode_allocation,
    encode_request,
)
from sharepod_operator.manifest.pod import binding_annotations, read_pod
from tests.support.objects import container, of_sharepod, pod_object, sized

Json = dict[str, Any]
MIB = 1 << 20
ALLOCATION = Allocation((Charge("GPU-a", 500, 10), Charge("GPU-b", 500, 10)), 50051, 1000, "x", "y", "z", "abcde")


@pytest.mark.parametrize(
    ("spec", "cpu", "memory"),
    [
        ({}, 0, 0),
        ({"containers": [sized(cpu="500m", memory="1Mi"), sized("b", cpu=2)]}, 2500, MIB),
        ({"containers": [sized(cpu=0.5)]}, 500, 0),
        ({"containers": [sized(limits={"cpu": "1", "memory": "2Mi"}, cpu="100m")]}, 100, 2 * MIB),
        ({"containers": [sized(cpu="1")], "initContainers": [sized("i", cpu="3"), sized("j", cpu="2")]}, 3000, 0),
        ({"containers": [sized(cpu="1")], "initContainers": [sized("s", cpu="1", always=True)]}, 2000, 0),
        (
            {
                "containers": [sized(cpu="1")],
                "initContainers": [sized("s", cpu="500m", always=True), sized("i", cpu="1200m")],
            },
            1700,
            0,
        ),
        (
            {
                "containers": [sized(cpu="1")],
                "initContainers": [sized("i", cpu="1200m"), sized("s", cpu="500m", always=True)],
            },
            1500,
            0,
        ),
        ({"containers": [sized(cpu="1")], "overhead": {"cpu": "250m", "memory": "1Mi"}}, 1250, MIB),
        ({"containers": [sized(cpu="1")], "resources": {"requests": {"cpu": "4"}}, "overhead": {"cpu": "1"}}, 5000, 0),
        ({"containers": [sized(cpu="1")], "resources": {"limits": {"cpu": "4", "memory": "1Mi"}}}, 1000, MIB),
        ({"containers": [sized(cpu="1n")]}, 1, 0),
    ],
)
def test_effective_request_is_kubernetes_own(spec: Json, cpu: int, memory: int) -> None:
    """Init steps, sidecars, overhead, pod-level resources and limits as defaults, as kube-scheduler counts them."""
    record = read_pod(pod_object(**spec))
    assert Resources(cpu, memory) == record.pod.shape.resources == record.charged
    assert "" == record.invalid


def test_extended_resources_are_counted_and_koordinator_is_not() -> None:
    """koordinator.sh/* is a way to write a GPU request, not an amount of the node."""
    limits = {"example.com/fpga": 2, "koordinator.sh/gpu": 50, "ephemeral-storage": "1Ki", "nvidia.com/gpu": "1"}
    record = read_pod(pod_object(containers=[sized(limits=limits)]))
    assert Resources(0, 0, 1024, (("example.com/fpga", 2), ("nvidia.com/gpu", 1))) == record.charged
    assert 1 == record.whole_gpus


def test_bound_pod_is_charged_what_the_kubelet_still_allocates() -> None:
    """During a resize downwards the larger of spec and allocatedResources counts; placement looks at the spec."""
    status = {"containerStatuses": [{"name": "app", "allocatedResources": {"cpu": "2", "memory": "1Mi"}}]}
    bound = read_pod(pod_object(containers=[sized(cpu="1", memory="3Mi")], nodeName="n", status=status))
    assert (Resources(2000, 3 * MIB), Resources(1000, 3 * MIB)) == (bound.charged, bound.pod.shape.resources)


def test_constraints_are_read() -> None:
    """Everything that a scheduler which binds by itself has to check."""
    terms = [
        {
            "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}],
            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["x"]}],
        },
        {},
    ]
    spec: Json = {
        "nodeSelector": {"b": "2", "a": "1"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
        "tolerations": [{"operator": "Exists"}, {"key": "k", "value": "v", "effect": "NoExecute"}],
        "containers": [
            container(ports=[{"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}, {"containerPort": 81}])
        ],
    }
    constraints = read_pod(pod_object(**spec)).pod.shape.constraints
    assert (("a", "1"), ("b", "2")) == constraints.node_selector
    assert (
        SelectorTerm((Requirement("zone", "In", ("a", "b")),), (Requirement("metadata.name", "NotIn", ("x",)),)),
        SelectorTerm(),
    ) == constraints.node_affinity
    assert (Toleration(operator="Exists"), Toleration("k", "Equal", "v", "NoExecute")) == constraints.tolerations
    assert (HostPort(8080, "TCP", "10.0.0.1"),) == constraints.host_ports
    assert () == constraints.unsupported


def test_no_affinity_and_an_empty_list_of_terms_differ() -> None:
    """No required affinity allows every node; a list without terms matches none."""
    empty: Json = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    assert [None, ()] == [
        read_pod(pod_object()).pod.shape.constraints.node_affinity,
        read_pod(pod_object(affinity=empty)).pod.shape.constraints.node_affinity,
    ]


def test_container_ports_on_the_host_network_are_host_ports() -> None:
    """The API server defaults them so; a file written by hand has not been there."""
    record = read_pod(
        pod_object(hostNetwork=True, containers=[container(ports=[{"containerPort": 53, "protocol": "UDP"}])])
    )
    assert (HostPort(53, "UDP"),) == record.host_ports


def test_life_cycle_fields() -> None:
    """What the controller counts, sorts and reports by."""
    conditions = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"},
        {"type": "PodScheduled", "status": "True"},
    ]
    status = {
        "phase": "Running",
        "conditions": conditions,
        "startTime": "2026-01-01T00:00:01Z",
        "containerStatuses": [{"name": "a", "restartCount": 2}, {"name": "b", "restartCount": 5}],
        "reason": "Evicted",
    }
    metadata = {
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-01T00:01:00Z",
        "ownerReferences": [
            {"kind": "Other"},
            {"kind": "SharePod", "name": "bert", "uid": "uid-1", "controller": True},
        ],
    }
    record = read_pod(
        pod_object(
            nodeName="gpu-a",
            priority=10,
            schedulerName="sharepod-scheduler",
            restartPolicy="Never",
            annotations={"controller.kubernetes.io/pod-deletion-cost": "-7", names.REPLICA: "3.1.0"},
            status=status,
            metadata=metadata,
        )
    )
    assert (True, "2026-01-01T00:00:05Z", "2026-01-01T00:00:01Z", 5, -7) == (
        record.ready,
        record.ready_since,
        record.start_time,
        record.restarts,
        record.deletion_cost,
    )
    assert ("gpu-a", "Running", "Never", "Evicted", "3.1.0", 12) == (
        record.node,
        record.phase,
        record.restart_policy,
        record.reason,
        record.replica,
        record.version,
    )
    assert (True, False, False) == (record.deleting, record.active, record.finished)
    assert ("SharePod", "bert", "uid-1") == (
        (record.owner.kind, record.owner.name, record.owner.uid) if record.owner else None
    )
    assert (10, "2026-01-01T00:00:00Z") == (record.pod.priority, record.pod.created)


def test_waiting_pod_tells_why() -> None:
    """The last word of the scheduler on an unplaced pod, so that it isn't written twice."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    record = read_pod(pod_object(status={"conditions": [condition]}, schedulingGates=[{"name": "g"}]))
    assert ("Unschedulable", "no room", True, "Pending") == (
        record.scheduled_reason,
        record.scheduled_message,
        record.gated,
        record.phase,
    )


@pytest.mark.parametrize("cost", ["x", "", "1.5", "--1", "99999999999", "3000000000", "²"])
def test_deletion_cost_that_is_no_32_bit_integer_counts_as_zero(cost: str) -> None:
    """As Kubernetes does."""
    assert 0 == read_pod(pod_object(annotations={"controller.kubernetes.io/pod-deletion-cost": cost})).deletion_cost


def test_ledger_entry_is_read_back_from_a_bound_pod_alone() -> None:
    """What the Binding wrote is charged; on an unbound pod the same annotation is nobody's decision."""
    unbound = read_pod(pod_object())
    annotations = binding_annotations(unbound, Assigned("pod-1", "gpu-a", allocation=ALLOCATION), "10.0.0.1")
    assert {
        names.GPU_UUIDS: "GPU-a,GPU-b",
        names.POD_MANAGER_PORT: "50051",
        names.POD_MANAGER_IP: "10.0.0.1",
        names.CLIENT_ID: "ml/bert-abcde",
    } == {key: value for key, value in annotations.items() if key != names.ALLOCATION}
    assert (ALLOCATION, "") == _ledger(annotations, nodeName="gpu-a")
    assert (None, "") == _ledger(annotations)
    assert {} == binding_annotations(unbound, Assigned("pod-1", "gpu-a"), "10.0.0.1")


def _ledger(annotations: Json, **spec: Any) -> tuple[Allocation | None, str]:
    record = read_pod(pod_object(annotations=annotations, **spec))
    return record.allocation, record.ledger_error


GPU: Json = {"uuid": "GPU-a", "milli": 1, "memory": 0, "cardMemory": 5}
GOOD: Json = {"gpus": [GPU], "port": 50051, "limitMilli": 1}


def test_written_by_hand_exactly_as_by_the_binding() -> None:
    """The form of a ledger entry: the base of the bad ones below is a good one."""
    assert Allocation((Charge("GPU-a", 1, 0, 5),), 50051, 1) == decode_allocation(json.dumps(GOOD))


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{",
        "[]",
        "null",
        "1" * 5000,
        json.dumps({}),
        json.dumps({**GOOD, "gpus": []}),
        json.dumps({**GOOD, "gpus": ["GPU-a"]}),
        json.dumps({**GOOD, "gpus": [GPU, GPU]}),
        json.dumps({**GOOD, "gpus": [{**GPU, "uuid": ""}]}),
        json.dumps({**GOOD, "gpus": [{**GPU, "milli": 1001, "memory": 0}]}),
        json.dumps({**GOOD, "gpus": [{**GPU, "milli": 1, "memory": -1}]}),
        json.dumps({**GOOD, "gpus": [{**GPU, "milli": 0.5, "memory": 0}]}),
        json.dumps({**GOOD, "gpus": [{**GPU, "milli": True, "memory": 0}]}),
        json.dumps({**GOOD, "port": 70000}),
        json.dumps({**GOOD, "limitMilli": 0}),
        json.dumps({**GOOD, "affinity": 5}),
    ],
)
def test_bad_ledger_entry_is_reported_and_nothing_is_guessed(written: str) -> None:
    """A bound pod with a broken entry does not stop the operator; it is told, and its GPUs are unknown."""
    allocation, error = _ledger({names.ALLOCATION: written}, nodeName="gpu-a")
    assert None is allocation
    assert bool(written) == bool(error)
    with pytest.raises(LedgerError):
        decode_allocation(written)


def test_ledger_entries_and_requests_survive_the_way_through_json() -> None:
    """Whatever is written is read back the same, with and without the optional fields."""
    plain = Allocation((Charge("GPU-a", 0, 0),))
    assert [ALLOCATION, plain] == [decode_allocation(encode_allocation(item)) for item in (ALLOCATION, plain)]
    requests = [
        GPURequest(0, 1),
        GPURequest(500, 1000, 7, 2, "a", "b", "c", ("GPU-1", "GPU-2"), "GPU-1"),
        GPURequest(500, 500, memory_percent=50),
    ]
    assert requests == [decode_request(encode_request(item)) for item in requests]


@pytest.mark.parametrize(
    "written",
    [
        "{",
        "[]",
        "{}",
        '{"requestMilli": 500, "limitMilli": 400, "memory": 0, "count": 1}',
        '{"requestMilli": "1"}',
        '{"requestMilli": 5, "limitMilli": 5, "memory": 0, "count": 1, "memoryPercent": 101}',
        '{"requestMilli": 5, "limitMilli": 5, "memory": 1, "count": 1, "memoryPercent": 1}',
    ],
)
def test_bad_request_annotation_makes_the_pod_invalid(written: str) -> None:
    """Such a pod is never placed; the sentence names the annotation."""
    record = read_pod(pod_object(annotations={names.GPU_REQUEST: written}, metadata=of_sharepod()))
    assert None is record.pod.shape.gpu
    assert names.GPU_REQUEST in record.invalid


def test_equal_shapes_are_one_object() -> None:
    """Thousands of replicas share one shape."""
    first, second = (read_pod(pod_object(name, containers=[sized(cpu="1")])) for name in ("a", "b"))
    assert first.pod.shape is second.pod.shape
