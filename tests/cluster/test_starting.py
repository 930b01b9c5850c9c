"""How the operator starts: both commands, and a cluster in which its CRD is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sharepod_operator.localcluster.programs import Program
from tests.support.gpu_nodes import NODES, A
from tests.support.operator_process import Command, OperatorProcess
from tests.support.rights import NAMESPACE, operator_kubeconfig
from tests.support.workbench import COLLECTED, Workbench, gpu, sharepod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.cluster import Cluster

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sharepods.faasshare.tum"


@pytest.fixture
def bench(cluster: Cluster, binaries: Binaries, namespace: str) -> Iterator[Workbench]:
    """An empty namespace and one node with two GPUs."""
    cluster.add_node(NODES[0])
    yield Workbench(cluster, binaries[Program.KUBECTL], namespace)
    cluster.remove_node(NODES[0].name)


@pytest.mark.parametrize("command", Command)
def test_every_promised_command_runs_the_operator(bench: Workbench, command: Command, tmp_path: Path) -> None:
    """It places a SharePod, tells its health, and ends with exit code 0 on SIGTERM."""
    kubeconfig = operator_kubeconfig(bench.cluster)
    with OperatorProcess(kubeconfig, tmp_path, command=command, **_lease(bench)) as operator:
        bench.operators.append(operator)
        operator.wait_leading()
        bench.create(sharepod("bert", gpu(0.5, "10Gi")))
        bench.running("bert")
        assert [("gpu-a", (A[0],))] == bench.placement("bert")
        assert 200 == operator.probe("/healthz")[0]
        assert f'uuid="{A[0]}"' in operator.metrics()
        bench.delete_all()
        assert 0 == operator.stop(), operator.tail()
        assert [] == operator.complaints()


def test_a_missing_crd_is_waited_for(bench: Workbench, without_crd: None, tmp_path: Path) -> None:
    """The operator says what to apply, goes on as soon as it is there, and outlives that it is taken away and put back."""
    operator = OperatorProcess(
        operator_kubeconfig(bench.cluster), tmp_path, command=Command.PRODUCTION, **_lease(bench)
    )
    bench.operators.append(operator)
    with operator.killed_afterwards():
        operator.start()
        bench.until("the log says what to apply", lambda: "kubectl apply -f crds/" in operator.tail())
        only = ["sharepods: not listed yet"]
        bench.until("only that is missing", lambda: operator.probe("/readyz")[1].get("problems") == only)
        assert 503 == operator.probe("/readyz")[0]
        for name in ("first", "second"):
            bench.cluster.apply_crds()
            operator.wait_leading()
            bench.create(sharepod(name, gpu(0.5)))
            bench.running(name)
            _remove_crd(bench.cluster)
            bench.until("the garbage collector took the pods", lambda: not bench.pods(), COLLECTED)
        assert 0 == operator.stop(), operator.tail()
        assert [] == operator.complaints()


@pytest.fixture
def without_crd(cluster: Cluster) -> Iterator[None]:
    """A cluster without our CRD; it is there again afterwards, for the other tests."""
    _remove_crd(cluster)
    yield
    cluster.apply_crds()


def _remove_crd(cluster: Cluster) -> None:
    cluster.client.delete(CRD)
    cluster.client.wait_gone(CRD)


def _lease(bench: Workbench) -> dict[str, str]:
    """A Lease of the test's own: what an earlier one left behind is nothing to wait for."""
    return {"lease_namespace": NAMESPACE, "lease_name": bench.namespace}
