"""Kubernetes manifests as a scenario for `sharepod simulate`: Nodes, Pods and SharePods, as files or as kubectl prints them.

Bound Pods are charged, unbound ones that name our scheduler are placed, and each SharePod gets the replicas that it
lacks, in the order of the file. Everything else is left out, and a note says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from sharepod_operator.core.model import Assigned, Node
from sharepod_operator.core.quantity import shown
from sharepod_operator.manifest import names
from sharepod_operator.manifest.access import mapping
from sharepod_operator.manifest.node import read_node
from sharepod_operator.manifest.pod import read_pod
from sharepod_operator.manifest.records import Json, PodRecord, SharePodRecord
from sharepod_operator.manifest.render import render_pod, replica_name
from sharepod_operator.manifest.scenario import Candidate, Scenario, read_plain
from sharepod_operator.manifest.sharepod import read_sharepod
from sharepod_operator.manifest.strict import ScenarioError, as_object, name_at, object_at, objects, refuse_twice

_KINDS = {"Node": "v1", "Pod": "v1", names.KIND: names.API_VERSION}


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
class _Reading:
    nodes: list[Node] = field(default_factory=list)
    pods: list[PodRecord] = field(default_factory=list)
    waiting: list[PodRecord | SharePodRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    names: set[tuple[str, str]] = field(default_factory=set)
    """Namespace and name of every Pod in the file."""
    replicas: dict[tuple[str, str], list[PodRecord]] = field(default_factory=dict)
    """Namespace and name of a SharePod to the active Pods that name it as their owner."""

    def read(self, documents: list[Any]) -> Scenario:
        for index, document in enumerate(documents):
            self._take(document, f"document {index + 1}")
        refuse_twice("Nodes", (node.name for node in self.nodes), "node")
        refuse_twice("Nodes", (device.uuid for node in self.nodes for device in node.devices), "GPU")
        refuse_twice("Pods", (pod.key for pod in self.pods), "pod")
        refuse_twice("SharePods", (item.key for item in self.waiting if isinstance(item, SharePodRecord)), "SharePod")
        candidates: list[Candidate] = []
        for item in self.waiting:
            candidates += self._replicas(item) if isinstance(item, SharePodRecord) else [_candidate(item)]
        self.notes += [f"left out: {count} {kind}" for kind, count in sorted(self.left_out.items())]
        return Scenario(tuple(self.nodes), tuple(self._assigned()), tuple(candidates), tuple(self.notes))

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
            self._read_object(kind, body, where)

    def _read_object(self, kind: str, body: Json, where: str) -> None:
        if kind == "Node":
            self.nodes.append(_node(body, where))
            return
        metadata = body["metadata"]
        body = {**body, "metadata": {**metadata, "namespace": metadata.get("namespace") or "default"}}
        if kind == "Pod":
            self._take_pod(read_pod(body))
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
        if pod.node or pod.deleting:
            return
        if pod.scheduler_name != names.SCHEDULER_NAME:
            self.left_out[f"Pod of scheduler {pod.scheduler_name or 'default-scheduler'}"] += 1
        elif pod.gated:
            self.left_out["Pod with schedulingGates"] += 1
        else:
            self.waiting.append(pod)

    def _assigned(self) -> list[Assigned]:
        return [
            Assigned(pod.uid or pod.key, pod.node, pod.charged, pod.host_ports, pod.allocation)
            for pod in self.pods
            if pod.node
        ]

    def _replicas(self, sharepod: SharePodRecord) -> list[Candidate]:
        """The replicas that a SharePod lacks beside the Pods of its that are in the file."""
        if sharepod.invalid:
            return [Candidate(sharepod.key, invalid="; ".join(sharepod.invalid))]
        mine = self.replicas.get((sharepod.namespace, sharepod.name), [])
        there = sum(_has_uid(pod, sharepod.uid) for pod in mine)
        shape = read_pod(render_pod(sharepod, sharepod.name)).pod.shape
        ordinal = 0
        made: list[Candidate] = []
        while len(made) < sharepod.wanted - there:
            name = replica_name(sharepod.name, sharepod.uid or sharepod.key, ordinal, 0)
            ordinal += 1
            if (sharepod.namespace, name) not in self.names:
                made.append(Candidate(f"{sharepod.namespace}/{name}", shape))
        return made


def _has_uid(pod: PodRecord, uid: str) -> bool:
    """Whether the owner may be the object of this uid; in files written by hand either may have none."""
    return pod.owner is not None and (not pod.owner.uid or not uid or pod.owner.uid == uid)


def _candidate(pod: PodRecord) -> Candidate:
    return Candidate(pod.key, invalid=pod.invalid) if pod.invalid else Candidate(pod.key, pod.pod.shape)


def _node(body: Json, where: str) -> Node:
    """A Node that no kubelet has reported on yet, as in a file written by hand, counts as ready."""
    record = read_node(body)
    if record.inventory_error:
        raise ScenarioError(f"{where}: Node {record.name}: {record.inventory_error}")
    reported = mapping(body.get("status")).get("conditions")
    return record.node if reported else replace(record.node, ready=True)
