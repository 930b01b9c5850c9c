"""Rendering the Pod of a replica: the whole podSpec, and exactly what makes it a replica and a GPU client."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from sharepod_operator.core.model import GPURequest
from sharepod_operator.manifest import names
from sharepod_operator.manifest.ledger import decode_request
from sharepod_operator.manifest.pod import read_pod
from sharepod_operator.manifest.render import Rendering, render_pod, replica_name, template_hash
from sharepod_operator.manifest.sharepod import read_sharepod
from tests.support.objects import container, sharepod_object

Json = dict[str, Any]
GPU = {"request": 0.5, "limit": 1, "memory": "1Gi"}


def render(**fields: Any) -> Json:
    return render_pod(read_sharepod(sharepod_object(**fields)), "bert-abcde")


def env_of(box: Json) -> dict[str, str]:
    """Name to value, or to the annotation that it is read from."""
    return {
        entry["name"]: entry["value"] if "value" in entry else entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in box.get("env", [])
    }


OURS = {
    "NVIDIA_VISIBLE_DEVICES": "metadata.annotations['faasshare.tum/gpu-uuids']",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "POD_MANAGER_IP": "metadata.annotations['faasshare.tum/pod-manager-ip']",
    "POD_MANAGER_PORT": "metadata.annotations['faasshare.tum/pod-manager-port']",
    "POD_NAME": "metadata.annotations['faasshare.tum/client-id']",
}


def test_whole_pod_spec_survives() -> None:
    """Probes, init containers, volumes, service account, tolerations, and fields unknown to us stay as written."""
    pod_spec = {
        "serviceAccountName": "ml",
        "initContainers": [container("init"), container("sidecar", restartPolicy="Always")],
        "containers": [container(livenessProbe={"exec": {"command": ["true"]}}, imagePullPolicy="Never")],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 7,
        "somethingNew": {"a": 1},
    }
    spec = render(pod_spec=pod_spec)["spec"]
    assert {**pod_spec, "schedulerName": "sharepod-scheduler"} == spec


def test_metadata_names_owner_and_request() -> None:
    """The Pod is owned by the SharePod (kind in its right spelling) and carries the request in the one form."""
    metadata = render(gpu=GPU)["metadata"]
    owner = {
        "apiVersion": "faasshare.tum/v1",
        "kind": "SharePod",
        "name": "bert",
        "uid": "uid-1",
        "controller": True,
        "blockOwnerDeletion": False,
    }
    assert ("bert-abcde", "ml", [owner]) == (metadata["name"], metadata["namespace"], metadata["ownerReferences"])
    assert GPURequest(500, 1000, 1 << 30) == decode_request(metadata["annotations"][names.GPU_REQUEST])
    assert metadata["annotations"][names.TEMPLATE_HASH]


def test_labels_of_the_sharepod_win_except_two() -> None:
    """faas_function and app may be overridden, controller and faasshare.tum/sharepod never."""
    labels = {"app": "other", "controller": "other", "faasshare.tum/sharepod": "other", "tier": "gpu"}
    expected = {
        "faas_function": "bert",
        "app": "other",
        "controller": "bert",
        "faasshare.tum/sharepod": "bert",
        "tier": "gpu",
    }
    assert expected == render(labels=labels)["metadata"]["labels"]


def test_a_part_of_a_request_is_not_copied() -> None:
    """What fills up typed fields, or is overruled by them, is no request by itself; a whole one goes along."""
    part = {"kubeshare/gpu_mem": "1073741824", "kubeshare/sched_affinity": "red", "team": "blue"}
    whole = {"kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": "1073741824"}
    beside = render(annotations=part, gpu={"request": 0.5})["metadata"]["annotations"]
    alone = render(annotations=whole)["metadata"]["annotations"]

    assert {"team", names.GPU_REQUEST, names.TEMPLATE_HASH} == set(beside)
    assert set(whole) < set(alone)


def test_annotations_are_copied_but_never_a_ledger_entry() -> None:
    """A user's faasshare.tum/* annotations would be a ledger entry that he wrote himself."""
    annotations = {
        "team": "blue",
        "kubeshare/sched_affinity": "red",
        "faasshare.tum/allocation": "{}",
        "faasshare.tum/gpu-uuids": "all",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    }
    copied = render(annotations=annotations)["metadata"]["annotations"]
    assert {"team", "kubeshare/sched_affinity", names.TEMPLATE_HASH} == set(copied)


def test_replica_annotation_is_set_where_given() -> None:
    """The controller says which replica the Pod is."""
    sharepod = read_sharepod(sharepod_object())
    assert "0.1.0" == render_pod(sharepod, "x", replica="0.1.0")["metadata"]["annotations"][names.REPLICA]
    assert names.REPLICA not in render_pod(sharepod, "x")["metadata"]["annotations"]


def test_every_container_of_a_gpu_pod_gets_our_env_first_and_alone() -> None:
    """Init containers and sidecars too; a user's own values of these names are gone, all others stay, in order."""
    own = [
        {"name": "A", "value": "1"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_REQUIRE_CUDA", "value": "x"},
        {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "x"},
        {"name": "LD_PRELOAD", "value": "evil.so"},
        {"name": "POD_MANAGER_PORT", "value": "1"},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "0"},
        {"name": "B", "value": "$(POD_NAME)"},
    ]
    pod_spec = {
        "initContainers": [container("init", env=own), container("sidecar", restartPolicy="Always")],
        "containers": [container(env=own), container("second")],
    }
    spec = render(gpu=GPU, pod_spec=pod_spec)["spec"]
    kept = {"A": "1", "CUDA_VISIBLE_DEVICES": "0", "B": "$(POD_NAME)"}
    boxes = [*spec["initContainers"], *spec["containers"]]
    assert [{**OURS, **kept}, OURS, {**OURS, **kept}, OURS] == [env_of(box) for box in boxes]
    assert [*OURS, *kept] == [entry["name"] for entry in spec["containers"][0]["env"]]


