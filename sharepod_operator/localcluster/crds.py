"""Applies the project's CRDs and waits until the API server really serves them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from sharepod_operator.localcluster.errors import ApiError, LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sharepod_operator.localcluster.client import Client

_PACKAGE: Final = Path(__file__).parents[1]
_PLACES: Final = (_PACKAGE / "_data" / "crds", _PACKAGE.parent / "crds")
"""In an installed wheel, and in the repository."""
_TIMEOUT: Final = 30.0
_POLL: Final = 0.05


def manifests() -> list[dict[str, Any]]:
    """The project's CustomResourceDefinitions, as committed."""
    for folder in _PLACES:
        found = [
            document
            for path in sorted(folder.glob("*.yaml"))
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
            if document
        ]
        if found:
            return found
    raise LocalClusterError(f"no CRDs found in {' or '.join(map(str, _PLACES))}: the installation is not whole")


def apply(client: Client) -> None:
    """Applies every CRD and waits for the condition Established and for one successful list: in between, for about a
    second, the API server answers 404, or 429 while it prepares the storage.

    Raises:
        ApiError: a CRD is refused.
        LocalClusterError: one is not served in time.
    """
    crds = manifests()
    for crd in crds:
        client.apply(crd)
    deadline = time.monotonic() + _TIMEOUT
    for crd in crds:
        while not _is_served(client, crd):
            if time.monotonic() > deadline:
                raise LocalClusterError(f"the CRD {crd['metadata']['name']} is not served after {_TIMEOUT:.0f} s")
            time.sleep(_POLL)


def _is_served(client: Client, crd: Mapping[str, Any]) -> bool:
    name, spec = crd["metadata"]["name"], crd["spec"]
    live = client.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    conditions = {each["type"]: each["status"] for each in live["status"].get("conditions") or ()}
    if conditions.get("Established") != "True":
        return False
    version = next(each["name"] for each in spec["versions"] if each["served"])
    try:
        client.list(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}", limit="1")
    except ApiError:
        return False
    return True
