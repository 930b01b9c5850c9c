"""`sharepod simulate` where pods are evicted: the published cases, the rules of a simulation, and what manifests say."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from sharepod_operator.cli.main import app
from sharepod_operator.core.model import Allocation, Charge
from sharepod_operator.manifest.ledger import encode_allocation
from sharepod_operator.manifest.nomination import Nomination, Victim, encode_nomination
from tests.support.objects import node_object, pod_object, sharepod_object

if TYPE_CHECKING:
    from sharepod_operator.manifest.records import Json

ROOT = Path(__file__).parents[2]
CASES: list[Json] = json.loads((ROOT / "tests/core/vectors/preemption.json").read_text(encoding="utf-8"))
MEMORY = 16 << 30
GI = 1 << 30


def simulate(content: Any, *options: str, code: int | None = None) -> list[Json]:
    """The results by the command, in JSON."""
    answer = CliRunner().invoke(app, ["simulate", "-", "--format", "json", *options], input=json.dumps(content))
    assert answer.exit_code in (0, 1), answer.output
    assert code in (None, answer.exit_code)
    return list(json.loads(answer.stdout)["results"])


def brief(results: list[Json]) -> list[tuple[Any, ...]]:
    return [(each["pod"][8:], each["outcome"], each["gpus"], each.get("victims", [])) for each in results]


# The published cases, their percents as Koordinator's resources


def as_scenario(case: Json) -> Json:
    """The case in the plain form. The preemptor is asked first; who waits for a promise already comes after it."""
    waiting = [
        {
            "name": each["name"],
            "priority": each["priority"],
            "nominatedNode": each["node"],
            "resources": {"koordinator.sh/gpu": str(each["gpu_percent"])},
        }
        for each in case.get("nominated") or ()
    ]
    return {
        "nodes": [as_node(node) for node in case["nodes"]],
        "pods": [*(as_running(pod) for pod in case["running"]), as_preemptor(case["preemptor"]), *waiting],
        "podDisruptionBudgets": [
            {
                "name": each["name"],
                "matchLabels": {"budget": each["name"]},
                "disruptionsAllowed": each["disruptions_allowed"],
                "disruptedPods": each["disrupted_pods"],
            }
            for each in case.get("pdbs") or ()
        ],
    }


def as_node(node: Json) -> Json:
    gpus = [
        {"uuid": gpu["uuid"], "memory": gpu.get("memory_bytes") or MEMORY, "healthy": gpu.get("healthy", True)}
        for gpu in node["gpus"]
    ]
    taints = [{"key": "unresolvable", "effect": "NoSchedule"}] if node.get("unresolvable") else []
    return {"name": node["name"], "gpus": gpus, "taints": taints}


def as_running(pod: Json) -> Json:
    gpus = pod["requests"]["gpus"]
    order = pod["start_order"]
    return {
        "name": pod["name"],
        "node": pod["node"],
        "priority": pod["priority"],
        "gpus": [{"uuid": gpu["uuid"]} for gpu in gpus],
        "resources": {"koordinator.sh/gpu": str(sum(gpu["percent"] for gpu in gpus))} if gpus else {},
        "gpu": tags(pod) if gpus else None,
        "labels": {"budget": pod["pdb"]} if pod.get("pdb") else {},
        "startTime": None if order is None else datetime.fromtimestamp(order, UTC).isoformat(),
        "terminating": bool(pod.get("terminating")),
        "disruptionTarget": pod.get("disruption_target"),
        "protected": pod.get("preemptible") is False,
    }


def as_preemptor(asked: Json) -> Json:
    amounts = {"koordinator.sh/gpu": str(asked["gpu_percent"])}
    if asked.get("gpu_memory_bytes"):
        amounts = {
            "koordinator.sh/gpu-core": str(asked["gpu_percent"]),
            "koordinator.sh/gpu-memory": str(asked["gpu_memory_bytes"]),
        }
    affinity = None
    if asked.get("allowed_nodes") is not None:
        names = {"key": "metadata.name", "operator": "In", "values": asked["allowed_nodes"]}
        terms = [{"matchFields": [names]}] if asked["allowed_nodes"] else []
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    pinned = [asked["pinned_gpu"]] if asked.get("pinned_gpu") else None
    return {
        "name": "preemptor",
        "priority": asked["priority"],
        "preemptionPolicy": asked.get("preemption_policy"),
        "nominatedNode": asked.get("nominated_node"),
        "resources": amounts,
        "gpu": {**tags(asked), "deviceIDs": pinned},
        "affinity": affinity,
    }


def tags(pod: Json) -> Json:
    return {"exclusion": pod.get("exclusion"), "antiAffinity": pod.get("anti_affinity")}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_published_cases(case: Json) -> None:
    """The command gives outcome, node, GPUs and victims of the table."""
    result, wanted = simulate(as_scenario(case))[0], case["expect"]
    victims = [victim.removeprefix("default/") for victim in result.get("victims", [])]
    outcomes = {
        "preempt": {"placed"},
        "fits": {"placed"},
        "none": {"unschedulable"},
        "eligible": {"waiting", "unschedulable"},
    }
    assert result["outcome"] in outcomes[wanted["outcome"]], result
    assert (wanted["outcome"] == "preempt") == bool(victims)
    assert wanted["node"] in (None, result["node"])
    if wanted["outcome"] != "preempt":
        return
    if wanted["victims"] is not None:
        assert sorted(wanted["victims"]) == victims
    if wanted.get("candidates"):
        assert sorted(wanted["candidates"][result["node"]]) == victims
    assert wanted.get("victim_count", len(victims)) == len(victims)
    assert result["node"] in wanted.get("node_any", [result["node"]])
    assert set(wanted.get("gpus", result["gpus"])) == set(result["gpus"])


# The rules of a simulation


def world(*pods: Json, gpus: int = 1, **more: Any) -> Json:
    cards = [{"uuid": f"g{index}", "memory": "16Gi"} for index in range(gpus)]
    return {"nodes": [{"name": "a", "gpus": cards}], "pods": list(pods), **more}


def pod(name: str, percent: int, priority: int = 0, on: str = "", **fields: Any) -> Json:
    there = {"node": "a", "gpus": [{"uuid": uuid} for uuid in on.split(",")]} if on else {}
    return {
        "name": name,
        "priority": priority,
        "resources": {"koordinator.sh/gpu": str(percent)},
        **there,
        **fields,
    }


def test_the_seed_scenario() -> None:
    """Two GPUs are held by one pod; a critical pod of one GPU evicts it, and a third gets the other GPU."""
    scenario = world(pod("low", 200, on="g0,g1"), pod("critical", 100, 2_000_000_000), pod("third", 100), gpus=2)
    assert [("critical", "placed", ["g0"], ["default/low"]), ("third", "placed", ["g1"], [])] == brief(
        simulate(scenario, code=0)
    )


def test_the_one_that_was_placed_before_may_be_evicted() -> None:
    """In the order given: a pod of the file makes room for a later one, and isn't placed again."""
    scenario = world(pod("first", 100), pod("second", 100, 5), pod("third", 100, 1))
    assert [
        ("first", "placed", ["g0"], []),
        ("second", "placed", ["g0"], ["default/first"]),
        ("third", "unschedulable", [], []),
    ] == brief(simulate(scenario, code=1))


