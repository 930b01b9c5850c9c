"""The indexes that find the best candidates first, so that a decision does not look at what can't take the pod.

GPUs are kept in buckets by free share, split into columns by the power-of-two class of the node's free CPU and of
the GPU's free memory: an index by share alone grows with a full cluster, where the low buckets hold GPUs with share
and no CPU or memory left. Each bucket is in node-name order, so ties by name cost nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heapreplace, merge
from typing import TYPE_CHECKING

from sharepod_operator.core.node_state import CpuEntry, size_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Column:
    """Node names by free milli, for one class of free CPU and memory."""

    __slots__ = ("buckets", "frees")

    def __init__(self) -> None:
        self.frees: list[int] = []
        self.buckets: dict[int, list[str]] = {}

    def add(self, free: int, name: str) -> None:
        """Put a node's name under this free share."""
        names = self.buckets.get(free)
        if names is None:
            self.buckets[free] = [name]
            insort(self.frees, free)
        else:
            insort(names, name)

    def discard(self, free: int, name: str) -> None:
        """Take it away again; it must be there."""
        names = self.buckets[free]
        del names[bisect_left(names, name)]
        if not names:
            del self.buckets[free]
            del self.frees[bisect_left(self.frees, free)]


_Head = tuple[int, str, int, Column, int, int]
"""What a column offers next: ordered free milli, name, serial number, column, place among its frees, place in the bucket."""


class ShareIndex:
    """The GPUs that pods of one kind of tags may look at."""

    __slots__ = ("columns",)

    def __init__(self) -> None:
        self.columns: dict[tuple[int, int], Column] = {}

    def add(self, cpu_class: int, memory_class: int, free: int, name: str) -> None:
        """Enter a node's GPU."""
        column = self.columns.get((cpu_class, memory_class))
        if column is None:
            column = self.columns[(cpu_class, memory_class)] = Column()
        column.add(free, name)

    def discard(self, cpu_class: int, memory_class: int, free: int, name: str) -> None:
        """Remove a node's GPU, which must be there."""
        column = self.columns[(cpu_class, memory_class)]
        column.discard(free, name)
        if not column.frees:
            del self.columns[(cpu_class, memory_class)]


def walk(
    indexes: Iterable[ShareIndex], need: int, cpu_milli: int, memory: int, *, fullest_first: bool
) -> Iterator[tuple[int, str]]:
    """Candidates as (free milli, node name): by free share, then by name. A node may come more than once.

    Args:
        indexes: what to walk through at the same time.
        need: least free milli; zero admits GPUs that are charged beyond their size.
        cpu_milli: the pod's CPU request. Candidates may still have somewhat less, as with the memory.
        memory: bytes of GPU memory.
        fullest_first: the least free share first; otherwise the most.
    """
    step = 1 if fullest_first else -1
    heap = _heads(indexes, need, size_class(cpu_milli), size_class(memory), step)
    heapify(heap)
    while heap:
        ordered, name, serial, column, place, at = heap[0]
        free = ordered * step
        yield free, name
        names = column.buckets[free]
        at += 1
        if at < len(names):
            heapreplace(heap, (ordered, names[at], serial, column, place, at))
            continue
        place += step
        if place < 0 or place == len(column.frees) or column.frees[place] < need > 0:
            heappop(heap)
            continue
        free = column.frees[place]
        heapreplace(heap, (free * step, column.buckets[free][0], serial, column, place, 0))


def _heads(indexes: Iterable[ShareIndex], need: int, cpu_class: int, memory_class: int, step: int) -> list[_Head]:
    """Each column's first candidate: columns of too low a class, or without enough share, have none."""
    heads: list[_Head] = []
    for index in indexes:
        for (cpu, memory), column in index.columns.items():
            if cpu < cpu_class or memory < memory_class:
                continue
            frees = column.frees
            if need > frees[-1] and need:
                continue
            place = len(frees) - 1 if step < 0 else bisect_left(frees, need) if need else 0
            free = frees[place]
            heads.append((free * step, column.buckets[free][0], len(heads), column, place, 0))
    return heads


class CpuIndex:
    """Nodes in the order in which pods without GPUs fill them, split by the class of free CPU."""

    __slots__ = ("columns",)

    def __init__(self) -> None:
        self.columns: dict[int, list[CpuEntry]] = {}

    def add(self, entry: CpuEntry) -> None:
        """Enter a node."""
        insort(self.columns.setdefault(size_class(entry[2]), []), entry)

    def discard(self, entry: CpuEntry) -> None:
        """Remove a node, which must be there."""
        column = self.columns[size_class(entry[2])]
        del column[bisect_left(column, entry)]
        if not column:
            del self.columns[size_class(entry[2])]

    def walk(self, cpu_milli: int) -> Iterator[str]:
        """Names of the nodes that may have the CPU, best first."""
        least = size_class(cpu_milli)
        columns = [column for cpu_class, column in self.columns.items() if cpu_class >= least]
        for entry in columns[0] if len(columns) == 1 else merge(*columns):
            yield entry[3]
