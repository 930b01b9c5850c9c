"""The local control plane behaves like a cluster, and like a good guest on the machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.localcluster import lifecycle
from sharepod_operator.localcluster.binaries import Binaries, cache_root
from sharepod_operator.localcluster.errors import ApiError, LocalClusterError
from sharepod_operator.localcluster.nodes import GIB, FakeNode, gpus_of
from sharepod_operator.localcluster.programs import Program
from sharepod_operator.localcluster.state import ClusterOptions, StateFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sharepod_operator.localcluster.cluster import Cluster

REPOSITORY = Path(__file__).parents[2]
EARLY_EXIT = "pod-delete.stage.kwok.x-k8s.io/delay"


def pod(name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "image": "none"}], **spec},
    }


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_running(cluster: Cluster, path: str) -> bool:
    status = cluster.client.get(path)["status"]
    ready = [each["status"] for each in status.get("conditions", ()) if each["type"] == "Ready"]
    return status["phase"] == "Running" and ready == ["True"]


def pids(folder: StateFolder) -> dict[str, int]:
    return {process.name: identity.pid for process in folder.processes() if (identity := process.running())}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StateFolder]:
    """A state folder for a control plane of the test's own."""
    made = StateFolder(tmp_path / "own")
    yield made
    lifecycle.down(made)


def test_kubectl_sees_ready_nodes(cluster: Cluster, binaries: Binaries, add_nodes: Callable[..., None]) -> None:
    add_nodes(FakeNode("gpu-1", gpus_of("gpu-1", 2, 40 * GIB, "A100")), FakeNode("cpu-1"))
    answer = subprocess.run(
        [binaries[Program.KUBECTL], "--kubeconfig", cluster.kubeconfig, "get", "nodes", "--no-headers"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"gpu-1": "Ready", "cpu-1": "Ready"} == {
        line.split()[0]: line.split()[1] for line in answer.stdout.splitlines()
    }


def test_a_pod_is_scheduled_runs_and_ends_when_its_grace_is_over(
    cluster: Cluster, namespace: str, add_nodes: Callable[..., None]
) -> None:
    """From kube-scheduler to kwok and back: Running and Ready, then Terminating for the whole grace period."""
    add_nodes(FakeNode("n"))
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.client.create(
        path, pod("p", terminationGracePeriodSeconds=3, initContainers=[{"name": "i", "image": "none"}])
    )
    assert eventually(lambda: is_running(cluster, f"{path}/p"))
    assert "n" == cluster.client.get(f"{path}/p")["spec"]["nodeName"]
    before = time.monotonic()
    cluster.client.delete(f"{path}/p")
    assert "deletionTimestamp" in cluster.client.get(f"{path}/p")["metadata"]
    cluster.client.wait_gone(f"{path}/p")
    # A deletionTimestamp has whole seconds, so that up to one second of the grace is lost.
    assert time.monotonic() - before > 1.9


def test_a_pod_may_exit_before_its_grace_is_over(
    cluster: Cluster, namespace: str, add_nodes: Callable[..., None]
) -> None:
    """An annotation makes it behave like a process that heeds SIGTERM."""
    add_nodes(FakeNode("n"))
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.client.create(path, pod("p", terminationGracePeriodSeconds=600, annotations={EARLY_EXIT: "100ms"}))
    assert eventually(lambda: is_running(cluster, f"{path}/p"))
    cluster.client.delete(f"{path}/p")
    cluster.client.wait_gone(f"{path}/p", timeout=20)


def test_a_job_completes_and_a_deployment_is_garbage_collected(
    cluster: Cluster, namespace: str, add_nodes: Callable[..., None]
) -> None:
    """What the controller-manager does: Jobs, Deployments, and deletion by ownerReferences."""
    add_nodes(FakeNode("n"))
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {**pod("x")["spec"], "terminationGracePeriodSeconds": 1}}
    job = {"metadata": {"name": "j"}, "spec": {"template": {"spec": {**template["spec"], "restartPolicy": "Never"}}}}
    deployment = {
        "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": template},
    }
    jobs, apps = f"/apis/batch/v1/namespaces/{namespace}/jobs", f"/apis/apps/v1/namespaces/{namespace}/deployments"
    cluster.client.create(jobs, job)
    cluster.client.create(apps, deployment)
    assert eventually(lambda: cluster.client.get(f"{jobs}/j")["status"].get("succeeded") == 1)
    assert eventually(lambda: cluster.client.get(f"{apps}/d")["status"].get("readyReplicas") == 2)
    cluster.client.delete(f"{apps}/d")
    assert eventually(lambda: cluster.client.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector="app=x") == [])


