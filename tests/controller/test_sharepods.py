"""The SharePod controller keeps the wanted Pods, whatever happens to them, to it and to its view."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.kube.api import EVENTS, PODS, PRIORITY_CLASSES, SHAREPODS, Json
from sharepod_operator.kube.errors import Forbidden, Gone, Invalid, ServerError, TooManyRequests, UnknownOutcome
from sharepod_operator.manifest import names
from sharepod_operator.manifest.render import replica_name
from tests.support.controller_world import NAMESPACE, Operator, new_cluster, sharepod

if TYPE_CHECKING:
    from sharepod_operator.kube.api import Resource
    from sharepod_operator.kube.errors import ApiError

pytestmark = pytest.mark.looptime


def quota(most: int) -> Any:
    """An admission check that lets so many pods be."""

    def check(server: Any) -> Any:
        def admit(verb: str, resource: Resource, body: Json) -> ApiError | None:
            if (verb, resource) != ("create", PODS) or len(server.pods()) < most:
                return None
            name = body["metadata"]["name"]
            return Forbidden(
                f'pods "{name}" is forbidden: exceeded quota: gpu, requested: pods=1', status=403, reason="Forbidden"
            )

        return admit

    return check


async def test_creates_the_wanted_pods_and_shows_them() -> None:
    """Three replicas become three pods with ordinals 0 to 2, owned and labelled, and the status says where they are."""
    cluster = new_cluster()
    created = cluster.apply(sharepod(replicas=3))
    async with Operator(cluster) as operator:
        await operator.settle()

    assert ["0.0.0", "1.0.0", "2.0.0"] == cluster.ordinals()
    for pod in cluster.pods().values():
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (created["metadata"]["uid"], True) == (owner["uid"], owner["controller"])
    status = cluster.status()
    assert (3, 3, 3, 1) == tuple(
        status[key] for key in ("replicas", "readyReplicas", "availableReplicas", "observedGeneration")
    )
    assert "gpu-a/GPU-0 +2" == status["summary"]
    assert ("True", "AllReplicasReady", "3 of 3 replicas are ready") == cluster.condition("Ready")


async def test_one_replica_costs_four_writes_here() -> None:
    """Pod, Synced event, one status: with the scheduler's Binding and its event five writes in all."""
    cluster = new_cluster()
    cluster.apply(sharepod())
    async with Operator(cluster) as operator:
        await operator.settle()

    assert [("create", PODS), ("create", EVENTS), ("patch", SHAREPODS)] == [
        (write.verb, write.resource) for write in operator.api.sent
    ]
    assert [("SharePod", "Synced", "SharePod synced successfully")] == cluster.events()


async def test_at_rest_nothing_is_written() -> None:
    """A minute without a change costs no write."""
    cluster = new_cluster()
    cluster.apply(sharepod(replicas=5))
    async with Operator(cluster) as operator:
        await operator.settle()
        before = len(operator.api.sent)
        await operator.pass_time(60)

        assert before == len(operator.api.sent)


async def test_scales_down_in_the_order_of_the_seed() -> None:
    """Of four replicas the one that waits goes first, then the one that restarted most."""
    cluster = new_cluster(room=3)
    cluster.apply(sharepod(replicas=4))
    async with Operator(cluster) as operator:
        await operator.settle()
        running = [name for name, pod in cluster.pods().items() if pod["status"]["phase"] == "Running"]
        restarted = running[1]
        cluster.server.set_phase(restarted, "Running", NAMESPACE, containerStatuses=[{"name": "c", "restartCount": 7}])
        cluster.scale("bert", 2)
        await operator.settle()

    assert sorted(set(running) - {restarted}) == sorted(cluster.pods())
    assert 2 == cluster.status()["replicas"]


