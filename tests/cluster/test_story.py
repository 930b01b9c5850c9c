"""What users do with SharePods on a real control plane, told one by one, with one operator at work all the time."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.localcluster.errors import ApiError
from sharepod_operator.localcluster.programs import Program
from sharepod_operator.manifest.render import replica_name
from tests.support import invariants
from tests.support.gpu_nodes import NODES, A, B, C
from tests.support.operator_process import Command, OperatorProcess
from tests.support.rights import NAMESPACE, operator_kubeconfig
from tests.support.workbench import Workbench, gpu, sharepod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.cluster import Cluster

GIB = 1 << 30


@pytest.fixture(scope="module")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator with the rights of its service account and nothing more, and eight GPUs."""
    cluster.add_nodes(NODES)
    folder = tmp_path_factory.mktemp("story")
    lease = {"lease_namespace": NAMESPACE, "lease_name": "story"}
    with OperatorProcess(operator_kubeconfig(cluster), folder, command=Command.PRODUCTION, **lease) as running:
        running.wait_leading()
        yield running
        assert running.stop() == 0, running.tail()
        assert running.complaints() == []
    for node in NODES:
        cluster.remove_node(node.name)


@pytest.fixture
def bench(cluster: Cluster, binaries: Binaries, operator: OperatorProcess, namespace: str) -> Iterator[Workbench]:
    """An empty namespace; after the test every rule holds, and deleting the SharePods leaves nothing."""
    bench = Workbench(cluster, binaries[Program.KUBECTL], namespace, [operator])
    yield bench
    bench.check()
    bench.delete_all()


# Where pods land


def test_a_typed_sharepod_lands_by_best_fit_and_shares_its_gpu(bench: Workbench) -> None:
    """Of equal idle GPUs the first by node and UUID is opened; the second replica fits beside the first."""
    bench.create(sharepod("bert", gpu(0.5, "10Gi", limit=1.0), replicas=2))
    bench.running("bert", 2)
    assert [("gpu-a", (A[0],))] * 2 == bench.placement("bert")


def test_a_kubeshare_manifest_lands_like_a_typed_one(bench: Workbench) -> None:
    """Annotations alone make the same request as spec.gpu, and the status says where it was written."""
    annotations = {"kubeshare/gpu_request": "0.4", "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": "6442450944"}
    bench.create(sharepod("typed", gpu(0.5, "10Gi")))
    bench.running("typed")
    bench.create(sharepod("classic", annotations=annotations))
    bench.running("classic")
    assert [("gpu-a", (A[0],))] == bench.placement("classic")
    assert {"share": "0.4/1", "memory": "6Gi", "source": "annotations"} == bench.sharepod("classic")["status"]["gpu"]


def test_two_gpus_are_of_one_node_and_open_ones_are_taken_first(bench: Workbench) -> None:
    """The open GPU of gpu-a makes that node the best fit, and its idle one fills up."""
    bench.create(sharepod("small", gpu(0.3)))
    bench.running("small")
    bench.create(sharepod("pair", gpu(0.5, "10Gi", count=2)))
    bench.running("pair")
    assert [("gpu-a", A)] == bench.placement("pair")
    (usage,) = bench.sharepod("pair")["status"]["usage"].values()
    assert {"gpu": "0.500x2", "totalMemoryBytes": 20 * GIB} == usage


def test_memory_decides_between_cards(bench: Workbench) -> None:
    """48Gi fit on the 80Gi cards alone."""
    bench.create(sharepod("large", gpu(0.1, "48Gi")))
    bench.running("large")
    assert [("gpu-c", (C[0],))] == bench.placement("large")


def test_a_pinned_gpu_is_taken_although_another_fits_better(bench: Workbench) -> None:
    """deviceIDs, and KubeShare's GPUID with a UUID, name the only GPUs allowed."""
    bench.create(sharepod("typed", gpu(0.5, deviceIDs=[C[1]])))
    bench.create(sharepod("classic", gpu(0.5), annotations={"kubeshare/GPUID": B[2]}))
    bench.running("typed")
    bench.running("classic")
    assert [("gpu-c", (C[1],))] == bench.placement("typed")
    assert [("gpu-b", (B[2],))] == bench.placement("classic")


