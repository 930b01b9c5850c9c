"""`sharepod simulate`: results, exit codes, and one line for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sharepod_operator import __version__
from sharepod_operator.cli.demo import mixed_nodes
from sharepod_operator.cli.main import app
from sharepod_operator.core.model import Allocation, Charge
from sharepod_operator.localcluster.nodes import node_manifest
from sharepod_operator.manifest.ledger import encode_allocation
from sharepod_operator.manifest.render import render_pod
from sharepod_operator.manifest.sharepod import read_sharepod
from tests.support.objects import node_object, pod_object, sharepod_object

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
CASES: list[Json] = json.loads((ROOT / "tests/core/vectors/placement.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Run:
    code: int
    out: str
    err: str

    @property
    def results(self) -> list[Json]:
        return list(json.loads(self.out)["results"])


def simulate(content: Any, *options: str) -> Run:
    """Run the command with the content on stdin, as JSON unless it is text."""
    text = content if isinstance(content, str) else json.dumps(content)
    result = CliRunner().invoke(app, ["simulate", "-", *options], input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return Run(result.exit_code, result.stdout, result.stderr)


def brief(result: Json) -> tuple[Any, ...]:
    """What the published cases compare."""
    reasons = result["reasons"] if result["outcome"] == "unschedulable" else None
    return (result["pod"], result["outcome"], result["node"], set(result["gpus"]), reasons)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_published_cases(case: Json) -> None:
    """Every case gives its right answer through the command, in JSON, and the exit code that belongs to it.

    None of them leaves room for preemption to change anything, so that they hold with and without it.
    """
    expected = case["expect"]["results"]
    for options in ([], ["--no-preemption"]):
        run = simulate(case["input"], "--format", "json", *options)
        assert [brief(result) for result in expected] == [brief(result) for result in run.results]
        assert (0 if all(result["outcome"] == "placed" for result in expected) else 1) == run.code
        assert "" == run.err


def test_yaml_gives_the_same_as_json() -> None:
    """The form of the file makes no difference."""
    case = next(case for case in CASES if len(case["input"]["pods"]) > 2)
    options = ("--format", "json")
    assert simulate(case["input"], *options) == simulate(yaml.safe_dump(case["input"]), *options)


NODE = {
    "name": "a",
    "allocatable": {"cpu": "4", "memory": "8Gi"},
    "gpus": [{"uuid": "GPU-a0", "memory": "40Gi"}, {"uuid": "GPU-a1", "memory": "40Gi"}],
}


def scenario(*pods: Json, **node: Any) -> Json:
    return {"nodes": [{**NODE, **node}], "pods": list(pods)}


def pod(name: str = "p", **fields: Any) -> Json:
    return {"name": name, **fields}


def test_json_output_has_the_published_form() -> None:
    """A placed pod has no message; one that isn't placed has one beside its reasons."""
    run = simulate(
        scenario(pod(gpu={"request": "0.5"}), pod("q", gpu={"request": "0.5", "memory": "41Gi"})), "--format", "json"
    )
    reasons = {"GPU-a0": "InsufficientGPUMemory", "GPU-a1": "InsufficientGPUMemory"}
    assert [
        {"pod": "default/p", "outcome": "placed", "node": "a", "gpus": ["GPU-a0"], "reasons": {}},
        {"pod": "default/q", "outcome": "unschedulable", "node": None, "gpus": [], "reasons": reasons},
    ] == [{key: value for key, value in result.items() if key != "message"} for result in run.results]
    assert [False, True] == ["message" in result for result in run.results]


def test_numbers_may_be_written_without_quotes() -> None:
    """A JSON number counts as the shortest text that denotes it."""
    pods = [pod("p", gpu={"request": 0.3}), pod("q", gpu={"request": 1e-9, "limit": 1}), pod("r", cpu=0.5, memory=1000)]
    assert 0 == simulate(scenario(*pods)).code
    assert (
        0
        == simulate(
            "nodes: [{name: a, gpus: [{uuid: GPU-a, memory: 5}]}]\npods: [{name: p, gpu: {request: 1e-9}}]"
        ).code
    )


