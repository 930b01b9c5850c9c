"""Events: written once, counted when they repeat, bounded, and never in the way. Time is virtual."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.kube import recorder as module
from sharepod_operator.kube.api import EVENTS, Json
from sharepod_operator.kube.errors import ApiError, Forbidden, NotFound, NotLeading, ServerError, UnknownOutcome
from sharepod_operator.kube.recorder import Drop, EventType, ObjectRef, Recorder
from tests.support.memory_api import Crash, MemoryApi, MemoryServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.looptime

POD = ObjectRef("v1", "Pod", "ml", "bert-7f9kq", "uid-1")
VICTIM = ObjectRef("v1", "Pod", "batch", "sweep-k9", "uid-2")
NODE = ObjectRef("v1", "Node", "", "gpu-a", "uid-3")


class Story:
    def __init__(self, server: MemoryServer | None = None) -> None:
        self.server = server or MemoryServer()
        self.api = MemoryApi(self.server)
        self.drops: list[Drop] = []
        self.recorder = Recorder(
            self.api,
            instance="sharepod-operator-0",
            on_drop=self.drops.append,
            clock=lambda: asyncio.get_running_loop().time(),
            now=self.server.clock,
            rng=random.Random(1),
        )
        self.task = asyncio.create_task(self.recorder.run())

    def emit(self, note: str = "no room", *, regarding: ObjectRef = POD, reason: str = "FailedScheduling") -> None:
        self.recorder.emit(regarding, EventType.WARNING, reason, note, action="Scheduling")

    async def events(self) -> list[Json]:
        await self.recorder.flush()
        return self.server.objects(EVENTS)

    async def preempted(self) -> bool:
        return await self.recorder.emit_once_now(
            VICTIM,
            EventType.NORMAL,
            "Preempted",
            "Preempted by ml/bert-7f9kq on node gpu-a",
            action="Preempting",
            related=POD,
            once=(VICTIM.uid, POD.uid),
        )

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
async def story() -> AsyncIterator[Story]:
    made = Story()
    yield made
    await made.stop()


class TestForm:
    async def test_an_event_says_who_what_and_why(self, story: Story) -> None:
        """All fields that events.k8s.io/v1 requires, in the namespace of its object."""
        story.recorder.emit(POD, EventType.NORMAL, "WaitingForVictims", "x", action="Preempting", related=VICTIM)
        (event,) = await story.events()
        assert {
            "eventTime": "2026-11-30T11:00:00.000000Z",
            "reportingController": "faasshare.tum/sharepod-operator",
            "reportingInstance": "sharepod-operator-0",
            "action": "Preempting",
            "reason": "WaitingForVictims",
            "type": "Normal",
            "note": "x",
            "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "bert-7f9kq", "uid": "uid-1"},
            "related": {"apiVersion": "v1", "kind": "Pod", "namespace": "batch", "name": "sweep-k9", "uid": "uid-2"},
        } == {key: value for key, value in event.items() if key not in {"apiVersion", "kind", "metadata"}}
        assert ("ml", True) == (event["metadata"]["namespace"], event["metadata"]["name"].startswith("bert-7f9kq."))

    async def test_events_of_nodes_lie_in_default(self, story: Story) -> None:
        """Without a namespace in `regarding`: only then does `kubectl describe node` show them."""
        story.emit(regarding=NODE)
        (event,) = await story.events()
        assert ("default", False) == (event["metadata"]["namespace"], "namespace" in event["regarding"])

    async def test_notes_are_one_bounded_line(self, story: Story) -> None:
        """The limit counts bytes, and no character is cut in half."""
        story.emit("ü\n" * 1000)
        (event,) = await story.events()
        assert (True, True, False) == (
            1020 <= len(event["note"].encode()) <= 1024,
            event["note"].endswith("…"),
            "\n" in event["note"],
        )

    def test_a_reference_is_read_from_an_object(self) -> None:
        """Cluster objects have an empty namespace."""
        metadata = {"name": "gpu-a", "uid": "uid-3"}
        assert NODE == ObjectRef.of({"apiVersion": "v1", "kind": "Node", "metadata": metadata})


class TestRepetition:
    async def test_the_same_words_are_counted(self, story: Story) -> None:
        """One event with a series; kubectl prints it as (x3)."""
        for _ in range(3):
            story.emit()
            await story.recorder.flush()
            story.server.clock.advance(60)
        (event,) = await story.events()
        assert {"count": 3, "lastObservedTime": "2026-11-30T11:02:00.000000Z"} == event["series"]

    async def test_repetitions_that_wait_go_out_as_one(self, story: Story) -> None:
        """A burst of the same makes one write, not a hundred."""
        for _ in range(20):
            story.emit()
        (event,) = await story.events()
        assert (20, 1) == (event["series"]["count"], len(story.server.writes))

    async def test_what_happened_during_the_write_is_not_lost(self, story: Story) -> None:
        """The count catches up without a further event."""
        create = story.api.create

        async def slow(*args: Any, **kwargs: Any) -> Json:
            made = await create(*args, **kwargs)
            story.emit()
            return made

        story.api.create = slow  # type: ignore[method-assign]
        story.emit()
        (event,) = await story.events()
        assert 2 == event["series"]["count"]

    async def test_an_expired_event_begins_again(self, story: Story) -> None:
        """Events live for an hour; the next repetition is a new event with a count of one."""
        story.emit()
        (first,) = await story.events()
        story.server.remove(EVENTS, first["metadata"]["name"], "ml")
        story.server.clock.advance(7200)
        story.emit()
        (second,) = await story.events()
        assert ("2026-11-30T13:00:00.000000Z", False) == (second["eventTime"], "series" in second)

    async def test_other_words_are_another_event(self, story: Story) -> None:
        """Note, reason, type and object tell events apart."""
        story.emit("a")
        story.emit("b")
        story.emit("a", reason="Other")
        story.emit("a", regarding=NODE)
        assert 4 == len(await story.events())


class TestLimits:
    async def test_a_chatty_object_is_held_to_its_burst(self, story: Story) -> None:
        """25 writes at once, one more every five minutes, the rest dropped and counted; others are not touched."""
        for index in range(60):
            story.emit(reason=f"Reason{index}")
            await story.recorder.flush()
        assert (25, [Drop.RATE_LIMITED] * 35) == (len(await story.events()), story.drops)
        story.emit(regarding=NODE)
        assert 26 == len(await story.events())
        await asyncio.sleep(301)
        story.emit(reason="Late")
        story.emit(reason="TooSoon")
        assert 27 == len(await story.events())

    async def test_many_notes_of_one_reason_are_combined(self, story: Story) -> None:
        """From the eleventh on within ten minutes they share one event."""
        for index in range(14):
            story.emit(f"free {index}")
            await story.recorder.flush()
        events = await story.events()
        combined = [event for event in events if event["note"].startswith("(combined from similar events): free 10")]
        assert (11, 1, 4) == (len(events), len(combined), combined[0]["series"]["count"])
        await asyncio.sleep(601)
        story.emit("free 99")
        assert 12 == len(await story.events())

    async def test_the_queue_is_bounded(self, story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
        """A flood costs events, never memory."""
        monkeypatch.setattr(module, "QUEUE", 5)
        small = Story(story.server)
        for index in range(9):
            small.emit(regarding=ObjectRef("v1", "Pod", "ml", f"p{index}", f"u{index}"))
        assert (5, [Drop.QUEUE_FULL] * 4) == (len(await small.events()), small.drops)
        await small.stop()


class TestFailures:
    async def test_a_missing_right_is_said_once(self, story: Story, capsys: pytest.CaptureFixture[str]) -> None:
        """Scheduling goes on without events; each lost one is counted."""
        story.api.faults.refuse(Forbidden("events is forbidden", status=403), times=3)
        for index in range(4):
            story.emit(str(index))
            await story.recorder.flush()
        said = capsys.readouterr()
        assert ([Drop.FORBIDDEN] * 3, 1) == (story.drops, (said.out + said.err).count("event not written"))
        assert 1 == len(await story.events())

    @pytest.mark.parametrize("fault", ["lose_answer", "lose_request"])
    async def test_an_unknown_outcome_is_repeated_without_doubling(self, story: Story, fault: str) -> None:
        """The name is fixed, so the second try meets the first."""
        setattr(story.api.faults, fault, 1)
        story.emit()
        assert (1, []) == (len(await story.events()), story.drops)

    async def test_an_event_that_never_gets_through_is_dropped(self, story: Story) -> None:
        """After a few tries others have their turn."""
        story.api.faults.refuse(UnknownOutcome("no answer"), times=4)
        story.emit()
        assert ([], [Drop.UNREACHABLE]) == (await story.events(), story.drops)
        story.emit()
        assert 1 == len(await story.events())

    @pytest.mark.parametrize(
        ("error", "drop"),
        [
            (NotFound("namespaces ml not found", status=404), Drop.REFUSED),
            (ServerError("odd", status=500), Drop.REFUSED),
            (NotLeading("lost"), Drop.NOT_LEADING),
        ],
    )
    async def test_refusals_are_counted_by_reason(self, story: Story, error: ApiError, drop: Drop) -> None:
        """The reasons are labels of a metric."""
        story.api.faults.refuse(error)
        story.emit()
        assert ([], [drop]) == (await story.events(), story.drops)


class TestOnce:
    async def test_a_cause_makes_one_event(self, story: Story) -> None:
        """However often it is told, also by the next life of the process."""
        for _ in range(3):
            story.recorder.emit(POD, EventType.NORMAL, "Synced", "done", action="Sync", once=(POD.uid, "Synced", "3"))
            await story.recorder.flush()
        after_restart = Story(story.server)
        after_restart.recorder.emit(
            POD, EventType.NORMAL, "Synced", "done", action="Sync", once=(POD.uid, "Synced", "3")
        )
        assert ["create events.events.k8s.io"] == [str(write).split(" ml/")[0] for write in story.server.writes]
        assert 1 == len(await after_restart.events())
        await after_restart.stop()

    async def test_another_cause_makes_another_event(self, story: Story) -> None:
        """Each generation has its own."""
        for generation in ("3", "4"):
            story.recorder.emit(POD, EventType.NORMAL, "Synced", "done", action="Sync", once=(POD.uid, generation))
        assert 2 == len(await story.events())

    async def test_it_is_there_before_the_next_step(self, story: Story) -> None:
        """The awaited form returns when the event is written, and writes it once."""
        assert [True, True] == [await story.preempted(), await story.preempted()]
        assert 1 == len(story.server.writes)

    @pytest.mark.parametrize("fault", ["crash_before", "crash_after"])
    async def test_a_crash_around_the_write_never_doubles_it(self, story: Story, fault: str) -> None:
        """Killed before or after: the next life leaves exactly one."""
        setattr(story.api.faults, fault, 1)
        with pytest.raises(Crash):
            await story.preempted()
        again = Story(story.server)
        assert (True, 1) == (await again.preempted(), len(story.server.objects(EVENTS)))
        await again.stop()

    async def test_a_refusal_does_not_stop_the_caller(self, story: Story) -> None:
        """Without the right to write events the preemption goes on: False, no exception."""
        story.api.faults.refuse(Forbidden("events is forbidden", status=403))
        assert (False, [Drop.FORBIDDEN]) == (await story.preempted(), story.drops)

    async def test_lost_leadership_stops_the_caller(self, story: Story) -> None:
        """The step that follows isn't ours any more."""
        story.api.faults.refuse(NotLeading("lost"))
        with pytest.raises(NotLeading):
            await story.preempted()