def test_a_silent_kubelet_moves_nothing_until_it_is_revived(
    cluster: Cluster, namespace: str, add_nodes: Callable[..., None]
) -> None:
    add_nodes(FakeNode("silent"), FakeNode("lively"))
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.silence_kubelet("silent")
    cluster.client.create(path, pod("before", nodeName="lively"))
    assert eventually(lambda: is_running(cluster, f"{path}/before"))
    cluster.client.create(path, pod("stuck", nodeName="silent"))
    cluster.client.create(path, pod("after", nodeName="lively"))
    assert eventually(lambda: is_running(cluster, f"{path}/after"))
    assert "Pending" == cluster.client.get(f"{path}/stuck")["status"]["phase"]
    cluster.revive_kubelet("silent")
    assert eventually(lambda: is_running(cluster, f"{path}/stuck"))


def test_sharepods_can_be_listed(cluster: Cluster) -> None:
    """The CRDs are served when apply_crds returns; applying them again changes nothing."""
    assert [] == cluster.client.list("/apis/faasshare.tum/v1/sharepods")
    cluster.apply_crds()
    assert [] == cluster.client.list("/apis/faasshare.tum/v1/sharepods")


def test_users_have_names_groups_and_no_rights(cluster: Cluster) -> None:
    """RBAC decides, and the audit log tells who asked."""
    alice = cluster.user_client("alice")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    me = alice.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", body)["status"]["userInfo"]
    assert ("alice", True) == (me["username"], "team-a" in me["groups"])
    with pytest.raises(ApiError, match='User "alice" cannot list resource "nodes"') as caught:
        alice.list("/api/v1/nodes")
    assert (403, "Forbidden") == (caught.value.code, caught.value.reason)
    events = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
    refused = [
        event for event in events if event["user"]["username"] == "alice" and event["responseStatus"]["code"] == 403
    ]
    assert "/api/v1/nodes" == refused[-1]["requestURI"]


def test_a_service_account_gets_a_kubeconfig(cluster: Cluster, namespace: str, binaries: Binaries) -> None:
    kubeconfig = cluster.service_account_kubeconfig(namespace, "default")
    answer = subprocess.run(
        [
            binaries[Program.KUBECTL],
            "--kubeconfig",
            kubeconfig,
            "auth",
            "whoami",
            "-o",
            "jsonpath={.status.userInfo.username}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"system:serviceaccount:{namespace}:default" == answer.stdout


def test_a_second_up_finds_the_first(folder: StateFolder, binaries: Binaries) -> None:
    """The same processes, whatever free port it would have taken."""
    first = lifecycle.up(folder, binaries, ClusterOptions(tethered=True))
    before = pids(folder)
    second = lifecycle.up(folder, binaries, ClusterOptions(tethered=True))
    assert before == pids(folder)
    assert first.record == second.record
    status = lifecycle.status(folder)
    assert status is not None and status.ready
    assert before == {process.name: process.pid for process in status.processes}


@pytest.mark.parametrize("killed", [(Program.KWOK,), tuple(Program)[:5]], ids=["one process", "all processes"])
def test_a_killed_run_is_recovered_with_its_data(
    killed: tuple[Program, ...], folder: StateFolder, binaries: Binaries
) -> None:
    """What was stored is there again under the same address and kubeconfig, and no process of the earlier run is left."""
    first = lifecycle.up(folder, binaries, ClusterOptions(tethered=True))
    first.client.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "kept"}, "data": {"a": "b"}})
    first.add_node(FakeNode("n"))
    before, kubeconfig = pids(folder), folder.kubeconfig.read_text()
    for program in killed:
        os.kill(before[program], signal.SIGKILL)
    assert eventually(lambda: lifecycle.find(folder) is None)
    second = lifecycle.up(folder, binaries, ClusterOptions(tethered=True))
    assert set(before) == set(pids(folder))
    assert set() == set(before.values()) & set(pids(folder).values())
    assert {"a": "b"} == second.client.get("/api/v1/namespaces/default/configmaps/kept")["data"]
    assert kubeconfig == folder.kubeconfig.read_text()
    path = "/api/v1/namespaces/default/pods"
    second.client.create(path, pod("p"))
    assert eventually(lambda: is_running(second, f"{path}/p"))