@pytest.mark.parametrize("policy", ["bestFit", "firstFit", "spread", "random"])
def test_policy_is_chosen_by_name(policy: str) -> None:
    """Two halves share a GPU, except under spread."""
    pods = [pod("p", gpu={"request": "0.5"}), pod("q", gpu={"request": "0.5"})]
    run = simulate(scenario(*pods), "--policy", policy, "--format", "json")
    assert 0 == run.code
    used = {gpu for result in run.results for gpu in result["gpus"]}
    assert used in (
        {"bestFit": [{"GPU-a0"}], "firstFit": [{"GPU-a0"}]}.get(policy, [{"GPU-a0", "GPU-a1"}, {"GPU-a0"}, {"GPU-a1"}])
    )
    assert policy != "spread" or len(used) == 2


def test_virtual_gpus_are_shared_by_name() -> None:
    """Pods with the same node and GPUID sit on one card; without a node the name means nothing."""
    gpu = {"request": "0.2", "GPUID": "abcde"}
    pods = [
        pod("p", gpu=gpu, nodeName="a"),
        pod("q", gpu={"request": "0.1"}),
        pod("r", gpu=gpu, nodeName="a"),
        pod("s", gpu=gpu),
    ]
    run = simulate(scenario(*pods), "--format", "json")
    assert [["GPU-a0"], ["GPU-a0"], ["GPU-a0"], []] == [result["gpus"] for result in run.results]
    assert (1, "invalid") == (run.code, run.results[3]["outcome"])


