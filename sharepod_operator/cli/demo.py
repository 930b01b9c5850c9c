"""`sharepod demo up | status | down`: a real control plane with fake GPU nodes on this machine, to try everything out."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sharepod_operator.cli.tour import Tour
from sharepod_operator.localcluster import lifecycle
from sharepod_operator.localcluster.binaries import SETTING, Binaries, find_or_build
from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.nodes import GIB, FakeNode, gpus_of
from sharepod_operator.localcluster.programs import CONTROL_PLANE, Program
from sharepod_operator.localcluster.progress import to_stderr
from sharepod_operator.localcluster.state import ClusterOptions, StateFolder, default_state_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sharepod_operator.localcluster.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="A control plane with fake GPU nodes on this machine.")

DEFAULT_NAME: Final = "demo"

NameOption = Annotated[str, typer.Option("--name", help="Which demo; several can run side by side.")]
StateOption = Annotated[
    Path | None,
    typer.Option("--state-dir", help="Folder for its state. [default: ~/.local/state/sharepod-operator/NAME]"),
]


@app.command()
def up(
    name: NameOption = DEFAULT_NAME,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=5000, help="So many equal GPU nodes instead of the mixed four; then no examples."),
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=0, max=16, help="GPUs of each, with 40Gi; needs --nodes. [default: 2]")
    ] = None,
    state_dir: StateOption = None,
    bin_dir: Annotated[
        Path | None, typer.Option("--bin", help=f"Folder with the programs. [default: {SETTING}, then found or built]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the API server. [default: a free one]")
    ] = None,
    *,
    bare: Annotated[
        bool,
        typer.Option("--bare", help="The control plane and its nodes alone, for an operator that you start yourself."),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Check what is shown, and stop everything again. Exit code 1 on a mismatch.")
    ] = False,
) -> None:
    """Starts it, with the operator and its examples, and says how to go on. Your own kubeconfig is neither read nor changed."""
    if gpus_per_node is not None and nodes is None:
        raise typer.BadParameter("it needs --nodes as well", param_hint="--gpus-per-node")
    folder = _folder(name, state_dir)
    wanted = mixed_nodes() if nodes is None else equal_nodes(nodes, 2 if gpus_per_node is None else gpus_per_node)
    with told_in_one_line(), _taken_down(folder) if once else contextlib.nullcontext():
        binaries = find_or_build((*CONTROL_PLANE, Program.KUBECTL), explicit=bin_dir, report=to_stderr)
        cluster = start(folder, binaries, wanted, ClusterOptions(port=port))
        tour = Tour(cluster, binaries[Program.KUBECTL])
        if nodes is None and not bare:
            tour.show()
        elif not bare:
            tour.start_operator()  # the examples are made for the mixed nodes
    if once:
        print("Everything is as it should be; the demo is stopped.")
        return
    for line in next_commands(cluster, binaries, name, state_dir):
        print(line)


@app.command()
def build(
    bin_dir: Annotated[
        Path | None, typer.Option("--bin", help=f"Folder with the programs. [default: {SETTING}, then found or built]")
    ] = None,
) -> None:
    """Finds the programs of the control plane, or builds them once. Nothing is started."""
    with told_in_one_line():
        binaries = find_or_build((*CONTROL_PLANE, Program.KUBECTL), explicit=bin_dir, report=to_stderr)
    for program in (*CONTROL_PLANE, Program.KUBECTL):
        print(f"{program:<25}{binaries[program]}")


@app.command()
def status(name: NameOption = DEFAULT_NAME, state_dir: StateOption = None) -> None:
    """Tells what runs; exit code 1 unless all of it does."""
    folder = _folder(name, state_dir)
    with told_in_one_line():
        found = lifecycle.status(folder)
    if found is None:
        typer.echo(f"no control plane in {folder.root}: start one with `sharepod demo up`", err=True)
        raise typer.Exit(1)
    for process in found.processes:
        state = "ended" if process.pid is None else f"running, pid {process.pid}"
        print(f"{process.name:<25}{state:<22}{process.log}")
    print(f"{'API server':<25}{'ready' if found.ready else 'not ready':<22}{found.server}")
    print(f"{'kubeconfig':<47}{folder.kubeconfig}")
    if not found.ready or any(process.pid is None for process in found.processes):
        raise typer.Exit(1)


@app.command()
def down(name: NameOption = DEFAULT_NAME, state_dir: StateOption = None) -> None:
    """Stops it and removes everything that it stored. The built programs are kept."""
    folder = _folder(name, state_dir)
    with told_in_one_line():
        stopped = lifecycle.down(folder)
    print(f"stopped, and removed {folder.root}" if stopped else f"nothing to stop in {folder.root}")


def start(folder: StateFolder, binaries: Binaries, nodes: list[FakeNode], options: ClusterOptions) -> Cluster:
    """A running control plane with these nodes and the project's CRDs and admission policies. What is there already is kept."""
    cluster = lifecycle.up(folder, binaries, options, report=to_stderr)
    cluster.apply_crds()
    cluster.apply_policies()
    cluster.add_nodes(nodes, exist_ok=True)
    return cluster


def mixed_nodes() -> list[FakeNode]:
    """Three GPU nodes with different cards, and one without."""
    cards = (
        ("gpu-a", 2, 40, "NVIDIA-A100-PCIE-40GB"),
        ("gpu-b", 4, 24, "NVIDIA-A10"),
        ("gpu-c", 2, 80, "NVIDIA-A100-SXM4-80GB"),
    )
    with_gpus = [FakeNode(name, gpus_of(name, count, memory * GIB, model)) for name, count, memory, model in cards]
    return [*with_gpus, FakeNode("cpu-a")]


def equal_nodes(count: int, gpus_per_node: int) -> list[FakeNode]:
    """`count` nodes with equal GPUs of 40Gi; the names sort in the order of their numbers."""
    width = len(str(count))
    names = [f"gpu-{number:0{width}}" for number in range(1, count + 1)]
    return [FakeNode(name, gpus_of(name, gpus_per_node, 40 * GIB, "NVIDIA-A100-PCIE-40GB")) for name in names]


def next_commands(cluster: Cluster, binaries: Binaries, name: str, state_dir: Path | None) -> list[str]:
    """What a newcomer types next."""
    kubectl = binaries[Program.KUBECTL]
    options = "" if name == DEFAULT_NAME else f" --name {name}"
    options += "" if state_dir is None else f" --state-dir {state_dir}"
    on_path = any(kubectl.parent == Path(folder) for folder in os.get_exec_path())
    return [
        f"The control plane is up: {cluster.record.server}",
        "",
        f"  export KUBECONFIG={cluster.kubeconfig}",
        f"  {'kubectl' if on_path else kubectl} get nodes",
        f"  sharepod demo status{options}",
        f"  sharepod demo down{options}",
    ]


@contextlib.contextmanager
def _taken_down(folder: StateFolder) -> Iterator[None]:
    """Stops the demo at the end, however it went."""
    try:
        yield
    finally:
        lifecycle.down(folder)


@contextlib.contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turns a failure of the control plane into one line on stderr and exit code 1."""
    try:
        yield
    except LocalClusterError as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from error


def _folder(name: str, state_dir: Path | None) -> StateFolder:
    if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) is None:
        raise typer.BadParameter(
            f"{name!r} is no name: lower-case letters, digits and '-', such as demo-2", param_hint="--name"
        )
    return (
        default_state_folder(name, os.environ) if state_dir is None else StateFolder(state_dir.expanduser().absolute())
    )
