"""The records that the decisions work on.

All of them are frozen and hashable, so that a snapshot can share them freely, replace them in one step and use
them as keys. Amounts are integers: compute in milli (a GPU has 1000), CPU in milli, everything else in bytes or
pieces. No float ever enters a record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MILLI_PER_GPU = 1000


@dataclass(frozen=True, slots=True)
class GPURequest:
    """What a pod asks of GPUs: the stated share and memory on each of `count` different GPUs of one node."""

    milli: int
    """Guaranteed compute on each GPU, 0..1000. Zero is best effort: nothing is guaranteed, nothing charged."""
    limit_milli: int
    """Burst limit on each GPU, 1..1000, at least `milli`. Takes no part in placement."""
    memory: int = 0
    """Bytes on each GPU; 0 where `memory_percent` says how much."""
    count: int = 1
    affinity: str = ""
    """KubeShare's sched_affinity; "" means no tag, here and in the two below."""
    anti_affinity: str = ""
    exclusion: str = ""
    device_ids: tuple[str, ...] = ()
    """The only GPUs allowed, by UUID; empty allows all."""
    gpu_id: str = ""
    """KubeShare's GPUID: the UUID of a GPU in the inventory, or else the name of a virtual GPU."""
    memory_percent: int = 0
    """Percent of each GPU's own memory, 1..100; 0 where `memory` says how much. What is charged is bytes."""

    def memory_on(self, card_memory: int) -> int:
        """Bytes on a GPU of so many bytes: a percent is rounded down, so that shares of one card never exceed it."""
        return self.memory_percent * card_memory // 100 if self.memory_percent else self.memory


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts of a node's ordinary resources: a pod's effective request, or what a node can allocate."""

    cpu_milli: int = 0
    memory: int = 0
    ephemeral_storage: int = 0
    extended: tuple[tuple[str, int], ...] = ()
    """Every other resource, sorted by name. `koordinator.sh/*` never appears: for us it is a GPURequest."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint; `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration; an empty key with Exists tolerates every key, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a node selector term; `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SelectorTerm:
    """A node selector term: all its expressions (labels) and fields (metadata.name) must hold; empty matches nothing."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node that a container binds; an `ip` of "" or 0.0.0.0 means every address."""

    port: int
    protocol: str = "TCP"
    ip: str = ""


@dataclass(frozen=True, slots=True)
class Constraints:
    """Where a pod may run. Equal constraints are equal keys, so that a node is judged once for all pods alike."""

    node_name: str = ""
    """The node that the pod is pinned to; "" for none."""
    node_selector: tuple[tuple[str, str], ...] = ()
    node_affinity: tuple[SelectorTerm, ...] | None = None
    """Required terms, ORed; None where the pod states none, an empty tuple matches nothing."""
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    volume_affinity: tuple[tuple[SelectorTerm, ...], ...] = ()
    """Where the pod's PersistentVolumes can be used: one term of each group must hold. Known only at decision time."""
    unsupported: tuple[str, ...] = ()
    """Names of constraints in the pod's spec that this scheduler does not implement: the pod is refused for them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything about a pod that placement looks at. Pods of equal shape get equal answers from equal snapshots."""

    resources: Resources = Resources()
    constraints: Constraints = Constraints()
    gpu: GPURequest | None = None


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A PersistentVolumeClaim that a pod uses."""

    key: str
    """namespace/name of the claim."""
    volume: str = ""
    """Name of the pod's volume."""
    ephemeral: bool = False
    """A generic ephemeral volume: the claim must belong to the pod."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the scheduler sees it."""

    uid: str
    namespace: str
    name: str
    shape: Shape
    priority: int = 0
    created: str = ""
    """metadata.creationTimestamp; RFC 3339 in UTC, so text order is time order."""
    claims: tuple[ClaimUse, ...] = ()
    """What its volumes ask of a node is looked up for each decision, since claims and volumes change by themselves."""

    @property
    def key(self) -> str:
        """namespace/name, for people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Device:
    """A physical GPU of a node's inventory."""

    uuid: str
    memory: int
    model: str = ""
    index: int = 0
    healthy: bool = True
    cordoned: bool = False
    """Takes no new pods; those on it stay."""

    @property
    def usable(self) -> bool:
        """Whether new pods may be placed on it."""
        return self.healthy and not self.cordoned


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the scheduler sees it."""

    name: str
    ready: bool = True
    unschedulable: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    allocatable: Resources = Resources()
    max_pods: int = 110
    devices: tuple[Device, ...] = ()
    internal_ip: str = ""
    foreign_gpu_users: bool = False
    """It has an inventory of ownership `dedicated` and advertises nvidia.com/gpu all the same: others may use its GPUs."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one pod takes of one GPU."""

    uuid: str
    milli: int
    memory: int
    card_memory: int = 0
    """The GPU's own memory when the pod was placed; 0 where nobody noted it. Tells a card that was booked twice from one
    whose inventory was changed afterwards."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A pod's GPUs, all of one node, with its pod-manager port and the tags under which it sits there.

    This is the ledger entry that the Binding writes onto the pod; it is complete in itself, so that nothing a user
    edits later changes what is charged.
    """

    charges: tuple[Charge, ...]
    port: int = 0
    """0 where the pod has none yet: in a decision before its port is drawn, and for pods already there in a scenario."""
    limit_milli: int = 1000
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""
    virtual_id: str = ""
    """The virtual GPU's name under which the pod asked for its card; "" for none."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs, in the order charged."""
        return tuple(charge.uuid for charge in self.charges)


@dataclass(frozen=True, slots=True)
class Assigned:
    """A pod that holds room on a node: bound, or assumed to be."""

    uid: str
    node: str
    resources: Resources = Resources()
    host_ports: tuple[HostPort, ...] = ()
    allocation: Allocation | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """The decision that a pod goes to this node and, if it asks for GPUs, onto these (port not drawn yet)."""

    node: str
    allocation: Allocation | None = None
    score: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one node or one GPU does not take the pod."""

    reason: str
    """A NodeReason or DeviceReason: a stable word."""
    detail: str = ""
    """What a person needs beside the word, such as the taint; never an amount that drifts from try to try."""


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """The decision that nothing takes the pod now, with the reason of every node and GPU."""

    nodes: dict[str, Refusal] = field(default_factory=dict)
    devices: dict[str, Refusal] = field(default_factory=dict)
    short: dict[str, int] = field(default_factory=dict)
    """Nodes on which some GPUs fit, but fewer than the pod's count: how many do. They have no entry in `nodes`."""
    wanted_devices: int = 0
    """The pod's count of GPUs; 0 for a pod without a GPU request."""
    total_nodes: int = 0
    total_devices: int = 0
    unsatisfiable: str = ""
    """A sentence where no node or GPU could ever fit, even empty: `memory 48Gi is more than any GPU has (…)`."""
    blocked: str = ""
    """A sentence where the pod waits for something other than nodes and room, such as a claim that isn't bound."""


Decision = Placed | Unschedulable