def test_a_virtual_gpu_is_one_card_for_all_who_name_it(bench: Workbench) -> None:
    """Pods with the same node and GPUID share the card that the first of them opened, also when another fits better."""
    bench.create(sharepod("filler", gpu(0.6), nodeName="gpu-b"))
    bench.running("filler")
    for name in ("first", "second"):
        bench.create(sharepod(name, gpu(0.3), annotations={"kubeshare/GPUID": "abcde"}, nodeName="gpu-b"))
        bench.running(name)
    assert bench.placement("first") == bench.placement("second")
    assert bench.placement("first") != bench.placement("filler")


def test_tags_decide_who_shares(bench: Workbench) -> None:
    """Exclusion keeps strangers away, anti-affinity spreads replicas, affinity joins its like."""
    bench.create(sharepod("secret", gpu(0.2, exclusion="team-a")))
    bench.running("secret")
    bench.create(sharepod("spread", gpu(0.2, antiAffinity="spread", affinity="spread"), replicas=3))
    bench.running("spread", 3)
    bench.create(sharepod("friend", gpu(0.2, affinity="spread")))
    bench.running("friend")
    assert [("gpu-a", (A[0],))] == bench.placement("secret")
    spread = bench.placement("spread")
    assert 3 == len(set(spread))
    assert ("gpu-a", (A[0],)) not in spread
    assert bench.placement("friend")[0] in spread


def test_sixteen_halves_at_once_sit_two_to_a_card(bench: Workbench) -> None:
    """Eight GPUs are full afterwards, whatever the order in which the pods arrived."""
    bench.cluster.client.in_parallel(bench.create, [sharepod(f"half-{n:02}", gpu(0.5, "10Gi")) for n in range(16)])
    bench.until("16 pods are placed", lambda: len(_cards(bench)) == 16)
    assert dict.fromkeys((*A, *B, *C), 2) == Counter(_cards(bench))


def test_deleting_frees_everything(bench: Workbench) -> None:
    """Eight whole GPUs are taken, given back, and taken again."""
    for name in ("first", "second"):
        bench.create(sharepod(name, gpu(1.0, "20Gi"), replicas=8))
        bench.running(name, 8)
        assert {*A, *B, *C} == set(_cards(bench))
        bench.delete(name)
        bench.until(f"the pods of {name} are gone", lambda: not bench.pods())


def test_a_sharepod_without_a_gpu_goes_where_no_gpu_is_wasted(bench: Workbench) -> None:
    """It gets a node and nothing of a GPU: no port, no environment, no ledger entry."""
    bench.create(sharepod("plain"))
    (pod,) = bench.running("plain")
    assert "cpu-a" == pod["spec"]["nodeName"]
    assert [] == [key for key in pod["metadata"]["annotations"] if key.endswith(("allocation", "gpu-uuids", "port"))]
    assert [] == pod["spec"]["containers"][0].get("env", [])


# What is written onto pods and shown