def test_pod_without_gpu_gets_no_env_and_loses_what_would_open_gpus() -> None:
    """A CPU-only SharePod can't give itself GPUs by a variable; everything else of its env stays."""
    own = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "POD_NAME", "value": "x"}]
    spec = render(pod_spec={"containers": [container(env=own), container("second")]})["spec"]
    assert [{"POD_NAME": "x"}, {}] == [env_of(box) for box in spec["containers"]]
    assert "env" not in spec["containers"][1]


PIN = {"key": "metadata.name", "operator": "In", "values": ["gpu-a"]}
ZONE = {"key": "zone", "operator": "In", "values": ["east"]}
OTHER = {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-b"]}


def required(terms: list[Json]) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        (None, required([{"matchFields": [PIN]}])),
        (
            required([{"matchExpressions": [ZONE]}, {"matchFields": [OTHER]}]),
            required([{"matchExpressions": [ZONE], "matchFields": [PIN]}, {"matchFields": [OTHER, PIN]}]),
        ),
        (required([{}]), required([{}])),
        (required([]), required([])),
    ],
)
def test_node_name_becomes_a_condition_of_every_term(affinity: Json | None, expected: Json) -> None:
    """A Pod created with nodeName would pass the ledger by; a term that matches nothing goes on matching nothing."""
    pod_spec: Json = {"nodeName": "gpu-a"} | ({"affinity": affinity} if affinity else {})
    spec = render(pod_spec=pod_spec)["spec"]
    assert ("nodeName" in spec, expected) == (False, spec["affinity"])


def test_other_affinity_survives_a_pinned_node() -> None:
    """Preferences and pod affinity stay beside the new condition."""
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    affinity = render(pod_spec={"nodeName": "gpu-a", "affinity": {"nodeAffinity": preferred, "podAffinity": preferred}})
    assert {
        "nodeAffinity": {**preferred, **required([{"matchFields": [PIN]}])["nodeAffinity"]},
        "podAffinity": preferred,
    } == affinity["spec"]["affinity"]


def test_rendering_leaves_the_sharepod_as_it_is() -> None:
    """The record is shared by all replicas: nothing of it may change under them."""
    body = sharepod_object(
        gpu=GPU, pod_spec={"nodeName": "gpu-a", "containers": [container(env=[{"name": "A", "value": "1"}])]}
    )
    before = copy.deepcopy(body)
    first = render_pod(read_sharepod(body), "a")
    first["spec"]["containers"][0]["env"][0]["valueFrom"] = "changed"
    assert before == body
    assert OURS == {
        key: value
        for key, value in env_of(render_pod(read_sharepod(body), "b")["spec"]["containers"][0]).items()
        if key != "A"
    }


def test_runtime_class_is_given_to_gpu_pods_that_name_none() -> None:
    """GPU nodes often run NVIDIA's runtime as a class of its own."""

    def runtime_class(**fields: Any) -> Any:
        return render_pod(read_sharepod(sharepod_object(**fields)), "x", Rendering(runtime_class="nvidia"))["spec"].get(
            "runtimeClassName"
        )

    assert ["nvidia", "own", None] == [
        runtime_class(gpu=GPU),
        runtime_class(gpu=GPU, pod_spec={"runtimeClassName": "own"}),
        runtime_class(),
    ]


def test_scheduler_reads_what_the_controller_rendered() -> None:
    """The request goes through the annotation unchanged, whichever form the SharePod used."""
    gpu = {**GPU, "count": 2, "affinity": "a", "antiAffinity": "b", "exclusion": "c", "deviceIDs": ["GPU-1", "GPU-2"]}
    sharepod = read_sharepod(sharepod_object(gpu=gpu))
    record = read_pod(render_pod(sharepod, "bert-abcde"))
    assert (sharepod.gpu, "", sharepod.template_hash) == (record.pod.shape.gpu, record.invalid, record.template_hash)
    assert "SharePod" == (record.owner.kind if record.owner else "")


def test_names_are_deterministic_and_well_formed() -> None:
    """The same replica gets the same name after a crash; another incarnation, ordinal or SharePod another one."""
    made = [
        replica_name("bert", uid, ordinal, turn) for uid in ("u", "v") for ordinal in range(20) for turn in range(3)
    ]
    assert len(made) == len(set(made))
    assert made == [replica_name("bert", uid, o, t) for uid in ("u", "v") for o in range(20) for t in range(3)]
    assert [] == [name for name in made if not re.fullmatch(r"bert-[0-9a-z]{5}", name)]


def test_template_hash_follows_what_a_pod_is_made_of() -> None:
    """Another image, label, annotation or request is another template; replicas, status and the floor are not."""
    base = sharepod_object(gpu=GPU)

    def hash_of(**fields: Any) -> str:
        return template_hash(read_sharepod(sharepod_object(**{"gpu": GPU, **fields})))

    own = template_hash(read_sharepod(base))
    assert own == read_sharepod(base).template_hash
    assert [own] * 3 == [
        hash_of(replicas=5),
        hash_of(labels={"com.openfaas.scale.min": "2"}),
        hash_of(annotations={"kubectl.kubernetes.io/last-applied-configuration": "{}"}),
    ]
    others = [
        hash_of(labels={"a": "b"}),
        hash_of(annotations={"a": "b"}),
        hash_of(gpu={"request": 0.6}),
        hash_of(pod_spec={"containers": [container(image="app:2")]}),
    ]
    assert 5 == len({own, *others})