async def test_scales_to_zero_and_back() -> None:
    """Zero is a state of its own, and coming back makes pods again."""
    cluster = new_cluster()
    cluster.apply(sharepod(replicas=3))
    async with Operator(cluster) as operator:
        await operator.settle()
        cluster.scale("bert", 0)
        await operator.settle()

        assert {} == cluster.pods()
        assert ("True", "ScaledToZero") == cluster.condition("Ready")[:2]
        assert ("", [], {}) == tuple(cluster.status()[key] for key in ("summary", "placements", "boundDeviceIDs"))
        cluster.scale("bert", 2)
        await operator.settle()

    assert 2 == len(cluster.pods())
    assert ["Synced", "ScaledToZero", "Synced"] == [reason for _, reason, _ in cluster.events()]


async def test_the_floor_raises_the_wanted_number() -> None:
    """com.openfaas.scale.min raises replicas but leaves zero alone."""
    cluster = new_cluster()
    body = sharepod(replicas=1)
    body["metadata"]["labels"] = {names.LABEL_MIN_REPLICAS: "3"}
    cluster.apply(body)
    async with Operator(cluster) as operator:
        await operator.settle()
        assert 3 == len(cluster.pods())
        cluster.scale("bert", 0)
        await operator.settle()

    assert {} == cluster.pods()


@pytest.mark.parametrize(
    ("policy", "phase", "kept"),
    [
        ("Never", "Succeeded", True),
        ("Never", "Failed", True),
        ("OnFailure", "Succeeded", True),
        ("OnFailure", "Failed", False),
        ("Always", "Failed", False),
        ("Always", "Succeeded", False),
    ],
)
async def test_a_finished_pod_is_replaced_only_where_its_restart_policy_wants_it(
    policy: str, phase: str, *, kept: bool
) -> None:
    """What is done stays and isn't made again; anything else gets a successor, and its object goes."""
    cluster = new_cluster()
    body = sharepod()
    body["spec"]["podSpec"]["restartPolicy"] = policy
    cluster.apply(body)
    async with Operator(cluster) as operator:
        await operator.settle()
        (name,) = cluster.pods()
        cluster.server.set_phase(name, phase, NAMESPACE)
        await operator.settle()

    assert kept == (name in cluster.pods())
    assert ([] if kept else ["0.1.1"]) == cluster.ordinals()


@pytest.mark.parametrize("reason", ["OutOfcpu", "Evicted", "NodeAffinity", "UnexpectedAdmissionError", "NodeShutdown"])
async def test_a_lost_race_is_replaced_with_growing_delay(reason: str) -> None:
    """Each loss in a row doubles the wait, no matter the restartPolicy, and lost objects don't pile up."""
    cluster = new_cluster(runs=False)
    body = sharepod()
    body["spec"]["podSpec"]["restartPolicy"] = "Never"
    cluster.apply(body)
    times = []
    async with Operator(cluster) as operator:
        for _ in range(6):
            await operator.settle(quiet=3)
            (running,) = (name for name, pod in cluster.pods().items() if pod["status"]["phase"] == "Pending")
            times.append(cluster.pods()[running]["metadata"]["creationTimestamp"])
            cluster.server.set_phase(running, "Failed", NAMESPACE, reason=reason)
            losses = len(times)
            while len(operator.writes("create", PODS)) == losses:
                await operator.pass_time(0.5)
        await operator.settle()

    assert ["0.6.6"] == cluster.ordinals()
    assert 1 == len(cluster.pods())
    seconds = [int(time[14:16]) * 60 + int(time[17:19]) for time in times]
    gaps = [later - earlier for earlier, later in itertools.pairwise(seconds)]
    assert gaps[0] < 7, gaps
    assert gaps[3] >= 7, gaps
    assert gaps[4] >= 15, gaps


async def test_a_pod_deleted_by_hand_is_replaced_at_once_under_another_name() -> None:
    """The terminating pod keeps its name and its room until it is gone; its successor doesn't wait for that."""
    cluster = new_cluster(ends=False)
    cluster.apply(sharepod())
    async with Operator(cluster) as operator:
        await operator.settle()
        (name,) = cluster.pods()
        cluster.server.delete(PODS, name, NAMESPACE)
        await operator.settle()
        assert 2 == len(cluster.pods())
        assert ["0.1.0"] == cluster.ordinals()
        assert "Terminating" == cluster.status()["placements"][1]["state"]
        cluster.ends = True
        await operator.settle()

    assert [name] != list(cluster.pods())
    assert 1 == len(cluster.pods()) == len(cluster.status()["placements"])


