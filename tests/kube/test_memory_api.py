"""The in-memory API server behaves as the real one does wherever the operator could notice a difference."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sharepod_operator.kube.api import EVENTS, LEASES, NODES, PODS, PRIORITY_CLASSES, SHAREPODS, Json, Patch, WatchEvent
from sharepod_operator.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    NotLeading,
    TooManyRequests,
    UnknownOutcome,
)
from tests.support.memory_api import Crash, MemoryApi, MemoryServer


def pod(name: str = "a", **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def sharepod(name: str = "s", **spec: Any) -> Json:
    return {"metadata": {"name": name, "namespace": "ml"}, "spec": {"podSpec": {}, **spec}}


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def api(server: MemoryServer) -> MemoryApi:
    return MemoryApi(server)


async def bound(api: MemoryApi, name: str = "a", **annotations: str) -> Json:
    made = await api.create(PODS, pod(name), namespace="ml")
    await api.create_binding("ml", name, uid=made["metadata"]["uid"], node="gpu-a", annotations=annotations)
    return await api.get(PODS, name, namespace="ml")


class TestObjects:
    async def test_create_fills_in_what_the_server_sets(self, api: MemoryApi) -> None:
        """uid, versions, time and generation come from the server; a status sent along is dropped."""
        made = await api.create(PODS, pod() | {"status": {"phase": "Running"}}, namespace="ml")
        assert {
            "uid": "00000000-0000-4000-8000-000000000001",
            "name": "a",
            "namespace": "ml",
            "creationTimestamp": "2026-11-30T11:00:00Z",
            "resourceVersion": "1001",
            "generation": 1,
        } == made["metadata"]
        assert {"phase": "Pending"} == made["status"]
        assert (0, 30) == (made["spec"]["priority"], made["spec"]["terminationGracePeriodSeconds"])

    async def test_a_second_create_of_a_name_already_exists(self, api: MemoryApi) -> None:
        """AlreadyExists is told apart from a version conflict."""
        await api.create(PODS, pod(), namespace="ml")
        with pytest.raises(AlreadyExists, match='pods "a" already exists'):
            await api.create(PODS, pod(), namespace="ml")

    async def test_names_come_back_with_new_uids(self, api: MemoryApi) -> None:
        """A name may return, a uid never does."""
        first = await api.create(PODS, pod(), namespace="ml")
        await api.delete(PODS, "a", uid=first["metadata"]["uid"], namespace="ml")
        second = await api.create(PODS, pod(), namespace="ml")
        assert first["metadata"]["uid"] != second["metadata"]["uid"]

    async def test_a_pod_without_image_is_refused_by_field(self, api: MemoryApi) -> None:
        """The refusal names the exact field, as a real create does."""
        with pytest.raises(Invalid, match=r"spec.containers\[0\].image: Required value") as caught:
            await api.create(PODS, pod(containers=[{"name": "c"}]), namespace="ml")
        assert ("spec.containers[0].image: Required value",) == caught.value.field_causes

    async def test_priority_comes_from_the_class(self, api: MemoryApi, server: MemoryServer) -> None:
        """Admission resolves the PriorityClass, and forbids an unknown one."""
        server.put(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
        made = await api.create(PODS, pod(priorityClassName="high"), namespace="ml")
        assert (1000, "Never") == (made["spec"]["priority"], made["spec"]["preemptionPolicy"])
        with pytest.raises(Forbidden, match="no PriorityClass with name low was found"):
            await api.create(PODS, pod("b", priorityClassName="low"), namespace="ml")

    async def test_dry_run_creates_nothing(self, api: MemoryApi, server: MemoryServer) -> None:
        """A dry run passes all checks and leaves no object and no event."""
        await api.create(PODS, pod(), namespace="ml", dry_run=True)
        assert ([], 1000) == (server.objects(PODS), server.version)

    async def test_returned_objects_are_the_callers(self, api: MemoryApi) -> None:
        """Changing an answer changes nothing on the server."""
        made = await api.create(PODS, pod(), namespace="ml")
        made["spec"]["containers"].clear()
        assert 1 == len((await api.get(PODS, "a", namespace="ml"))["spec"]["containers"])


class TestPatches:
    async def test_merge_patch_replaces_lists_and_removes_nulls(self, api: MemoryApi) -> None:
        """RFC 7386: dicts merge, null removes, a list is replaced as a whole."""
        await api.create(SHAREPODS, sharepod(), namespace="ml")
        for status in (
            {"replicas": 1, "conditions": [{"type": "A"}]},
            {"replicas": None, "conditions": [{"type": "B"}]},
        ):
            patched = await api.patch(SHAREPODS, "s", {"status": status}, namespace="ml", subresource="status")
        assert {"conditions": [{"type": "B"}]} == patched["status"]

    async def test_strategic_merge_joins_conditions_by_type(self, api: MemoryApi) -> None:
        """One condition of a Pod can be set without knowing the others, annotations in the same PATCH."""
        await api.create(PODS, pod(), namespace="ml")
        for kind, status in (("PodScheduled", "False"), ("DisruptionTarget", "True"), ("PodScheduled", "True")):
            after = await api.patch(
                PODS,
                "a",
                {
                    "metadata": {"annotations": {kind: status}},
                    "status": {"conditions": [{"type": kind, "status": status}]},
                },
                namespace="ml",
                subresource="status",
                content=Patch.STRATEGIC,
            )
        assert [
            {"type": "PodScheduled", "status": "True"},
            {"type": "DisruptionTarget", "status": "True"},
        ] == after["status"]["conditions"]
        assert {"PodScheduled": "True", "DisruptionTarget": "True"} == after["metadata"]["annotations"]

    async def test_custom_resources_refuse_strategic_merge(self, api: MemoryApi) -> None:
        """415, an Invalid request."""
        await api.create(SHAREPODS, sharepod(), namespace="ml")
        with pytest.raises(Invalid) as caught:
            await api.patch(SHAREPODS, "s", {"spec": {}}, namespace="ml", content=Patch.STRATEGIC)
        assert 415 == caught.value.status

    async def test_json_patch_tests_before_it_sets(self, api: MemoryApi) -> None:
        """A failed `test` refuses the whole patch."""
        await api.create(SHAREPODS, sharepod(replicas=2), namespace="ml")
        swap = [
            {"op": "test", "path": "/spec/replicas", "value": 2},
            {"op": "replace", "path": "/spec/replicas", "value": 3},
        ]
        after = await api.patch(SHAREPODS, "s", swap, namespace="ml", content=Patch.JSON)
        assert 3 == after["spec"]["replicas"]
        with pytest.raises(Invalid):
            await api.patch(SHAREPODS, "s", swap, namespace="ml", content=Patch.JSON)

    async def test_status_and_spec_are_separate(self, api: MemoryApi) -> None:
        """The main endpoint ignores status, the status endpoint ignores the spec and a custom resource's metadata."""
        await api.create(SHAREPODS, sharepod(replicas=1), namespace="ml")
        change = {"metadata": {"labels": {"x": "y"}}, "spec": {"replicas": 5}, "status": {"replicas": 4}}
        by_status = await api.patch(SHAREPODS, "s", change, namespace="ml", subresource="status")
        assert (1, {"replicas": 4}, None, 1) == (
            by_status["spec"]["replicas"],
            by_status["status"],
            by_status["metadata"].get("labels"),
            by_status["metadata"]["generation"],
        )
        by_main = await api.patch(SHAREPODS, "s", {**change, "status": {"replicas": 9}}, namespace="ml")
        assert (5, {"replicas": 4}, 2) == (
            by_main["spec"]["replicas"],
            by_main["status"],
            by_main["metadata"]["generation"],
        )

    async def test_an_old_version_conflicts(self, api: MemoryApi) -> None:
        """metadata.resourceVersion in a patch is compare-and-set."""
        made = await api.create(SHAREPODS, sharepod(), namespace="ml")
        body = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"replicas": 2}}
        await api.patch(SHAREPODS, "s", body, namespace="ml")
        with pytest.raises(Conflict, match="the object has been modified"):
            await api.patch(SHAREPODS, "s", body, namespace="ml")

    async def test_a_write_that_changes_nothing_is_none(self, api: MemoryApi, server: MemoryServer) -> None:
        """No new version and no event come from a patch to what is there already."""
        made = await api.create(SHAREPODS, sharepod(replicas=2), namespace="ml")
        again = await api.patch(SHAREPODS, "s", {"spec": {"replicas": 2}}, namespace="ml")
        assert (made, 1001) == (again, server.version)

    async def test_another_uid_in_a_patch_is_invalid(self, api: MemoryApi) -> None:
        """The uid guards a patch against hitting a successor of the same name."""
        await api.create(PODS, pod(), namespace="ml")
        with pytest.raises(Invalid, match=r"metadata\.uid: field is immutable"):
            await api.patch(PODS, "a", {"metadata": {"uid": "other", "labels": {"x": "y"}}}, namespace="ml")

    async def test_a_lease_update_needs_the_version_it_read(self, api: MemoryApi) -> None:
        """PUT is compare-and-set."""
        lease = await api.create(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}, namespace="ml")
        await api.update(LEASES, "l", {**lease, "spec": {"holderIdentity": "y"}}, namespace="ml")
        with pytest.raises(Conflict):
            await api.update(LEASES, "l", {**lease, "spec": {"holderIdentity": "z"}}, namespace="ml")