def test_whoever_leaves_already_is_waited_for() -> None:
    """Nobody is evicted and nothing is charged: it waits, and so does the next; it isn't placed."""
    scenario = world(
        pod("gone", 100, on="g0", terminating=True), pod("low", 100, on="g1"), pod("p", 100, 5), pod("q", 100), gpus=2
    )
    results = simulate(scenario, code=1)
    assert [("p", "waiting", ["g0"], []), ("q", "waiting", ["g0"], [])] == brief(results)
    assert ["a", "a"] == [each["node"] for each in results]
    assert results[0]["message"].endswith("preemption: not needed, 1 pod is leaving node a.")
    assert {"g0": "InsufficientShare", "g1": "InsufficientShare"} == results[0]["reasons"]


def test_who_leaves_and_is_not_needed_stays() -> None:
    """An eviction on the same node doesn't make the room of a leaving pod free for others, unless it needs that, too."""
    there = [pod("low", 100, on="g0"), pod("gone", 100, on="g1", terminating=True)]
    one = {**pod("p", 100, 5), "gpu": {"deviceIDs": ["g0"]}}
    assert [("p", "placed", ["g0"], ["default/low"]), ("q", "waiting", ["g1"], [])] == brief(
        simulate(world(*there, one, pod("q", 100, 5), gpus=2))
    )
    both = pod("p", 200, 5)
    assert [("p", "placed", ["g0", "g1"], ["default/low"]), ("q", "unschedulable", [], [])] == brief(
        simulate(world(*there, both, pod("q", 100, 5), gpus=2))
    )


