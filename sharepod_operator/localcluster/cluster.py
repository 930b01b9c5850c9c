"""A handle on a running control plane: who may talk to it, which nodes it has, what it serves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sharepod_operator.localcluster import crds, policies
from sharepod_operator.localcluster.access import write_kubeconfig
from sharepod_operator.localcluster.commands import KWOK_LABEL, KWOK_LABEL_VALUE, kubeconfig_for
from sharepod_operator.localcluster.errors import ApiError, LocalClusterError
from sharepod_operator.localcluster.nodes import FakeNode, is_ready, node_manifest
from sharepod_operator.localcluster.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from sharepod_operator.localcluster.client import Client
    from sharepod_operator.localcluster.state import Record, StateFolder

START_TIMEOUT: Final = 60.0
"""Seconds that one step of a start may take."""
_FAKE: Final = f"{KWOK_LABEL}={KWOK_LABEL_VALUE}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running control plane."""

    folder: StateFolder
    record: Record
    client: Client

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder.kubeconfig

    @property
    def audit_log(self) -> Path:
        """One JSON event a line; there only with the option `audit`."""
        return self.folder.audit_log

    def user_kubeconfig(self, name: str) -> Path:
        """The kubeconfig of a user named in the options."""
        if name not in {user.name for user in self.record.options.users}:
            raise LocalClusterError(f"no user {name!r} in this control plane: name him in ClusterOptions.users")
        return kubeconfig_for(self.folder, name)

    def user_client(self, name: str) -> Client:
        """A client that acts as a user named in the options."""
        self.user_kubeconfig(name)
        return self.client.acting_as(self.record.tokens[name])

    def service_account_kubeconfig(self, namespace: str, name: str, *, seconds: int = 36_000) -> Path:
        """A kubeconfig that acts as an existing service account, with a fresh token that expires after `seconds`."""
        token = self.service_account_token(namespace, name, seconds=seconds)
        path = self.folder.folder("users") / f"serviceaccount-{namespace}-{name}.kubeconfig"
        return write_kubeconfig(path, self.folder, self.record.server, token)

    def service_account_token(self, namespace: str, name: str, *, seconds: int = 36_000) -> str:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = self.client.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", body)
        return str(answer["status"]["token"])

    def add_namespace(self, name: str, *, timeout: float = 30.0) -> None:
        """Creates a namespace and waits for its default service account, without which no pod can be created."""
        self.client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self._wait(
            f"the default service account of namespace {name}", lambda: self.client.find(account) is not None, timeout
        )

    def add_node(self, node: FakeNode, *, timeout: float = 120.0) -> None:
        """Creates one fake node and waits until it is Ready."""
        self.add_nodes([node], timeout=timeout)

    def add_nodes(self, nodes: Iterable[FakeNode], *, exist_ok: bool = False, timeout: float = 120.0) -> None:
        """Creates many fake nodes at once and waits until all are Ready. With `exist_ok` a node that is there is kept."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        wanted = {node.name: node_manifest(node, now) for node in nodes}

        def create(manifest: Mapping[str, Any]) -> None:
            try:
                self.client.create("/api/v1/nodes", manifest)
            except ApiError as error:
                if not (exist_ok and error.reason == "AlreadyExists"):
                    raise

        self.client.in_parallel(create, list(wanted.values()))
        self._wait_for_nodes(set(wanted), timeout)

    def remove_node(self, name: str) -> None:
        self.client.delete(f"/api/v1/nodes/{name}")

    def silence_kubelet(self, name: str) -> None:
        """Lets a node's kubelet fall silent: its lease is no longer renewed, its pods no longer change, and within a
        minute the controller-manager marks it NotReady.
        """
        self.client.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {KWOK_LABEL: None}}})

    def revive_kubelet(self, name: str) -> None:
        """Undoes `silence_kubelet`."""
        self.client.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {KWOK_LABEL: KWOK_LABEL_VALUE}}})

    def apply_crds(self) -> None:
        """Applies the project's CRDs and waits until their resources can be listed."""
        crds.apply(self.client)

    def apply_policies(self) -> None:
        """Applies the project's admission policies, after the CRDs, and waits until they are in force."""
        policies.apply(self.client)

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Waits until the API server is ready, pods can be created in namespace `default`, and every node is Ready whose
        kubelet is played by kwok.
        """
        processes = self.folder.processes()
        wait_until(processes[:2], "starting the API server", self.client.is_ready, timeout)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_until(processes, "the default service account", lambda: self.client.find(account) is not None, timeout)
        fake = {node["metadata"]["name"] for node in self.client.list("/api/v1/nodes", labelSelector=_FAKE)}
        self._wait_for_nodes(fake, timeout)

    def _wait_for_nodes(self, names: set[str], timeout: float) -> None:
        def all_ready() -> bool:
            ready = {node["metadata"]["name"] for node in self.client.list("/api/v1/nodes") if is_ready(node)}
            return names <= ready

        # A list of thousands of nodes is work that slows down what is waited for.
        every = 0.03 + len(names) / 1000
        what = f"waiting for {len(names)} nodes to be Ready"
        self._wait(what, all_ready, timeout, every)

    def _wait(self, what: str, ready: Callable[[], bool], timeout: float, every: float = 0.03) -> None:
        wait_until(self.folder.processes(), what, ready, timeout, every=every)
