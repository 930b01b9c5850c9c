"""What a test on a real control plane works with: manifests, kubectl, bounded waits, and a report when one of them fails."""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sharepod_operator.localcluster.errors import ApiError
from tests.support import invariants
from tests.support.invariants import Objects, ledger, name_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sharepod_operator.localcluster.cluster import Cluster
    from tests.support.operator_process import OperatorProcess

T = TypeVar("T")

LIMIT: Final = 30.0
"""Seconds for one thing to come true; a loaded machine needs some of them."""
COLLECTED: Final = 60.0
"""Seconds for the garbage collector, which looks for new kinds of owners every thirty."""
SHAREPODS: Final = "/apis/faasshare.tum/v1"
_POLL: Final = 0.05


def sharepod(
    name: str,
    gpu: dict[str, Any] | None = None,
    *,
    replicas: int | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
    **pod_spec: Any,
) -> dict[str, Any]:
    """A SharePod; its pods end at once when they are deleted, unless `pod_spec` says otherwise."""
    body: dict[str, Any] = {
        "podSpec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}}}],
            **pod_spec,
        },
        **(spec or {}),
    }
    if gpu is not None:
        body["gpu"] = gpu
    if replicas is not None:
        body["replicas"] = replicas
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"apiVersion": "faasshare.tum/v1", "kind": "SharePod", "metadata": metadata, "spec": body}


def gpu(request: float, memory: str = "0", **more: Any) -> dict[str, Any]:
    return {"request": request, "memory": memory, **more}


