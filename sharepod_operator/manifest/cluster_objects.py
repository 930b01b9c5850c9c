"""Kubernetes manifests as a scenario for `sharepod simulate`: Nodes, Pods and SharePods, as files or as kubectl prints them.

Bound Pods are charged, unbound ones that name our scheduler are placed, and each SharePod gets the replicas that it
lacks, in the order of the file; PersistentVolumes, their claims and StorageClasses say where the volumes of these Pods
can be, PriorityClasses and PodDisruptionBudgets who may be evicted for whom. Everything else is left out, and a note
says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sharepod_operator.core.model import Assigned, Node, Pod, Unschedulable
from sharepod_operator.core.occupancy import Occupant
from sharepod_operator.core.quantity import shown
from sharepod_operator.core.volumes import Claim, StorageClass, Volume, with_volumes
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import mapping, mappings
from sharepod_operator.manifest.disruption import BudgetRecord, read_budget, read_occupant
from sharepod_operator.manifest.gpu_env import BACKEND_ENV, with_gpu_env
from sharepod_operator.manifest.node import read_node
from sharepod_operator.manifest.pod import read_pod
from sharepod_operator.manifest.priority_classes import PriorityClasses
from sharepod_operator.manifest.records import Json, PodRecord, SharePodRecord
from sharepod_operator.manifest.render import DEFAULT_RENDERING, render_pod, replica_name
from sharepod_operator.manifest.scenario import Candidate, Promise, Scenario, read_plain
from sharepod_operator.manifest.sharepod import read_sharepod
from sharepod_operator.manifest.strict import ScenarioError, as_object, name_at, object_at, objects, refuse_twice
from sharepod_operator.manifest.volumes import read_claim, read_claim_uses, read_storage_class, read_volume

if TYPE_CHECKING:
    from collections.abc import Iterable

_VOLUME_KINDS = {
    "PersistentVolume": "v1",
    "PersistentVolumeClaim": "v1",
    "StorageClass": "storage.k8s.io/v1",
}
_FIRST_KINDS = {"PriorityClass": "scheduling.k8s.io/v1", "PodDisruptionBudget": "policy/v1"}
"""What is needed to read the others, wherever it stands in the file."""
_KINDS = {"Node": "v1", "Pod": "v1", names.KIND: names.API_VERSION, **_VOLUME_KINDS, **_FIRST_KINDS}


def read_scenario(documents: list[Any]) -> Scenario:
    """The scenario of a file: of the plain form, or of Kubernetes manifests.

    Raises:
        ScenarioError: the file is neither, or says something that can't be.
    """
    if not documents:
        raise ScenarioError("the file is empty; it must hold nodes and pods, or Kubernetes manifests")
    first = documents[0]
    if len(documents) == 1 and isinstance(first, dict) and "kind" not in first:
        return read_plain(first)
    return _Reading().read(documents)


@dataclass(slots=True)
class _Volumes:
    """The volumes of a file, and which of its pods use which claim."""

    claims: dict[str, Claim] = field(default_factory=dict)
    volumes: dict[str, Volume] = field(default_factory=dict)
    classes: dict[str, StorageClass] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)

    def take(self, kind: str, body: Json) -> None:
        if kind == "PersistentVolume":
            volume = read_volume(body)
            self.volumes[volume.name] = volume.volume
        elif kind == "PersistentVolumeClaim":
            claim = read_claim(body)
            self.claims[claim.name] = claim.claim
        else:
            storage_class = read_storage_class(body)
            self.classes[storage_class.name] = storage_class.storage_class

    def use(self, pod: Pod) -> None:
        for use in pod.claims:
            self.users.setdefault(use.key, pod.key)

    def located(self, candidate: Candidate, pod: Pod) -> Candidate:
        """The pod with its volumes; one that isn't blocked uses its claims from here on."""
        shape = with_volumes(pod, self)
        if isinstance(shape, Unschedulable):
            return replace(candidate, shape=pod.shape, blocked=shape)
        self.use(pod)
        return replace(candidate, shape=shape)

    def claim(self, key: str) -> Claim | None:
        return self.claims.get(key)

    def volume(self, name: str) -> Volume | None:
        return self.volumes.get(name)

    def storage_class(self, name: str) -> StorageClass | None:
        return self.classes.get(name)

    def user_of(self, key: str, but_not: str) -> str:  # noqa: ARG002 - nobody of the file asks about its own claim
        return self.users.get(key, "")


