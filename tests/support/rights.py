"""The operator's service account and its rights, as manifests/ ships them; nothing is granted here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.support.audit import requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sharepod_operator.localcluster.cluster import Cluster
    from tests.support.audit import Request

NAMESPACE: Final = "sharepod-system"
ACCOUNT: Final = "sharepod-operator"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
FORBIDDEN: Final = 403


def shipped(*files: str) -> list[dict[str, Any]]:
    """The objects of these files of manifests/."""
    return [each for file in files for each in yaml.safe_load_all((MANIFESTS / file).read_text()) if each]


def operator_kubeconfig(cluster: Cluster) -> Path:
    """A kubeconfig of the operator's own service account; account and rights are made if they are not there yet."""
    for manifest in shipped("namespace.yaml", "rbac.yaml"):
        cluster.client.apply(manifest)
    return cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT)


def granted() -> set[tuple[str, str]]:
    """Verb and resource, such as `("create", "pods/binding")`, of everything that the operator's roles allow."""
    return {
        (verb, resource)
        for role in shipped("rbac.yaml")
        if role["kind"] in ("ClusterRole", "Role")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def exercised(done: Iterable[Request]) -> set[tuple[str, str]]:
    """Verb and resource of everything that was asked and allowed; discovery names no resource and needs no role."""
    return {(each.verb, each.resource) for each in done if each.resource and each.code != FORBIDDEN}


def refused(log: Path) -> dict[str, int]:
    """What the operator asked and RBAC forbade, as `verb resource`, and how often.

    An admission policy or a quota answers 403 as well; those are answers to a request that the operator may send.
    """
    return dict(Counter(f"{each.verb} {each.resource}" for each in _forbidden(log)))


def _forbidden(log: Path) -> Iterator[Request]:
    for each in requests(log, USER):
        if each.code == FORBIDDEN and each.decision == "forbid":
            yield each