async def test_no_name_comes_back_after_its_pod_is_gone() -> None:
    """Whoever deletes pods by name, and is late, must not meet their successors."""
    cluster = new_cluster()
    cluster.apply(sharepod(replicas=3))
    async with Operator(cluster) as operator:
        await operator.settle()
        first = set(cluster.pods())
        cluster.scale("bert", 0)
        await operator.settle()
        assert {} == cluster.pods()
        cluster.scale("bert", 3)
        await operator.settle()

    assert (3, set()) == (len(cluster.pods()), first & set(cluster.pods()))


async def test_a_pending_pod_of_an_earlier_template_is_replaced() -> None:
    """An edit while the pod waits: the next pod is of the new template, and observedGeneration follows."""
    cluster = new_cluster(places=False)
    cluster.apply(sharepod())
    async with Operator(cluster) as operator:
        await operator.settle()
        cluster.apply(sharepod(gpu={"request": 0.25, "limit": 1}))
        await operator.settle()
        (pod,) = cluster.pods().values()
        assert '"requestMilli":250' in pod["metadata"]["annotations"][names.GPU_REQUEST]
        assert 2 == cluster.status()["observedGeneration"]
        cluster.places = True
        await operator.settle()

    assert "0.25/1" == cluster.status()["gpu"]["share"]
    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]


async def test_a_bound_pod_of_an_earlier_template_runs_on_until_it_ends() -> None:
    """As with a ReplicaSet an edit restarts nothing; the generation isn't called synced before its own pods are there."""
    cluster = new_cluster()
    cluster.apply(sharepod())
    async with Operator(cluster) as operator:
        await operator.settle()
        (before,) = cluster.pods().values()
        cluster.apply(sharepod(gpu={"request": 0.25, "limit": 1}))
        await operator.settle()
        assert [before["metadata"]["name"]] == list(cluster.pods())
        assert "1 run an earlier version" in cluster.condition("Ready")[2]
        assert 1 == len(cluster.events())
        cluster.server.delete(PODS, before["metadata"]["name"], NAMESPACE)
        await operator.settle()

    (after,) = cluster.pods().values()
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert 2 == len(cluster.events())


async def test_a_foreign_pod_with_the_wanted_name_is_never_adopted() -> None:
    """The next name is taken, and an event says why."""
    cluster = new_cluster()
    uid = cluster.apply(sharepod())["metadata"]["uid"]
    taken = replica_name("bert", uid, 0, 0)
    cluster.server.create(
        PODS, {"metadata": {"name": taken}, "spec": {"containers": [{"name": "c", "image": "i"}]}}, NAMESPACE
    )
    async with Operator(cluster) as operator:
        await operator.settle()

    assert sorted([taken, replica_name("bert", uid, 0, 1)]) == sorted(cluster.pods())
    assert "ownerReferences" not in cluster.pods()[taken]["metadata"]
    note = f'Resource "{taken}" already exists and is not managed by SharePod'
    assert ("SharePod", "ErrResourceExists", note) in cluster.events()


async def test_an_own_pod_that_the_cache_has_not_seen_is_taken_for_what_it_is() -> None:
    """A create that meets its own pod makes no second one, and one whose pod is terminating takes the next name."""
    cluster = new_cluster(ends=False)
    cluster.apply(sharepod(replicas=2))
    async with Operator(cluster) as operator:
        await operator.settle()
        names_before = sorted(cluster.pods())
    cluster.server.delete(PODS, names_before[0], NAMESPACE)
    blind = Operator(cluster)
    blind.api.faults.refuse(ServerError("not yet"), times=20, verb="list", resource=PODS)
    async with blind:
        await blind.settle()

    assert 3 == len(cluster.pods())
    assert 2 == len(cluster.ordinals())


