"""What manifests/ ships agrees with the code, with itself, and with the strictest of the Pod Security Standards."""

from __future__ import annotations

import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from sharepod_operator import __version__
from sharepod_operator.manifest import names
from sharepod_operator.manifest.crd import custom_resource_definition
from sharepod_operator.runtime import GRACE
from sharepod_operator.settings import CONFIG, Settings, load, variable
from tests.support.rights import ACCOUNT, NAMESPACE, USER, shipped

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "manifests"
LABEL = "app.kubernetes.io/name"


def only(kind: str, name: str = "sharepod-operator") -> dict[str, Any]:
    """The one shipped object of this kind and name."""
    (found,) = (each for each in shipped("install.yaml") if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pod() -> dict[str, Any]:
    found: dict[str, Any] = only("Deployment")["spec"]["template"]
    return found


def container() -> dict[str, Any]:
    (found,) = pod()["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_the_committed_file_is_what_the_parts_make() -> None:
    """`make manifests` would change nothing, and no part is left out."""
    made = subprocess.run([ROOT / "scripts" / "install-yaml.sh"], capture_output=True, text=True, check=True).stdout
    assert made == (MANIFESTS / "install.yaml").read_text()
    parts = sorted({path.name for path in MANIFESTS.glob("*.yaml")} - {"install.yaml", "kustomization.yaml"})
    inside = shipped("install.yaml")
    assert len(inside) == len(shipped(*parts)) + 1
    assert [each for each in shipped(*parts) if each not in inside] == []
    assert custom_resource_definition() == only("CustomResourceDefinition", names.CRD_NAME)


def test_what_is_used_comes_before_who_uses_it() -> None:
    """Applied from top to bottom: namespace, CRD and rights are there before the Deployment starts."""
    kinds = [each["kind"] for each in shipped("install.yaml")]
    assert ["Namespace", "CustomResourceDefinition"] == kinds[:2]
    assert max(kinds.index(kind) for kind in ("ServiceAccount", "ClusterRoleBinding", "RoleBinding")) < kinds.index(
        "Deployment"
    )


def test_nothing_is_granted_by_a_star() -> None:
    """Neither a verb nor a resource nor a group is left open, for the operator or for users."""
    roles = [each for each in shipped("install.yaml") if each["kind"] in ("ClusterRole", "Role")]
    assert {"sharepod-operator", "sharepods-view", "sharepods-edit"} <= {role["metadata"]["name"] for role in roles}
    assert [] == [rule for role in roles for rule in role["rules"] if "*" in str(rule)]


def test_the_operator_may_never_do_this() -> None:
    """No secrets, no commands in containers, no rights over rights, policies or CRDs; Leases in its own namespace alone."""
    far: list[dict[str, Any]] = only("ClusterRole")["rules"]
    words = {word for rule in far for word in (*rule["resources"], *rule["verbs"])}
    banned = {"secrets", "pods/exec", "pods/attach", "leases", "escalate", "impersonate", "bind", "deletecollection"}
    assert set() == words & banned
    for rule in far:
        if rule["apiGroups"] == ["apiextensions.k8s.io"]:
            assert ["list", "watch"] == rule["verbs"]
        assert {"admissionregistration.k8s.io", "rbac.authorization.k8s.io"}.isdisjoint(rule["apiGroups"])


def test_bindings_name_the_account_of_the_deployment() -> None:
    """Roles, bindings, service account and pod mean the same account."""
    assert (ACCOUNT, NAMESPACE) == (pod()["spec"]["serviceAccountName"], only("Deployment")["metadata"]["namespace"])
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        assert [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}] == only(kind)["subjects"]


def test_the_pod_is_hardened() -> None:
    """Nobody's user, no way to more rights, a root that can't be written, and no host paths, ports or namespaces."""
    spec, security = pod()["spec"], container()["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert 0 < spec["securityContext"]["runAsUser"]
    assert {"type": "RuntimeDefault"} == spec["securityContext"]["seccompProfile"]
    assert (False, True) == (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"])
    assert {"drop": ["ALL"]} == security["capabilities"]
    assert {"hostNetwork", "hostPID", "hostIPC", "volumes"}.isdisjoint(spec)
    assert {"restricted"} == {
        only("Namespace", NAMESPACE)["metadata"]["labels"][f"pod-security.kubernetes.io/{mode}"]
        for mode in ("enforce", "audit", "warn")
    }


def test_the_pod_agrees_with_the_process() -> None:
    """Port, probes, variables and the time to stop are those that the operator has."""
    defaults = Settings()
    (port,) = container()["ports"]
    assert (defaults.http_port, "http") == (port["containerPort"], port["name"])
    assert ["/healthz", "/healthz", "/readyz"] == [
        container()[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
    ]
    assert pod()["spec"]["terminationGracePeriodSeconds"] >= 2 * GRACE
    known = {CONFIG} | {variable(item.name) for item in fields(Settings)}
    assert {each["name"] for each in container()["env"]} <= known
    assert ["operator"] == container()["args"]


def test_the_operator_and_the_policies_serve_the_same() -> None:
    """Whom it serves, and the runtime class of GPU pods, come from the ConfigMap that the policies read; it lists its user."""
    data = only("ConfigMap", "sharepod-policy")["data"]
    keys = {
        each["name"]: each["valueFrom"]["configMapKeyRef"]["key"]
        for each in container()["env"]
        if "configMapKeyRef" in each["valueFrom"]
    }
    assert {"SHAREPOD_SCHEDULER_NAMES": "schedulers", "SHAREPOD_GPU_RUNTIME_CLASS_NAME": "gpuRuntimeClassName"} == keys
    settings = load({name: data[key] for name, key in keys.items()}, namespace_file=Path("/none"))
    assert (Settings().scheduler_names, "") == (settings.scheduler_names, settings.gpu_runtime_class_name)
    assert USER in data["operators"].split(",")


def test_labels_and_ports_lead_to_the_pod() -> None:
    """Service, PodDisruptionBudget and NetworkPolicy select the Deployment's pods, and the policy opens their port."""
    labels = pod()["metadata"]["labels"]
    selectors = [
        only("Deployment")["spec"]["selector"]["matchLabels"],
        only("Service", "sharepod-operator-metrics")["spec"]["selector"],
        only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert [{LABEL: labels[LABEL]}] * 4 == selectors
    (rule,) = only("NetworkPolicy")["spec"]["ingress"]
    assert ["http"] == [each["port"] for each in rule["ports"]]
    assert ["http"] == [each["targetPort"] for each in only("Service", "sharepod-operator-metrics")["spec"]["ports"]]


def test_the_image_is_named_once() -> None:
    """The Deployment's placeholder is what kustomization.yaml replaces, with the version that this is."""
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    (image,) = kustomization["images"]
    assert ["install.yaml"] == kustomization["resources"]
    assert (container()["image"], __version__) == (image["name"], image["newTag"])
