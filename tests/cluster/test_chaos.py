"""The operator is killed, frozen, stopped and doubled on a real control plane; the rules hold and nothing is left over."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.localcluster.nodes import GIB, FakeNode, gpus_of
from sharepod_operator.localcluster.programs import Program
from tests.support import invariants
from tests.support.audit import AGENT, Request, bindings, requests
from tests.support.crowd import Crowd
from tests.support.invariants import ledger
from tests.support.operator_process import Command, OperatorProcess
from tests.support.rights import NAMESPACE, USER, operator_kubeconfig
from tests.support.workbench import Workbench, gpu, sharepod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sharepod_operator.localcluster.binaries import Binaries
    from sharepod_operator.localcluster.cluster import Cluster

    Operator = Callable[..., OperatorProcess]

KILLS = 20
SHAREPODS = 200
NODES = tuple(FakeNode(f"chaos-{n}", gpus_of(f"chaos-{n}", 4, 40 * GIB, "NVIDIA-A100-PCIE-40GB")) for n in range(4))
QUICK = {"lease_duration": "2", "renew_deadline": "1.5", "retry_period": "0.3"}
"""The tests don't wait fifteen seconds for the Lease of each killed operator."""
TAKEOVER = 20.0


@pytest.fixture(scope="module", autouse=True)
def nodes(cluster: Cluster) -> Iterator[None]:
    """Sixteen equal GPUs on four nodes."""
    cluster.add_nodes(NODES)
    yield
    for node in NODES:
        cluster.remove_node(node.name)


@pytest.fixture
def bench(cluster: Cluster, binaries: Binaries, namespace: str) -> Workbench:
    """An empty namespace; the test brings its operators."""
    return Workbench(cluster, binaries[Program.KUBECTL], namespace)


@pytest.fixture
def operator(cluster: Cluster, bench: Workbench, tmp_path: Path) -> Iterator[Operator]:
    """Makes operators with a quick Lease; whatever is left of them after the test is killed, and its SharePods go."""
    kubeconfig = operator_kubeconfig(cluster)

    def make(identity: str, *, as_admin: bool = False, **settings: str) -> OperatorProcess:
        used = cluster.kubeconfig if as_admin else kubeconfig
        lease = {"lease_namespace": NAMESPACE, "lease_name": bench.namespace}
        chosen = {**lease, **QUICK, **settings}
        made = OperatorProcess(used, tmp_path, identity=identity, command=Command.PRODUCTION, **chosen)
        bench.operators.append(made)
        return made

    yield make
    for made in bench.operators:
        made.kill()
    bench.delete_all()