class TestBinding:
    async def test_one_write_sets_node_annotations_and_condition(self, api: MemoryApi) -> None:
        """Everything arrives in one new version, and a nomination ends: overwritten with an empty string."""
        made = await api.create(PODS, pod(), namespace="ml")
        await api.patch(
            PODS,
            "a",
            {"metadata": {"annotations": {"nomination": "{}", "user": "1"}}, "status": {"nominatedNodeName": "gpu-b"}},
            namespace="ml",
            subresource="status",
            content=Patch.STRATEGIC,
        )
        await api.create_binding(
            "ml", "a", uid=made["metadata"]["uid"], node="gpu-a", annotations={"nomination": "", "port": "50051"}
        )
        after = await api.get(PODS, "a", namespace="ml")
        assert "1003" == after["metadata"]["resourceVersion"]
        assert {"nomination": "", "user": "1", "port": "50051"} == after["metadata"]["annotations"]
        assert "gpu-a" == after["spec"]["nodeName"]
        assert {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-30T11:00:00Z"}],
        } == after["status"]

    async def test_another_uid_conflicts(self, api: MemoryApi) -> None:
        """A Binding never hits a successor of the same name."""
        await api.create(PODS, pod(), namespace="ml")
        with pytest.raises(Conflict, match="Precondition failed: UID in precondition: other"):
            await api.create_binding("ml", "a", uid="other", node="gpu-a", annotations={})

    async def test_a_bound_pod_is_not_bound_again(self, api: MemoryApi) -> None:
        """The second Binding loses, also with the same node."""
        there = await bound(api)
        with pytest.raises(Conflict, match='already assigned to node "gpu-a"'):
            await api.create_binding("ml", "a", uid=there["metadata"]["uid"], node="gpu-a", annotations={})

    async def test_a_dying_pod_is_not_bound(self, api: MemoryApi) -> None:
        """A Pod with a finalizer that was deleted while unbound can't be assigned."""
        body = pod()
        body["metadata"]["finalizers"] = ["x/y"]
        made = await api.create(PODS, body, namespace="ml")
        uid = made["metadata"]["uid"]
        await api.delete(PODS, "a", uid=uid, namespace="ml")
        with pytest.raises(Conflict, match="is being deleted, cannot be assigned to a host"):
            await api.create_binding("ml", "a", uid=uid, node="gpu-a", annotations={})

    async def test_a_gated_pod_is_not_bound(self, api: MemoryApi) -> None:
        """Scheduling gates hold a Pod back."""
        made = await api.create(PODS, pod(schedulingGates=[{"name": "g"}]), namespace="ml")
        with pytest.raises(Conflict, match="schedulingGates"):
            await api.create_binding("ml", "a", uid=made["metadata"]["uid"], node="gpu-a", annotations={})

    async def test_a_missing_pod_is_not_found(self, api: MemoryApi) -> None:
        """404, a definite refusal."""
        with pytest.raises(NotFound):
            await api.create_binding("ml", "a", uid="x", node="gpu-a", annotations={})

    async def test_a_bound_pod_takes_no_nomination(self, api: MemoryApi) -> None:
        """NominatedNodeName on a bound Pod is 422."""
        await bound(api)
        with pytest.raises(Invalid):
            await api.patch(
                PODS,
                "a",
                {"status": {"nominatedNodeName": "n"}},
                namespace="ml",
                subresource="status",
                content=Patch.STRATEGIC,
            )