async def test_creates_in_slow_start_batches_until_one_fails() -> None:
    """1, 2, 4 pods at a time; after a failing batch the next round starts with one again."""
    cluster = new_cluster(places=False)
    cluster.server.admission.append(quota(5)(cluster.server))
    cluster.apply(sharepod(replicas=20))
    async with Operator(cluster) as operator:
        await operator.pass_time(0.5)
        outcomes = [write.outcome for write in operator.writes("create", PODS)]

    assert ["ok"] * 5 + ["Forbidden"] * 2 == outcomes


async def test_a_quota_is_a_lasting_reason_without_a_hot_loop() -> None:
    """Ten minutes of refusals cost a few writes; when room comes the pods follow."""
    cluster = new_cluster()
    admit = quota(1)(cluster.server)
    cluster.server.admission.append(admit)
    cluster.apply(sharepod(replicas=3))
    async with Operator(cluster) as operator:
        await operator.pass_time(600)
        assert len(operator.writes("create", PODS)) <= 20
        assert len(operator.writes("patch", SHAREPODS)) <= 3
        text = "Pod refused by the API server: exceeded quota: gpu, requested: pods=1"
        assert ("True", "Valid") == cluster.condition("Accepted")[:2]
        assert ("False", "Unschedulable", text) == cluster.condition("Scheduled")
        assert 1 == sum(reason == "FailedCreate" for _, reason, _ in cluster.events())
        cluster.server.admission.remove(admit)
        await operator.pass_time(90)

    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]


async def test_a_quota_does_not_hinder_scaling_down() -> None:
    """What is too much goes, although more is refused."""
    cluster = new_cluster()
    cluster.server.admission.append(quota(3)(cluster.server))
    cluster.apply(sharepod(replicas=5))
    async with Operator(cluster) as operator:
        await operator.pass_time(30)
        assert 3 == len(cluster.pods())
        cluster.scale("bert", 1)
        await operator.pass_time(90)

    assert 1 == len(cluster.pods())
    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]


@pytest.mark.parametrize(
    ("change", "reason", "event", "text"),
    [
        (
            {"podSpec": {"containers": [{"name": "c"}]}},
            "InvalidPodSpec",
            "InvalidSpec",
            "Pod refused by the API server: spec.containers[0].image: Required value",
        ),
        (
            {"podSpec": {"containers": [{"name": "c", "image": "i"}], "priorityClassName": "gold"}},
            "UnknownPriorityClass",
            "InvalidSpec",
            "Pod refused by the API server: no PriorityClass with name gold was found",
        ),
    ],
)
@pytest.mark.parametrize("replicas", [0, 2])
async def test_what_the_api_server_refuses_is_said_and_a_good_edit_recovers(
    change: Json, reason: str, event: str, text: str, replicas: int
) -> None:
    """Also with no replica wanted, by a dry run; no pod is made, and going back needs no help."""
    cluster = new_cluster()
    cluster.apply(sharepod(replicas=replicas, **change))
    async with Operator(cluster) as operator:
        await operator.pass_time(10)
        assert {} == cluster.pods()
        assert ("False", reason, text) == cluster.condition("Accepted")
        assert ("False", reason, text) == cluster.condition("Ready")
        assert [("SharePod", event, text)] == cluster.events()
        assert len(operator.writes("create", PODS)) <= 6
        cluster.apply(sharepod(replicas=replicas))
        await operator.settle()

    assert replicas == len(cluster.pods())
    assert ("True", "Valid") == cluster.condition("Accepted")[:2]
    assert "True" == cluster.condition("Ready")[0]


async def test_a_priority_class_created_later_is_found() -> None:
    """The refusal is asked again with growing delay."""
    cluster = new_cluster()
    body = sharepod()
    body["spec"]["podSpec"]["priorityClassName"] = "gold"
    cluster.apply(body)
    async with Operator(cluster) as operator:
        await operator.pass_time(30)
        cluster.server.create(PRIORITY_CLASSES, {"metadata": {"name": "gold"}, "value": 7}, None)
        await operator.pass_time(60)

    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]