@pytest.mark.timeout(420)
def test_200_sharepods_come_and_go_while_the_operator_is_killed_20_times(bench: Workbench, operator: Operator) -> None:
    """Whenever the kill comes: no rule is ever broken, the last operator brings all to rest, and deleting leaves nothing."""
    rng = random.Random(20)
    crowd = Crowd(bench, seed=200, at_once=24)
    victim = operator("life-0")
    victim.start()
    for life in range(KILLS):
        crowd.come(SHAREPODS // KILLS // 2)
        victim.wait_leading()
        end = time.monotonic() + rng.uniform(0.2, 2.0)
        successor = operator(f"life-{life + 1}")
        if life % 2:  # one that was there before and knows what was there before, or one that starts afterwards
            successor.start()
        crowd.come(SHAREPODS // KILLS // 2)
        while time.monotonic() < end:
            crowd.step()
        victim.kill()
        assert [] == invariants.always(bench.objects()), bench.report()
        assert [] == victim.complaints()
        if not successor.running:
            successor.start()
        bench.operators.remove(victim)
        victim = successor
    last = victim
    last.wait_leading()
    bench.check(limit=90)
    bench.delete_all()
    bound = bindings(bench.cluster.audit_log)
    assert SHAREPODS // 2 < bound.total(), "most SharePods came and went while nobody led"
    assert {} == {uid: n for uid, n in bound.items() if n > 1}
    bench.create(sharepod("all", gpu(1.0, "40Gi"), replicas=16))
    bench.running("all", 16)
    bench.delete_all()
    assert 0 == last.stop(), last.tail()
    assert [] == last.complaints()


def test_a_frozen_leader_is_followed_and_does_no_harm_when_it_thaws(bench: Workbench, operator: Operator) -> None:
    """SIGSTOP in the middle of a burst, past its Lease: the standby goes on; SIGCONT: the first stands by and is silent."""
    first, second = operator("first", as_admin=True), operator("second")
    first.start()
    first.wait_leading()
    second.start()
    second.wait_ready()
    wanted = [sharepod(f"burst-{n:02}", gpu(0.25, "5Gi"), replicas=2) for n in range(30)]
    bench.cluster.client.in_parallel(bench.create, wanted)
    bench.until("the burst has begun", lambda: len(_bound(bench)) >= 5)
    first.freeze()
    frozen = time.monotonic()
    assert len(_bound(bench)) < 60, "the leader was frozen too late to be in the middle of anything"
    second.wait_leading(TAKEOVER)
    assert time.monotonic() - frozen < TAKEOVER
    bench.until("the standby finishes the burst", lambda: len(_bound(bench)) == 60)
    thawed = datetime.now(UTC)
    first.thaw()
    bench.until("the first stands by", lambda: first.probe("/readyz")[1].get("leading") is False)
    assert 0 == bench.kubectl("scale", "shp/burst-00", "--replicas=4").returncode
    bench.running("burst-00", 4)
    bench.check()
    assert {} == {uid: n for uid, n in bindings(bench.cluster.audit_log).items() if n > 1}
    late = [r for r in _of_admin(bench) if r.changes and r.at > thawed + timedelta(seconds=1)]
    assert [] == late
    for each in (first, second):
        assert 0 == each.stop(), each.tail()


def test_two_operators_at_once_never_place_a_pod_twice(bench: Workbench, operator: Operator) -> None:
    """They start together and the leader is killed in mid-burst: one acts at a time, and every rule holds at every look."""
    pair = [operator("left"), operator("right")]
    for each in pair:
        each.start()
    for each in pair:
        each.wait_ready()
    bench.until("one leads", lambda: any(_leads(each) for each in pair))
    wanted = [sharepod(f"burst-{n:02}", gpu(0.5, "10Gi"), replicas=2) for n in range(16)]
    bench.cluster.client.in_parallel(bench.create, wanted)
    bench.until("the burst has begun", lambda: len(_bound(bench)) >= 3)
    leader = next(each for each in pair if _leads(each))
    leader.kill()
    (other,) = [each for each in pair if each is not leader]

    def all_placed() -> bool:
        found = bench.objects()
        assert [] == invariants.always(found), bench.report()
        return len(_bound(bench)) == 32

    bench.until("the other finishes", all_placed)
    bench.check()
    assert {} == {uid: n for uid, n in bindings(bench.cluster.audit_log).items() if n > 1}
    assert 0 == other.stop(), other.tail()


def test_sigterm_in_a_burst_ends_in_time_and_frees_the_lease(bench: Workbench, operator: Operator) -> None:
    """Writes in flight finish, the exit code is 0, and the next operator leads without waiting for the Lease to expire."""
    slow = {"lease_duration": "60", "renew_deadline": "40"}
    first = operator("first", **slow)
    first.start()
    first.wait_leading()
    second = operator("second", **slow)
    second.start()
    second.wait_ready()
    wanted = [sharepod(f"burst-{n:02}", gpu(0.5, "10Gi"), replicas=2) for n in range(16)]
    bench.cluster.client.in_parallel(bench.create, wanted)
    assert 0 == first.stop(), first.tail()
    second.wait_leading(TAKEOVER)
    bench.until("everything is placed", lambda: len(_bound(bench)) == 32)
    bench.check()
    assert [] == first.complaints()
    assert 0 == second.stop(), second.tail()


def test_at_rest_nothing_is_written_but_the_lease(bench: Workbench, operator: Operator) -> None:
    """Also with a pod that waits and a SharePod that is invalid; and the operator asks less than once a second."""
    calm = {"lease_duration": "15", "renew_deadline": "10", "retry_period": "2"}
    running = operator("calm", **calm)
    running.start()
    running.wait_leading()
    bench.create(sharepod("runs", gpu(0.5, "10Gi"), replicas=4))
    bench.create(sharepod("waits", gpu(0.5, "30Gi", deviceIDs=["GPU-nobody-has-it"])))
    bench.create(sharepod("wrong", {"memory": "1Gi"}))
    bench.running("runs", 4)
    bench.waits("waits", "Scheduled", "Unsatisfiable")
    bench.waits("wrong", "Accepted", "InvalidGPURequest")

    def at_rest() -> list[Request]:
        """The requests since the last write that was not the Lease's, once the Lease was renewed five times since."""
        mine = list(requests(bench.cluster.audit_log, USER))
        last = max(n for n, each in enumerate(mine) if each.verb in _WRITES and each.resource != "leases")
        since = mine[last + 1 :]
        return since if sum(each.resource == "leases" for each in since) >= 5 else []

    since = bench.until("five renewals without any other write", at_rest, limit=60)
    seconds = (since[-1].at - since[0].at).total_seconds()
    assert len(since) - 1 < seconds, [(each.verb, each.resource, each.agent) for each in since]
    assert 0 == running.stop(), running.tail()


_WRITES = ("create", "update", "patch", "delete", "deletecollection")


def _leads(operator: OperatorProcess) -> bool:
    return operator.probe("/readyz")[1].get("leading") is True


def _bound(bench: Workbench) -> list[dict[str, Any]]:
    return [pod for pod in bench.pods() if ledger(pod) is not None]


def _of_admin(bench: Workbench) -> list[Request]:
    """Requests of the operator that runs as the administrator, apart from those about the Lease."""
    found = requests(bench.cluster.audit_log, "admin")
    return [each for each in found if each.agent.startswith(AGENT) and each.resource != "leases"]