def test_its_own_victims_are_waited_for() -> None:
    """While a victim of its own leaves the nominated node nobody else is evicted, although that does not suffice yet."""
    there = pod("going", 50, on="g0", terminating=True, disruptionTarget="PreemptionByScheduler")
    others = [pod("low", 50, on="g0"), pod("p", 100, 5, nominatedNode="a")]
    assert [("p", "waiting", ["g0"], [])] == brief(simulate(world(there, *others), code=1))
    drained = {**there, "disruptionTarget": "EvictionByEvictionAPI"}
    assert [("p", "placed", ["g0"], ["default/low"])] == brief(simulate(world(drained, *others), code=0))
    assert [("p", "waiting", ["g0"], [])] == brief(simulate(world({**there, "disruptionTarget": True}, *others)))


def test_promised_room_is_kept_for_its_pod() -> None:
    """Neither a less important pod nor an equal one takes it in between; a more important one does."""
    room = pod("gone", 100, on="g0", terminating=True)
    promised = pod("promised", 100, 5, nominatedNode="a")
    for priority, outcome in ((1, "unschedulable"), (5, "unschedulable"), (6, "waiting")):
        results = simulate(world(room, pod("other", 100, priority), promised))
        assert [outcome, "waiting"] == [each["outcome"] for each in results]


def test_the_nominated_node_is_tried_first() -> None:
    """Although another one is the better fit."""
    nodes = [{"name": name, "gpus": [{"uuid": f"{name}0", "memory": "16Gi"}]} for name in ("a", "b")]
    there = pod("there", 50, on="a0")
    for nominated, node in ((None, "a"), ("b", "b"), ("gone", "a")):
        results = simulate({"nodes": nodes, "pods": [there, pod("p", 50, nominatedNode=nominated)]})
        assert [node] == [each["node"] for each in results]


def test_budgets_are_charged() -> None:
    """The first eviction uses up what the budget allows, so that the second takes a more important pod instead."""
    budget = {"name": "b", "matchLabels": {"app": "web"}, "disruptionsAllowed": 1}
    there = [
        pod("web-0", 100, on="g0", labels={"app": "web"}, startTime="2026-01-01T00:00:00Z"),
        pod("web-1", 100, on="g1", labels={"app": "web"}, startTime="2026-01-02T00:00:00Z"),
        pod("better", 100, 1, on="g2"),
    ]
    asked = [pod("p", 100, 9), pod("q", 100, 9)]
    expected = [("p", "placed", ["g0"], ["default/web-0"]), ("q", "placed", ["g2"], ["default/better"])]
    assert expected == brief(simulate(world(*there, *asked, gpus=3, podDisruptionBudgets=[budget])))
    for other in ({**budget, "disruptedPods": {"web-0": "now"}}, {**budget, "namespace": "other"}):
        results = simulate(world(*there, *asked, gpus=3, podDisruptionBudgets=[other]))
        assert [["default/web-1"], ["default/web-0"]] == [each["victims"] for each in results]


def test_without_preemption_all_is_as_it_was() -> None:
    """`--no-preemption` evicts nobody, waits for nobody and keeps no promise."""
    there = [pod("low", 100, on="g0"), pod("gone", 100, on="g1", terminating=True)]
    asked = [pod("p", 100, 5), pod("q", 100, 9, nominatedNode="a")]
    results = simulate(world(*there, *asked, gpus=2), "--no-preemption", code=1)
    assert ["unschedulable", "unschedulable"] == [each["outcome"] for each in results]
    assert [] == [each for each in results if "preemption" in each["message"]]


def test_why_nobody_is_evicted() -> None:
    """The message says it in counts, or that the pod may not."""
    there = [pod("low", 100, on="g0"), pod("daemon", 100, -5, on="g1", protected=True)]
    results = simulate(world(*there, pod("p", 100), pod("q", 100, 5, preemptionPolicy="Never"), gpus=2), code=1)
    assert [
        "0/2 GPUs can be freed: 2 No preemption victims found for incoming pod.",
        "not eligible due to preemptionPolicy=Never.",
    ] == [each["message"].partition(" preemption: ")[2] for each in results]


def test_resources_stand_for_a_container() -> None:
    """Amounts beside the GPU count on the node, and PodSpec's own `resources` still mean what they do there."""
    scenario = world(
        {"name": "flat", "cpu": 1, "resources": {"koordinator.sh/gpu": 50, "memory": "1Gi"}},
        {"name": "spec", "resources": {"requests": {"cpu": "9"}}, "containers": [{"name": "c"}]},
    )
    scenario["nodes"][0]["allocatable"] = {"cpu": 1, "memory": "1Gi"}
    assert [("flat", "placed", ["g0"], []), ("spec", "unschedulable", [], [])] == brief(simulate(scenario))