async def test_an_unreadable_request_writes_status_and_event_only_and_leaves_pods_alone() -> None:
    """A bad annotation on a running SharePod: said by name, nothing deleted or created, and undone by the next edit."""
    cluster = new_cluster()
    cluster.apply(sharepod(replicas=2))
    async with Operator(cluster) as operator:
        await operator.settle()
        before = sorted(cluster.pods())

        def break_it(body: Json) -> None:
            body["spec"].update(replicas=1)
            body["spec"].pop("gpu")
            body["metadata"]["annotations"] = {names.KUBESHARE_REQUEST: "0,5"}

        def mend_it(body: Json) -> None:
            body["spec"] = sharepod(replicas=2)["spec"]
            body["metadata"].pop("annotations")

        cluster.edit("bert", break_it)
        writes = len(operator.api.sent)
        await operator.settle()
        assert before == sorted(cluster.pods())
        state, reason, message = cluster.condition("Accepted")
        assert ("False", "InvalidGPURequest") == (state, reason)
        assert names.KUBESHARE_REQUEST in message
        assert ("SharePod", "ErrValueError", message) in cluster.events()
        assert {PODS} & {write.resource for write in operator.api.sent[writes:]} == set()
        cluster.edit("bert", mend_it)
        await operator.settle()

    assert before == sorted(cluster.pods())
    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]


async def test_a_bad_template_does_not_cost_the_pods_that_wait() -> None:
    """Pods of the earlier template stay until the new one is known to be good."""
    cluster = new_cluster(places=False)
    cluster.apply(sharepod(replicas=2))
    async with Operator(cluster) as operator:
        await operator.settle()
        before = sorted(cluster.pods())
        cluster.apply(sharepod(replicas=2, podSpec={"containers": [{"name": "c"}]}))
        await operator.settle()
        assert before == sorted(cluster.pods())
        assert ("False", "InvalidPodSpec") == cluster.condition("Accepted")[:2]
        cluster.apply(sharepod(replicas=2))
        await operator.settle()

    assert before == sorted(cluster.pods())
    assert ("True", "Valid") == cluster.condition("Accepted")[:2]


@pytest.mark.parametrize(
    "error",
    [
        ServerError("boom", status=500),
        TooManyRequests("slow down", retry_after=3),
        UnknownOutcome("reset"),
        Forbidden("no"),
        Invalid("odd"),
    ],
)
async def test_failing_writes_end_in_the_wanted_pods(error: ApiError) -> None:
    """Whatever the first answers are, no pod is missing or too many in the end."""
    cluster = new_cluster()
    cluster.apply(sharepod(replicas=4))
    operator = Operator(cluster)
    operator.api.faults.refuse(error, times=3, verb="create", resource=PODS)
    operator.api.faults.refuse(error, times=2, verb="patch", resource=SHAREPODS)
    async with operator:
        await operator.pass_time(1500)

    assert ["0.0.0", "1.0.0", "2.0.0", "3.0.0"] == cluster.ordinals()
    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]


async def test_trouble_that_stays_is_shown() -> None:
    """A webhook that fails for minutes is told on the SharePod, and gone from there afterwards."""
    cluster = new_cluster()
    cluster.apply(sharepod())
    operator = Operator(cluster)
    broken = UnknownOutcome("failed calling webhook: connection refused", status=500)
    operator.api.faults.refuse(broken, times=8, verb="create", resource=PODS)
    async with operator:
        await operator.pass_time(20)
        found = cluster.condition("Ready")
        await operator.pass_time(300)

    text = "Pods can't be created: failed calling webhook: connection refused"
    assert ("False", "Unschedulable", text) == found
    assert ("SharePod", "FailedCreate", text) in cluster.events()
    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]