def test_a_port_lost_at_the_last_moment_is_replaced(
    folder: StateFolder, binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take a port between its choice and its use."""
    choose = lifecycle._ports
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        choices = iter([(*choose(ClusterOptions(), None)[:2], port)])
        monkeypatch.setattr(lifecycle, "_ports", lambda *given: next(choices, None) or choose(*given))
        cluster = lifecycle.up(folder, binaries, ClusterOptions(tethered=True))
    assert cluster.client.is_ready()
    assert port != cluster.record.api_port


def test_damaged_data_is_told_with_the_way_out(folder: StateFolder, binaries: Binaries) -> None:
    """`down` and `up` make a fresh start; nothing runs on after the failure."""
    lifecycle.up(folder, binaries, ClusterOptions(tethered=True))
    lifecycle.halt(folder)
    (folder.folder("etcd") / "data" / "member" / "snap" / "db").write_bytes(b"no database" * 1000)
    with pytest.raises(LocalClusterError) as caught:
        lifecycle.up(folder, binaries, ClusterOptions(tethered=True))
    assert str(caught.value).startswith("etcd has ended: ")
    assert str(caught.value).endswith("take the control plane down and up again to start afresh")
    assert {} == pids(folder)
    assert lifecycle.down(folder)
    assert lifecycle.up(folder, binaries, ClusterOptions(tethered=True)).client.is_ready()


def test_a_dead_process_shows_in_status_and_in_errors(folder: StateFolder, binaries: Binaries) -> None:
    cluster = lifecycle.up(folder, binaries, ClusterOptions(tethered=True))
    os.kill(pids(folder)[Program.KWOK], signal.SIGKILL)
    assert eventually(lambda: Program.KWOK not in pids(folder))
    status = lifecycle.status(folder)
    assert status is not None
    assert ["kwok"] == [process.name for process in status.processes if process.pid is None]
    with pytest.raises(LocalClusterError, match=r"kwok has ended: .* \(log: .*kwok\.log\)"):
        cluster.add_node(FakeNode("never"), timeout=10)


def test_the_demo_stays_up_and_touches_nothing_of_the_users(tmp_path: Path) -> None:
    """The processes outlive the command. The user's kubeconfig is as before, his ~/.kube is not made, and after `down`
    nothing of the demo is left in his home.
    """
    home = tmp_path / "home"
    home.mkdir()
    kubeconfig = tmp_path / "mine"
    kubeconfig.write_text("current-context: production\n")
    written = kubeconfig.stat().st_mtime_ns
    env = os.environ | {
        "HOME": str(home),
        "KUBECONFIG": str(kubeconfig),
        "XDG_CACHE_HOME": str(cache_root(os.environ).parents[1]),
        "XDG_STATE_HOME": "",
    }

    def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sharepod_operator.cli.main", "demo", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=REPOSITORY)

    folder = StateFolder(home / ".local" / "state" / "sharepod-operator" / "demo")
    try:
        up = demo("up")
        assert (0, "") == (up.returncode, up.stderr)
        assert f"  export KUBECONFIG={folder.kubeconfig}" in up.stdout.splitlines()
        cluster = lifecycle.find(folder)
        assert cluster is not None
        assert ["cpu-a", "gpu-a", "gpu-b", "gpu-c"] == [
            node["metadata"]["name"] for node in cluster.client.list("/api/v1/nodes")
        ]
        again = demo("up")
        assert (0, "the control plane is running already\n") == (again.returncode, again.stderr)
        assert 0 == demo("status").returncode
    finally:
        down = demo("down")
    assert (0, f"stopped, and removed {folder.root}\n") == (down.returncode, down.stdout)
    assert ("current-context: production\n", written) == (kubeconfig.read_text(), kubeconfig.stat().st_mtime_ns)
    assert [] == [path for path in home.rglob("*") if path.is_file()]
    assert not (home / ".kube").exists()
