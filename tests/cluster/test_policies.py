"""What the admission policies keep from tenants, mostly with no operator running: they hold while it is down."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.localcluster.errors import ApiError
from sharepod_operator.localcluster.programs import Program
from sharepod_operator.manifest import names
from tests.support.gpu_nodes import NODES
from tests.support.operator_process import Command, OperatorProcess
from tests.support.rights import NAMESPACE, operator_kubeconfig, shipped
from tests.support.workbench import SHAREPODS, Workbench, gpu, sharepod

if TYPE_CHECKING:
    from pathlib import Path

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.client import Client
    from sharepod_operator.localcluster.cluster import Cluster

Json = dict[str, Any]
AddNodes = Callable[..., None]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
CONFIG = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/configmaps/{names.POLICY_CONFIG_MAP}"
LEDGER = "belongs to the ledger of the operator: only the names listed as operators in the ConfigMap sharepod-policy"
_numbers = itertools.count(1)


@pytest.fixture
def bench(cluster: Cluster, binaries: Binaries, namespace: str) -> Workbench:
    return Workbench(cluster, binaries[Program.KUBECTL], namespace)


@pytest.fixture
def tenant(cluster: Cluster, bench: Workbench) -> Client:
    """alice, with the role edit in the namespace and no other right; the shipped roles make SharePods part of it."""
    for manifest in shipped("users.yaml"):
        cluster.client.apply(manifest)
    bind(bench, "alice", "ClusterRole", "edit")
    client = cluster.user_client("alice")
    bench.until("alice may list SharePods", lambda: allowed(lambda: client.list(path(bench, "sharepods"))))
    return client


def bind(bench: Workbench, user: str, kind: str, role: str) -> None:
    body = {
        "metadata": {"name": f"{user}-{next(_numbers)}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user}],
    }
    bench.cluster.client.create(f"{RBAC}/namespaces/{bench.namespace}/rolebindings", body)


def grant(bench: Workbench, user: str, *rules: tuple[str, str, tuple[str, ...]]) -> None:
    """A role of its own with these rights: group, resource, verbs."""
    name = f"role-{next(_numbers)}"
    body = {
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)} for group, resource, verbs in rules
        ],
    }
    bench.cluster.client.create(f"{RBAC}/namespaces/{bench.namespace}/roles", body)
    bind(bench, user, "Role", name)


def path(bench: Workbench, plural: str, *rest: str) -> str:
    base = SHAREPODS if plural == "sharepods" else "/api/v1"
    return "/".join([f"{base}/namespaces/{bench.namespace}/{plural}", *rest])


def pod(name: str, *, annotations: Json | None = None, owners: list[Json] | None = None, **spec: Any) -> Json:
    metadata = {"name": name, "annotations": annotations or {}, "ownerReferences": owners or []}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "none"}], **spec}}


def allowed(request: Callable[[], object]) -> bool:
    try:
        request()
    except ApiError:
        return False
    return True


def refusal(request: Callable[[], object]) -> tuple[int, str]:
    """Code and message of the answer; the request must not pass."""
    with pytest.raises(ApiError) as caught:
        request()
    return caught.value.code, str(caught.value)


def dry_run(client: Client, where: str, body: Json) -> Json:
    return client.request("POST", where, body=body, query={"dryRun": "All"})


# The ledger


@pytest.mark.parametrize("key", [names.ALLOCATION, names.POD_MANAGER_PORT, names.GPU_REQUEST, names.GPU_UUIDS])
def test_a_tenant_cannot_set_change_or_remove_the_ledger_of_a_pod(bench: Workbench, tenant: Client, key: str) -> None:
    """403 with a sentence that names the annotation; other annotations are the tenant's own."""
    tenant.create(path(bench, "pods"), pod("mine", schedulerName="nobody"))
    mine = path(bench, "pods", "mine")
    code, message = refusal(lambda: tenant.patch(mine, {"metadata": {"annotations": {key: "1"}}}))
    assert (403, True) == (code, f"The annotation {key} {LEDGER}" in message), message

    bench.cluster.client.patch(mine, {"metadata": {"annotations": {key: "1"}}})  # admin is named as an operator
    for value in ("2", None):
        code, message = refusal(partial(tenant.patch, mine, {"metadata": {"annotations": {key: value}}}))
        assert (403, True) == (code, f"The annotation {key} {LEDGER}" in message), message
    tenant.patch(mine, {"metadata": {"annotations": {"example.com/note": "x"}, "labels": {"a": "b"}}})
    tenant.delete(mine)