@dataclass(slots=True)
class _Reading:
    nodes: list[Node] = field(default_factory=list)
    pods: list[PodRecord] = field(default_factory=list)
    waiting: list[PodRecord | SharePodRecord] = field(default_factory=list)
    volumes: _Volumes = field(default_factory=_Volumes)
    classes: PriorityClasses = field(default_factory=PriorityClasses)
    budgets: list[BudgetRecord] = field(default_factory=list)
    later: list[tuple[str, Json, str]] = field(default_factory=list)
    """What is read last: its kind, body and path."""
    promises: list[Promise] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    names: set[tuple[str, str]] = field(default_factory=set)
    """Namespace and name of every Pod in the file."""
    replicas: dict[tuple[str, str], list[PodRecord]] = field(default_factory=dict)
    """Namespace and name of a SharePod to the active Pods that name it as their owner."""

    def read(self, documents: list[Any]) -> Scenario:
        for index, document in enumerate(documents):
            self._take(document, f"document {index + 1}")
        for kind, body, where in self.later:
            self._read_object(kind, body, where)
        refuse_twice("Nodes", (node.name for node in self.nodes), "node")
        refuse_twice("Nodes", (device.uuid for node in self.nodes for device in node.devices), "GPU")
        refuse_twice("Pods", (pod.key for pod in self.pods), "pod")
        refuse_twice("SharePods", (item.key for item in self.waiting if isinstance(item, SharePodRecord)), "SharePod")
        refuse_twice("PodDisruptionBudgets", (budget.key for budget in self.budgets), "PodDisruptionBudget")
        candidates: list[Candidate] = []
        for item in self.waiting:
            candidates += self._replicas(item) if isinstance(item, SharePodRecord) else [self._candidate(item)]
        self.notes += self.classes.note()
        self.notes += [f"left out: {count} {kind}" for kind, count in sorted(self.left_out.items())]
        there = [pod for pod in self.pods if pod.node]
        condemned = self._condemned()
        occupants = [(read_occupant(pod, self.budgets), pod.uid in condemned) for pod in there]
        return Scenario(
            tuple(self.nodes),
            tuple(_assigned(there)),
            tuple(candidates),
            tuple(replace(pod, leaving=True) if called else pod for pod, called in occupants),
            frozenset(pod.uid or pod.key for pod in there if pod.deleting and pod.disrupted) | condemned,
            tuple(self.promises),
            {budget.key: budget.allowed for budget in self.budgets},
            tuple(self.notes),
        )

    def _condemned(self) -> frozenset[str]:
        """Uids of those who leave for a pod of ours that was promised their room, told so already or not."""
        promised = (pod.nomination for pod in self.waiting if isinstance(pod, PodRecord) and pod.nomination)
        return frozenset(victim.uid for nomination in promised for victim in nomination.victims)

    def _take(self, document: Any, where: str) -> None:
        if isinstance(document, list):
            for index, item in enumerate(document):
                self._take(item, f"{where}[{index}]")
            return
        body = as_object(document, where)
        kind = body.get("kind")
        if not isinstance(kind, str):
            raise ScenarioError(
                f"{where}.kind is {shown(kind)}; it must be a Kubernetes object such as {', '.join(_KINDS)}"
            )
        if kind.endswith("List") and "items" in body:
            for item, here in objects(body, "items", where):
                self._take({"kind": kind.removesuffix("List"), "apiVersion": body.get("apiVersion"), **item}, here)
        elif kind not in _KINDS:
            self.left_out[kind] += 1
        elif body.get("apiVersion") != _KINDS[kind]:
            raise ScenarioError(
                f"{where}.apiVersion is {shown(body.get('apiVersion'))}; for a {kind} it must be {_KINDS[kind]}"
            )
        else:
            name_at(object_at(body, "metadata", where), f"{where}.metadata")
            self._sort(kind, body, where)

    def _sort(self, kind: str, body: Json, where: str) -> None:
        metadata = body["metadata"]
        if kind == "PriorityClass":
            self.classes.take(body)
        elif kind == "PodDisruptionBudget":
            self.budgets.append(
                read_budget({**body, "metadata": {**metadata, "namespace": metadata.get("namespace") or "default"}})
            )
        else:
            self.later.append((kind, body, where))

    def _read_object(self, kind: str, body: Json, where: str) -> None:
        if kind == "Node":
            self.nodes.append(_node(body, where))
            return
        metadata = body["metadata"]
        body = {**body, "metadata": {**metadata, "namespace": metadata.get("namespace") or "default"}}
        if kind in _VOLUME_KINDS:
            self.volumes.take(kind, body)
        elif kind == "Pod":
            self._take_pod(read_pod(self.classes.admitted(body if metadata.get("uid") else _as_admitted(body))))
        else:
            sharepod = read_sharepod(body)
            self.waiting += [] if sharepod.deleting else [sharepod]

    def _take_pod(self, pod: PodRecord) -> None:
        if pod.finished:
            return
        self.pods.append(pod)
        self.names.add((pod.namespace, pod.name))
        if pod.active and pod.owner is not None and pod.owner.kind == names.KIND:
            self.replicas.setdefault((pod.namespace, pod.owner.name), []).append(pod)
        if pod.ledger_error:
            self.notes.append(f"Pod {pod.key}: its GPUs are not charged: {pod.ledger_error}")
        if pod.node:
            self.volumes.use(pod.pod)
        if pod.node or pod.deleting:
            return
        if pod.scheduler_name != names.SCHEDULER_NAME:
            self.left_out[f"Pod of scheduler {pod.scheduler_name or 'default-scheduler'}"] += 1
            if pod.nominated:
                promised = Assigned(pod.uid or pod.key, pod.nominated, pod.charged, pod.host_ports)
                self.promises.append(Promise(promised, pod.pod.priority))
        elif pod.gated:
            self.left_out["Pod with schedulingGates"] += 1
        else:
            self.waiting.append(pod)

    def _replicas(self, sharepod: SharePodRecord) -> list[Candidate]:
        """The replicas that a SharePod lacks beside the Pods of its that are in the file."""
        if sharepod.invalid:
            return [Candidate(Occupant(sharepod.key, sharepod.key), invalid="; ".join(sharepod.invalid))]
        mine = self.replicas.get((sharepod.namespace, sharepod.name), [])
        there = sum(_has_uid(pod, sharepod.uid) for pod in mine)
        record = read_pod(self.classes.admitted(render_pod(sharepod, sharepod.name)))
        ordinal = 0
        made: list[Candidate] = []
        while len(made) < sharepod.wanted - there:
            name = replica_name(sharepod.name, sharepod.uid or sharepod.key, ordinal, 0)
            ordinal += 1
            if (sharepod.namespace, name) not in self.names:
                claims = read_claim_uses(sharepod.pod_spec.value, sharepod.namespace, name)
                pod = replace(record.pod, name=name, claims=claims)
                made.append(self._candidate(replace(record, name=name, pod=pod)))
        return made

    def _candidate(self, pod: PodRecord) -> Candidate:
        occupant = replace(read_occupant(pod, self.budgets), uid=pod.key)
        if pod.invalid:
            return Candidate(occupant, invalid=pod.invalid)
        promised = pod.nomination
        candidate = Candidate(
            occupant,
            never=pod.never_preempts,
            nominated=pod.nominated if promised is None else promised.node,
            promised=None if promised is None else promised.allocation,
        )
        return self.volumes.located(candidate, pod.pod)