async def test_a_pod_of_ours_that_serves_another_slot_is_not_taken_for_this_one() -> None:
    """Two slots may share a name, or somebody tampers with the annotation: the next name is taken, and the number is right."""
    cluster = new_cluster()
    cluster.apply(sharepod(replicas=2))
    async with Operator(cluster) as operator:
        await operator.settle()
        name = min(cluster.pods())

        def tamper(body: Json) -> Json:
            body["metadata"]["annotations"][names.REPLICA] = "7.7.7"
            return body

        cluster.server.change(PODS, name, NAMESPACE, tamper)
        cluster.scale("bert", 3)
        await operator.settle()

    assert 3 == len(cluster.pods()) == len(cluster.ordinals())
    assert ("True", "AllReplicasReady") == cluster.condition("Ready")[:2]


async def test_a_late_watch_makes_no_second_pod() -> None:
    """What this process wrote it knows, however late the watch tells; doubled events change nothing."""
    cluster = new_cluster(places=False)
    operator = Operator(cluster)
    operator.api.tamper = lambda event: (event, event)
    async with operator:
        await operator.pass_time(0.5)
        cluster.apply(sharepod(replicas=6))
        await operator.pass_time(0.2)
        operator.api.hold_watches()
        await operator.pass_time(5)
        for uid in list(operator.cache.sharepods):
            operator.controller.enqueue(uid)
        await operator.pass_time(5)
        assert 6 == len(operator.writes("create", PODS))
        operator.api.release_watches()
        cluster.scale("bert", 2)
        await operator.pass_time(0.1)
        operator.api.hold_watches()
        await operator.pass_time(5)
        assert 4 == len(operator.writes("delete", PODS))
        operator.api.release_watches()
        await operator.settle()

    assert 2 == len(cluster.pods())
    assert (6, 4) == (len(operator.writes("create", PODS)), len(operator.writes("delete", PODS)))


async def test_without_any_watch_event_of_pods_nothing_is_done_twice() -> None:
    """Plans go by what the writes returned; the re-list that follows a broken watch then agrees with it."""
    cluster = new_cluster(places=False)
    operator = Operator(cluster)
    operator.api.tamper = lambda event: () if event.object["kind"] == "Pod" else (event,)
    async with operator:
        await operator.pass_time(0.5)
        cluster.apply(sharepod(replicas=6))
        await operator.pass_time(3)
        cluster.scale("bert", 2)
        await operator.pass_time(3)
        for uid in list(operator.cache.sharepods):
            operator.controller.enqueue(uid)
        await operator.pass_time(3)
        assert 2 == len(operator.cache.pods) == cluster.status()["replicas"]
        operator.api.tamper = lambda event: (event,)
        operator.api.end_watches(Gone("too old"))
        await operator.settle()

    assert ["ok"] * 6 == [write.outcome for write in operator.writes("create", PODS)]
    assert ["ok"] * 4 == [write.outcome for write in operator.writes("delete", PODS)]


async def test_writes_are_strict_and_meant_for_one_object() -> None:
    """Pods and statuses with strict field validation, deletions for exactly one uid, statuses for one version of one uid."""
    cluster = new_cluster()
    cluster.apply(sharepod(replicas=2))
    operator = Operator(cluster)
    create, patch, delete = operator.api.create, operator.api.patch, operator.api.delete
    seen: dict[str, list[Any]] = {"create": [], "patch": [], "delete": []}

    async def noted_create(resource: Resource, body: Json, **options: Any) -> Json:
        if resource == PODS:
            seen["create"].append(options["strict"])
        return await create(resource, body, **options)

    async def noted_patch(resource: Resource, name: str, body: Any, **options: Any) -> Json:
        if resource == SHAREPODS:
            seen["patch"].append((options["strict"], options["subresource"], sorted(body["metadata"])))
        return await patch(resource, name, body, **options)

    async def noted_delete(resource: Resource, name: str, **options: Any) -> Json:
        seen["delete"].append(options["uid"] == cluster.pods()[name]["metadata"]["uid"])
        return await delete(resource, name, **options)

    for name, call in (("create", noted_create), ("patch", noted_patch), ("delete", noted_delete)):
        setattr(operator.api, name, call)
    async with operator:
        await operator.settle()
        cluster.scale("bert", 1)
        await operator.settle()

    assert [True, True] == seen["create"]
    assert {(True, "status", ("resourceVersion", "uid"))} == {(*found[:2], tuple(found[2])) for found in seen["patch"]}
    assert [True] == seen["delete"]