def test_a_pod_is_not_born_with_a_ledger_entry_or_an_owner_that_it_does_not_have(
    bench: Workbench, tenant: Client
) -> None:
    """Neither by a tenant himself nor as a SharePod's replica that the operator never made."""
    code, message = refusal(
        lambda: tenant.create(path(bench, "pods"), pod("born", annotations={names.ALLOCATION: "{}"}))
    )
    assert (403, True) == (code, LEDGER in message), message
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "x", "uid": "1", "controller": True}
    code, message = refusal(lambda: tenant.create(path(bench, "pods"), pod("born", owners=[owner])))
    assert (403, True) == (code, "Only the operator makes Pods that a SharePod owns" in message), message


def test_the_status_of_a_sharepod_is_the_operators(bench: Workbench, tenant: Client) -> None:
    """The role edit has no right to it; where somebody was given one, the policy still refuses."""
    tenant.create(path(bench, "sharepods"), sharepod("mine", gpu(0.5)))
    status = path(bench, "sharepods", "mine", "status")
    assert 403 == refusal(lambda: tenant.patch(status, {"status": {"replicas": 5}}))[0]
    grant(bench, "alice", (names.GROUP, "sharepods/status", ("patch",)))
    found = bench.until(
        "the right has come",
        lambda: [
            each
            for each in [refusal(lambda: tenant.patch(status, {"status": {"replicas": 5}}))]
            if "sharepod-status" in each[1]
        ],
    )
    assert (403, True) == (found[0][0], "The status of a SharePod is written by the operator alone" in found[0][1])
    bench.cluster.client.patch(status, {"status": {"replicas": 5}})


def test_a_tenant_cannot_bind_and_who_may_cannot_write_the_ledger_with_it(bench: Workbench, tenant: Client) -> None:
    """RBAC keeps the role edit from bindings; with that right granted the Binding's annotations are still guarded."""
    tenant.create(path(bench, "pods"), pod("mine", schedulerName="nobody"))
    where = path(bench, "pods", "mine", "binding")
    body = {
        "metadata": {"name": "mine", "annotations": {names.ALLOCATION: "{}"}},
        "target": {"kind": "Node", "name": "nowhere"},
    }
    code, message = refusal(lambda: tenant.create(where, body))
    assert (403, True) == (code, 'cannot create resource "pods/binding"' in message), message
    grant(bench, "alice", ("", "pods/binding", ("create",)))
    found = bench.until(
        "the right has come",
        lambda: [each for each in [refusal(lambda: tenant.create(where, body))] if "sharepod-ledger" in each[1]],
    )
    assert (403, True) == (found[0][0], LEDGER in found[0][1])
    tenant.delete(path(bench, "pods", "mine"))


# Rights


def test_sharepods_are_for_those_who_may_create_pods(bench: Workbench) -> None:
    """Bob may write SharePods, but no Pods: he can't start any by way of us, also not a privileged one; he may scale."""
    grant(
        bench,
        "bob",
        (names.GROUP, "sharepods", ("get", "create", "patch")),
        (names.GROUP, "sharepods/scale", ("patch", "update")),
    )
    bob = bench.cluster.user_client("bob")
    privileged = [{"name": "main", "image": "none", "securityContext": {"privileged": True}}]
    wanted = sharepod("sneaky", gpu(0.5), containers=privileged)
    sentence = "creating or changing one needs the right to create Pods in its namespace"
    code, message = refusal(lambda: bob.create(path(bench, "sharepods"), wanted))
    assert (403, True) == (code, sentence in message), message

    bench.create(sharepod("there", gpu(0.5), replicas=0))
    there = path(bench, "sharepods", "there")
    for patch in (
        {"spec": {"podSpec": {"hostNetwork": True}}},
        {"spec": {"gpu": {"request": 1}}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}},
    ):
        code, message = refusal(partial(bob.patch, there, patch))
        assert (403, True) == (code, sentence in message), message
    bob.patch(f"{there}/scale", {"spec": {"replicas": 0}})
    bob.patch(there, {"spec": {"minReadySeconds": 1}})