class TestDeletion:
    async def test_an_unbound_pod_goes_at_once(self, api: MemoryApi) -> None:
        """No kubelet has to say that it ended."""
        made = await api.create(PODS, pod(), namespace="ml")
        await api.delete(PODS, "a", uid=made["metadata"]["uid"], namespace="ml")
        with pytest.raises(NotFound):
            await api.get(PODS, "a", namespace="ml")

    async def test_a_bound_pod_has_its_grace_period(self, api: MemoryApi, server: MemoryServer) -> None:
        """It stays, with a deletionTimestamp in the future, until its time is over."""
        there = await bound(api)
        answer = await api.delete(PODS, "a", uid=there["metadata"]["uid"], namespace="ml")
        assert ("2026-11-30T11:00:30Z", 30) == (
            answer["metadata"]["deletionTimestamp"],
            answer["metadata"]["deletionGracePeriodSeconds"],
        )
        assert [] == server.advance(29)
        assert ["a"] == server.advance(1)
        assert {} == server.pods()

    async def test_kubelets_may_end_pods_early(self, api: MemoryApi, server: MemoryServer) -> None:
        """The containers stopped before the grace period was over."""
        there = await bound(api)
        await api.delete(PODS, "a", uid=there["metadata"]["uid"], namespace="ml")
        assert ["a"] == server.finish_deletions()

    async def test_a_finished_pod_goes_at_once(self, api: MemoryApi, server: MemoryServer) -> None:
        """Nothing runs in it any more."""
        there = await bound(api)
        server.set_phase("a", "Failed", "ml")
        await api.delete(PODS, "a", uid=there["metadata"]["uid"], namespace="ml")
        assert {} == server.pods()

    async def test_a_wrong_uid_deletes_nothing(self, api: MemoryApi, server: MemoryServer) -> None:
        """The precondition protects a successor of the same name."""
        await api.create(PODS, pod(), namespace="ml")
        with pytest.raises(Conflict, match="does not match the uid in record"):
            await api.delete(PODS, "a", uid="other", namespace="ml")
        assert ["a"] == list(server.pods())

    async def test_dependents_follow_their_owner(self, api: MemoryApi, server: MemoryServer) -> None:
        """Garbage collection deletes Pods by ownerReference: unbound ones at once, bound ones gracefully."""
        owner = await api.create(SHAREPODS, sharepod(), namespace="ml")
        reference = {
            "apiVersion": "faasshare.tum/v1",
            "kind": "SharePod",
            "name": "s",
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        for name in ("a", "b"):
            body = pod(name)
            body["metadata"]["ownerReferences"] = [reference]
            made = await api.create(PODS, body, namespace="ml")
        await api.create_binding("ml", "b", uid=made["metadata"]["uid"], node="gpu-a", annotations={})
        answer = await api.delete(SHAREPODS, "s", uid=reference["uid"], namespace="ml")
        assert ("Status", "Success") == (answer["kind"], answer["status"])
        assert ["b"] == [name for name, there in server.pods().items() if "deletionTimestamp" in there["metadata"]]
        assert ["b"] == list(server.pods())

    async def test_a_pod_made_for_a_dead_owner_is_collected(self, api: MemoryApi, server: MemoryServer) -> None:
        """A late create for a SharePod that is gone leaves nothing behind."""
        body = pod()
        body["metadata"]["ownerReferences"] = [
            {"apiVersion": "faasshare.tum/v1", "kind": "SharePod", "name": "s", "uid": "gone"}
        ]
        await api.create(PODS, body, namespace="ml")
        assert {} == server.pods()


class TestSelections:
    async def test_lists_are_sorted_and_selected(self, api: MemoryApi) -> None:
        """Label and field selectors choose as on a real server."""
        for name, team in (("b", "x"), ("a", "y"), ("c", "x")):
            body = pod(name)
            body["metadata"]["labels"] = {"team": team}
            await api.create(PODS, body, namespace="ml")
        expected = {
            "team=x": ["b", "c"],
            "team!=x": ["a"],
            "team in (x,y),team!=y": ["b", "c"],
            "!team": [],
            None: ["a", "b", "c"],
        }
        for selector, names in expected.items():
            listing = await api.list(PODS, label_selector=selector)
            assert names == [item["metadata"]["name"] for item in listing.items]
        by_field = await api.list(PODS, namespace="ml", field_selector="metadata.name=b,spec.nodeName=")
        assert (["b"], "1003") == ([item["metadata"]["name"] for item in by_field.items], by_field.resource_version)


class TestWatch:
    async def collect(self, api: MemoryApi, count: int, **how: Any) -> list[WatchEvent]:
        events: list[WatchEvent] = []
        async with asyncio.timeout(5):
            async for event in api.watch(PODS, **{"resource_version": "1000", **how}):
                events.append(event)
                if len(events) == count:
                    break
        return events

    async def test_everything_after_the_version_arrives_in_order(self, api: MemoryApi) -> None:
        """ADDED, MODIFIED and DELETED, each with the version that it made; a deletion is marked first."""
        there = await bound(api)
        await api.delete(PODS, "a", uid=there["metadata"]["uid"], namespace="ml", grace_period_seconds=0)
        seen = [(event.type, event.object["metadata"]["resourceVersion"]) for event in await self.collect(api, 4)]
        assert [("ADDED", "1001"), ("MODIFIED", "1002"), ("MODIFIED", "1003"), ("DELETED", "1004")] == seen
        assert ["MODIFIED"] == [event.type for event in await self.collect(api, 1, resource_version="1001")]

    async def test_leaving_the_selection_looks_like_a_deletion(self, api: MemoryApi) -> None:
        """A watch of unbound Pods sees a Binding as DELETED, with the Pod as it was before."""
        await bound(api)
        seen = await self.collect(api, 2, field_selector="spec.nodeName=")
        assert ["ADDED", "DELETED"] == [event.type for event in seen]
        last = seen[1].object
        assert ("1002", False) == (last["metadata"]["resourceVersion"], "nodeName" in last["spec"])

    async def test_bookmarks_carry_the_version(self, api: MemoryApi, server: MemoryServer) -> None:
        """An idle watch learns how far the server has come."""
        server.put(NODES, {"metadata": {"name": "gpu-a"}})
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self.collect(api, 1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            server.bookmark()
        assert [("BOOKMARK", "1001")] == [(e.type, e.object["metadata"]["resourceVersion"]) for e in watch.result()]

    async def test_a_compacted_version_is_gone(self, api: MemoryApi, server: MemoryServer) -> None:
        """410 Expired: list again."""
        await api.create(PODS, pod(), namespace="ml")
        server.compact()
        with pytest.raises(Gone, match="too old resource version"):
            await self.collect(api, 1)

    async def test_events_can_be_dropped_and_doubled(self, api: MemoryApi, server: MemoryServer) -> None:
        """What arrives of each event is the test's choice."""
        api.tamper = lambda event: (event, event) if event.type == "ADDED" else ()
        await bound(api)
        await bound(api, "b")
        assert ["a", "a", "b", "b"] == [e.object["metadata"]["name"] for e in await self.collect(api, 4)]

    async def test_a_held_watch_is_silent_until_it_breaks(self, api: MemoryApi, server: MemoryServer) -> None:
        """Nothing arrives while it is held, the error included."""
        api.hold_watches()
        watch = asyncio.ensure_future(self.collect(api, 1, resource_version=str(server.version)))
        for _ in range(3):
            await asyncio.sleep(0)
        api.end_watches(Gone("expired", status=410))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not watch.done()
        api.release_watches()
        with pytest.raises(Gone):
            await watch


class TestFaults:
    async def test_killed_before_a_write(self, api: MemoryApi, server: MemoryServer) -> None:
        """The write never happened, and the dead process reaches the server no more."""
        api.faults.crash_before = 2
        await api.create(PODS, pod("a"), namespace="ml")
        with pytest.raises(Crash):
            await api.create(PODS, pod("b"), namespace="ml")
        for call in (api.get(PODS, "a", namespace="ml"), api.create(PODS, pod("c"), namespace="ml")):
            with pytest.raises(Crash):
                await call
        assert ["a"] == list(server.pods())

    async def test_killed_after_a_write(self, api: MemoryApi, server: MemoryServer) -> None:
        """The write happened, and nobody knows."""
        api.faults.crash_after = 1
        with pytest.raises(Crash):
            await api.create(PODS, pod(), namespace="ml")
        assert ["a"] == list(server.pods())

    @pytest.mark.parametrize(("fault", "there"), [("lose_answer", ["a"]), ("lose_request", [])])
    async def test_a_lost_answer_and_a_lost_request_look_the_same(
        self, api: MemoryApi, server: MemoryServer, fault: str, there: list[str]
    ) -> None:
        """UnknownOutcome says neither yes nor no."""
        setattr(api.faults, fault, 1)
        with pytest.raises(UnknownOutcome) as caught:
            await api.create(PODS, pod(), namespace="ml")
        assert (False, there) == (caught.value.definite, list(server.pods()))

    async def test_chosen_calls_are_refused_a_few_times(self, api: MemoryApi) -> None:
        """An injected error hits the calls that it was made for, as often as asked."""
        api.faults.refuse(TooManyRequests("slow down", retry_after=3), times=2, verb="create", resource=PODS)
        await api.create(SHAREPODS, sharepod(), namespace="ml")
        for _ in range(2):
            with pytest.raises(TooManyRequests):
                await api.create(PODS, pod(), namespace="ml")
        await api.create(PODS, pod(), namespace="ml")

    async def test_the_gate_stops_every_write_but_those_of_leases(self, server: MemoryServer) -> None:
        """A standby reads, and competes for the Lease."""

        def closed() -> None:
            raise NotLeading("standby")

        api = MemoryApi(server, write_gate=closed)
        await api.create(LEASES, {"metadata": {"name": "l"}, "spec": {}}, namespace="ml")
        for call in (
            api.create(PODS, pod(), namespace="ml"),
            api.patch(PODS, "a", {}, namespace="ml"),
            api.delete(PODS, "a", uid=None, namespace="ml"),
            api.create_binding("ml", "a", uid="", node="n", annotations={}),
        ):
            with pytest.raises(NotLeading):
                await call
        assert (["create"], []) == ([write.verb for write in server.writes], api.sent)

    async def test_writes_are_counted_in_order(self, api: MemoryApi, server: MemoryServer) -> None:
        """The log names verb, resource, object and outcome; it is what a sweep counts."""
        await bound(api)
        with pytest.raises(AlreadyExists):
            await api.create(PODS, pod(), namespace="ml")
        assert ["create pods ml/a: ok", "bind pods/binding ml/a: ok", "create pods ml/a: AlreadyExists"] == [
            str(write) for write in server.writes
        ]


class TestEvents:
    async def test_events_are_checked(self, api: MemoryApi) -> None:
        """A field that a recorder gets wrong is refused, and what is immutable stays."""
        event = {
            "metadata": {"name": "e", "namespace": "ml"},
            "eventTime": "2026-11-30T11:00:00.000000Z",
            "reportingController": "faasshare.tum/sharepod-operator",
            "reportingInstance": "x",
            "action": "Bind",
            "reason": "Scheduled",
            "type": "Normal",
            "note": "n",
            "regarding": {"namespace": "ml"},
        }
        await api.create(EVENTS, event, namespace="ml")
        for field, wrong in (
            ("type", "Error"),
            ("action", ""),
            ("note", "x" * 1025),
            ("regarding", {"namespace": "q"}),
        ):
            with pytest.raises(Invalid):
                await api.create(EVENTS, {**event, field: wrong}, namespace="ml")
        with pytest.raises(Invalid, match="field is immutable"):
            await api.patch(EVENTS, "e", {"note": "other"}, namespace="ml")
        series = {"series": {"count": 2, "lastObservedTime": "2026-11-30T11:00:01.000000Z"}}
        assert 2 == (await api.patch(EVENTS, "e", series, namespace="ml"))["series"]["count"]


class TestKubelet:
    async def test_bound_pods_run_on_known_nodes(self, api: MemoryApi, server: MemoryServer) -> None:
        """Only a Pod whose node exists becomes Running and Ready."""
        await bound(api)
        assert [] == server.run_pods()
        server.put(NODES, {"metadata": {"name": "gpu-a"}})
        assert ["a"] == server.run_pods()
        status = server.pods()["a"]["status"]
        assert ("Running", "Ready", "True") == (
            status["phase"],
            *[status["conditions"][-1][k] for k in ("type", "status")],
        )
