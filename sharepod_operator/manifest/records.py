"""What the operator keeps of each Kubernetes object: small, frozen, without the raw body.

The readers in this package make them: `pod.read_pod`, `sharepod.read_sharepod`, `node.read_node`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sharepod_operator.core.model import Allocation, GPURequest, HostPort, Node, Pod, Resources
from sharepod_operator.manifest.packed import PackedJson

if TYPE_CHECKING:
    from sharepod_operator.manifest.nomination import Nomination

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """The controlling ownerReference of an object."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A Pod as the cache keeps it: what the scheduler charges and what the controller counts."""

    uid: str
    namespace: str
    name: str
    version: int
    """metadata.resourceVersion; versions of one resource type compare as integers."""
    pod: Pod
    """What placement looks at. Its shape has no GPURequest where the request could not be read."""
    invalid: str = ""
    """One sentence where the request on the Pod can't be read; such a pod is never placed."""
    scheduler_name: str = ""
    gated: bool = False
    """It has schedulingGates: no head for the scheduler yet."""
    wants_gpu: bool = False
    """It asks for a GPU, whether or not the request can be honoured."""
    nominated: str = ""
    """status.nominatedNodeName of a pod without a node: where somebody, this scheduler or another one, promised it room."""
    nomination: Nomination | None = None
    """What this scheduler decided for it when it made pods leave; None on a bound pod, whatever its annotation says."""
    never_preempts: bool = False
    """preemptionPolicy Never."""
    labels: tuple[tuple[str, str], ...] = ()
    protected: bool = False
    """Evicting it would free nothing for long: a mirror pod, or one of a DaemonSet."""
    disrupted: bool = False
    """A scheduler told it to leave for a more important pod (DisruptionTarget)."""
    grace_seconds: int = 30
    """The time to end that it was given when it was deleted."""
    node: str = ""
    phase: str = "Pending"
    deleting: bool = False
    deletion_time: str = ""
    owner: Owner | None = None
    template_hash: str = ""
    replica: str = ""
    """Its annotation faasshare.tum/replica, as written: ordinal, incarnation and losses."""
    restart_policy: str = "Always"
    ready: bool = False
    ready_since: str = ""
    """RFC 3339; "" where not ready or not known."""
    start_time: str = ""
    restarts: int = 0
    """The highest restart count of its containers."""
    deletion_cost: int = 0
    reason: str = ""
    """status.reason, such as Evicted or OutOfcpu."""
    scheduled_reason: str = ""
    """Reason of the condition PodScheduled where it is False."""
    scheduled_message: str = ""
    bound_at: str = ""
    """When it was bound, RFC 3339; "" where it isn't, or where nobody noted it."""
    allocation: Allocation | None = None
    """The ledger entry that came with our Binding."""
    ledger_error: str = ""
    """One sentence where a bound pod carries a ledger entry that can't be read; its GPUs are then unknown."""
    charged: Resources = Resources()  # noqa: RUF009 - frozen
    """The amounts it takes on its node: the larger of spec and what the kubelet has allocated after a resize."""
    host_ports: tuple[HostPort, ...] = ()
    whole_gpus: int = 0
    """nvidia.com/gpu of a pod placed by somebody else."""

    @property
    def key(self) -> str:
        """namespace/name, for people."""
        return f"{self.namespace}/{self.name}"

    @property
    def bound_by_others(self) -> bool:
        """A GPU pod that has a node and no ledger entry: no Binding of this operator, so it sees no GPU."""
        return self.wants_gpu and bool(self.node) and self.allocation is None and not self.ledger_error

    @property
    def finished(self) -> bool:
        """Its phase is final: nothing of it is charged any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def active(self) -> bool:
        """It counts as a replica: neither finished nor on its way out (Kubernetes' FilterActivePods)."""
        return not self.finished and not self.deleting


@dataclass(frozen=True, slots=True)
class SharePodRecord:
    """A SharePod as the cache keeps it."""

    uid: str
    namespace: str
    name: str
    version: int
    generation: int
    created: str
    deleting: bool
    replicas: int
    """spec.replicas as given."""
    wanted: int
    """The number of replicas to keep: `replicas` raised to the floor of com.openfaas.scale.min."""
    min_ready_seconds: int
    pod_spec: PackedJson
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    selector: Json | None
    """spec.selector as given."""
    gpu: GPURequest | None
    """The request of each replica; None for CPU-only ones, and where `invalid` says that it can't be read."""
    gpu_source: str
    """Where the request was written: `spec`, `annotations`, `spec+annotations` or `` for none."""
    invalid: tuple[str, ...] = ()
    """Each sentence names a field, its value and what would be right; empty where the SharePod is fine."""
    status: PackedJson = PackedJson()  # noqa: RUF009 - frozen
    """The status last seen; output only, compared with before a write and never read for a decision."""
    ready_reason: str = ""
    """Reason of the condition Ready in that status; "" where there is none."""
    template_hash: str = ""
    """Of everything that a replica's Pod is made of."""

    @property
    def key(self) -> str:
        """namespace/name, for people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A Node as the cache keeps it."""

    uid: str
    name: str
    version: int
    node: Node
    inventory_error: str = ""
    """One sentence where the inventory annotation can't be read; the node then offers no GPUs."""