# The form of a request


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({names.KUBESHARE_LIMIT: None, names.KUBESHARE_MEMORY: None}, "only kubeshare/gpu_request is there"),
        ({names.KUBESHARE_REQUEST: "50%"}, 'kubeshare/gpu_request: "50%" must be a number from 0 to 1'),
        ({names.KUBESHARE_REQUEST: "1.5"}, 'kubeshare/gpu_request: "1.5" must be a number from 0 to 1'),
        ({names.KUBESHARE_REQUEST: "nan"}, 'kubeshare/gpu_request: "nan" must be a number'),
        ({names.KUBESHARE_LIMIT: "0"}, 'kubeshare/gpu_limit: "0" must be a number above 0 and at most 1'),
        ({names.KUBESHARE_LIMIT: "0.25"}, 'kubeshare/gpu_limit: "0.25" must be at least kubeshare/gpu_request, "0.5"'),
        ({names.KUBESHARE_MEMORY: "1Gi"}, 'kubeshare/gpu_mem: "1Gi" must be bytes in digits only'),
        ({names.KUBESHARE_GPU_ID: "../etc"}, "kubeshare/GPUID must be at most 64 letters"),
        ({names.KUBESHARE_AFFINITY: "x" * 64}, "must be at most 63 characters long"),
    ],
)
def test_annotations_are_judged_when_they_are_applied(bench: Workbench, changes: Json, words: str) -> None:
    """On SharePods and on Pods that we serve, with the value in the sentence; Pods of others are not ours to judge."""
    three = {names.KUBESHARE_REQUEST: "0.5", names.KUBESHARE_LIMIT: "1.0", names.KUBESHARE_MEMORY: "1073741824"}
    written = {key: value for key, value in {**three, **changes}.items() if value is not None}
    client = bench.cluster.client
    code, message = refusal(lambda: bench.create(sharepod("bad", annotations=written)))
    assert (422, True) == (code, words in message), message
    served = pod("bad", annotations=written, schedulerName=names.SCHEDULER_NAME)
    code, message = refusal(lambda: dry_run(client, path(bench, "pods"), served))
    assert (422, True) == (code, words in message), message
    dry_run(client, path(bench, "pods"), pod("theirs", annotations=written))
    dry_run(client, path(bench, "sharepods"), sharepod("good", annotations=three))
    typed = {key: value for key, value in changes.items() if key in three and value is None}
    if typed:
        dry_run(client, path(bench, "sharepods"), sharepod("filled", gpu(0.5), annotations=written))


def test_what_is_legal_and_probably_not_meant_is_a_warning(bench: Workbench) -> None:
    """Kubectl prints one line for each, and the object is taken."""
    resources = {"limits": {"koordinator.sh/gpu": "50"}}
    doubtful = sharepod(
        "doubtful",
        gpu(0.5, "1Gi", affinity="x", antiAffinity="x", exclusion="x", deviceIDs=["GPU-1"]),
        replicas=0,
        annotations={
            names.KUBESHARE_REQUEST: "0.25",
            names.KUBESHARE_MEMORY: "5",
            names.KUBESHARE_AFFINITY: "red",
            names.KUBESHARE_ANTI_AFFINITY: "red",
            names.KUBESHARE_EXCLUSION: "red",
            names.KUBESHARE_GPU_ID: "GPU-2",
        },
        containers=[{"name": "main", "image": "none", "resources": resources}],
    )
    answer = bench.kubectl("apply", "-f", "-", stdin=doubtful)
    assert 0 == answer.returncode, answer.stderr
    for words in (
        "spec.gpu.request and the annotation kubeshare/gpu_request disagree",
        "spec.gpu.memory and the annotation kubeshare/gpu_mem disagree",
        "spec.gpu.affinity and the annotation kubeshare/sched_affinity disagree",
        "spec.gpu.antiAffinity and the annotation kubeshare/sched_anti-affinity disagree",
        "spec.gpu.exclusion and the annotation kubeshare/sched_exclusion disagree",
        "spec.gpu.deviceIDs and the annotation kubeshare/GPUID name different GPUs",
        "A GPU is asked for twice",
        "affinity and antiAffinity are the same tag",
    ):
        assert words in answer.stderr
    agreeing = {names.KUBESHARE_MEMORY: "1073741824", names.KUBESHARE_AFFINITY: "x", names.KUBESHARE_GPU_ID: "GPU-1"}
    asked = gpu(0.5, "1Gi", limit=1, affinity="x", exclusion="y", deviceIDs=["GPU-1"])
    plain = sharepod("plain", asked, replicas=0, annotations=agreeing)
    assert "Warning" not in bench.kubectl("apply", "-f", "-", stdin=plain).stderr


# What plain Pods get


def test_every_container_of_a_plain_gpu_pod_reads_its_allocation(bench: Workbench) -> None:
    """Init containers and sidecars too, with exactly one value of each name, ours; other variables stay."""
    own = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "LD_PRELOAD", "value": "x"}]
    main = {"name": "main", "image": "none", "env": [*own, {"name": "KEPT", "value": "$(POD_NAME)"}]}
    init = {"name": "init", "image": "none", "env": own}
    sidecar = {"name": "side", "image": "none", "restartPolicy": "Always"}
    wanted = pod(
        "plain",
        schedulerName=names.SCHEDULER_NAME,
        containers=[{**main, "resources": {"limits": {"koordinator.sh/gpu": "50"}}}],
        initContainers=[init, sidecar],
    )
    spec = dry_run(bench.cluster.client, path(bench, "pods"), wanted)["spec"]
    ours = {
        "NVIDIA_VISIBLE_DEVICES": names.GPU_UUIDS,
        "POD_MANAGER_IP": names.POD_MANAGER_IP,
        "POD_MANAGER_PORT": names.POD_MANAGER_PORT,
        "POD_NAME": names.CLIENT_ID,
    }
    for container in (*spec["initContainers"], *spec["containers"]):
        read = {
            entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"]
            for entry in container["env"]
            if "valueFrom" in entry
        }
        assert {key: f"metadata.annotations['{value}']" for key, value in ours.items()} == read
        fixed = [(entry["name"], entry["value"]) for entry in container["env"] if "value" in entry]
        kept = [("KEPT", "$(POD_NAME)")] if container["name"] == "main" else []
        assert [("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"), *kept] == fixed