def test_table_is_for_people() -> None:
    """Outcome, node, GPUs and the reason in words, and a sum at the end."""
    run = simulate(scenario(pod(gpu={"request": "0.5"}), pod("q", gpu={"request": "2"})))
    assert [
        word
        for word in ("POD", "WHY", "default/p", "GPU-a0", "pods[1].gpu.request", "1 placed, 0 unschedulable, 1 invalid")
        if word not in run.out
    ] == []
    assert 1 == run.code


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["empty"]),
        ("just text", ["document 1", "just text", "object"]),
        ('{"nodes": [}', ["line 1"]),
        ("nodes:\n\t- a", ["line 2"]),
        ({"nodes": {}, "pods": []}, ["nodes is {}", "list"]),
        ({"node": []}, ["node is unknown", "did you mean nodes?"]),
        (scenario(pod(gpu={"request": "0.5", "limits": "1"})), ["pods[0].gpu.limits", "did you mean limit?"]),
        (scenario(pod(), pod()), ["pods", '"default/p"', "twice"]),
        ({"nodes": [NODE, NODE]}, ["nodes", '"a"', "twice"]),
        ({"nodes": [NODE, {**NODE, "name": "b"}]}, ["nodes", '"GPU-a0"', "twice"]),
        (scenario({"cpu": "1"}), ["pods[0].name is missing"]),
        (scenario(allocatable={"cpu": "x"}), ["nodes[0].allocatable.cpu", '"x"', "quantity"]),
        (scenario(labels={"gen": 10}), ["nodes[0].labels.gen is 10", "quotes"]),
        (scenario(ready="yes"), ["nodes[0].ready", '"yes"', "true or false"]),
        (scenario(gpus=[{"uuid": "GPU-a", "memory": "x"}]), ["nodes[0].gpus[0].memory", '"x"', "40Gi"]),
        (scenario(gpus=[{"uuid": "", "memory": 5}]), ["nodes[0].gpus[0].uuid"]),
        (scenario(taints=[{"key": "k", "effect": "No"}]), ["nodes[0].taints[0].effect", '"No"', "NoSchedule"]),
        (scenario(pod(node="b")), ["pods[0].node", '"b"']),
        (scenario(pod(node="a", gpu={"request": "0.5"})), ["pods[0].gpus is missing"]),
        (scenario(pod(node="a", gpus=[{"uuid": "GPU-a0"}])), ["pods[0].gpu is missing"]),
        (scenario(pod(node="a", gpus=[{"uuid": "GPU-x"}], gpu={"request": "1"})), ["pods[0].gpus[0].uuid", '"GPU-x"']),
        (scenario(pod(node="a", gpus=[{"uuid": "GPU-a0"}], gpu={"request": "2"})), ["pods[0].gpu.request", "0 and 1"]),
        (scenario(pod(node="a", cpu="x")), ["pods[0].cpu", '"x"']),
        (scenario(pod(phase="Done")), ["pods[0].phase", '"Done"', "Succeeded"]),
        (scenario(pod(priority="high")), ["pods[0].priority", '"high"', "integer"]),
        (scenario(pod(nodeSelector={"zone": True})), ["pods[0].nodeSelector.zone", "quotes"]),
        (scenario(pod(tolerations={})), ["pods[0].tolerations", "list"]),
        ([{"kind": "Pod", "metadata": {"name": "p"}}], ["document 1[0].apiVersion", "v1"]),
        ([{"kind": "SharePod", "apiVersion": "v1", "metadata": {"name": "p"}}], ["apiVersion", "faasshare.tum/v1"]),
        ([node_object(annotations={"faasshare.tum/gpu-inventory": "{"})], ["Node gpu-a", "gpu-inventory"]),
        ([node_object(), node_object()], ["Nodes", '"gpu-a"', "twice"]),
        ([sharepod_object(), sharepod_object()], ["SharePods", '"ml/bert"', "twice"]),
        ([{"apiVersion": "v1", "kind": "Node", "metadata": {}}], ["metadata.name is missing"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(content: Any, words: list[str]) -> None:
    """The line names the file, the path of the field, its value and what would be right."""
    run = simulate(content)
    assert (2, "") == (run.code, run.out)
    assert [] == [word for word in ("stdin: ", *words) if word not in run.err], run.err
    assert 1 == run.err.count("\n")


def test_unreadable_files_and_unknown_policies_are_bad_input(tmp_path: Path) -> None:
    """No traceback: the file and what is wrong with it."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    runs = {
        "No such file": ["simulate", str(tmp_path / "absent")],
        "Is a directory": ["simulate", str(tmp_path)],
        "UTF-8": ["simulate", str(tmp_path / "binary")],
        "unknown policy": ["simulate", "-", "--policy", "best"],
    }
    for word, arguments in runs.items():
        result = CliRunner().invoke(app, arguments)
        assert (2, 1) == (result.exit_code, result.stderr.count("\n"))
        assert word in result.stderr


def cluster() -> list[Json]:
    return [node_manifest(node, "2026-01-01T00:00:00Z") for node in mixed_nodes()]


def test_cluster_dump_places_what_is_missing_beside_what_is_there() -> None:
    """A SharePod gets the replicas that it lacks; bound pods are charged by their ledger entry; others are left out."""
    body = sharepod_object(gpu={"request": 0.5, "memory": "1Gi"}, replicas=2)
    uuid = json.loads(cluster()[0]["metadata"]["annotations"]["faasshare.tum/gpu-inventory"])["gpus"][0]["uuid"]
    there = render_pod(read_sharepod(body), "bert-there")
    there["spec"]["nodeName"] = "gpu-a"
    allocation = Allocation((Charge(uuid, 500, 1 << 30),), 50051, 500)
    there["metadata"]["annotations"]["faasshare.tum/allocation"] = encode_allocation(allocation)
    others = [
        pod_object("gated", schedulerName="sharepod-scheduler", schedulingGates=[{"name": "g"}]),
        pod_object("foreign"),
        pod_object("done", status={"phase": "Succeeded"}),
        pod_object("plain", schedulerName="sharepod-scheduler"),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}},
    ]
    dump = {"apiVersion": "v1", "kind": "List", "items": [*cluster(), there, *others, body]}
    run = simulate(dump, "--format", "json")
    assert [("ml/plain", "cpu-a", []), ("ml/bert-", "gpu-a", [uuid])] == [
        (result["pod"][:8], result["node"], result["gpus"]) for result in run.results
    ]
    assert ["Pod of scheduler default-scheduler", "Pod with schedulingGates", "Service"] == [
        line.split("1 ", 1)[1] for line in run.err.splitlines()
    ]
    assert 0 == run.code


def test_volumes_of_the_file_count() -> None:
    """A bound volume says where its pods can go; a claim that isn't ready, or is taken, is told."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-b"]}]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pv"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
    }
    claims = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "ml"},
            "spec": {"volumeName": "pv", "accessModes": [mode]},
            "status": {"phase": phase},
        }
        for name, mode, phase in (
            ("shared", "ReadWriteMany", "Bound"),
            ("single", "ReadWriteOncePod", "Bound"),
            ("unbound", "ReadWriteOnce", "Pending"),
        )
    ]
    pods = [
        pod_object(
            name,
            schedulerName="sharepod-scheduler",
            volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": data}}],
        )
        for name, data in (("p", "shared"), ("q", "single"), ("r", "single"), ("s", "unbound"), ("t", "none"))
    ]
    run = simulate(
        {"apiVersion": "v1", "kind": "List", "items": [*cluster(), *pods, *claims, volume]}, "--format", "json"
    )
    assert [
        ("placed", "gpu-b", ""),
        ("placed", "gpu-b", ""),
        ("unschedulable", None, "PersistentVolumeClaim ml/single is ReadWriteOncePod and in use by pod ml/q"),
        ("unschedulable", None, "PersistentVolumeClaim ml/unbound is not bound to a PersistentVolume yet"),
        ("unschedulable", None, "PersistentVolumeClaim ml/none does not exist"),
    ] == [(result["outcome"], result["node"], result.get("message", "")) for result in run.results]


