"""`sharepod simulate`: where would these pods go? The decisions of the cluster, without a cluster."""

from __future__ import annotations

import json
import sys
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sharepod_operator.cli.simulation import Outcome, place_all
from sharepod_operator.core.score import DEFAULT_POLICY, POLICIES, policy
from sharepod_operator.manifest.cluster_objects import read_scenario
from sharepod_operator.manifest.documents import DocumentError, read_documents
from sharepod_operator.manifest.strict import ScenarioError

if TYPE_CHECKING:
    from sharepod_operator.cli.simulation import Result
    from sharepod_operator.manifest.scenario import Scenario

NOT_ALL_PLACED = 1
BAD_INPUT = 2

NAMED = 5
"""Victims that a table names; the rest is counted. JSON names all."""

MOST_ROWS = 1000
"""More rows than this take rich too long to lay out."""

_HEADER = ("POD", "OUTCOME", "NODE", "GPUS", "WHY")
_STYLES = {
    Outcome.PLACED: "green",
    Outcome.WAITING: "cyan",
    Outcome.UNSCHEDULABLE: "yellow",
    Outcome.INVALID: "red",
}


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


def simulate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario or Kubernetes manifests; - reads stdin.")],
    output: Annotated[Format, typer.Option("--format", help="How to print the results.")] = Format.TABLE,
    policy_name: Annotated[
        str, typer.Option("--policy", metavar="NAME", help=f"How to choose among GPUs: {', '.join(POLICIES)}.")
    ] = DEFAULT_POLICY,
    *,
    no_preemption: Annotated[
        bool, typer.Option("--no-preemption", help="Evict nobody, and let no nomination count.")
    ] = False,
) -> None:
    """Says where the pods of a file would go, or why not, without a cluster.

    FILE has nodes and pods in JSON or YAML, or is made of Nodes, Pods and SharePods as kubectl prints them
    (kubectl get nodes,pods,sharepods,pdb,priorityclasses -A -o yaml). Pods are placed in the order of the file; one
    that fits nowhere evicts pods of lower priority. Exit code: 0 all placed, 1 something is not, 2 bad input.
    """
    try:
        chosen = policy(policy_name)
    except ValueError as error:
        _fail(f"--policy: {error}")
    scenario = _scenario(file)
    results = place_all(scenario, chosen, preempting=not no_preemption)
    if output is Format.JSON:
        print(json.dumps({"results": [result.as_json() for result in results]}, indent=2))
    else:
        _print_results(results)
    if any(result.outcome is not Outcome.PLACED for result in results):
        raise typer.Exit(NOT_ALL_PLACED)


def _scenario(file: str) -> Scenario:
    shown = "stdin" if file == "-" else file
    try:
        scenario = read_scenario(read_documents(_text_of(file)))
    except OSError as error:
        _fail(f"{shown}: {error.strerror or error}")
    except UnicodeDecodeError as error:
        _fail(f"{shown}: byte {error.start} is not UTF-8; the file must be text")
    except (DocumentError, ScenarioError) as error:
        _fail(f"{shown}: {error}")
    for note in scenario.notes:
        print(f"{shown}: {note}", file=sys.stderr)
    return scenario


def _text_of(file: str) -> str:
    content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    return content.decode("utf-8-sig")


def _fail(sentence: str) -> NoReturn:
    print(" ".join(sentence.split()), file=sys.stderr)
    raise typer.Exit(BAD_INPUT)


def _print_results(results: list[Result]) -> None:
    """A table for people at a terminal; for pipes, and where there is very much, columns of one line per pod."""
    if sys.stdout.isatty() and len(results) <= MOST_ROWS:
        _print_table(results)
    else:
        _print_columns([_HEADER, *(_row(result) for result in results)])
    counts = Counter(result.outcome for result in results)
    told = [outcome for outcome in Outcome if counts[outcome] or outcome is not Outcome.WAITING]
    print(", ".join(f"{counts[outcome]} {outcome.value}" for outcome in told))


def _row(result: Result) -> tuple[str, ...]:
    why = result.message or _evicts(result.victims)
    return (result.pod, result.outcome.value, result.node or "-", ",".join(result.gpus) or "-", why)


def _evicts(victims: tuple[str, ...]) -> str:
    if not victims:
        return ""
    more = len(victims) - NAMED
    return f"evicts {', '.join(victims[:NAMED])}{f' and {more} more' if more > 0 else ''}"


def _print_columns(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        print("   ".join([*cells, row[-1]]).rstrip())


def _print_table(results: list[Result]) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow to load, and not needed for JSON
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _HEADER:
        table.add_column(column, overflow="fold", ratio=1 if column == _HEADER[-1] else None)
    for result in results:
        pod, outcome, node, gpus, message = _row(result)
        cells = (Text(pod), Text(outcome, style=_STYLES[result.outcome]), Text(node), Text(gpus.replace(",", "\n")))
        table.add_row(*cells, Text(message))
    Console().print(table)