def test_the_table_names_victims() -> None:
    """Five by name, the rest in a number; the pods that wait are counted."""
    there = [pod(f"low-{index}", 10, on="g0") for index in range(10)]
    scenario = world(
        *there, pod("gone", 100, on="g1", terminating=True), pod("p", 100, 9), pod("q", 100, 9, memory=0), gpus=2
    )
    scenario["pods"][-2]["gpu"] = {"deviceIDs": ["g0"]}
    answer = CliRunner().invoke(app, ["simulate", "-"], input=json.dumps(scenario))
    evicted = ", ".join(f"default/low-{index}" for index in range(5))
    assert f"evicts {evicted} and 5 more" in answer.stdout
    assert "1 placed, 1 waiting, 0 unschedulable, 0 invalid" in answer.stdout
    assert 1 == answer.exit_code


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"preemptionPolicy": "Sometimes"}, ["pods[0].preemptionPolicy", '"Sometimes"', "Never"]),
        ({"startTime": "yesterday"}, ["pods[0].startTime", '"yesterday"', "2026-01-31T12:00:00Z"]),
        ({"startTime": "2026-01-01T00:00:00"}, ["pods[0].startTime", "time zone"]),
        ({"startTime": True}, ["pods[0].startTime is True", "2026-01-31T12:00:00Z"]),
        ({"terminating": "yes"}, ["pods[0].terminating", "true or false"]),
        ({"disruptionTarget": 1}, ["pods[0].disruptionTarget", "true or false"]),
        ({"labels": {"a": 1}}, ["pods[0].labels.a", "quotes"]),
        ({"nominatedNode": 1}, ["pods[0].nominatedNode", "quotes"]),
        ({"containers": [{"name": "c"}]}, ["pods[0].resources", "containers"]),
        ({"nominated": "a"}, ["pods[0].nominated is unknown", "nominatedNode"]),
    ],
)
def test_wrong_fields_are_told(fields: Json, words: list[str]) -> None:
    """In one line that names the field, with exit code 2."""
    answer = CliRunner().invoke(app, ["simulate", "-"], input=json.dumps(world(pod("p", 50, **fields))))
    assert (2, 1) == (answer.exit_code, answer.stderr.count("\n"))
    assert [] == [word for word in words if word not in answer.stderr]


def test_wrong_budgets_are_told() -> None:
    """As every other field of the file."""
    budget = {"name": "b", "disruptionsAllowed": 1}
    wrong = {
        "podDisruptionBudgets[0].disruptionsAllowed": [{**budget, "disruptionsAllowed": "1"}],
        "podDisruptionBudgets[0].disruptedPods[0] is 1": [{**budget, "disruptedPods": [1]}],
        "podDisruptionBudgets[0].selector is unknown": [{**budget, "selector": {}}],
        'budget "default/b" stands there twice': [budget, budget],
    }
    for words, budgets in wrong.items():
        answer = CliRunner().invoke(app, ["simulate", "-"], input=json.dumps(world(podDisruptionBudgets=budgets)))
        assert 2 == answer.exit_code
        assert words in answer.stderr


# Kubernetes manifests


def gpu_node() -> Json:
    inventory = {"gpus": [{"uuid": "GPU-a", "memory": 40 * GI}]}
    return node_object("gpu-a", annotations={"faasshare.tum/gpu-inventory": json.dumps(inventory)})


def bound(name: str, share: int = 1000, **changes: Any) -> Json:
    """A pod that holds a part of the one GPU."""
    body = pod_object(name, nodeName="gpu-a", schedulerName="sharepod-scheduler")
    allocation = Allocation((Charge("GPU-a", share, 0),), 50051 + share, share)
    body["metadata"] |= {
        "uid": f"uid-{name}",
        "annotations": {"faasshare.tum/allocation": encode_allocation(allocation)},
    }
    for path, value in changes.items():
        body[path] = {**body.get(path, {}), **value}
    return body


def urgent(**changes: Any) -> Json:
    """A SharePod of one GPU with a PriorityClass."""
    body = sharepod_object(gpu={"request": 1}, replicas=1)
    body["spec"]["podSpec"] |= {"priorityClassName": "urgent", **changes}
    return body


PRIORITY_CLASS: Json = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}


def listed(*items: Json) -> Json:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def with_priority(body: Json, priority: int) -> Json:
    return {**body, "spec": {**body["spec"], "priority": priority}}