def test_the_plain_form_has_no_volumes() -> None:
    """A claim there can't be judged, so it is told rather than passed over."""
    run = simulate(
        scenario(pod(volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}])), "--format", "json"
    )
    assert ["invalid"] == [result["outcome"] for result in run.results]
    assert "Kubernetes manifests" in run.results[0]["message"]


@pytest.mark.parametrize(
    ("name", "gpus_by_pod"),
    [
        ("fraction", {"fraction-": 1}),
        ("kubeshare", {"kubeshare": 1}),
        ("several-gpus", {"several-g": 2}),
        ("pinned-gpu", {"pinned-gp": 1}),
        ("tags", {"pipeline-": 1, "spread-": 2, "tenant-": 1}),
    ],
)
def test_examples_land_on_the_demo_nodes(name: str, gpus_by_pod: dict[str, int]) -> None:
    """Each example is placed as its comment says: so many different GPUs for the pods of each SharePod."""
    example = (ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8")
    run = simulate(f"{yaml.safe_dump_all(cluster())}---\n{example}", "--format", "json")
    assert (0, "") == (run.code, run.err)
    used = {
        prefix: len({gpu for result in run.results if prefix in result["pod"] for gpu in result["gpus"]})
        for prefix in gpus_by_pod
    }
    assert gpus_by_pod == used


def test_invalid_example_is_invalid() -> None:
    """It is refused with the sentence that names the field."""
    example = (ROOT / "examples" / "invalid.yaml").read_text(encoding="utf-8")
    run = simulate(f"{yaml.safe_dump_all(cluster())}---\n{example}", "--format", "json")
    assert (1, ["invalid"]) == (run.code, [result["outcome"] for result in run.results])
    assert "spec.gpu.limit" in run.results[0]["message"]


def test_command_loads_nothing_that_talks_to_kubernetes() -> None:
    """It works offline and starts quickly: no Kubernetes client, no Kopf, no event loop's HTTP stack."""
    code = (
        "import sys; from sharepod_operator.cli.main import main; sys.argv = ['sharepod', 'simulate', '-', '--format', 'json']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('kopf', 'kubernetes_asyncio', 'aiohttp') if name in sys.modules], file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(scenario(pod())),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert "[]\n" == run.stderr


def test_version() -> None:
    """`sharepod --version` for bug reports."""
    assert f"sharepod {__version__}\n" == CliRunner().invoke(app, ["--version"]).stdout
