"""The rules of placement again, in the plainest words: no index, no running sums, no early end.

Everything is worked out from the records each time. It shares nothing with the code under test but the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharepod_operator.core.model import Assigned, Device, GPURequest, HostPort, Node, Shape, Taint


@dataclass(frozen=True, slots=True)
class Oracle:
    """A cluster of nodes and pods, all of which are charged as they are."""

    nodes: list[Node]
    pods: list[Assigned]
    ports: frozenset[int]
    """The pod-manager ports of every node."""

    def answer(self, shape: Shape) -> tuple[str, frozenset[str]] | dict[str, str]:
        """The node and GPUs that the rules choose, or the reason of each node and GPU that refuses."""
        reasons: dict[str, str] = {}
        offers: list[tuple[tuple[object, ...], str, frozenset[str]]] = []
        for node in self.nodes:
            reason = self._node_reason(node, shape)
            if reason:
                reasons[node.name] = reason
            elif shape.gpu is None:
                offers.append(((*self._cpu_key(node, shape), node.name), node.name, frozenset()))
            else:
                offer = self._device_offer(node, shape, shape.gpu, reasons)
                if offer is not None:
                    offers.append(offer)
        if offers:
            _, name, uuids = min(offers, key=lambda offer: offer[0])
            return name, uuids
        return reasons

    def _device_offer(
        self, node: Node, shape: Shape, gpu: GPURequest, reasons: dict[str, str]
    ) -> tuple[tuple[object, ...], str, frozenset[str]] | None:
        passing: list[Device] = []
        for device in node.devices:
            reason = self._device_reason(node, device, shape, gpu)
            if reason:
                reasons[device.uuid] = reason
            else:
                passing.append(device)
        open_ = [device for device in passing if self._on(node, device)]
        idle = [device for device in passing if not self._on(node, device)]
        if gpu.count == 1:
            keys = [self._rank(node, device, gpu) for device in (open_ or idle)]
            if not keys:
                return None
            score, left, uuid = min(keys)
            return (score, node.name, left, uuid), node.name, frozenset({uuid})
        ranked = [
            *sorted(self._rank(node, device, gpu) for device in open_),
            *sorted(self._rank(node, device, gpu) for device in idle),
        ]
        if len(ranked) < gpu.count:
            return None
        taken = ranked[: gpu.count]
        return (sum(rank[0] for rank in taken), node.name), node.name, frozenset(rank[2] for rank in taken)

    def _rank(self, node: Node, device: Device, gpu: GPURequest) -> tuple[int, int, str]:
        return (
            self._free(node, device) - gpu.milli,
            self._memory_free(node, device) - self._bytes(device, gpu),
            device.uuid,
        )

    @staticmethod
    def _bytes(device: Device, gpu: GPURequest) -> int:
        """A percent is one of this card's own memory, rounded down."""
        return device.memory * gpu.memory_percent // 100 if gpu.memory_percent else gpu.memory

    def _cpu_key(self, node: Node, shape: Shape) -> tuple[int, int, int]:
        idle = len([device for device in node.devices if not self._on(node, device)])
        free = sum(self._free(node, device) for device in node.devices)
        return idle, free, self._free_cpu(node) - shape.resources.cpu_milli

    def _pods(self, node: Node) -> list[Assigned]:
        return [pod for pod in self.pods if pod.node == node.name]

    def _on(self, node: Node, device: Device) -> list[Assigned]:
        return [pod for pod in self._pods(node) if pod.allocation and device.uuid in pod.allocation.uuids]

    def _charges(self, node: Node, device: Device) -> list[tuple[int, int]]:
        return [
            (charge.milli, charge.memory)
            for pod in self._on(node, device)
            if pod.allocation
            for charge in pod.allocation.charges
            if charge.uuid == device.uuid
        ]

    def _free(self, node: Node, device: Device) -> int:
        return 1000 - sum(milli for milli, _ in self._charges(node, device))

    def _memory_free(self, node: Node, device: Device) -> int:
        return device.memory - sum(memory for _, memory in self._charges(node, device))

    def _free_cpu(self, node: Node) -> int:
        return node.allocatable.cpu_milli - sum(pod.resources.cpu_milli for pod in self._pods(node))

    def _node_reason(self, node: Node, shape: Shape) -> str:
        wanted, pods, rules = shape.resources, self._pods(node), shape.constraints
        free_memory = node.allocatable.memory - sum(pod.resources.memory for pod in pods)
        free_storage = node.allocatable.ephemeral_storage - sum(pod.resources.ephemeral_storage for pod in pods)
        used_ports = {pod.allocation.port for pod in pods if pod.allocation}
        short = [
            name
            for name, amount in wanted.extended
            if 0 < amount
            and amount
            > dict(node.allocatable.extended).get(name, 0) - sum(dict(p.resources.extended).get(name, 0) for p in pods)
        ]
        labels = dict(node.labels)
        gpu = shape.gpu is not None
        checks = {
            "NotReady": not node.ready,
            "Unschedulable": node.unschedulable,
            "Taint": any(self._repels(taint, shape) for taint in node.taints),
            "NodeSelector": any(labels.get(key) != value for key, value in rules.node_selector),
            "NodePin": rules.node_name not in {"", node.name},
            "InsufficientCPU": 0 < wanted.cpu_milli and wanted.cpu_milli > self._free_cpu(node),
            "InsufficientMemory": 0 < wanted.memory and wanted.memory > free_memory,
            "TooManyPods": len(pods) >= node.max_pods,
            "NoGPU": gpu and not node.devices,
            "InsufficientEphemeralStorage": 0 < wanted.ephemeral_storage and wanted.ephemeral_storage > free_storage,
            "InsufficientResource": bool(short),
            "HostPortConflict": any(
                self._clash(mine, theirs) for pod in pods for theirs in pod.host_ports for mine in rules.host_ports
            ),
            "VolumeNodeAffinity": not all(
                any(
                    all(labels.get(wanted.key) in wanted.values for wanted in term.expressions)
                    and all(node.name in wanted.values for wanted in term.fields)
                    for term in terms
                )
                for terms in rules.volume_affinity
            ),
            "PortPoolExhausted": gpu and self.ports <= used_ports,
            "ForeignGPUUsers": gpu and node.foreign_gpu_users,
            "UnsupportedConstraint": bool(rules.unsupported),
        }
        return next((reason for reason, fails in checks.items() if fails), "")

    @staticmethod
    def _repels(taint: Taint, shape: Shape) -> bool:
        if taint.effect == "PreferNoSchedule":
            return False
        return not any(
            t.key in {"", taint.key}
            and t.effect in {"", taint.effect}
            and (t.operator == "Exists" or t.value == taint.value)
            for t in shape.constraints.tolerations
        )

    @staticmethod
    def _clash(mine: HostPort, theirs: HostPort) -> bool:
        return (mine.port, mine.protocol) == (theirs.port, theirs.protocol) and (
            mine.ip == theirs.ip or "" in {mine.ip, theirs.ip}
        )

    def _device_reason(self, node: Node, device: Device, shape: Shape, gpu: GPURequest) -> str:
        pods = self._on(node, device)
        allocations = [pod.allocation for pod in pods if pod.allocation]
        affinity = {allocation.affinity for allocation in allocations} - {""}
        anti_affinity = {allocation.anti_affinity for allocation in allocations} - {""}
        checks = {
            "Unhealthy": not device.healthy or device.cordoned,
            "DevicePin": self._pinned_elsewhere(node, device, shape, gpu),
            "ExclusionConflict": any(allocation.exclusion != gpu.exclusion for allocation in allocations),
            "AffinityMismatch": bool(pods) and gpu.affinity != "" and gpu.affinity not in affinity,
            "AntiAffinityConflict": bool(pods) and gpu.anti_affinity in anti_affinity,
            "InsufficientShare": gpu.milli > 0 and gpu.milli > self._free(node, device),
            "InsufficientGPUMemory": 0 < self._bytes(device, gpu)
            and self._bytes(device, gpu) > self._memory_free(node, device),
        }
        return next((reason for reason, fails in checks.items() if fails), "")

    def _pinned_elsewhere(self, node: Node, device: Device, shape: Shape, gpu: GPURequest) -> bool:
        if gpu.device_ids and device.uuid not in gpu.device_ids:
            return True
        if gpu.gpu_id == "":
            return False
        if gpu.gpu_id in {known.uuid for other in self.nodes for known in other.devices}:
            return device.uuid != gpu.gpu_id
        if shape.constraints.node_name == "":
            return True
        cards = {
            uuid
            for pod in self._pods(node)
            if pod.allocation and pod.allocation.virtual_id == gpu.gpu_id
            for uuid in pod.allocation.uuids
        }
        return device.uuid not in cards if cards else bool(self._on(node, device))