def test_priority_classes_of_the_file_count() -> None:
    """Wherever they stand in it; Kubernetes' own need not be there, a default is one, and a missing one is told."""
    low = bound("low")
    victims = [["ml/low"]]
    assert victims == [each["victims"] for each in simulate(listed(gpu_node(), low, urgent(), PRIORITY_CLASS))]
    system = urgent(priorityClassName="system-cluster-critical")
    assert victims == [each["victims"] for each in simulate(listed(gpu_node(), with_priority(low, 999), system))]
    plain = urgent(priorityClassName="")
    default = {**PRIORITY_CLASS, "globalDefault": True}
    assert victims == [each["victims"] for each in simulate(listed(gpu_node(), with_priority(low, 0), plain, default))]
    never = {**PRIORITY_CLASS, "preemptionPolicy": "Never"}
    results = simulate(listed(gpu_node(), low, urgent(), never))
    assert "preemptionPolicy=Never" in results[0]["message"]
    answer = CliRunner().invoke(app, ["simulate", "-"], input=json.dumps(listed(gpu_node(), low, urgent())))
    assert (1, True) == (answer.exit_code, "PriorityClass urgent is not in the file" in answer.stderr)


def test_who_is_spared_in_a_dump() -> None:
    """DaemonSets' pods and mirror pods stay; who has a deletionTimestamp is waited for."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
    spared = {
        "daemon": {"ownerReferences": [owner]},
        "mirror": {"annotations": {**bound("x")["metadata"]["annotations"], "kubernetes.io/config.mirror": "x"}},
    }
    for name, metadata in spared.items():
        results = simulate(listed(gpu_node(), PRIORITY_CLASS, urgent(), bound(name, metadata=metadata)))
        assert ["unschedulable"] == [each["outcome"] for each in results], name
    leaving = bound("leaving", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    results = simulate(listed(gpu_node(), PRIORITY_CLASS, urgent(), leaving), code=1)
    assert [("waiting", "gpu-a")] == [(each["outcome"], each["node"]) for each in results]


def test_budgets_and_starts_of_a_dump_count() -> None:
    """The younger pod goes, unless a budget protects it."""
    halves = [
        bound("old", 500, status={"startTime": "2026-01-01T00:00:00Z"}),
        bound("young", 501, metadata={"labels": {"app": "web"}}, status={"startTime": "2026-02-01T00:00:00Z"}),
    ]
    halves[1]["metadata"]["annotations"] = {
        "faasshare.tum/allocation": encode_allocation(Allocation((Charge("GPU-a", 500, 0),), 50060, 500))
    }
    asked = urgent()
    asked["spec"]["gpu"] = {"request": 0.5}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "ml"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": 0},
    }
    items = [gpu_node(), PRIORITY_CLASS, asked, *halves]
    assert [["ml/young"]] == [each["victims"] for each in simulate(listed(*items))]
    assert [["ml/old"]] == [each["victims"] for each in simulate(listed(*items, budget))]


def test_a_nomination_of_a_dump_is_kept() -> None:
    """Its victim counts as leaving although nobody told it yet, and another scheduler's promise holds CPU."""
    allocation = Allocation((Charge("GPU-a", 1000, 0),))
    nomination = Nomination("gpu-a", allocation, (Victim("ml", "low", "uid-low"),))
    head = pod_object("head", schedulerName="sharepod-scheduler", priority=2000)
    head["metadata"] |= {"uid": "", "annotations": {"faasshare.tum/nomination": encode_nomination(nomination)}}
    head["spec"]["containers"][0]["resources"] = {"limits": {"koordinator.sh/gpu": "100"}}
    head["status"] = {"nominatedNodeName": "gpu-a"}
    results = simulate(listed(gpu_node(), PRIORITY_CLASS, bound("low"), urgent(), head), code=1)
    assert [("ml/bert", "unschedulable"), ("ml/head", "waiting")] == [
        (each["pod"][:7], each["outcome"]) for each in results
    ]
    foreign = pod_object("foreign", priority=2000)
    foreign["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1000"}}
    foreign["status"] = {"nominatedNodeName": "gpu-a"}
    asked = pod_object("mine", schedulerName="sharepod-scheduler", priority=1)
    asked["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1m"}}
    results = simulate(listed(gpu_node(), asked, foreign))
    assert ["unschedulable"] == [each["outcome"] for each in results]
    assert ["placed"] == [each["outcome"] for each in simulate(listed(gpu_node(), with_priority(asked, 2001), foreign))]


def test_the_example_evicts_on_a_full_cluster() -> None:
    """examples/preemption.yaml brings its class along."""
    example = (ROOT / "examples" / "preemption.yaml").read_text(encoding="utf-8")
    text = f"{json.dumps(listed(gpu_node(), bound('low')))}\n---\n{example}"
    answer = CliRunner().invoke(app, ["simulate", "-", "--format", "json"], input=text)
    assert (0, "") == (answer.exit_code, answer.stderr)
    assert [["ml/low"]] == [each["victims"] for each in json.loads(answer.stdout)["results"]]
