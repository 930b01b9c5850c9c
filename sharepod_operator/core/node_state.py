"""What is left of one node and of each of its GPUs, after all the pods that are charged there.

Charging and uncharging are exact inverses and cost the same small amount of work however full the node is. Pods
may be charged beyond a node's or a GPU's size (they are there, whatever the books say): what is left is then below
zero, and nothing more fits until it rises again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharepod_operator.core.model import MILLI_PER_GPU, Allocation, Assigned, Charge, Device, HostPort, Node, Refusal

if TYPE_CHECKING:
    from sharepod_operator.core.ports import PortRange

Counts = dict[str, int]
Entry = tuple[str | None, str, int, int, int]
"""A GPU's place in the index: exclusion tag (None for idle), affinity tag, CPU class, memory class, free milli."""
CpuEntry = tuple[int, int, int, str]
"""A node's place in the order for pods without GPUs: idle GPUs, sum of free milli, free CPU, name."""


def size_class(amount: int) -> int:
    """The power-of-two class of an amount: whatever fits a request is at least in the request's class."""
    return amount.bit_length() if amount > 0 else 0


def count(counts: Counts, key: str, step: int) -> None:
    """Add `step` to a multiset's count of `key`; what reaches zero is dropped."""
    left = counts.get(key, 0) + step
    if left:
        counts[key] = left
    else:
        del counts[key]


@dataclass(slots=True)
class DeviceState:
    """What is left of one GPU, and the tags of the pods on it."""

    device: Device
    usable: bool
    """As the device says, and no other node claims it too; kept here because every decision asks."""
    free: int = MILLI_PER_GPU
    memory_free: int = 0
    pods: int = 0
    """Pods on it; 0 is idle, more is open."""
    affinity: Counts = field(default_factory=dict)
    anti_affinity: Counts = field(default_factory=dict)
    exclusion: Counts = field(default_factory=dict)
    """The pods' exclusion tags, "" among them: no tag is a tag of its own here."""


class NodeState:
    """What is left of one node. Read its fields freely; only the snapshot charges it."""

    __slots__ = (
        "cpu_entry",
        "devices",
        "entries",
        "free_cpu",
        "free_ephemeral_storage",
        "free_extended",
        "free_memory",
        "free_milli",
        "free_pods",
        "generation",
        "host_port_bits",
        "host_ports",
        "idle",
        "labels",
        "node",
        "port_counts",
        "ports",
        "static",
        "used_ports",
        "virtual",
        "whole",
    )

    def __init__(self, node: Node, ports: PortRange) -> None:
        self.node = node
        self.ports = ports
        self.labels = dict(node.labels)
        self.generation = 0
        self.static: dict[int, Refusal | None] = {}
        """Answers of the filters that look at the node's record alone, by number of the constraints."""
        self.free_cpu = node.allocatable.cpu_milli
        self.free_memory = node.allocatable.memory
        self.free_ephemeral_storage = node.allocatable.ephemeral_storage
        self.free_extended: Counts = {name: amount for name, amount in node.allocatable.extended if amount}
        self.free_pods = node.max_pods
        self.devices = {
            device.uuid: DeviceState(device, device.usable, memory_free=device.memory)
            for device in sorted(node.devices, key=lambda device: device.uuid)
        }
        self.idle = len(self.devices)
        self.whole = len(self.devices)
        """GPUs with all their compute free: the idle ones and those that only best-effort pods use."""
        self.free_milli = len(self.devices) * MILLI_PER_GPU
        self.port_counts: dict[int, int] = {}
        self.used_ports = 0
        self.host_ports: dict[HostPort, int] = {}
        self.host_port_bits = 0
        """Pod-manager ports that pods occupy as TCP host ports: both are ports of the node's own network."""
        self.virtual: dict[str, Counts] = {}
        """Virtual GPUs: the cards that pods hold under each name. It is one card unless someone broke the rule."""
        self.entries: frozenset[Entry] = frozenset()
        self.cpu_entry: CpuEntry | None = None

    def charge(self, pod: Assigned) -> None:
        """Take the pod's amounts from what is left."""
        self._book(pod, 1)

    def uncharge(self, pod: Assigned) -> None:
        """Give back what `charge` took."""
        self._book(pod, -1)

    @property
    def taken_ports(self) -> int:
        """The pod-manager ports that can't be drawn."""
        return self.used_ports | self.host_port_bits

    def index_entries(self) -> frozenset[Entry]:
        """Where the GPUs that may take new pods belong in the index by tag, CPU class, memory class and free share.

        A GPU whose pods disagree on the exclusion tag takes nobody and has no entry.
        """
        cpu = size_class(self.free_cpu)
        entries: list[Entry] = []
        for state in self.devices.values():
            if not state.usable:
                continue
            memory = size_class(state.memory_free)
            if not state.pods:
                entries.append((None, "", cpu, memory, state.free))
            elif len(state.exclusion) == 1:
                (exclusion,) = state.exclusion
                entries.append((exclusion, "", cpu, memory, state.free))
                entries.extend((exclusion, tag, cpu, memory, state.free) for tag in state.affinity)
        return frozenset(entries)

    def _book(self, pod: Assigned, step: int) -> None:
        resources = pod.resources
        self.free_cpu -= step * resources.cpu_milli
        self.free_memory -= step * resources.memory
        self.free_ephemeral_storage -= step * resources.ephemeral_storage
        self.free_pods -= step
        for name, amount in resources.extended:
            if amount:
                count(self.free_extended, name, -step * amount)
        for port in pod.host_ports:
            left = self.host_ports.get(port, 0) + step
            if left:
                self.host_ports[port] = left
            else:
                del self.host_ports[port]
        if pod.host_ports:
            self.host_port_bits = 0
            for port in self.host_ports:
                if port.protocol == "TCP":
                    self.host_port_bits |= self.ports.bit(port.port)
        if pod.allocation is not None:
            self._book_allocation(pod.allocation, step)

    def _book_allocation(self, allocation: Allocation, step: int) -> None:
        if allocation.port:
            left = self.port_counts.pop(allocation.port, 0) + step
            if left:
                self.port_counts[allocation.port] = left
                self.used_ports |= self.ports.bit(allocation.port)
            else:
                self.used_ports &= ~self.ports.bit(allocation.port)
        for charge in allocation.charges:
            if allocation.virtual_id:
                cards = self.virtual.setdefault(allocation.virtual_id, {})
                count(cards, charge.uuid, step)
                if not cards:
                    del self.virtual[allocation.virtual_id]
            state = self.devices.get(charge.uuid)
            if state is not None:  # a GPU not in the inventory is charged when the node's record says that it is back
                self._book_device(state, allocation, charge, step)

    def _book_device(self, state: DeviceState, allocation: Allocation, charge: Charge, step: int) -> None:
        was_idle, was_whole = not state.pods, state.free == MILLI_PER_GPU
        state.pods += step
        state.free -= step * charge.milli
        state.memory_free -= step * charge.memory
        self.idle += (not state.pods) - was_idle
        self.whole += (state.free == MILLI_PER_GPU) - was_whole
        self.free_milli -= step * charge.milli
        count(state.exclusion, allocation.exclusion, step)
        if allocation.affinity:
            count(state.affinity, allocation.affinity, step)
        if allocation.anti_affinity:
            count(state.anti_affinity, allocation.anti_affinity, step)
