"""What a SharePod's status says of its pods."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharepod_operator.core.model import Allocation, Charge, GPURequest
from sharepod_operator.core.replicas import ReplicaState
from sharepod_operator.core.status import (
    Json,
    Reason,
    Refused,
    SharePodView,
    at_rest,
    complete,
    merge_patch,
    next_available,
    one_line,
    render_status,
    settled,
    verdicts,
    waiting,
)
from sharepod_operator.core.status_details import DETAILS, short_uuid
from sharepod_operator.manifest.crd_status import status_schema

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GIB = 1 << 30
UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"


def view(wanted: int = 1, **fields: Any) -> SharePodView:
    made = SharePodView(generation=3, wanted=wanted, min_ready_seconds=0, selector="faasshare.tum/sharepod=bert")
    return replace(made, **fields)


def held(*uuids: str, port: int = 50051) -> Allocation:
    return Allocation(tuple(Charge(uuid, 500, 10 * GIB) for uuid in uuids), port=port)


def running(name: str = "bert-1", **fields: Any) -> ReplicaState:
    """A Ready replica with half a GPU."""
    made = ReplicaState(
        uid=name,
        name=name,
        ordinal=0,
        node="gpu-a",
        phase="Running",
        ready=True,
        ready_since=NOW,
        allocation=held(UUID),
    )
    return replace(made, **fields)


def pending(name: str = "bert-9", **fields: Any) -> ReplicaState:
    return ReplicaState(uid=name, name=name, **fields)


def judged(name: str, message: str = "0/1 GPUs", reason: str = "Unschedulable") -> ReplicaState:
    return pending(name, verdict_reason=reason, verdict_message=message)


def conditions(of: SharePodView, *pods: ReplicaState, previous: Json | None = None) -> dict[str, tuple[str, str, str]]:
    status = render_status(of, pods, previous or {}, NOW)
    return {found["type"]: (found["status"], found["reason"], found["message"]) for found in status["conditions"]}


def test_one_replica_on_two_gpus_reads_as_in_faas_share() -> None:
    """The maps of the original, joined where a pod has several GPUs."""
    pod = running("bert-7f9kq", allocation=held("GPU-604ac76c", "GPU-9b1f02de"))
    status = render_status(view(gpu=GPURequest(500, 1000, 10 * GIB, count=2), gpu_source="spec"), [pod], {}, NOW)

    assert {
        "observedGeneration": 3,
        "replicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "selector": "faasshare.tum/sharepod=bert",
        "gpu": {"share": "0.5/1x2", "memory": "10Gi", "source": "spec"},
        "summary": "gpu-a/GPU-604ac76c,GPU-9b1f02de",
        "ports": "50051",
        "placements": [
            {
                "pod": "bert-7f9kq",
                "state": "Running",
                "node": "gpu-a",
                "gpus": ["GPU-604ac76c", "GPU-9b1f02de"],
                "request": "0.500",
                "memory": "10Gi",
                "port": 50051,
            }
        ],
        "prewarmPool": [],
        "podManagerPort": {"bert-7f9kq": 50051},
        "boundDeviceIDs": {"bert-7f9kq": "GPU-604ac76c,GPU-9b1f02de"},
        "usage": {"bert-7f9kq": {"gpu": "0.500x2", "totalMemoryBytes": 21474836480}},
        "pod2node": {"bert-7f9kq": "gpu-a"},
        "node2Id": [{"node": "gpu-a", "gpu": "GPU-604ac76c,GPU-9b1f02de"}],
    } == {key: value for key, value in status.items() if key != "conditions"}


def test_the_status_is_what_the_schema_declares() -> None:
    """The schema is closed: a field that it doesn't know would vanish without a word."""
    schema = status_schema()["properties"]
    of = view(2, gpu=GPURequest(500, 1000), gpu_source="spec")
    status = render_status(of, [running(), judged("a")], {}, NOW)

    assert set(schema) == set(status)
    for field in ("placements", "conditions", "node2Id"):
        assert {key for entry in status[field] for key in entry} == set(schema[field]["items"]["properties"])
    assert set(schema["gpu"]["properties"]) == set(status["gpu"])
    assert set(schema["usage"]["additionalProperties"]["properties"]) == set(status["usage"]["bert-1"])


def test_columns_stay_short_however_many_replicas_there_are() -> None:
    """The first replica and a count; two pods of one GPU are one entry of node2Id."""
    pods = [running(f"bert-{n}", ordinal=n, allocation=held(UUID, port=50051 + n)) for n in range(5)]
    status = render_status(view(5), pods, {}, NOW)

    assert "gpu-a/GPU-604ac76c +4" == status["summary"]
    assert "50051,50052,50053 +2" == status["ports"]
    assert [{"node": "gpu-a", "gpu": UUID}] == status["node2Id"]


@pytest.mark.parametrize(
    ("uuid", "short"),
    [
        (UUID, "GPU-604ac76c"),
        ("GPU-604ac76c", "GPU-604ac76c"),
        ("gpu-a-0", "gpu-a-0"),
        (f"MIG-{UUID[4:]}", "MIG-604ac76c"),
    ],
)
def test_uuids_are_shortened_only_where_they_have_the_usual_form(uuid: str, short: str) -> None:
    """A name that an administrator chose stays whole."""
    assert short == short_uuid(uuid)


