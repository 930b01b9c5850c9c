"""The cluster as a decision sees it: nodes, and the pods that hold room there.

It is the ledger: the one place where charges are added up. Pods are recorded as they are, even where their node or
GPU is not known (they count as soon as it appears) and where they exceed its size. `add` and `remove` are exact
inverses that cost little, so that a dry run takes pods out and puts them back without copying anything.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sharepod_operator.core.index import CpuIndex, ShareIndex
from sharepod_operator.core.node_state import NodeState
from sharepod_operator.core.ports import DEFAULT_PORTS, PortRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sharepod_operator.core.model import Assigned, Constraints, Node, Shape, Unschedulable

_MAX_CONSTRAINTS: Final = 10_000
_DERIVED: Final = ("node", "ports", "labels", "generation", "static", "entries", "cpu_entry")


@dataclass(frozen=True, slots=True)
class KnownRefusal:
    """An answer, with the versions of the snapshot at which it was right."""

    version: int
    inventory_version: int
    answer: Unschedulable


class Snapshot:
    """All nodes with what is left of each."""

    def __init__(self, nodes: Iterable[Node] = (), ports: PortRange = DEFAULT_PORTS) -> None:
        self.ports: Final = ports
        self.version = 0
        """Grows with every change; equal versions of one snapshot mean equal answers."""
        self.inventory_version = 0
        """Grows when nodes come, go or change; not with pods."""
        self.refusals: dict[Shape, KnownRefusal] = {}
        """The last refusals, kept by the placement."""
        self.names: list[str] = []
        """Names of the nodes, sorted."""
        self._nodes: dict[str, NodeState] = {}
        self._pods: dict[str, Assigned] = {}
        self._pods_of: dict[str, dict[str, Assigned]] = {}
        self._owners: dict[str, set[str]] = {}
        self._constraints: dict[Constraints, int] = {}
        self._open: dict[tuple[str | None, str], ShareIndex] = {}
        self._cpu = CpuIndex()
        self._stale: set[str] = set()
        self._smallest_card = (-1, 0)
        for node in nodes:
            self.set_node(node)

    # Nodes

    def set_node(self, node: Node) -> None:
        """Enter a node, or replace its record; the pods there stay charged."""
        known = self._nodes.get(node.name)
        if known is not None and known.node == node:
            return
        self._forget_node(node.name)
        state = NodeState(node, self.ports)
        for pod in self._pods_of.get(node.name, {}).values():
            state.charge(pod)
        self._nodes[node.name] = state
        insort(self.names, node.name)
        for uuid in state.devices:
            self._owners.setdefault(uuid, set()).add(node.name)
        self._touch(state)
        self._judge_claims(state.devices)
        self.inventory_version = self.version

    def remove_node(self, name: str) -> None:
        """Drop a node, if it is there; its pods stay on record and count again when it comes back."""
        if self._forget_node(name):
            self.version += 1
            self.inventory_version = self.version

    @property
    def nodes(self) -> Mapping[str, NodeState]:
        """The nodes by name. For reading; charge through `add`."""
        return self._nodes

    @property
    def total_devices(self) -> int:
        """GPUs of all nodes."""
        return sum(len(state.devices) for state in self._nodes.values())

    @property
    def smallest_card(self) -> int:
        """Bytes of the smallest GPU: what a percent of memory comes to at least. Worked out when nodes have changed."""
        version, smallest = self._smallest_card
        if version != self.inventory_version:
            sizes = (card.device.memory for state in self._nodes.values() for card in state.devices.values())
            smallest = min(sizes, default=0)
            self._smallest_card = self.inventory_version, smallest
        return smallest

    def owners(self, uuid: str) -> frozenset[str]:
        """Names of the nodes that have this GPU in their inventory: one at most, unless two claim it."""
        return frozenset(self._owners.get(uuid, ()))

    def used_ports(self, node: str) -> int:
        """The pod-manager ports in use on a node, as `PortRange` describes such a set."""
        state = self._nodes.get(node)
        return state.used_ports if state is not None else 0

    def taken_ports(self, node: str) -> int:
        """The pod-manager ports of a node that can't be drawn: in use, or occupied as host ports."""
        state = self._nodes.get(node)
        return state.taken_ports if state is not None else 0

    # Pods

    def add(self, pod: Assigned) -> None:
        """Charge a pod. One that is charged already is replaced."""
        if pod.uid in self._pods:
            self.remove(pod.uid)
        self._pods[pod.uid] = pod
        self._pods_of.setdefault(pod.node, {})[pod.uid] = pod
        state = self._nodes.get(pod.node)
        if state is not None:
            state.charge(pod)
            self._touch(state)

    def remove(self, uid: str) -> Assigned | None:
        """Free what a pod holds and return its record, so that `add` undoes this; None where it holds nothing."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return None
        pods = self._pods_of[pod.node]
        del pods[uid]
        if not pods:
            del self._pods_of[pod.node]
        state = self._nodes.get(pod.node)
        if state is not None:
            state.uncharge(pod)
            self._touch(state)
        return pod

    def get(self, uid: str) -> Assigned | None:
        """The pod's record, or None where it holds nothing."""
        return self._pods.get(uid)

    @property
    def pods(self) -> Mapping[str, Assigned]:
        """All charged pods by uid, those of unknown nodes too. For reading."""
        return self._pods

    def pods_on(self, node: str) -> Mapping[str, Assigned]:
        """The pods charged to a node, by uid. For reading."""
        return self._pods_of.get(node, {})

    def clear(self) -> None:
        """Forget all nodes and pods."""
        self._pods.clear()
        self._pods_of.clear()
        self.refusals.clear()
        for name in list(self.names):
            self._forget_node(name)
        self.version += 1
        self.inventory_version = self.version

    # What the placement uses

    def constraints_number(self, constraints: Constraints) -> int:
        """A small number for these constraints, under which a node remembers what it thinks of them."""
        number = self._constraints.get(constraints)
        if number is None:
            if len(self._constraints) >= _MAX_CONSTRAINTS:
                self._constraints.clear()
                for state in self._nodes.values():
                    state.static.clear()
            number = self._constraints[constraints] = len(self._constraints)
        return number

    def share_indexes(self, exclusion: str, affinity: str) -> list[ShareIndex]:
        """The indexes of the open GPUs with these tags ("" as affinity: with any) and of the idle ones, up to date."""
        self._refresh()
        tables = (self._open.get((exclusion, affinity)), self._open.get((None, "")))
        return [table for table in tables if table is not None]

    def cpu_index(self) -> CpuIndex:
        """The order of nodes for pods without GPUs, up to date."""
        self._refresh()
        return self._cpu

    # Upkeep

    def _touch(self, state: NodeState) -> None:
        self.version += 1
        state.generation = self.version
        self._stale.add(state.node.name)

    def _forget_node(self, name: str) -> bool:
        state = self._nodes.pop(name, None)
        if state is None:
            return False
        del self.names[bisect_left(self.names, name)]
        for uuid in state.devices:
            self._owners[uuid].discard(name)
            if not self._owners[uuid]:
                del self._owners[uuid]
        self._judge_claims(state.devices)
        self._reindex(state, gone=True)
        self._stale.discard(name)
        return True

    def _judge_claims(self, uuids: Iterable[str]) -> None:
        """A GPU that two nodes claim takes no new pods on either: nobody knows where it is."""
        for uuid in uuids:
            owners = self._owners.get(uuid, ())
            for name in owners:
                state = self._nodes[name]
                card = state.devices[uuid]
                usable = card.device.usable and len(owners) == 1
                if card.usable != usable:
                    card.usable = usable
                    self._touch(state)

    def _refresh(self) -> None:
        """Bring the indexes up to date: only here, so that a dry run that undoes itself costs them nothing."""
        for name in self._stale:
            self._reindex(self._nodes[name])
        self._stale.clear()

    def _reindex(self, state: NodeState, *, gone: bool = False) -> None:
        name = state.node.name
        entries = frozenset() if gone else state.index_entries()
        for exclusion, affinity, cpu, memory, free in state.entries - entries:
            table = self._open[exclusion, affinity]
            table.discard(cpu, memory, free, name)
            if not table.columns:
                del self._open[exclusion, affinity]
        for exclusion, affinity, cpu, memory, free in entries - state.entries:
            self._open.setdefault((exclusion, affinity), ShareIndex()).add(cpu, memory, free, name)
        state.entries = entries
        cpu_entry = None if gone else (state.idle, state.free_milli, state.free_cpu, name)
        if cpu_entry != state.cpu_entry:
            if state.cpu_entry is not None:
                self._cpu.discard(state.cpu_entry)
            if cpu_entry is not None:
                self._cpu.add(cpu_entry)
            state.cpu_entry = cpu_entry

    # Audit

    def validate(self) -> None:
        """Work everything out anew from the nodes and the pods on record, and compare.

        Raises:
            AssertionError: something kept differs; the message names node, field and both values.
        """
        assert self.names == sorted(self._nodes), f"names {self.names} are not the nodes {sorted(self._nodes)}"
        by_node: dict[str, dict[str, Assigned]] = {}
        for uid, pod in self._pods.items():
            assert uid == pod.uid, f"pod {pod.uid} is on record as {uid}"
            by_node.setdefault(pod.node, {})[uid] = pod
        assert by_node == self._pods_of, f"pods by node are {self._pods_of}, the records say {by_node}"
        self._refresh()
        open_: dict[tuple[str | None, str], ShareIndex] = {}
        cpu = CpuIndex()
        owners: dict[str, set[str]] = {}
        for name, state in self._nodes.items():
            for uuid in state.devices:
                owners.setdefault(uuid, set()).add(name)
        for name, state in self._nodes.items():
            fresh = NodeState(state.node, self.ports)
            for uuid, card in fresh.devices.items():
                card.usable = card.usable and len(owners[uuid]) == 1
            for pod in by_node.get(name, {}).values():
                fresh.charge(pod)
            for field in NodeState.__slots__:
                if field not in _DERIVED:
                    kept, right = getattr(state, field), getattr(fresh, field)
                    assert kept == right, f"node {name}: {field} is {kept}, its pods say {right}"
            for exclusion, affinity, cpu_class, memory_class, free in fresh.index_entries():
                table = open_.setdefault((exclusion, affinity), ShareIndex())
                table.add(cpu_class, memory_class, free, name)
            cpu.add((fresh.idle, fresh.free_milli, fresh.free_cpu, name))
        assert owners == self._owners, f"owners of GPUs are {self._owners}, the nodes say {owners}"
        kept_open = {key: _contents(table) for key, table in self._open.items()}
        right_open = {key: _contents(table) for key, table in open_.items()}
        assert kept_open == right_open, f"the index holds {kept_open}, the nodes say {right_open}"
        assert cpu.columns == self._cpu.columns, f"the CPU order is {self._cpu.columns}, the nodes say {cpu.columns}"


def _contents(table: ShareIndex) -> dict[tuple[int, int], tuple[list[int], dict[int, list[str]]]]:
    return {key: (column.frees, column.buckets) for key, column in table.columns.items()}
