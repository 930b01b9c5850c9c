"""The published cases of placement with their right answers, run through the core alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharepod_operator.core.model import (
    Allocation,
    Assigned,
    Charge,
    Constraints,
    Device,
    GPURequest,
    Node,
    Placed,
    Requirement,
    Resources,
    SelectorTerm,
    Shape,
    Taint,
    Toleration,
    Unschedulable,
)
from sharepod_operator.core.placement import decide
from sharepod_operator.core.quantity import QuantityError, parse_amount, parse_cpu
from sharepod_operator.core.request import RequestFields, build_request
from sharepod_operator.core.score import policy
from sharepod_operator.core.snapshot import Snapshot

Json = dict[str, Any]
CASES: list[Json] = json.loads((Path(__file__).parent / "vectors" / "placement.json").read_text())


class _InvalidPodError(Exception):
    """The pod does not parse."""


def _node(data: Json) -> Node:
    return Node(
        name=data["name"],
        ready=data["ready"],
        unschedulable=data["unschedulable"],
        labels=tuple(sorted(data["labels"].items())),
        taints=tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in data["taints"]),
        allocatable=Resources(parse_cpu(data["allocatable"]["cpu"]), parse_amount(data["allocatable"]["memory"])),
        max_pods=data["allocatable"]["pods"],
        devices=tuple(
            Device(
                gpu["uuid"],
                parse_amount(gpu["memory"]),
                healthy=gpu["healthy"],
                cordoned=gpu.get("cordoned", False),
            )
            for gpu in data["gpus"]
        ),
    )


def _requests(container: Json) -> tuple[int, int]:
    requests = container["resources"]["requests"]
    return parse_cpu(requests["cpu"]), parse_amount(requests["memory"])


def _resources(data: Json) -> Resources:
    """Rule E, for the two resources and the forms that the cases use."""
    if "containers" not in data:
        return Resources(parse_cpu(data["cpu"]), parse_amount(data["memory"]))
    totals = []
    for place in (0, 1):
        running = 0
        peak = 0
        for init in data.get("initContainers", []):
            amount = _requests(init)[place]
            if init.get("restartPolicy") == "Always":
                running += amount
                peak = max(peak, running)
            else:
                peak = max(peak, running + amount)
        totals.append(max(peak, running + sum(_requests(c)[place] for c in data["containers"])))
    cpu, memory = totals
    return Resources(cpu, memory)


def _requirements(items: list[Json]) -> tuple[Requirement, ...]:
    return tuple(Requirement(e["key"], e["operator"], tuple(e.get("values", ()))) for e in items)


def _constraints(data: Json) -> Constraints:
    terms = None
    if "affinity" in data:
        required = data["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        terms = tuple(
            SelectorTerm(_requirements(t.get("matchExpressions", [])), _requirements(t.get("matchFields", [])))
            for t in required["nodeSelectorTerms"]
        )
    return Constraints(
        node_name=data.get("nodeName", ""),
        node_selector=tuple(sorted(data["nodeSelector"].items())),
        node_affinity=terms,
        tolerations=tuple(
            Toleration(t.get("key", ""), t.get("operator", "Equal"), t.get("value", ""), t.get("effect", ""))
            for t in data["tolerations"]
        ),
    )


def _request(data: Json) -> GPURequest | None:
    gpu = data.get("gpu")
    if gpu is None:
        return None
    built = build_request(
        RequestFields(
            request=gpu["request"],
            limit=gpu["limit"],
            memory=gpu["memory"],
            count=gpu["count"],
            affinity=gpu.get("affinity"),
            anti_affinity=gpu.get("antiAffinity"),
            exclusion=gpu.get("exclusion"),
            device_ids=gpu["deviceIDs"],
        )
    )
    if isinstance(built, list):
        raise _InvalidPodError
    return built


def _assigned(uid: str, node: str, shape: Shape, uuids: list[str]) -> Assigned:
    allocation = None
    if shape.gpu is not None:
        allocation = Allocation(
            tuple(Charge(uuid, shape.gpu.milli, shape.gpu.memory) for uuid in uuids),
            affinity=shape.gpu.affinity,
            anti_affinity=shape.gpu.anti_affinity,
            exclusion=shape.gpu.exclusion,
        )
    return Assigned(uid, node, shape.resources, allocation=allocation)


def _result(uid: str, data: Json, snapshot: Snapshot) -> Json:
    result: Json = {"pod": uid, "outcome": "invalid", "node": None, "gpus": []}
    try:
        shape = Shape(_resources(data), _constraints(data), _request(data))
    except (_InvalidPodError, QuantityError):
        return result
    match decide(snapshot, shape, policy("bestFit")):
        case Placed(node=node, allocation=allocation):
            snapshot.add(Assigned(uid, node, shape.resources, allocation=allocation))
            gpus = sorted(allocation.uuids) if allocation is not None else []
            return result | {"outcome": "placed", "node": node, "gpus": gpus}
        case Unschedulable(nodes=nodes, devices=devices):
            reasons = {name: str(why.reason) for name, why in (nodes | devices).items()}
            return result | {"outcome": "unschedulable", "reasons": reasons}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_case_gets_its_published_answer(case: Json) -> None:
    """Outcome, node and GPUs of each pod in turn, and the reasons of each that is refused."""
    snapshot = Snapshot(_node(data) for data in case["input"]["nodes"])
    results = []
    pods = {f"{data['namespace']}/{data['name']}": data for data in case["input"]["pods"]}
    for uid, data in pods.items():
        if "node" in data and data.get("phase") not in {"Succeeded", "Failed"}:
            shape = Shape(_resources(data), gpu=_request(data))
            snapshot.add(_assigned(uid, data["node"], shape, [gpu["uuid"] for gpu in data.get("gpus", [])]))
    for uid, data in pods.items():
        if "node" not in data:
            results.append(_result(uid, data, snapshot))
            snapshot.validate()
    expected = []
    for wanted in case["expect"]["results"]:
        kept = {**wanted, "gpus": sorted(wanted["gpus"])}
        if wanted["outcome"] != "unschedulable":
            del kept["reasons"]
        expected.append(kept)
    assert expected == results