@dataclass(slots=True)
class Workbench:
    """One namespace of a running cluster, and the operators that are at work there."""

    cluster: Cluster
    kubectl_path: Path
    namespace: str
    operators: list[OperatorProcess] = field(default_factory=list)

    # Doing

    def kubectl(self, *arguments: str, stdin: Any = None) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl in the namespace; `stdin` is written as JSON."""
        return subprocess.run(
            [str(self.kubectl_path), "--kubeconfig", str(self.cluster.kubeconfig), "-n", self.namespace, *arguments],
            input=None if stdin is None else json.dumps(stdin),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={"HOME": str(self.cluster.folder.folder("home")), "PATH": ""},
        )

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return self.cluster.client.create(f"{SHAREPODS}/namespaces/{self.namespace}/sharepods", manifest)

    def edit(self, name: str, patch: dict[str, Any]) -> None:
        self.cluster.client.patch(self._sharepod_path(name), patch)

    def scale(self, name: str, replicas: int) -> None:
        self.edit(name, {"spec": {"replicas": replicas}})

    def delete(self, name: str) -> None:
        self.cluster.client.delete(self._sharepod_path(name))

    def delete_all(self) -> None:
        """Delete every SharePod of the namespace and wait until no pod is left."""
        for each in self._sharepods():
            try:
                self.delete(each["metadata"]["name"])
            except ApiError as error:
                if error.code != http.client.NOT_FOUND:
                    raise
        self.until("nothing is left", lambda: not self.pods() and not self._sharepods(), COLLECTED)

    # Looking

    def sharepod(self, name: str) -> dict[str, Any]:
        return self.cluster.client.get(self._sharepod_path(name))

    def pods(self, name: str = "") -> list[dict[str, Any]]:
        """The pods of a SharePod by name, or all of the namespace."""
        query = {"labelSelector": f"faasshare.tum/sharepod={name}"} if name else {}
        found = self.cluster.client.list(f"/api/v1/namespaces/{self.namespace}/pods", **query)
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def pod(self, name: str) -> dict[str, Any]:
        """The only pod of a SharePod."""
        (found,) = self.pods(name)
        return found

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        conditions = self.sharepod(name).get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), {})

    def placement(self, name: str) -> list[tuple[str, tuple[str, ...]]]:
        """Node and GPUs of each pod of a SharePod, sorted."""
        placed = [(pod, ledger(pod)) for pod in self.pods(name)]
        return sorted(
            (pod["spec"]["nodeName"], tuple(sorted(card["uuid"] for card in entry["gpus"])))
            for pod, entry in placed
            if entry is not None
        )

    def events(self, reason: str, kind: str = "SharePod") -> list[dict[str, Any]]:
        found = self.cluster.client.list(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        return [each for each in found if each["reason"] == reason and each["regarding"]["kind"] == kind]

    def objects(self, *, all_namespaces: bool = False) -> Objects:
        client = self.cluster.client
        where = "" if all_namespaces else f"/namespaces/{self.namespace}"
        return Objects(
            sharepods=client.list(f"{SHAREPODS}{where}/sharepods"),
            pods=client.list(f"/api/v1{where}/pods"),
            nodes=client.list("/api/v1/nodes"),
            events=client.list(f"/apis/events.k8s.io/v1{where}/events"),
        )

    # Waiting

    def until(self, what: str, probe: Callable[[], T], limit: float = LIMIT) -> T:
        """The first true answer of `probe`; otherwise the test fails with everything that is known."""
        deadline = time.monotonic() + limit
        while True:
            answer = probe()
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(f"not in {limit:.0f} s: {what}\n{self.report()}")
            time.sleep(_POLL)

    def running(self, name: str, replicas: int = 1, limit: float = LIMIT) -> list[dict[str, Any]]:
        """Wait until exactly so many pods of the SharePod are Running and its status says so; these pods."""

        def probe() -> tuple[list[dict[str, Any]], ...]:
            found = self.sharepod(name)
            status, pods = found.get("status", {}), self.pods(name)
            phases = [pod["status"].get("phase") for pod in pods]
            shown = status.get("observedGeneration") == found["metadata"]["generation"]
            whole = phases == ["Running"] * replicas and status.get("readyReplicas") == replicas
            return (pods,) if shown and whole else ()

        return self.until(f"{replicas} replicas of {name} run", probe, limit)[0]

    def waits(self, name: str, kind: str, reason: str, limit: float = LIMIT) -> dict[str, Any]:
        """Wait until a condition of the SharePod has this reason, for its present generation; the condition."""

        def probe() -> dict[str, Any]:
            found = self.condition(name, kind)
            now = self.sharepod(name)["metadata"]["generation"]
            return found if (found.get("reason"), found.get("observedGeneration")) == (reason, now) else {}

        return self.until(f"condition {kind} of {name} has reason {reason}", probe, limit)

    def check(self, limit: float = LIMIT) -> None:
        """Wait for rest: every rule holds on what the API server has, and every status is true."""
        deadline = time.monotonic() + limit
        while wrong := invariants.at_rest(self.objects()):
            if time.monotonic() > deadline:
                raise AssertionError("\n".join(["at rest these are wrong:", *wrong, self.report()]))
            time.sleep(_POLL)

    def report(self) -> str:
        """What a failed test needs to show."""
        lines = [f"=== namespace {self.namespace}"]
        for each in self._sharepods():
            told = [
                f"{c['type']}={c['status']} {c['reason']}: {c['message']}"
                for c in each.get("status", {}).get("conditions", ())
            ]
            lines += [
                f"SharePod {name_of(each)} generation {each['metadata']['generation']}",
                *(f"  {t}" for t in told),
            ]
        for pod in self.pods():
            why = [c.get("message", "") for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
            deleting = " deleting" if pod["metadata"].get("deletionTimestamp") else ""
            lines.append(
                f"Pod {name_of(pod)} {pod['status'].get('phase')}{deleting} on {pod['spec'].get('nodeName')}: "
                f"{ledger(pod)} {why}"
            )
        return "\n".join([*lines, *(operator.tail() for operator in self.operators)])

    def _sharepods(self) -> list[dict[str, Any]]:
        """Empty where the CRD is missing, so that a report can be made there, too."""
        try:
            return self.cluster.client.list(f"{SHAREPODS}/namespaces/{self.namespace}/sharepods")
        except ApiError as error:
            if error.code != http.client.NOT_FOUND:
                raise
            return []

    def _sharepod_path(self, name: str) -> str:
        return f"{SHAREPODS}/namespaces/{self.namespace}/sharepods/{name}"
