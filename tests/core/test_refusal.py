"""What is refused, why, and whether it could ever fit."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from sharepod_operator.core.filters import node_refusal
from sharepod_operator.core.model import Constraints, GPURequest, Node, Resources, Shape, Taint
from sharepod_operator.core.placement import decide
from sharepod_operator.core.score import policy
from sharepod_operator.core.snapshot import Snapshot
from tests.support.placing import GI, gpu, held, node, placed, reasons, refused, shape

A, B = node("gpu-a", gpu("a0"), gpu("a1", 16 * GI)), node("gpu-b", gpu("b0", 24 * GI), cpu=8000)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (shape(500, memory=0, gpu_id=""), ""),
        (Shape(gpu=GPURequest(500, 500, 48 * GI)), "memory 48Gi is more than any GPU has (largest 40Gi, node gpu-a)"),
        (shape(500, count=3), "count 3 is more GPUs than any node has (most 2, node gpu-a)"),
        (Shape(gpu=GPURequest(500, 500, 20 * GI, 2)), "no node has 2 GPUs with memory 20Gi each"),
        (shape(500, count=2, device_ids=("a0",)), "count 2 is more GPUs than deviceIDs names (1)"),
        (shape(500, count=2, gpu_id="a0"), "count 2 does not go with GPUID a0, which stands for one GPU"),
        (shape(500, cpu=65_000), "cpu 65 is more than any node with GPUs has (most 64, node gpu-a)"),
        (shape(500, memory=600 * GI), "node memory 600Gi is more than any node with GPUs has (most 512Gi, node gpu-a)"),
        (shape(cpu=200_000), "cpu 200 is more than any node has (most 128, node cpu-c)"),
        (shape(resources=Resources(ephemeral_storage=GI)),
         "ephemeral-storage 1Gi is more than any node has (most 0, node cpu-c)"),
        (shape(500, constraints=Constraints(unsupported=("podAffinity", "topologySpreadConstraints"))),
         "this scheduler does not implement podAffinity, topologySpreadConstraints, which the pod asks for"),
        (shape(500, constraints=Constraints(node_name="elsewhere")),
         "there is no node elsewhere, which the pod asks for by name"),
        (shape(500, device_ids=("elsewhere",)),
         "no node has the GPU elsewhere, which the pod asks for by UUID"),
        (shape(500, device_ids=("a0",), gpu_id="a1"),
         "the GPUs that deviceIDs names and the one of GPUID have none in common"),
    ],
)  # fmt: skip
def test_what_could_never_fit_says_so(wanted: Shape, expected: str) -> None:
    """Only where no node of the cluster would do even if it were empty; taints and health may pass."""
    taint = Taint("k", "v", "NoSchedule")
    nodes = [A, B, node("cpu-c", cpu=128_000)]
    full = Snapshot(Node(n.name, taints=(taint,), allocatable=n.allocatable, devices=n.devices) for n in nodes)
    assert expected == refused(full, wanted).unsatisfiable


def test_a_cluster_without_gpus_may_still_get_some() -> None:
    """Its inventory may not be there yet."""
    answer = refused(Snapshot([node("c")]), shape(500, count=8))
    assert ("", {"c": "NoGPU"}) == (answer.unsatisfiable, {n: str(why.reason) for n, why in answer.nodes.items()})


def test_the_taint_and_the_resource_are_named() -> None:
    """What a person needs beside the word."""
    tainted = Node("t", taints=(Taint("k", "v", "NoExecute"),), devices=(gpu("t0"),))
    answer = refused(Snapshot([tainted, A]), shape(500, resources=Resources(extended=(("example.com/nic", 1),))))
    assert {"t": "{k: v}", "gpu-a": "example.com/nic"} == {name: why.detail for name, why in answer.nodes.items()}


def test_a_node_with_too_few_gpus_has_no_reason_but_a_count() -> None:
    """Its fitting GPUs have nothing against the pod."""
    snapshot = Snapshot([A, B])
    snapshot.add(held("h", "gpu-a", "a0", milli=1000))
    answer = refused(snapshot, shape(500, count=2))
    assert ({}, {"a0": "InsufficientShare"}) == (answer.nodes, {u: str(w.reason) for u, w in answer.devices.items()})
    assert ({"gpu-a": 1, "gpu-b": 1}, 2) == (answer.short, answer.wanted_devices)


def test_equal_hopeless_replicas_cost_one_evaluation() -> None:
    """And after one pod has come, only its node is judged again."""
    snapshot = Snapshot([A, B])
    for uuid, name in (("a0", "gpu-a"), ("a1", "gpu-a"), ("b0", "gpu-b")):
        snapshot.add(held(uuid, name, uuid, milli=900))
    with patch("sharepod_operator.core.refusal.node_refusal", wraps=node_refusal) as judged:
        for _ in range(1000):
            answer = decide(snapshot, shape(500), policy("bestFit"))
        assert 2 == judged.call_count
        snapshot.add(held("more", "gpu-b", "b0", exclusion="x"))
        changed = refused(snapshot, shape(500))
        assert 3 == judged.call_count
    assert answer != changed
    assert {"a0": "InsufficientShare", "a1": "InsufficientShare", "b0": "ExclusionConflict"} == {
        uuid: str(why.reason) for uuid, why in changed.devices.items()
    }


def test_an_answer_given_does_not_change_later() -> None:
    """The next answer is a new record, though it is made from the last."""
    snapshot = Snapshot([A])
    snapshot.add(held("h0", "gpu-a", "a0", "a1", milli=900))
    first = refused(snapshot, shape(500))
    kept = dict(first.devices)
    snapshot.add(held("h1", "gpu-a", "a0", exclusion="x"))
    assert refused(snapshot, shape(500)) != first
    assert kept == first.devices


def test_a_reason_goes_when_its_cause_does() -> None:
    """Also where the pod still does not fit, since one GPU is not the two that it asks for."""
    snapshot = Snapshot([A])
    snapshot.add(held("h0", "gpu-a", "a0", milli=900))
    snapshot.add(held("h1", "gpu-a", "a1", milli=900))
    assert {"a0": "InsufficientShare", "a1": "InsufficientShare"} == reasons(snapshot, shape(500, count=2))
    snapshot.remove("h0")
    assert {"a1": "InsufficientShare"} == reasons(snapshot, shape(500, count=2))
    assert {"gpu-a": 1} == refused(snapshot, shape(500, count=2)).short


def test_reasons_of_many_shapes_are_not_kept_for_ever() -> None:
    """Each names every GPU of the cluster, so only the latest stay."""
    snapshot = Snapshot([A])
    for cpu in range(65_000, 65_200):
        assert refused(snapshot, shape(500, cpu=cpu)).nodes
    assert 64 == len(snapshot.refusals)


def test_a_virtual_gpu_needs_a_pinned_node() -> None:
    """Without one the name means nothing."""
    assert {"a0": "DevicePin", "a1": "DevicePin"} == reasons(Snapshot([A]), shape(500, gpu_id="v"))


def test_a_virtual_gpus_card_decides() -> None:
    """The first opens an idle card, others join it or wait, and when all are gone the name is free again."""
    snapshot = Snapshot([A])
    pin = Constraints(node_name="gpu-a")
    snapshot.add(held("h", "gpu-a", "a0"))
    first = placed(snapshot, shape(600, gpu_id="v", constraints=pin), "first")
    assert ("gpu-a", ("a1",)) == first
    assert first == placed(snapshot, shape(300, gpu_id="v", constraints=pin), "second")
    assert {"a0": "DevicePin", "a1": "InsufficientShare"} == reasons(snapshot, shape(300, gpu_id="v", constraints=pin))
    assert {"a0": "DevicePin", "a1": "DevicePin"} == reasons(snapshot, shape(1, gpu_id="w", constraints=pin))
    snapshot.remove("first")
    snapshot.remove("second")
    assert first == placed(snapshot, shape(1, gpu_id="w", constraints=pin))


def test_a_gpu_id_of_the_inventory_is_a_pin() -> None:
    """On whichever node it is; together with deviceIDs both have to hold."""
    snapshot = Snapshot([A, B])
    assert ("gpu-b", ("b0",)) == placed(snapshot, shape(500, gpu_id="b0"))
    assert {"a0": "DevicePin", "a1": "DevicePin", "b0": "DevicePin"} == reasons(
        snapshot, shape(500, gpu_id="b0", device_ids=("a0",))
    )