def test_what_holds_no_room_is_in_no_map() -> None:
    """Pending pods are placements without a node; terminating ones still hold what they have; finished ones are gone."""
    pods = [pending("p"), running("t", deleting=True), running("f", phase="Succeeded"), running("cpu", allocation=None)]
    status = render_status(view(3), pods, {}, NOW)

    assert [("cpu", "Running"), ("p", "Pending"), ("t", "Terminating")] == sorted(
        (placement["pod"], placement["state"]) for placement in status["placements"]
    )
    assert ["t"] == list(status["boundDeviceIDs"])
    assert {"cpu": "gpu-a", "t": "gpu-a"} == status["pod2node"]
    assert 2 == status["replicas"]


def test_no_more_placements_than_the_api_takes() -> None:
    """A thousand replicas beside as many terminating pods would be refused as a whole: the live ones stay."""
    pods = [running(f"old-{n}", deleting=True) for n in range(5)] + [running(f"new-{n}") for n in range(1000)]
    placements = render_status(view(1000), pods, {}, NOW)["placements"]

    assert 1000 == len(placements)
    assert {"Running"} == {placement["state"] for placement in placements}


INVALID = Refused(Reason.INVALID_POD_SPEC, "no image", "InvalidSpec")
QUOTA = Refused(Reason.UNSCHEDULABLE, "exceeded quota", "FailedCreate")
VALID = ("True", "Valid", "The SharePod is valid")
HEALTHY = ("False", "AllHealthy", "The nodes and GPUs of all replicas are healthy")
PLACED = ("True", "AllPlaced", "Every wanted replica is placed")


@pytest.mark.parametrize(
    ("of", "pods", "expected"),
    [
        pytest.param(
            view(),
            [running()],
            {"Scheduled": PLACED, "Ready": ("True", "AllReplicasReady", "1 of 1 replicas are ready")},
            id="ready",
        ),
        pytest.param(
            view(2),
            [running(), running("b", ready=False)],
            {"Scheduled": PLACED, "Ready": ("False", "ReplicasNotReady", "1 of 2 replicas are ready")},
            id="one not ready",
        ),
        pytest.param(
            view(),
            [running(ready=False, node_ready=False)],
            {
                "Ready": ("False", "NodeLost", "0 of 1 replicas are ready"),
                "Degraded": ("True", "NodeNotReady", "Replicas are on nodes that are not Ready: gpu-a"),
            },
            id="node lost",
        ),
        pytest.param(
            view(),
            [running(ready=False, unhealthy=(UUID,))],
            {
                "Ready": ("False", "GPUUnhealthy", "0 of 1 replicas are ready"),
                "Degraded": ("True", "GPUUnhealthy", f"Replicas are on GPUs that are unhealthy: {UUID}"),
            },
            id="GPU unhealthy",
        ),
        pytest.param(
            view(2),
            [running(), pending()],
            {
                "Scheduled": ("Unknown", "Placing", "1 of 2 replicas are placed, the others are about to be"),
                "Ready": ("False", "ReplicasNotReady", "1 of 2 replicas are ready"),
            },
            id="no word yet",
        ),
        pytest.param(
            view(),
            [judged("a")],
            {"Scheduled": ("False", "Unschedulable", "0/1 GPUs"), "Ready": ("False", "Unschedulable", "0/1 GPUs")},
            id="waits",
        ),
        pytest.param(
            view(4),
            [judged("a"), judged("b"), judged("c", "too big", "Unsatisfiable")],
            {"Scheduled": ("False", "Unsatisfiable", "1 of 4 replicas wait: too big")},
            id="what never fits comes first",
        ),
        pytest.param(
            view(4),
            [judged("a"), judged("b", "no ports", "PortPoolExhausted"), judged("c", "no ports", "PortPoolExhausted")],
            {"Scheduled": ("False", "PortPoolExhausted", "2 of 4 replicas wait: no ports")},
            id="then the most frequent",
        ),
        pytest.param(
            view(0),
            [],
            {
                "Scheduled": ("True", "AllPlaced", "No replica is wanted"),
                "Ready": ("True", "ScaledToZero", "No replica is wanted"),
            },
            id="zero",
        ),
        pytest.param(
            view(refused=INVALID),
            [],
            {
                "Accepted": ("False", "InvalidPodSpec", "no image"),
                "Scheduled": None,
                "Ready": ("False", "InvalidPodSpec", "no image"),
            },
            id="invalid",
        ),
        pytest.param(view(refused=INVALID), [running()], {"Scheduled": PLACED}, id="invalid, while earlier pods run"),
        pytest.param(
            view(2, refused=QUOTA),
            [running()],
            {
                "Scheduled": ("False", "Unschedulable", "exceeded quota"),
                "Ready": ("False", "Unschedulable", "exceeded quota"),
            },
            id="quota",
        ),
        pytest.param(
            view(2),
            [running(), running("b", phase="Succeeded", ready=False, restart_policy="Never")],
            {"Scheduled": PLACED, "Ready": ("False", "ReplicasNotReady", "1 of 2 replicas are ready, 1 finished")},
            id="one finished",
        ),
        pytest.param(
            view(),
            [running(current=False)],
            {
                "Ready": (
                    "True",
                    "AllReplicasReady",
                    "1 of 1 replicas are ready; 1 run an earlier version of the spec until they end",
                )
            },
            id="earlier template",
        ),
    ],
)
def test_conditions(
    of: SharePodView, pods: list[ReplicaState], expected: dict[str, tuple[str, str, str] | None]
) -> None:
    """Each case of the closed list that can occur; what isn't named is as when all is well."""
    found = conditions(of, *pods)

    for kind, wanted in (
        {"Accepted": VALID if of.refused is not INVALID else found["Accepted"], "Degraded": HEALTHY} | expected
    ).items():
        assert wanted == found.get(kind), kind


