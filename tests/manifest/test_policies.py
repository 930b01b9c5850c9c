"""The committed admission policies, as far as they can be judged without an API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sharepod_operator.manifest import names
from sharepod_operator.manifest.gpu_env import BACKEND_ENV
from sharepod_operator.manifest.policies import objects, render

COMMITTED = Path(__file__).parents[2] / "manifests" / "policies.yaml"
Json = dict[str, Any]


def of_kind(kind: str) -> dict[str, Json]:
    return {each["metadata"]["name"]: each for each in objects() if each["kind"] == kind}


def test_committed_file_is_what_the_generator_prints() -> None:
    """Whoever changes the generator commits its output: `python -m sharepod_operator.manifest.policies`."""
    assert render() == COMMITTED.read_text(encoding="utf-8")
    assert objects() == list(yaml.safe_load_all(COMMITTED.read_text(encoding="utf-8")))


def test_the_config_map_names_the_operator_and_its_scheduler() -> None:
    """The defaults of an installation; an administrator adds users and names there."""
    (data,) = (each["data"] for each in of_kind("ConfigMap").values())
    user = f"system:serviceaccount:{names.OPERATOR_NAMESPACE}:sharepod-operator"
    assert {"schedulers": names.SCHEDULER_NAME, "operators": user, "gpuRuntimeClassName": ""} == data


def test_every_policy_is_bound_with_the_config_map_as_parameter() -> None:
    """Losing the ConfigMap stops no Pod of anybody, and opens no SharePod's status."""
    for kind in ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"):
        assert of_kind(kind).keys() == of_kind(f"{kind}Binding").keys()
        for name, policy in of_kind(kind).items():
            spec = of_kind(f"{kind}Binding")[name]["spec"]
            groups = {
                group for rule in policy["spec"]["matchConstraints"]["resourceRules"] for group in rule["apiGroups"]
            }
            expected = {
                "name": names.POLICY_CONFIG_MAP,
                "namespace": names.OPERATOR_NAMESPACE,
                "parameterNotFoundAction": "Allow" if "" in groups else "Deny",
            }
            assert (name, expected) == (spec["policyName"], spec["paramRef"])


def test_guards_fail_closed_and_warnings_never_refuse() -> None:
    """A rule that can't be evaluated refuses, except where it would only warn."""
    for name, policy in of_kind("ValidatingAdmissionPolicy").items():
        actions = of_kind("ValidatingAdmissionPolicyBinding")[name]["spec"]["validationActions"]
        expected = ("Ignore", ["Warn"]) if name == "sharepod-warnings" else ("Fail", ["Deny"])
        assert expected == (policy["spec"]["failurePolicy"], actions)


def test_rules_about_rights_answer_forbidden_and_every_rule_has_a_sentence() -> None:
    """403 where a right is missing, 422 where a value is wrong; the message is a sentence of one line."""
    for name, policy in of_kind("ValidatingAdmissionPolicy").items():
        about_rights = name in {"sharepod-ledger", "sharepod-status", "sharepod-rights"}
        for rule in policy["spec"]["validations"]:
            assert ("Forbidden" if about_rights else None) == rule.get("reason")
            assert rule["message"].endswith(".")
            assert "\n" not in rule["message"]


def test_the_status_of_pods_is_never_looked_at() -> None:
    """A policy there would weigh on every kubelet's write."""
    watched = {
        resource
        for each in objects()
        if "matchConstraints" in each.get("spec", {})
        for rule in each["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    assert {"pods", "pods/binding", "sharepods", "sharepods/status"} == watched


def test_plain_pods_get_what_rendered_pods_get() -> None:
    """Every name of the backend's environment, in app and in init containers."""
    (policy,) = of_kind("MutatingAdmissionPolicy").values()
    written = str(policy["spec"])
    assert all(entry["name"] in written for entry in BACKEND_ENV["none"])
    mutation = policy["spec"]["mutations"][0]["jsonPatch"]["expression"]
    assert "/spec/containers/" in mutation
    assert "/spec/initContainers/" in mutation