async def test_a_standby_writes_nothing_and_goes_on_when_it_leads() -> None:
    """Without leadership nothing is written; `poke` makes up for what was left."""
    cluster = new_cluster()
    cluster.apply(sharepod(replicas=2))
    operator = Operator(cluster)
    operator.leading = False
    async with operator:
        await operator.pass_time(10)
        assert [] == operator.api.sent
        operator.leading = True
        operator.controller.poke()
        await operator.settle()

    assert 2 == len(cluster.pods())


async def test_a_deleted_sharepod_is_left_to_the_garbage_collector() -> None:
    """While it is being deleted nothing is created for it, and the same name afterwards starts clean."""
    cluster = new_cluster()
    body = sharepod(replicas=2)
    body["metadata"]["finalizers"] = ["example.com/keep"]
    cluster.apply(body)
    async with Operator(cluster) as operator:
        await operator.settle()
        cluster.server.delete(SHAREPODS, "bert", NAMESPACE)
        cluster.server.delete(PODS, min(cluster.pods()), NAMESPACE)
        await operator.settle()
        assert 1 == len(cluster.pods())
        assert 2 == len(operator.writes("create", PODS))
        cluster.server.remove(SHAREPODS, "bert", NAMESPACE)
        await operator.settle()
        assert {} == cluster.pods()
        cluster.apply(sharepod(replicas=1))
        await operator.settle()

    assert 1 == len(cluster.pods())
    assert 1 == cluster.status()["observedGeneration"]


async def test_replicas_become_available_after_min_ready_seconds() -> None:
    """Time alone makes the difference, and it is written."""
    cluster = new_cluster()
    cluster.apply(sharepod(minReadySeconds=30))
    async with Operator(cluster) as operator:
        await operator.pass_time(10)
        assert (1, 0) == (cluster.status()["readyReplicas"], cluster.status()["availableReplicas"])
        await operator.pass_time(30)

    assert 1 == cluster.status()["availableReplicas"]


async def test_many_sharepods_at_once_are_all_served() -> None:
    """A hundred SharePods, one replica each: every one costs one status and one pod."""
    cluster = new_cluster()
    for number in range(100):
        cluster.apply(sharepod(f"s-{number}"))
    async with Operator(cluster) as operator:
        await operator.settle()
        assert operator.controller.idle

    assert 100 == len(cluster.pods()) == len(operator.writes("create", PODS))
    assert 100 == len(operator.writes("patch", SHAREPODS)) == len(operator.writes("create", EVENTS))
    assert {"True"} == {cluster.condition("Ready", f"s-{number}")[0] for number in range(100)}


async def test_the_work_of_one_sharepod_does_not_wait_for_another() -> None:
    """A SharePod whose creates hang doesn't hold up the others."""
    cluster = new_cluster()
    operator = Operator(cluster)
    create = operator.api.create

    async def slow(resource: Resource, body: Json, **options: Any) -> Json:
        if resource == PODS and body["metadata"]["name"].startswith("slow-"):
            await asyncio.sleep(50)
        return await create(resource, body, **options)

    operator.api.create = slow  # type: ignore[method-assign]
    cluster.apply(sharepod("slow", replicas=3))
    cluster.apply(sharepod("bert"))
    async with operator:
        await operator.pass_time(10)
        assert "True" == cluster.condition("Ready", "bert")[0]
        await operator.pass_time(200)

    assert "True" == cluster.condition("Ready", "slow")[0]
