"""The rights that the operator needs, and a service account that has these and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sharepod_operator.manifest import names

if TYPE_CHECKING:
    from pathlib import Path

    from sharepod_operator.localcluster.cluster import Cluster

NAMESPACE: Final = "sharepod-system"
ACCOUNT: Final = "sharepod-operator"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
_READ: Final = ("get", "list", "watch")
_RULES: Final = (
    (names.GROUP, names.PLURAL, _READ),
    (names.GROUP, f"{names.PLURAL}/status", ("patch",)),
    ("", "pods", (*_READ, "create", "delete", "patch")),
    ("", "pods/binding", ("create",)),
    ("", "pods/status", ("patch",)),
    ("", "nodes", (*_READ, "patch")),
    ("events.k8s.io", "events", ("create", "patch")),
    ("apiextensions.k8s.io", "customresourcedefinitions", _READ),
)
_LEASE_RULE: Final = ("coordination.k8s.io", "leases", ("get", "create", "update"))


def operator_kubeconfig(cluster: Cluster) -> Path:
    """A kubeconfig of the operator's own service account; account and rights are made if they are not there yet."""
    client = cluster.client
    if client.find(f"/api/v1/namespaces/{NAMESPACE}") is None:
        cluster.add_namespace(NAMESPACE)
    rbac: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    meta = {"name": ACCOUNT}
    here = {**meta, "namespace": NAMESPACE}
    subjects = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}]
    group = "rbac.authorization.k8s.io"
    client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here})
    client.apply({**rbac, "kind": "ClusterRole", "metadata": meta, "rules": [_rule(*each) for each in _RULES]})
    client.apply({**rbac, "kind": "Role", "metadata": here, "rules": [_rule(*_LEASE_RULE)]})
    for kind, role, metadata in (("ClusterRoleBinding", "ClusterRole", meta), ("RoleBinding", "Role", here)):
        reference = {"apiGroup": group, "kind": role, "name": ACCOUNT}
        client.apply({**rbac, "kind": kind, "metadata": metadata, "roleRef": reference, "subjects": subjects})
    return cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT)


def _rule(group: str, resource: str, verbs: tuple[str, ...]) -> dict[str, list[str]]:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
