"""`sharepod simulate` with requests written as container resources, and with plain Pods."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from sharepod_operator.cli.main import app
from tests.support.objects import node_object

if TYPE_CHECKING:
    from pathlib import Path

Json = dict[str, Any]
GI = 1 << 30


def simulate(folder: Path, content: Any) -> tuple[int, list[Json]]:
    path = folder / "scenario.json"
    path.write_text(json.dumps(content))
    answer = CliRunner().invoke(app, ["simulate", str(path), "--format", "json"])
    return answer.exit_code, json.loads(answer.stdout)["results"] if answer.exit_code < 2 else []


def asking(**limits: Any) -> list[Json]:
    named = {f"koordinator.sh/{name.replace('_', '-')}": value for name, value in limits.items()}
    return [{"name": "main", "image": "none", "resources": {"limits": {"cpu": "1", **named}}}]


def test_a_scenarios_containers_may_ask_by_resources(tmp_path: Path) -> None:
    """Percent of each card, whole GPUs, what is there already, and a set that is none."""
    cards = [{"uuid": "a0", "memory": "40Gi"}, {"uuid": "a1", "memory": "24Gi"}]
    scenario = {
        "nodes": [{"name": "a", "allocatable": {"cpu": 8, "memory": "8Gi"}, "gpus": cards}],
        "pods": [
            {"name": "there", "node": "a", "gpus": [{"uuid": "a0"}], "containers": asking(gpu=50)},
            {"name": "half", "containers": asking(gpu=50)},
            {"name": "memory", "containers": asking(gpu_memory="13Gi")},
            {"name": "pair", "containers": asking(gpu=200)},
            {"name": "core", "containers": asking(gpu_core=50)},
            {"name": "typed", "gpu": {"request": 0.5, "memory": "1Gi"}, "containers": asking(gpu=50)},
        ],
    }
    code, results = simulate(tmp_path, scenario)
    assert 1 == code
    shown = [(each["pod"].partition("/")[2], each["outcome"], each["gpus"]) for each in results]
    assert [
        ("half", "placed", ["a0"]),
        ("memory", "placed", ["a1"]),
        ("pair", "unschedulable", []),
        ("core", "invalid", []),
        ("typed", "placed", ["a1"]),
    ] == shown
    assert "koordinator.sh/gpu-core: it needs" in results[3]["message"]


def test_a_plain_pod_in_a_file_is_taken_as_the_policies_would_make_it(tmp_path: Path) -> None:
    """One that an API server has seen is taken as it is: without the environment it is invalid there, too."""
    inventory = {"faasshare.tum/gpu-inventory": json.dumps({"gpus": [{"uuid": "GPU-a", "memory": 40 * GI}]})}
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "fresh"},
        "spec": {"schedulerName": "sharepod-scheduler", "containers": asking(gpu=50)},
    }
    seen = {**pod, "metadata": {"name": "seen", "uid": "1"}}
    code, results = simulate(tmp_path, [node_object(annotations=inventory), pod, seen])
    assert (1, ["placed", "invalid"]) == (code, [each["outcome"] for each in results])
    assert "does not read its GPUs" in results[1]["message"]