def test_pods_without_a_gpu_and_pods_of_other_schedulers_are_left_as_they_are(bench: Workbench) -> None:
    """POD_NAME and the like are then the user's own."""
    own = [{"name": "POD_NAME", "value": "mine"}]
    client, where = bench.cluster.client, path(bench, "pods")
    cpu_only = pod("cpu", schedulerName=names.SCHEDULER_NAME, containers=[{"name": "c", "image": "none", "env": own}])
    assert own == dry_run(client, where, cpu_only)["spec"]["containers"][0]["env"]
    limits = {"limits": {"koordinator.sh/gpu": "50"}}
    theirs = pod("theirs", containers=[{"name": "c", "image": "none", "env": own, "resources": limits}])
    assert own == dry_run(client, where, theirs)["spec"]["containers"][0]["env"]


def test_the_runtime_class_of_the_config_map_is_set_where_none_is(bench: Workbench) -> None:
    """On plain GPU Pods; one that names a class keeps it."""
    client, where = bench.cluster.client, path(bench, "pods")
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    for name in ("policy-test", "own"):
        client.create(classes, {"metadata": {"name": name}, "handler": "nvidia"})
    limits = {"limits": {"koordinator.sh/gpu": "50"}}
    containers = [{"name": "c", "image": "none", "resources": limits}]

    def runtime_class(**spec: Any) -> str | None:
        wanted = pod("plain", schedulerName=names.SCHEDULER_NAME, containers=containers, **spec)
        found: str | None = dry_run(client, where, wanted)["spec"].get("runtimeClassName")
        return found

    try:
        client.patch(CONFIG, {"data": {"gpuRuntimeClassName": "policy-test"}})
        bench.until("the API server has seen the ConfigMap", lambda: runtime_class() == "policy-test")
        assert "own" == runtime_class(runtimeClassName="own")
    finally:
        client.patch(CONFIG, {"data": {"gpuRuntimeClassName": ""}})
        for name in ("policy-test", "own"):
            client.delete(f"{classes}/{name}")
    bench.until("the API server has seen the ConfigMap", lambda: runtime_class() is None)


# Developers


def test_a_developer_who_is_named_as_operator_runs_it_by_kopf_run(
    bench: Workbench, add_nodes: AddNodes, tmp_path: Path
) -> None:
    """With the operator's roles alone his Bindings are refused; named in the ConfigMap, he places a SharePod."""
    add_nodes(NODES[0])
    client = bench.cluster.client
    operator_kubeconfig(bench.cluster)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "name": "sharepod-operator"}
    body = {"metadata": {"name": "developer"}, "subjects": [{"kind": "User", "name": "bob"}]}
    bindings = (
        (f"{RBAC}/clusterrolebindings", "ClusterRole"),
        (f"{RBAC}/namespaces/{names.OPERATOR_NAMESPACE}/rolebindings", "Role"),
    )
    for where, kind in bindings:
        client.create(where, {**body, "roleRef": {**reference, "kind": kind}})
    before = client.get(CONFIG)["data"]["operators"]
    running = OperatorProcess(
        bench.cluster.user_kubeconfig("bob"),
        tmp_path,
        command=Command.DEVELOPMENT,
        lease_namespace=NAMESPACE,
        lease_name="developer",
    )
    try:
        with running.killed_afterwards():
            running.start()
            bench.operators.append(running)
            running.wait_leading()
            bench.create(sharepod("bert", gpu(0.5)))
            bench.until(
                "the refusal is told", lambda: LEDGER in running.tail() or LEDGER in str(bench.sharepod("bert"))
            )
            assert [] == [each for each in bench.pods() if each["spec"].get("nodeName")]
            client.patch(CONFIG, {"data": {"operators": f"{before}, bob"}})
            bench.running("bert", limit=90)
            bench.delete_all()
    finally:
        client.patch(CONFIG, {"data": {"operators": before}})
        for where, _ in bindings:
            client.delete(f"{where}/developer")
