"""The second act of the demo: all GPUs are busy, a more important pod comes, and one of less important work leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.manifest import names
from sharepod_operator.manifest.pod import read_pod

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sharepod_operator.cli.kubectl import Kubectl
    from sharepod_operator.localcluster.client import Client
    from sharepod_operator.manifest.records import PodRecord

FILL: Final = "batch.yaml"
PREEMPT: Final = "preemption.yaml"
_LOW: Final = "sweep"
_HIGH: Final = "urgent"
_BOTH: Final = f"{names.LABEL_APP} in ({_LOW}, {_HIGH})"
_SHAREPODS: Final = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
_PODS: Final = "/api/v1/namespaces/default/pods"
_EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/default/events"


class SecondAct:
    """Preemption as people see it. `wait` waits until something is so, and is told what for."""

    def __init__(
        self, client: Client, kubectl: Kubectl, examples: Path, wait: Callable[[str, Callable[[], bool]], None]
    ) -> None:
        self._client = client
        self._kubectl = kubectl
        self._examples = examples
        self._wait = wait

    def reset(self) -> None:
        """Take back what an earlier showing has left: the pod that gave way runs again then."""
        self._kubectl.run("delete", "--ignore-not-found", "--wait=false", "sharepod", _HIGH)
        self._wait(f"the end of {_HIGH}", lambda: not self._pods(_HIGH))

    def show(self) -> None:
        """Fill the GPUs that are left, apply the more important SharePod, print what happens, and check it.

        Raises:
            LocalClusterError: something is not as it should be.
        """
        self._apply(FILL)
        self._wait(f"placing {FILL}", lambda: self._are_bound(_LOW, 2))
        before = {pod.uid: pod for pod in self._pods(_LOW)}
        self._apply(PREEMPT)
        self._wait("a nomination", lambda: any(pod.nominated or pod.node for pod in self._pods(_HIGH)))
        self._wait("the victim's replacement", lambda: len(self._pods(_LOW)) > len(before))
        self._wait(f"a status of {_HIGH} that says so", self._is_told)
        typer.echo()
        self._kubectl.show("get", "pods", "-o", "wide", "-l", _BOTH)
        self._kubectl.show("get", "sharepods", _LOW, _HIGH, "-o", "wide")
        victim, promised = self._check_waiting(before)
        self._wait(f"placing {PREEMPT}", lambda: self._are_bound(_HIGH, 1))
        self._wait("the end of the victim", lambda: victim.uid not in {pod.uid for pod in self._pods(_LOW)})
        self._kubectl.show("get", "pods", "-o", "wide", "-l", _BOTH)
        self._kubectl.show("get", "events", "--field-selector", "reason=Preempted,involvedObject.kind=Pod")
        self._check_end(victim, promised)

    def _apply(self, example: str) -> None:
        printed = self._kubectl.run("apply", "-f", str(self._examples / example))
        typer.echo(f"$ kubectl apply -f examples/{example}\n{printed}")

    def _check_waiting(self, before: dict[str, PodRecord]) -> tuple[PodRecord, PodRecord]:
        """The pod that leaves, and the one that waits for it."""
        leaving = [pod for pod in self._pods(_LOW) if pod.deleting]
        (promised,) = self._pods(_HIGH)
        if len(leaving) != 1 or leaving[0].uid not in before:
            raise LocalClusterError(f"one pod of {_LOW} should be leaving, not {[pod.name for pod in leaving]}")
        if promised.node or promised.nominated != leaving[0].node:
            raise LocalClusterError(
                f"{promised.name} should wait for {leaving[0].name} on node {leaving[0].node}; "
                f"it has node {promised.node!r} and nominated node {promised.nominated!r}"
            )
        return leaving[0], promised

    def _check_end(self, victim: PodRecord, promised: PodRecord) -> None:
        (running,) = self._pods(_HIGH)
        gave, got = (set(pod.allocation.uuids) if pod.allocation is not None else set() for pod in (victim, running))
        if (running.uid, running.node) != (promised.uid, victim.node) or not got or not got <= gave:
            raise LocalClusterError(
                f"{running.name} should have {sorted(gave)} of node {victim.node}, not {sorted(got)}"
            )
        kept = [pod.name for pod in self._pods(_LOW) if pod.node]
        if len(kept) != 1:
            raise LocalClusterError(f"one pod of {_LOW} should have kept its GPU, not {kept}")
        notes = [
            event["note"]
            for event in self._client.list(_EVENTS)
            if event["regarding"].get("uid") == victim.uid and event["reason"] == "Preempted"
        ]
        if notes != [f"Preempted by {running.key} on node {victim.node}"]:
            raise LocalClusterError(f"{victim.name} should have one event Preempted, not {notes}")

    def _are_bound(self, sharepod: str, number: int) -> bool:
        pods = self._pods(sharepod)
        return sum(pod.phase == "Running" for pod in pods) == len(pods) == number

    def _is_told(self) -> bool:
        """Whether the SharePod that waits says for whom."""
        status = self._client.get(f"{_SHAREPODS}/{_HIGH}").get("status", {})
        return any(each["reason"] == "WaitingForVictims" for each in status.get("conditions", ()))

    def _pods(self, sharepod: str) -> list[PodRecord]:
        found = self._client.list(_PODS, labelSelector=f"{names.LABEL_SHAREPOD}={sharepod}")
        return [read_pod(pod) for pod in found]
