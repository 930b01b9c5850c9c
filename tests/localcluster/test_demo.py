"""`sharepod demo` as typed: exit codes, one-line errors, and what it tells to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from sharepod_operator.cli.demo import app, equal_nodes, mixed_nodes

if TYPE_CHECKING:
    from pathlib import Path

RUN = CliRunner()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--gpus-per-node", "2"], "it needs --nodes as well"),
        (["up", "--nodes", "0"], "--nodes"),
        (["up", "--name", "../x"], "is no name"),
        (["down", "--name", "X"], "is no name"),
        (["up", "--port", "70000"], "--port"),
    ],
)
def test_wrong_use_is_exit_code_2(arguments: list[str], said: str) -> None:
    result = RUN.invoke(app, arguments)
    assert 2 == result.exit_code
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_a_failure_is_one_line_on_stderr_and_exit_code_1(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["up", "--bin", str(tmp_path), "--state-dir", str(tmp_path / "s")])
    assert (1, "") == (result.exit_code, result.stdout)
    assert 1 == len(result.stderr.splitlines())
    assert result.stderr.startswith(f"error: {tmp_path} has no program etcd: name a folder with etcd, ")
    assert not (tmp_path / "s").exists()


def test_status_of_nothing_says_how_to_start(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["status", "--state-dir", str(tmp_path / "s")])
    assert (1, "") == (result.exit_code, result.stdout)
    assert f"no control plane in {tmp_path / 's'}: start one with `sharepod demo up`\n" == result.stderr


def test_down_of_nothing_is_no_failure(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["down", "--state-dir", str(tmp_path / "s")])
    assert (0, f"nothing to stop in {tmp_path / 's'}\n") == (result.exit_code, result.stdout)


def test_the_mixed_nodes_have_eight_different_cards_and_one_node_has_none() -> None:
    nodes = mixed_nodes()
    assert [("gpu-a", 2), ("gpu-b", 4), ("gpu-c", 2), ("cpu-a", 0)] == [(node.name, len(node.gpus)) for node in nodes]
    assert 8 == len({gpu.uuid for node in nodes for gpu in node.gpus})


def test_equal_nodes_sort_by_their_numbers() -> None:
    nodes = equal_nodes(12, 3)
    assert ["gpu-01", "gpu-12"] == [nodes[0].name, nodes[-1].name]
    assert {3} == {len(node.gpus) for node in nodes}
