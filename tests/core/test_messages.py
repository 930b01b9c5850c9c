"""The sentence that tells why a pod waits: counts per reason on one short line, equal for equal situations."""

from __future__ import annotations

import pytest

from sharepod_operator.core.model import Refusal, Unschedulable
from sharepod_operator.core.reasons import DeviceReason, NodeReason, message


def _refusals(*reasons: str, detail: str = "") -> dict[str, Refusal]:
    return {f"n{place}-{reason}": Refusal(reason, detail) for place, reason in enumerate(reasons)}


def test_a_gpu_pod_counts_gpus_then_nodes() -> None:
    """The form of the events, sorted by count within each kind."""
    share, memory = DeviceReason.INSUFFICIENT_SHARE, DeviceReason.INSUFFICIENT_GPU_MEMORY
    decision = Unschedulable(
        nodes=_refusals(NodeReason.TAINT, detail="{k: v}"),
        devices=_refusals(share, memory, share, DeviceReason.EXCLUSION_CONFLICT, memory, share),
        total_nodes=5,
        total_devices=7,
    )
    expected = (
        "0/7 GPUs on 5 nodes are available: 1 GPU(s) held by another exclusion tag, 2 GPU(s) Insufficient gpu memory, "
        "3 GPU(s) Insufficient gpu, 1 node(s) had untolerated taint {k: v}."
    )
    assert expected == message(decision, gpu=True)


def test_a_pod_without_gpus_reads_as_from_kube_scheduler() -> None:
    """Nodes only, in its words; selector and affinity are one reason there."""
    cpu = NodeReason.INSUFFICIENT_CPU
    decision = Unschedulable(
        nodes=_refusals(cpu, NodeReason.NODE_SELECTOR, cpu, NodeReason.NODE_AFFINITY, cpu, NodeReason.UNSCHEDULABLE),
        total_nodes=6,
        total_devices=3,
    )
    expected = (
        "0/6 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector, "
        "3 Insufficient cpu."
    )
    assert expected == message(decision, gpu=False)


def test_a_nodes_cpu_is_not_taken_for_a_gpus() -> None:
    """Beside GPU(s), the reasons of nodes say that they are."""
    decision = Unschedulable(nodes=_refusals(NodeReason.INSUFFICIENT_MEMORY), total_nodes=1, total_devices=1)
    assert "0/1 GPUs on 1 nodes are available: 1 node(s) Insufficient memory." == message(decision, gpu=True)


def test_nodes_with_too_few_gpus_say_how_many_fit() -> None:
    """Such nodes have no other reason."""
    decision = Unschedulable(short={"a": 1, "b": 1, "c": 2}, wanted_devices=3, total_nodes=3, total_devices=4)
    expected = "0/4 GPUs on 3 nodes are available: 1 node(s) where 2 of 3 GPUs fit, 2 node(s) where 1 of 3 GPUs fit."
    assert expected == message(decision, gpu=True)


def test_what_blocks_a_pod_is_the_whole_message() -> None:
    """No node was asked, so none is counted."""
    decision = Unschedulable(blocked="PersistentVolumeClaim ml/data does not exist", total_nodes=3)
    assert "PersistentVolumeClaim ml/data does not exist" == message(decision, gpu=True)


def test_volumes_elsewhere_read_as_from_kube_scheduler() -> None:
    """Nodes where the pod's PersistentVolumes can't be used are counted in its words."""
    decision = Unschedulable(nodes=_refusals(NodeReason.VOLUME_NODE_AFFINITY), total_nodes=1, total_devices=2)
    expected = "0/2 GPUs on 1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."
    assert expected == message(decision, gpu=True)


def test_an_empty_cluster_says_so() -> None:
    """As kube-scheduler does."""
    expected = "0/0 nodes are available: no nodes available to schedule pods."
    assert expected == message(Unschedulable(), gpu=False)


def test_what_never_fits_is_told_alone() -> None:
    """Counts would hide it."""
    sentence = "memory 48Gi is more than any GPU has (largest 40Gi, node gpu-a)"
    decision = Unschedulable(devices=_refusals(DeviceReason.INSUFFICIENT_GPU_MEMORY), unsatisfiable=sentence)
    assert sentence == message(decision, gpu=True)


@pytest.mark.parametrize("size", [1, 40, 2000])
def test_many_reasons_are_cut_with_their_number(size: int) -> None:
    """At most 1024 characters and no line break, whatever keys and values the taints have."""
    nodes = {f"n{i}": Refusal(NodeReason.TAINT, f"{{key-{i}: {'v' * size}\n}}") for i in range(300)}
    text = message(Unschedulable(nodes=nodes, total_nodes=300, total_devices=1), gpu=True)
    assert len(text) <= 1024
    assert "\n" not in text
    assert text.startswith("0/1 GPUs on 300 nodes are available: 1 node(s) had untolerated taint {key-0: v")
    if size < 1000:
        shown = text.count("node(s)")
        assert text.endswith(f", …and {300 - shown} more.")


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("reason", [*NodeReason, *DeviceReason])
def test_every_reason_has_its_words(reason: NodeReason | DeviceReason, gpu: bool) -> None:  # noqa: FBT001
    """None is left out and none shows a bare code word or an open place."""
    refusals = {"x": Refusal(reason, "detail")}
    if isinstance(reason, DeviceReason):
        decision = Unschedulable(devices=refusals, total_nodes=1, total_devices=1)
    else:
        decision = Unschedulable(nodes=refusals, total_nodes=1, total_devices=1)
    text = message(decision, gpu=gpu)
    assert str(reason.value) not in text.replace("Insufficient", "")
    assert "{detail}" not in text
    assert " 1 " in text