def _assigned(pods: Iterable[PodRecord]) -> list[Assigned]:
    return [Assigned(pod.uid or pod.key, pod.node, pod.charged, pod.host_ports, pod.allocation) for pod in pods]


def _as_admitted(body: Json) -> Json:
    """A Pod that no API server has seen yet, with the environment that the admission policies would give it."""
    spec = mapping(body.get("spec"))
    env = BACKEND_ENV[DEFAULT_RENDERING.backend]
    kinds = {
        kind: [with_gpu_env(container, env) for container in mappings(spec.get(kind))]
        for kind in ("initContainers", "containers")
        if kind in spec
    }
    return {**body, "spec": {**spec, **kinds}}


def _has_uid(pod: PodRecord, uid: str) -> bool:
    """Whether the owner may be the object of this uid; in files written by hand either may have none."""
    return pod.owner is not None and (not pod.owner.uid or not uid or pod.owner.uid == uid)


def _node(body: Json, where: str) -> Node:
    """A Node that no kubelet has reported on yet, as in a file written by hand, counts as ready."""
    record = read_node(body)
    if record.inventory_error:
        raise ScenarioError(f"{where}: Node {record.name}: {record.inventory_error}")
    reported = mapping(body.get("status")).get("conditions")
    return record.node if reported else replace(record.node, ready=True)