def test_the_pod_carries_what_faas_share_promises(bench: Workbench) -> None:
    """Owner, labels, annotations, and an environment that reads the placement."""
    created = bench.create(
        sharepod("bert", gpu(0.5, "10Gi"), labels={"team": "ml", "app": "mine"}, annotations={"note": "kept"})
    )
    (pod,) = bench.running("bert")
    metadata = pod["metadata"]
    assert [
        {
            "apiVersion": "faasshare.tum/v1",
            "kind": "SharePod",
            "name": "bert",
            "uid": created["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ] == metadata["ownerReferences"]
    labels = {
        "faas_function": "bert",
        "app": "mine",
        "controller": "bert",
        "faasshare.tum/sharepod": "bert",
        "team": "ml",
    }
    assert labels == {key: value for key, value in metadata["labels"].items() if not key.startswith("topology.")}
    assert "kept" == metadata["annotations"]["note"]
    assert A[0] == metadata["annotations"]["faasshare.tum/gpu-uuids"]
    assert f"{bench.namespace}/{metadata['name']}" == metadata["annotations"]["faasshare.tum/client-id"]
    env = {entry["name"]: _source(entry) for entry in pod["spec"]["containers"][0]["env"]}
    assert {
        "NVIDIA_VISIBLE_DEVICES": "metadata.annotations['faasshare.tum/gpu-uuids']",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "POD_MANAGER_IP": "metadata.annotations['faasshare.tum/pod-manager-ip']",
        "POD_MANAGER_PORT": "metadata.annotations['faasshare.tum/pod-manager-port']",
        "POD_NAME": "metadata.annotations['faasshare.tum/client-id']",
    } == env


def test_the_whole_pod_spec_survives(bench: Workbench) -> None:
    """Probes, init containers, sidecars, volumes, service account and tolerations arrive as they were written."""
    bench.cluster.client.create(
        f"/api/v1/namespaces/{bench.namespace}/serviceaccounts", {"metadata": {"name": "trainer"}}
    )
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 7}
    containers = [{"name": "main", "image": "none", "livenessProbe": probe, "readinessProbe": probe}]
    init = [{"name": "setup", "image": "none"}, {"name": "sidecar", "image": "none", "restartPolicy": "Always"}]
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    bench.create(
        sharepod(
            "whole",
            gpu(0.5),
            containers=containers,
            initContainers=init,
            volumes=[{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
            serviceAccountName="trainer",
            tolerations=[toleration],
            terminationGracePeriodSeconds=0,
        )
    )
    (pod,) = bench.running("whole")
    spec = pod["spec"]
    main = spec["containers"][0]
    assert (["true"], 7) == (main["livenessProbe"]["exec"]["command"], main["readinessProbe"]["periodSeconds"])
    assert [("setup", None), ("sidecar", "Always")] == [
        (each["name"], each.get("restartPolicy")) for each in spec["initContainers"]
    ]
    assert "NVIDIA_VISIBLE_DEVICES" in {entry["name"] for entry in spec["initContainers"][1]["env"]}
    assert {"sizeLimit": "1Gi"} == next(each["emptyDir"] for each in spec["volumes"] if each["name"] == "scratch")
    assert "trainer" == spec["serviceAccountName"]
    assert toleration in spec["tolerations"]


def test_kubectl_get_shows_where_everything_is(bench: Workbench) -> None:
    """The columns, as printed by the real kubectl."""
    bench.create(sharepod("bert", gpu(0.5, "10Gi", limit=1.0), replicas=2))
    bench.running("bert", 2)
    bench.check()
    ports = [bench.sharepod("bert")["status"]["podManagerPort"][pod["metadata"]["name"]] for pod in _by_ordinal(bench)]
    header, row = bench.kubectl("get", "sharepods", "-o", "wide").stdout.splitlines()
    columns = ["NAME", "DESIRED", "READY", "GPU", "MEM", "STATUS", "PLACEMENT", "AGE", "PRIORITY", "PORTS", "MESSAGE"]
    assert columns == header.split()
    shown = {name: row[header.index(name) : end].strip() for name, end in _edges(header, columns)}
    assert shown.pop("AGE").endswith("s")
    assert {
        "NAME": "bert",
        "DESIRED": "2",
        "READY": "2",
        "GPU": "0.5/1",
        "MEM": "10Gi",
        "STATUS": "AllReplicasReady",
        "PLACEMENT": f"gpu-a/{A[0][:12]} +1",
        "PRIORITY": "",
        "PORTS": ",".join(map(str, ports)),
        "MESSAGE": "2 of 2 replicas are ready",
    } == shown
    assert row == bench.kubectl("get", "shp", "-o", "wide").stdout.splitlines()[1]


def test_a_placement_is_told_once_on_pod_and_sharepod(bench: Workbench) -> None:
    """`Scheduled` on the Pod names GPU, node, amounts and port; `Synced` on the SharePod comes once per generation."""
    bench.create(sharepod("bert", gpu(0.5, "10Gi")))
    (pod,) = bench.running("bert")
    (scheduled,) = bench.until("the pod's event", lambda: bench.events("Scheduled", "Pod"))
    port = pod["metadata"]["annotations"]["faasshare.tum/pod-manager-port"]
    where = f"{bench.namespace}/{pod['metadata']['name']} to {A[0]} on node gpu-a"
    assert f"Assigned {where} (request 0.500, memory 10Gi, port {port})" == scheduled["note"]
    assert pod["metadata"]["uid"] == scheduled["regarding"]["uid"]
    (synced,) = bench.until("the SharePod's event", lambda: bench.events("Synced"))
    assert ("Normal", "SharePod synced successfully") == (synced["type"], synced["note"])


# Scaling


def test_kubectl_scale_up_and_down_to_zero(bench: Workbench) -> None:
    """Five replicas, then two, then none, which is a state of its own and not a failure."""
    bench.create(sharepod("web", gpu(0.2, "1Gi")))
    bench.running("web")
    for replicas in (5, 2):
        assert 0 == bench.kubectl("scale", "shp/web", f"--replicas={replicas}").returncode
        bench.running("web", replicas)
        bench.check()
    assert 0 == bench.kubectl("scale", "shp/web", "--replicas=0").returncode
    bench.running("web", 0)
    ready = bench.waits("web", "Ready", "ScaledToZero")
    assert "True" == ready["status"]
    (told,) = bench.until("the event", lambda: bench.events("ScaledToZero"))
    assert "Normal" == told["type"]
    assert "" == bench.sharepod("web")["status"]["summary"]


def test_openfaas_floor_keeps_replicas(bench: Workbench) -> None:
    """The label com.openfaas.scale.min raises the number that is kept and leaves spec alone."""
    bench.create(sharepod("fn", gpu(0.1), labels={"com.openfaas.scale.min": "2"}))
    bench.running("fn", 2)
    assert 1 == bench.sharepod("fn")["spec"]["replicas"]
    bench.delete("fn")
    bench.until("its pods are gone", lambda: not bench.pods())


# Refusals


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("limit", 0.4, "gpu.limit must be at least gpu.request"),
        ("request", 1.5, "should be less than or equal to 1"),
        ("request", "0.5", 'must be of type number: "string"'),
        ("memory", "10GB", "gpu.memory must be a number of bytes or a quantity such as 10Gi or 512Mi"),
        ("count", 0, "should be greater than or equal to 1"),
        ("limits", 1, 'unknown field "spec.gpu.limits"'),
    ],
)
def test_kubectl_refuses_with_a_sentence(bench: Workbench, field: str, value: Any, sentence: str) -> None:
    """What the schema can judge never reaches the cluster."""
    answer = bench.kubectl("create", "-f", "-", stdin=sharepod("bad", gpu(0.5, "1Gi") | {field: value}))
    assert 1 == answer.returncode, answer.stdout
    assert sentence in answer.stderr
    assert bench.kubectl("get", "shp", "bad").returncode == 1


def test_an_invalid_annotation_is_told_and_mended(bench: Workbench) -> None:
    """No pod, a condition and an event that name annotation, value and rule; after an edit it runs.

    The admission policy compares binary numbers and lets this one through; the operator reads it exactly.
    """
    written = "1.00000000000000000001"
    annotations = {"kubeshare/gpu_request": written, "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": "0"}
    bench.create(sharepod("bad", annotations=annotations))
    accepted = bench.waits("bad", "Accepted", "InvalidGPURequest")
    assert "False" == accepted["status"]
    assert f'annotation kubeshare/gpu_request: "{written}"' in accepted["message"]
    (event,) = bench.until("the event", lambda: bench.events("ErrValueError"))
    assert ("Warning", accepted["message"]) == (event["type"], event["note"])
    assert [] == bench.pods()
    bench.edit("bad", {"metadata": {"annotations": {"kubeshare/gpu_request": "0.5"}}})
    bench.running("bad")
    assert "True" == bench.condition("bad", "Accepted")["status"]


def test_a_pod_spec_that_the_api_server_refuses_is_told(bench: Workbench) -> None:
    """A typo in podSpec, which the schema leaves open, is named by its field; after an edit it runs."""
    broken = {"name": "main", "image": "none", "livenesProbe": {"exec": {"command": ["true"]}}}
    bench.create(sharepod("typo", gpu(0.5), containers=[broken]))
    accepted = bench.waits("typo", "Accepted", "InvalidPodSpec")
    assert 'unknown field "spec.containers[0].livenesProbe"' in accepted["message"]
    bench.until("the event", lambda: bench.events("InvalidSpec"))
    bench.edit("typo", {"spec": {"podSpec": {"containers": [{"name": "main", "image": "none"}]}}})
    bench.running("typo")


def test_what_the_scheduler_does_not_implement_is_refused_by_name(bench: Workbench) -> None:
    """A hard topology spread is neither ignored nor half kept."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {},
    }
    bench.create(sharepod("spread", gpu(0.5), topologySpreadConstraints=[spread]))
    accepted = bench.waits("spread", "Accepted", "InvalidPodSpec")
    assert "topologySpreadConstraints" in accepted["message"]
    assert [] == bench.pods()


def test_an_unknown_priority_class_is_told_and_found_later(bench: Workbench) -> None:
    """As soon as the class exists the pods are made, without an edit."""
    bench.create(sharepod("vip", gpu(0.5), priorityClassName="story-vip"))
    accepted = bench.waits("vip", "Accepted", "UnknownPriorityClass")
    assert "story-vip" in accepted["message"]
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    bench.cluster.client.create(path, {"metadata": {"name": "story-vip"}, "value": 1000})
    (pod,) = bench.running("vip")
    assert 1000 == pod["spec"]["priority"]
    bench.cluster.client.delete(f"{path}/story-vip")


def test_a_quota_lets_some_replicas_through_and_says_why_not_more(bench: Workbench) -> None:
    """The sentence of the API server is shown; more quota brings the rest."""
    path = f"/api/v1/namespaces/{bench.namespace}/resourcequotas"
    bench.cluster.client.create(path, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    bench.until("the quota is counted", lambda: bench.cluster.client.get(f"{path}/few").get("status", {}).get("hard"))
    bench.create(sharepod("many", gpu(0.1), replicas=3))
    scheduled = bench.waits("many", "Scheduled", "Unschedulable")
    assert "exceeded quota: few" in scheduled["message"]
    assert 1 == len(bench.pods())
    bench.cluster.client.patch(f"{path}/few", {"spec": {"hard": {"pods": "3"}}})
    bench.running("many", 3, limit=60)


# Waiting for room


def test_a_pod_without_room_says_why_in_counts_and_is_placed_later(bench: Workbench) -> None:
    """Pod, SharePod and event tell the same; room that is given back is used at once."""
    bench.create(sharepod("full", gpu(1.0), replicas=8))
    bench.running("full", 8)
    bench.create(sharepod("late", gpu(0.5, "10Gi")))
    scheduled = bench.waits("late", "Scheduled", "Unschedulable")
    why = (
        "0/8 GPUs on 4 nodes are available: 8 GPU(s) Insufficient gpu, 1 node(s) had no GPUs. "
        "preemption: 0/8 GPUs can be freed: 8 No preemption victims found for incoming pod."
    )
    assert ("False", why) == (scheduled["status"], scheduled["message"])
    pod = bench.pod("late")
    (told,) = [each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert ("False", "Unschedulable", why) == (told["status"], told["reason"], told["message"])
    for kind in ("Pod", "SharePod"):
        notes = bench.until(f"the {kind}'s event", lambda: [e["note"] for e in bench.events("FailedScheduling", kind)])  # noqa: B023
        assert [why] == notes
    assert "Unschedulable" == bench.condition("late", "Ready")["reason"]
    bench.scale("full", 4)
    (placed,) = bench.running("late")
    assert pod["metadata"]["uid"] == placed["metadata"]["uid"]


def test_what_never_fits_says_so(bench: Workbench) -> None:
    """No waiting helps against a card that nobody has."""
    bench.create(sharepod("huge", gpu(0.5, "100Gi")))
    scheduled = bench.waits("huge", "Scheduled", "Unsatisfiable")
    assert "memory 100Gi is more than any GPU has (largest 80Gi, node gpu-c)" == scheduled["message"]


def test_an_edit_while_pending_counts(bench: Workbench) -> None:
    """The pod of the earlier request gives way to one of the new request, back and forth."""
    bench.create(sharepod("shy", gpu(0.5, "100Gi")))
    bench.waits("shy", "Scheduled", "Unsatisfiable")
    (before,) = bench.pods("shy")
    bench.edit("shy", {"spec": {"gpu": {"memory": "90Gi"}}})
    bench.waits("shy", "Scheduled", "Unsatisfiable")
    bench.edit("shy", {"spec": {"gpu": {"memory": "60Gi"}}})
    (after,) = bench.running("shy")
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert [("gpu-c", (C[0],))] == bench.placement("shy")


# What happens to pods


def test_a_pod_deleted_by_hand_is_replaced(bench: Workbench) -> None:
    """Another pod takes its place, on the room that it left."""
    bench.create(sharepod("web", gpu(1.0)))
    (old,) = bench.running("web")
    bench.kubectl("delete", "pod", old["metadata"]["name"], "--force", "--grace-period=0")
    bench.until("another pod runs", lambda: _others(bench.running("web"), old))
    assert [("gpu-a", (A[0],))] == bench.placement("web")


def test_a_pod_that_the_kubelet_refused_is_replaced(bench: Workbench) -> None:
    """OutOfcpu is a lost race: the next pod is tried, and the failed one is cleared away."""
    bench.create(sharepod("web", gpu(0.5)))
    (old,) = bench.running("web")
    path = f"/api/v1/namespaces/{bench.namespace}/pods/{old['metadata']['name']}/status"
    bench.cluster.client.patch(path, {"status": {"phase": "Failed", "reason": "OutOfcpu", "message": "no room"}})
    bench.until("only the replacement is left", lambda: _others(bench.running("web"), old))
    assert old["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in bench.pods("web")}


def test_a_terminating_pod_keeps_its_share_until_it_is_gone(bench: Workbench) -> None:
    """A deletionTimestamp frees nothing; the next pod waits for the object's end."""
    slow = {"pod-delete.stage.kwok.x-k8s.io/delay": "4s"}
    bench.create(sharepod("slow", gpu(1.0), replicas=8, annotations=slow, terminationGracePeriodSeconds=60))
    bench.running("slow", 8)
    bench.create(sharepod("next", gpu(1.0)))
    bench.waits("next", "Scheduled", "Unschedulable")
    bench.delete("slow")
    bench.until("they terminate", lambda: any(p["metadata"].get("deletionTimestamp") for p in bench.pods("slow")))

    def placed() -> bool:
        found = bench.objects()
        assert [] == invariants.always(found), bench.report()
        return any(pod["spec"].get("nodeName") and "next-" in pod["metadata"]["name"] for pod in found.pods)

    bench.until("next is placed", placed)
    bench.running("next")


def test_a_sharepod_deleted_and_created_again_starts_clean(bench: Workbench) -> None:
    """The new object of the same name owns new pods and takes over nothing."""
    first = bench.create(sharepod("bert", gpu(0.5), replicas=2))
    bench.running("bert", 2)
    bench.delete("bert")
    second = bench.create(sharepod("bert", gpu(0.25), replicas=3))
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    pods = bench.running("bert", 3)
    assert {second["metadata"]["uid"]} == {invariants.owner_uid(pod) for pod in pods}


def test_a_foreign_pod_with_the_wanted_name_is_left_alone(bench: Workbench) -> None:
    """It is never adopted; the replica takes its next name, and an event says why."""
    created = bench.create(sharepod("bert", gpu(0.5), replicas=0))
    bench.waits("bert", "Ready", "ScaledToZero")
    name = replica_name("bert", created["metadata"]["uid"], 0, 0)
    foreign = {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    path = f"/api/v1/namespaces/{bench.namespace}/pods"
    uid = bench.cluster.client.create(path, foreign)["metadata"]["uid"]
    bench.scale("bert", 1)
    (pod,) = bench.running("bert")
    assert name != pod["metadata"]["name"]
    (event,) = bench.until("the event", lambda: bench.events("ErrResourceExists"))
    assert f'Resource "{name}" already exists and is not managed by SharePod' == event["note"]
    assert uid == bench.cluster.client.get(f"{path}/{name}")["metadata"]["uid"]
    bench.cluster.client.delete(f"{path}/{name}", grace_seconds=0)


# What happens to nodes


def test_a_cordoned_node_takes_nothing_new(bench: Workbench) -> None:
    """What runs there goes on; uncordoned it is the best fit again."""
    bench.create(sharepod("old", gpu(0.2)))
    bench.running("old")
    bench.kubectl("cordon", "gpu-a")
    bench.create(sharepod("new", gpu(0.2)))
    bench.running("new")
    bench.kubectl("uncordon", "gpu-a")
    bench.until("the cordon is off", lambda: not _node(bench, "gpu-a")["spec"].get("unschedulable"))
    bench.create(sharepod("newer", gpu(0.2), nodeName="gpu-a"))
    bench.running("newer")
    assert ["gpu-a", "gpu-b", "gpu-a"] == [bench.placement(name)[0][0] for name in ("old", "new", "newer")]


def test_a_cordoned_gpu_takes_nothing_new(bench: Workbench) -> None:
    """The annotation cordons single GPUs; taken away, the waiting pod gets its place."""
    path = "/api/v1/nodes/gpu-a"
    bench.cluster.client.patch(path, {"metadata": {"annotations": {"faasshare.tum/cordoned-gpus": ",".join(A)}}})
    bench.create(sharepod("new", gpu(0.2), nodeName="gpu-a"))
    scheduled = bench.waits("new", "Scheduled", "Unschedulable")
    assert "2 GPU(s) unhealthy or cordoned" in scheduled["message"]
    bench.cluster.client.patch(path, {"metadata": {"annotations": {"faasshare.tum/cordoned-gpus": None}}})
    bench.running("new")


def test_a_node_that_is_not_ready_shows_on_its_sharepods(bench: Workbench) -> None:
    """Nothing new goes there; its pods stay charged; Ready again wakes whoever waits."""
    bench.create(sharepod("here", gpu(1.0), replicas=2))
    bench.running("here", 2)
    bench.cluster.silence_kubelet("gpu-a")
    _set_ready(bench, "gpu-a", "False")
    bench.waits("here", "Degraded", "NodeNotReady")
    bench.create(sharepod("wants", gpu(0.5), nodeName="gpu-a"))
    assert "not ready" in bench.waits("wants", "Scheduled", "Unschedulable")["message"]
    bench.scale("here", 0)
    bench.cluster.revive_kubelet("gpu-a")
    bench.running("wants")


def test_a_node_that_goes_and_comes_back_with_other_gpus(bench: Workbench) -> None:
    """Pods of the lost node are replaced elsewhere once their objects are gone; the new inventory is what counts."""
    bench.create(sharepod("web", gpu(1.0, "20Gi")))
    (lost,) = bench.running("web")
    bench.cluster.remove_node("gpu-a")
    bench.waits("web", "Degraded", "NodeNotReady")
    bench.kubectl("delete", "pod", lost["metadata"]["name"], "--force", "--grace-period=0")
    bench.until("it runs elsewhere", lambda: _others(bench.running("web"), lost))
    assert [("gpu-b", (B[0],))] == bench.placement("web")
    bench.cluster.add_node(NODES[0])
    bench.create(sharepod("back", gpu(1.0, "40Gi"), replicas=2))
    bench.running("back", 2)
    assert [("gpu-a", (A[0],)), ("gpu-a", (A[1],))] == bench.placement("back")


def _cards(bench: Workbench) -> list[str]:
    """The GPU of each pod of the namespace."""
    return [uuids[0] for _, uuids in bench.placement("") if len(uuids) == 1]


def _by_ordinal(bench: Workbench) -> list[dict[str, Any]]:
    return sorted(bench.pods(), key=lambda pod: str(pod["metadata"]["annotations"]["faasshare.tum/replica"]))


def _others(pods: list[dict[str, Any]], known: dict[str, Any]) -> list[dict[str, Any]]:
    return [pod for pod in pods if pod["metadata"]["uid"] != known["metadata"]["uid"]]


def _source(entry: dict[str, Any]) -> str:
    return str(entry["value"] if "value" in entry else entry["valueFrom"]["fieldRef"]["fieldPath"])


def _edges(header: str, columns: list[str]) -> list[tuple[str, int | None]]:
    """Where each column of kubectl's table ends."""
    ends = [(name, header.index(after)) for name, after in itertools.pairwise(columns)]
    return [*ends, (columns[-1], None)]


def _node(bench: Workbench, name: str) -> dict[str, Any]:
    return bench.cluster.client.get(f"/api/v1/nodes/{name}")


def _set_ready(bench: Workbench, name: str, status: str) -> None:
    """What the kubelet, or the node controller in its absence, writes."""
    for _ in range(20):
        node = _node(bench, name)
        for each in node["status"]["conditions"]:
            if each["type"] == "Ready":
                each["status"] = status
        try:
            bench.cluster.client.replace(f"/api/v1/nodes/{name}/status", node)
        except ApiError as error:
            if error.code != 409:
                raise
        else:
            return
    raise AssertionError(f"node {name} changes all the time")
