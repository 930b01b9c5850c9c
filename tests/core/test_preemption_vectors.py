"""Cases from the test tables of kube-scheduler, Koordinator, KAI-Scheduler and HAMi, restated for GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharepod_operator.core.model import (
    MILLI_PER_GPU,
    Allocation,
    Assigned,
    Charge,
    Constraints,
    Device,
    GPURequest,
    Node,
    Requirement,
    Resources,
    SelectorTerm,
    Shape,
    Taint,
)
from sharepod_operator.core.occupancy import NOW, Occupancy, Occupant
from sharepod_operator.core.placement import place, place_on
from sharepod_operator.core.preemption import (
    Answer,
    Evictions,
    Helpless,
    Patience,
    Preemptor,
    preempt,
)
from sharepod_operator.core.score import policy
from sharepod_operator.core.snapshot import Snapshot

Json = dict[str, Any]

CASES: list[Json] = json.loads((Path(__file__).parent / "vectors" / "preemption.json").read_text())
BEST_FIT = policy("bestFit")
MEMORY = 16 << 30


class World:
    """A case as the core sees it: percent of a GPU become milli, a whole pod over 100 % becomes several GPUs."""

    def __init__(self, case: Json) -> None:
        self.case = case
        self.snapshot = Snapshot([self._node(node) for node in case["nodes"]])
        self.occupancy = Occupancy()
        self.occupancy.allow({budget["name"]: budget["disruptions_allowed"] for budget in case.get("pdbs") or ()})
        disrupted = {name for budget in case.get("pdbs") or () for name in budget["disrupted_pods"]}
        for pod in case["running"]:
            self._run(pod, disrupted)
        asked = case["preemptor"]
        for nominated in case.get("nominated") or ():
            if nominated["priority"] >= asked["priority"]:
                self._nominate(nominated)

    def _node(self, node: Json) -> Node:
        devices = tuple(
            Device(gpu["uuid"], gpu.get("memory_bytes") or MEMORY, healthy=gpu.get("healthy", True))
            for gpu in node.get("gpus") or ()
        )
        taints = (Taint("unresolvable", "", "NoSchedule"),) if node.get("unresolvable") else ()
        return Node(node["name"], taints=taints, allocatable=Resources(64_000, 1 << 40), devices=devices)

    def _run(self, pod: Json, disrupted: set[str]) -> None:
        charges = tuple(
            Charge(gpu["uuid"], gpu["percent"] * 10, gpu.get("memory_bytes") or 0) for gpu in pod["requests"]["gpus"]
        )
        allocation = Allocation(
            charges, exclusion=pod.get("exclusion") or "", anti_affinity=pod.get("anti_affinity") or ""
        )
        self.snapshot.add(Assigned(pod["name"], pod["node"], allocation=allocation if charges else None))
        order = pod["start_order"]
        budget = pod.get("pdb")
        occupant = Occupant(
            pod["name"],
            pod["name"],
            pod["priority"],
            started=NOW if order is None else order,
            protected=pod.get("preemptible") is False,
            leaving=bool(pod.get("terminating")),
            budgets=(budget,) if budget and pod["name"] not in disrupted else (),
        )
        self.occupancy.put(pod["node"], occupant)

    def _nominate(self, nominated: Json) -> None:
        """On the cards of its node, the fullest of the smallest uuid first: the case names only the node."""
        node = self.snapshot.nodes[nominated["node"]]
        whole, part = divmod(nominated["gpu_percent"], 100)
        amounts = [MILLI_PER_GPU] * whole + ([part * 10] if part else [])
        charges = tuple(Charge(uuid, milli, 0) for uuid, milli in zip(sorted(node.devices), amounts, strict=False))
        self.snapshot.add(Assigned(nominated["name"], nominated["node"], allocation=Allocation(charges)))

    def shape(self) -> Shape | None:
        """What the preemptor asks; None where that is no legal request."""
        asked = self.case["preemptor"]
        percent = asked["gpu_percent"]
        if percent > 100 and percent % 100:
            return None
        count, milli = (percent // 100, MILLI_PER_GPU) if percent > 100 else (1, percent * 10)
        gpu = GPURequest(
            milli,
            max(milli, 1),
            (asked.get("gpu_memory_bytes") or 0) // count,
            count,
            exclusion=asked.get("exclusion") or "",
            anti_affinity=asked.get("anti_affinity") or "",
            device_ids=(asked["pinned_gpu"],) if asked.get("pinned_gpu") else (),
        )
        allowed = asked.get("allowed_nodes")
        terms = (
            None if allowed is None else (SelectorTerm(fields=(Requirement("metadata.name", "In", tuple(allowed)),)),)
        )
        return Shape(constraints=Constraints(node_affinity=terms), gpu=gpu if percent or gpu.memory else None)

    def preemptor(self, shape: Shape) -> Preemptor:
        asked = self.case["preemptor"]
        return Preemptor(shape, asked["priority"], never=asked.get("preemption_policy") == "Never")

    def preempt(self, shape: Shape) -> Answer:
        before = {name: state.index_entries() for name, state in self.snapshot.nodes.items()}
        answer = preempt(self.snapshot, self.preemptor(shape), self.occupancy, BEST_FIT)
        self.snapshot.validate()
        assert before == {name: state.index_entries() for name, state in self.snapshot.nodes.items()}
        return answer


def case_id(case: Json) -> str:
    return str(case["id"])


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_case(case: Json) -> None:
    """The outcome, the node and the victims are those of the table."""
    world, wanted = World(case), case["expect"]
    shape = world.shape()
    if wanted["outcome"] == "invalid":
        assert shape is None
        return
    assert shape is not None
    nominated_node = case["preemptor"].get("nominated_node")
    placed = nominated_node and place_on(world.snapshot, shape, BEST_FIT, [nominated_node])
    placed = placed or place(world.snapshot, shape, BEST_FIT)
    if wanted["outcome"] == "fits":
        assert placed is not None
        assert wanted["node"] in (None, placed.node)
        if "gpus" in wanted:
            assert placed.allocation is not None
            assert set(wanted["gpus"]) == set(placed.allocation.uuids)
        return
    assert placed is None
    answer = world.preempt(shape)
    match wanted["outcome"]:
        case "none":
            assert isinstance(answer, Helpless)
        case "wait":
            assert isinstance(answer, Patience)
        case "eligible":  # the leaving pod's room is waited for, or another node is looked for: not held back
            assert not isinstance(answer, Helpless) or not answer.sentence
        case "preempt":
            assert isinstance(answer, Evictions), answer
            assert_as_wanted(world, answer, wanted)
        case other:
            pytest.fail(f"unknown outcome {other}")


def assert_as_wanted(world: World, answer: Evictions, wanted: Json) -> None:
    """Victims compare as a set; what the table leaves open is open."""
    victims = {victim.uid for victim in answer.victims}
    if wanted.get("victims") is not None:
        assert set(wanted["victims"]) == victims
    if wanted.get("node") is not None:
        assert wanted["node"] == answer.placed.node
    if wanted.get("node_any") is not None:
        assert answer.placed.node in wanted["node_any"]
    if wanted.get("victim_count") is not None:
        assert wanted["victim_count"] == len(victims)
    if wanted.get("num_pdb_violations") is not None:
        assert wanted["num_pdb_violations"] == answer.violations
    if wanted.get("candidates") is not None:
        assert victims == set(wanted["candidates"][answer.placed.node])
    if wanted.get("already_terminating") is not None:
        assert set(wanted["already_terminating"]) == {pod.uid for pod in answer.leaving}
    if wanted.get("gpus") is not None:
        assert answer.placed.allocation is not None
        assert set(wanted["gpus"]) == set(answer.placed.allocation.uuids)
    assert all(victim.priority < world.case["preemptor"]["priority"] for victim in answer.victims)
