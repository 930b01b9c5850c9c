"""What the demo shows: the operator on a real control plane, the examples applied, and whether all of it is true."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from sharepod_operator.cli.kubectl import Kubectl
from sharepod_operator.cli.second_act import FILL, PREEMPT, SecondAct
from sharepod_operator.core.audit import Holding, violations
from sharepod_operator.localcluster.commands import children_environment
from sharepod_operator.localcluster.errors import LocalClusterError
from sharepod_operator.localcluster.processes import start, wait_until
from sharepod_operator.manifest import names
from sharepod_operator.manifest.pod import read_pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharepod_operator.localcluster.cluster import Cluster
    from sharepod_operator.manifest.records import Json, PodRecord

_PACKAGE: Final = Path(__file__).parents[1]
_EXAMPLES: Final = (_PACKAGE / "_data" / "examples", _PACKAGE.parent / "examples")
"""In an installed wheel, and in the repository."""
_INVALID: Final = "invalid.yaml"
_OPERATOR: Final = "sharepod-operator"
_TIMEOUT: Final = 60.0
_SHAREPODS: Final = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
_PODS: Final = "/api/v1/namespaces/default/pods"


class Tour:
    """One way through the product, on a running control plane; can be taken again and again."""

    def __init__(self, cluster: Cluster, kubectl: Path) -> None:
        self._cluster = cluster
        self._kubectl = Kubectl(kubectl, cluster.kubeconfig, cluster.folder.folder("home") / "kubectl")
        self._examples = _examples_folder()
        self._second = SecondAct(cluster.client, self._kubectl, self._examples, self._wait)

    def show(self) -> None:
        """Start the operator, apply the examples, wait, print, check; then the second act.

        Raises:
            LocalClusterError: something is not as it should be.
        """
        self.start_operator()
        self._second.reset()
        for path in self._valid_examples():
            self._kubectl.run("apply", "-f", str(path))
            self._wait_for_sharepods(f"placing examples/{path.name}")
        self._show_refusal()
        typer.echo()
        self._kubectl.show("get", "sharepods", "-o", "wide")
        self._kubectl.show("get", "pods", "-o", "wide")
        self._check()
        self._second.show()
        self._check()

    def start_operator(self) -> None:
        """The operator in the background, unless it runs already; returns when it leads.

        Raises:
            LocalClusterError: it ended, or does not get ready.
        """
        files = self._cluster.folder.companion(_OPERATOR)
        if files.running() is not None:
            return
        port = _free_port()
        env = {
            **children_environment(self._cluster.folder, os.environ),
            "KUBECONFIG": str(self._cluster.kubeconfig),
            "SHAREPOD_HTTP_HOST": "127.0.0.1",
            "SHAREPOD_HTTP_PORT": str(port),
        }
        command = [sys.executable, "-m", "sharepod_operator.cli.main", "operator"]
        start(files, command, env=env, tethered=self._cluster.record.options.tethered)
        wait_until([files], "starting the operator", lambda: _leads(port), _TIMEOUT, every=0.1)

    def _valid_examples(self) -> list[Path]:
        """Those of the first act."""
        return [path for path in sorted(self._examples.glob("*.yaml")) if path.name not in (_INVALID, FILL, PREEMPT)]

    def _show_refusal(self) -> None:
        """The invalid example must be refused with a sentence that names the field."""
        said = self._kubectl.refusal("apply", "-f", str(self._examples / _INVALID))
        typer.echo(f"$ kubectl apply -f examples/{_INVALID}\n{said}")
        if "spec.gpu.limit" not in said:
            raise LocalClusterError("the invalid example was not refused with a sentence about spec.gpu.limit")

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        wait_until([self._cluster.folder.companion(_OPERATOR)], what, done, _TIMEOUT, every=0.2)

    def _wait_for_sharepods(self, what: str) -> None:
        try:
            self._wait(what, lambda: not self._unready())
        except LocalClusterError as error:
            waiting = [f"{name}: {text}" for name, text in self._unready().items()]
            raise LocalClusterError("; ".join([f"{what} failed", *waiting]) if waiting else str(error)) from error

    def _unready(self) -> dict[str, str]:
        """SharePods that are not fully ready, by name, with what their condition Ready says."""
        found = {}
        for sharepod in self._cluster.client.list(_SHAREPODS):
            status = sharepod.get("status", {})
            conditions: list[Json] = status.get("conditions", [])
            ready: Json = next((each for each in conditions if each["type"] == "Ready"), {})
            current = status.get("observedGeneration") == sharepod["metadata"]["generation"]
            if not current or ready.get("reason") != "AllReplicasReady":
                found[sharepod["metadata"]["name"]] = ready.get("message", "no status yet")
        return found

    def _check(self) -> None:
        """What is shown must be what is: the rules hold on the pods, and soon every status says what its pods say."""
        try:
            self._wait("true statuses", lambda: not self._problems())
        except LocalClusterError as error:
            raise LocalClusterError("; ".join(self._problems()) or str(error)) from error

    def _problems(self) -> list[str]:
        pods = [read_pod(pod) for pod in self._cluster.client.list(_PODS)]
        holdings = [
            Holding(pod.uid, pod.key, pod.node, pod.allocation, pod.pod.created) for pod in pods if pod.allocation
        ]
        problems = [violation.sentence for violation in violations(holdings)]
        for sharepod in self._cluster.client.list(_SHAREPODS):
            own = [pod for pod in pods if pod.owner is not None and pod.owner.uid == sharepod["metadata"]["uid"]]
            problems += _mismatches(sharepod, own)
        return problems


def _mismatches(sharepod: Json, pods: list[PodRecord]) -> list[str]:
    """Where the status differs from the pods' own ledger entries."""
    name = sharepod["metadata"]["name"]
    wanted = sharepod["spec"]["replicas"]
    told = Counter(
        (placement["pod"], placement["node"], tuple(placement["gpus"]), placement["port"])
        for placement in sharepod["status"]["placements"]
        if "gpus" in placement
    )
    actual = Counter(
        (pod.name, pod.node, pod.allocation.uuids, pod.allocation.port) for pod in pods if pod.allocation is not None
    )
    found = []
    if len(pods) != wanted:
        found.append(f"{name} wants {wanted} pods and has {len(pods)}")
    if told != actual:
        found.append(f"status of {name} says {sorted(told)}, its pods say {sorted(actual)}")
    return found


def _examples_folder() -> Path:
    for folder in _EXAMPLES:
        if (folder / _INVALID).exists():
            return folder
    raise LocalClusterError(f"no examples in {' or '.join(map(str, _EXAMPLES))}: the installation is not whole")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _leads(port: int) -> bool:
    """Whether the operator is ready and holds the Lease; a Lease left by a killed one takes some seconds to expire."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(json.load(answer)["leading"])
    except (OSError, urllib.error.URLError, ValueError):
        time.sleep(0.1)
        return False