def test_the_time_of_a_condition_moves_only_with_its_status() -> None:
    """A new reason, message or generation leaves it alone."""
    first = render_status(view(), [judged("a")], {}, NOW)
    later = NOW + timedelta(hours=1)
    again = render_status(view(generation=4), [judged("a", "another")], first, later)
    ready = render_status(view(generation=4), [running()], again, later)

    def times(status: Json) -> list[tuple[str, str, int]]:
        return [
            (found["type"], found["lastTransitionTime"], found["observedGeneration"]) for found in status["conditions"]
        ]

    old, new = "2026-11-30T12:00:00Z", "2026-11-30T13:00:00Z"
    assert [("Accepted", old, 4), ("Scheduled", old, 4), ("Ready", old, 4), ("Degraded", old, 4)] == times(again)
    assert [("Accepted", old, 4), ("Scheduled", new, 4), ("Ready", new, 4), ("Degraded", old, 4)] == times(ready)


def test_messages_are_one_short_line() -> None:
    """Whatever an API server or a user put into them."""
    found = conditions(view(), judged("a", "two\nlines\t" + "x" * 2000))

    assert "\n" not in found["Scheduled"][2]
    assert 1024 == len(found["Scheduled"][2])
    assert "a b" == one_line(" a \n b ")


def test_available_means_ready_for_long_enough() -> None:
    """Counted by the pod's own time; the next moment to look is known."""
    pods = [running("a", ready_since=NOW - timedelta(seconds=10)), running("b", ready_since=NOW - timedelta(seconds=4))]
    of = view(2, min_ready_seconds=10)

    assert 1 == render_status(of, pods, {}, NOW)["availableReplicas"]
    assert timedelta(seconds=6) == next_available(of, pods, NOW)
    assert next_available(of, pods, NOW + timedelta(seconds=6)) is None
    assert next_available(view(2), pods, NOW) is None


def test_without_details_the_old_ones_stay() -> None:
    """While pods are being placed nothing that grows with them is touched."""
    first = render_status(view(), [running()], {}, NOW)
    second = render_status(view(2), [running(), running("b")], first, NOW, details=False)

    assert {field: first[field] for field in DETAILS} == {field: second[field] for field in DETAILS}
    assert 2 == second["replicas"]
    assert not set(DETAILS) & set(merge_patch(first, second))
    assert not set(DETAILS) & set(render_status(view(), [running()], {}, NOW, details=False))


@pytest.mark.parametrize(
    ("of", "pods", "rest", "wait", "end", "full"),
    [
        (view(2), [running()], False, False, False, False),
        (view(2), [running(), pending()], False, False, False, False),
        (view(2), [running(), judged("a")], True, True, False, False),
        (view(2), [running(), running("b", ready=False)], True, False, False, True),
        (view(2), [running(), running("b")], True, False, True, True),
        (view(2), [running(), running("b", current=False)], True, False, True, False),
        (view(1), [running(), running("b")], True, False, False, True),
        (view(0), [], True, False, True, False),
        (view(1), [running(phase="Succeeded", restart_policy="Never")], True, False, True, True),
        (view(1, refused=INVALID), [], True, False, True, False),
    ],
)
def test_how_far_things_are(
    of: SharePodView, pods: list[ReplicaState], *, rest: bool, wait: bool, end: bool, full: bool
) -> None:
    """At rest, waiting, settled, and complete: what decides when a status is written and when Synced is said."""
    assert (rest, wait, end, full) == (at_rest(of, pods), waiting(pods), settled(of, pods), complete(of, pods))


def test_reasons_are_counted() -> None:
    """The same words of several pods are one reason."""
    assert [(Reason.UNSCHEDULABLE, "m", 2), (Reason.UNSCHEDULABLE, "n", 1)] == verdicts(
        [judged("a", "n"), judged("b", "m"), judged("c", "m"), running()]
    )


json_values = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abcd"), json_values, max_size=4)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@given(objects, objects)
def test_the_patch_makes_the_old_status_the_new_one(old: Json, new: Json) -> None:
    """Also where map entries go; and equal statuses give no patch."""
    patch = merge_patch(old, new)

    assert new == merged(old, patch)
    assert bool(patch) == (old != new)
