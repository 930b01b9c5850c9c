"""Applies the project's admission policies and waits until the API server really enforces them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from sharepod_operator.localcluster.access import ADMIN
from sharepod_operator.localcluster.errors import ApiError, LocalClusterError
from sharepod_operator.manifest import names, policies
from sharepod_operator.manifest.gpu_env import VISIBLE_DEVICES

if TYPE_CHECKING:
    from sharepod_operator.localcluster.client import Client

_TIMEOUT: Final = 30.0
_POLL: Final = 0.1
_NAME: Final = "policy-probe"
_SHAREPOD: Final = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"name": _NAME, "annotations": {names.KUBESHARE_REQUEST: "0.5"}},
    "spec": {"podSpec": {"containers": [{"name": "probe", "image": "none"}]}},
}
"""Refused as soon as the last of the policies is there: an annotation form that isn't whole."""
_POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": _NAME},
    "spec": {
        "schedulerName": names.SCHEDULER_NAME,
        "containers": [
            {"name": "probe", "image": "none", "resources": {"limits": {names.KOORDINATOR_RESOURCES[0]: "50"}}}
        ],
    },
}


def apply(client: Client) -> None:
    """Applies them with the administrator among the operators, so that `kopf run` with his kubeconfig works, and waits
    for their effect: it takes the API server a second or two to learn of them.

    Raises:
        ApiError: a policy is refused.
        LocalClusterError: they have no effect in time.
    """
    if client.find(f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}") is None:
        client.create("/api/v1/namespaces", {"metadata": {"name": names.OPERATOR_NAMESPACE}})
    for each in policies.objects():
        if each["kind"] == "ConfigMap":
            each["data"] = policies.config_map_data(operators=(names.OPERATOR_USER, ADMIN.name))
        client.apply(each)
    deadline = time.monotonic() + _TIMEOUT
    while not (_refuses(client) and _mutates(client)):
        if time.monotonic() > deadline:
            raise LocalClusterError(f"the admission policies have no effect after {_TIMEOUT:.0f} s")
        time.sleep(_POLL)


def _refuses(client: Client) -> bool:
    try:
        _dry_run(client, f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}", _SHAREPOD)
    except ApiError as error:
        return "sharepod-requests" in str(error)
    return False


def _mutates(client: Client) -> bool:
    pod = _dry_run(client, "/api/v1/namespaces/default/pods", _POD)
    return any(entry["name"] == VISIBLE_DEVICES for entry in pod["spec"]["containers"][0].get("env", ()))


def _dry_run(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = client.request("POST", path, body=body, query={"dryRun": "All"})
    return answer
