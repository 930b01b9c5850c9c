"""OpenB: a real cluster of 1,213 nodes and 6,212 GPUs with its pods, read from the folder SHAREPOD_TRACE_DIR.

The files (Alibaba's public cluster-trace-gpu-v2023, repository alibaba/clusterdata) are not part of this project:
download openb_node_list_gpu_node.csv and openb_pod_list_*.csv and point the variable at them.
"""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sharepod_operator.core.model import (
    MILLI_PER_GPU,
    Constraints,
    Device,
    GPURequest,
    Node,
    Requirement,
    Resources,
    SelectorTerm,
    Shape,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

MIB = 2**20
GPU_MEMORY_MIB = {
    "G2": 20000,
    "T4": 15109,
    "G3": 30000,
    "P100": 16280,
    "V100M32": 32510,
    "V100M16": 16160,
    "A10": 22731,
}
NO_LIMIT = 1_000_000
"""Pods per node: the trace knows no limit."""


def trace_dir() -> Path:
    """The folder with the trace; the program ends with a message where there is none."""
    named = os.environ.get("SHAREPOD_TRACE_DIR", "")
    if not named:
        sys.exit("SHAREPOD_TRACE_DIR is not set: it names the folder with the OpenB trace (see benchmarks/openb.py)")
    folder = Path(named)
    if not (folder / "openb_node_list_gpu_node.csv").is_file():
        sys.exit(f"SHAREPOD_TRACE_DIR={named} holds no openb_node_list_gpu_node.csv (see benchmarks/openb.py)")
    return folder


def load_nodes(folder: Path) -> list[Node]:
    """The nodes of the trace; label `model` carries the GPU model."""
    with (folder / "openb_node_list_gpu_node.csv").open(newline="") as file:
        return [_node(row["sn"], row) for row in csv.DictReader(file)]


def load_pods(folder: Path, workload: str) -> list[Shape]:
    """The shapes of a pod list (default, gpushare100, gpuspec33) in the order of the trace; equal ones are one object."""
    known: dict[Shape, Shape] = {}
    with (folder / f"openb_pod_list_{workload}.csv").open(newline="") as file:
        shapes = [_shape(row) for row in csv.DictReader(file)]
    return [known.setdefault(shape, shape) for shape in shapes]


def milli(shape: Shape) -> int:
    """What a shape asks of all its GPUs together."""
    return shape.gpu.milli * shape.gpu.count if shape.gpu is not None else 0


def capacity(nodes: list[Node]) -> int:
    """The compute of all GPUs in milli."""
    return MILLI_PER_GPU * sum(len(node.devices) for node in nodes)


def arrivals(pods: list[Shape], total_milli: int, percent: int, random: Random) -> Iterator[Shape]:
    """The published workload: the list shuffled, then samples with replacement, until the demand reaches the percentage."""
    order = list(pods)
    random.shuffle(order)
    demand = 0
    place = 0
    while demand * 100 < total_milli * percent:
        shape = order[place] if place < len(order) else random.choice(pods)
        place += 1
        demand += milli(shape)
        yield shape


def resized(nodes: list[Node], gpus: int, random: Random) -> list[Node]:
    """A cluster of the same kinds of nodes in the same proportions with about so many GPUs."""
    drawn: list[Node] = []
    have = 0
    while have < gpus:
        for node in random.sample(nodes, len(nodes)):
            if have >= gpus:
                break
            name = f"node-{len(drawn):05d}"
            devices = tuple(replace(d, uuid=f"{name}-gpu-{d.index}") for d in node.devices)
            drawn.append(replace(node, name=name, devices=devices))
            have += len(devices)
    return drawn


def _node(name: str, row: dict[str, str]) -> Node:
    model = row["model"]
    return Node(
        name=name,
        labels=(("model", model),),
        allocatable=Resources(int(row["cpu_milli"]), int(row["memory_mib"]) * MIB),
        max_pods=NO_LIMIT,
        devices=tuple(
            Device(f"{name}-gpu-{index}", GPU_MEMORY_MIB[model] * MIB, model, index) for index in range(int(row["gpu"]))
        ),
    )


def _shape(row: dict[str, str]) -> Shape:
    count = int(row["num_gpu"])
    share = int(row["gpu_milli"]) if count == 1 else MILLI_PER_GPU
    terms = None
    if row["gpu_spec"]:
        terms = (SelectorTerm((Requirement("model", "In", tuple(row["gpu_spec"].split("|"))),)),)
    return Shape(
        Resources(int(row["cpu_milli"]), int(row["memory_mib"]) * MIB),
        Constraints(node_affinity=terms),
        GPURequest(share, share, count=count) if count else None,
    )
