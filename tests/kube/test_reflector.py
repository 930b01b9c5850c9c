"""The mirror of one resource: it equals the server again after whatever happened to the watch. Time is virtual."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from sharepod_operator.kube.api import PODS, Json, WatchEvent
from sharepod_operator.kube.errors import Forbidden, Gone, ServerError, Unreachable
from sharepod_operator.kube.reflector import Reflector
from tests.support.memory_api import MemoryApi, MemoryServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    Begin = Callable[[], Awaitable["Story"]]

pytestmark = pytest.mark.looptime


class Mirror:
    """A sink that keeps names and versions, and what it was told."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.told: list[str] = []

    def replace(self, items: Sequence[Json], resource_version: str) -> None:
        self.names = {item["metadata"]["name"] for item in items}
        self.told.append(f"replace {len(items)} at {resource_version}")

    def observe(self, kind: str, body: Json) -> None:
        name = body["metadata"]["name"]
        self.told.append(f"{kind} {name}")
        if kind == "DELETED":
            self.names.discard(name)
        else:
            self.names.add(name)


class Story:
    """A running reflector, and the server behind it."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.api = MemoryApi(self.server)
        self.mirror = Mirror()
        self.counted: list[tuple[str, int]] = []
        self.reflector = Reflector(
            self.api,
            PODS,
            self.mirror,
            count=lambda kind, number: self.counted.append((kind, number)),
            clock=asyncio.get_running_loop().time,
            rng=random.Random(1),
        )
        self.lists = self.watches = 0
        self.pod("a")
        self.count()
        self.task = asyncio.create_task(self.reflector.run())

    def count(self) -> None:
        """Counts lists and watches as they are opened."""
        listed, watched = self.api.list, self.api.watch

        async def counted_list(*args: Any, **kwargs: Any) -> Any:
            self.lists += 1
            return await listed(*args, **kwargs)

        def counted_watch(*args: Any, **kwargs: Any) -> Any:
            self.watches += 1
            return watched(*args, **kwargs)

        self.api.list = counted_list  # type: ignore[method-assign]
        self.api.watch = counted_watch  # type: ignore[method-assign]

    def pod(self, name: str) -> None:
        self.server.put(
            PODS,
            {"metadata": {"name": name, "namespace": "ml"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        )

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Forbidden):
            await self.task


@pytest.fixture
async def begin() -> AsyncIterator[Begin]:
    """Starts, inside the test's virtual time, a reflector that has listed one Pod `a` and watches."""
    made: list[Story] = []

    async def one() -> Story:
        story = Story()
        made.append(story)
        await story.reflector.synced.wait()
        await asyncio.sleep(1)
        return story

    yield one
    for story in made:
        await story.stop()


async def test_a_list_and_then_every_change(begin: Begin) -> None:
    """One list, one watch from its version; the sink hears each event once."""
    story = await begin()
    story.pod("b")
    story.server.remove(PODS, "a", "ml")
    await asyncio.sleep(1)
    assert ["replace 1 at 1001", "ADDED b", "DELETED a"] == story.mirror.told
    assert [("LISTED", 1), ("ADDED", 1), ("DELETED", 1)] == story.counted
    assert (1, 1) == (story.lists, story.watches)


async def test_a_clean_close_goes_on_where_it_was(begin: Begin) -> None:
    """The server ends each watch after some minutes: no list, no event twice or missed."""
    story = await begin()
    story.pod("b")
    await asyncio.sleep(10)
    story.api.end_watches()
    story.pod("c")
    await asyncio.sleep(2)
    assert (["replace 1 at 1001", "ADDED b", "ADDED c"], 1, 2) == (story.mirror.told, story.lists, story.watches)


async def test_a_bookmark_moves_the_start(begin: Begin) -> None:
    """What was compacted before the bookmark is no reason to list again."""
    story = await begin()
    for index in range(5):
        story.server.put(PODS, {**story.server.objects(PODS)[0], "spec": {"x": index}})
    story.server.bookmark()
    await asyncio.sleep(10)
    story.server.compact()
    story.api.end_watches()
    await asyncio.sleep(2)
    assert (1, 2) == (story.lists, story.watches)


async def test_an_expired_version_lists_again_and_drops_phantoms(begin: Begin) -> None:
    """410 after objects went unseen: the full list tells the sink what is gone."""
    story = await begin()
    story.api.hold_watches()
    story.server.remove(PODS, "a", "ml")
    story.pod("b")
    story.server.compact()
    story.api.end_watches(Gone("too old", status=410))
    story.api.tamper = lambda _: ()
    story.api.release_watches()
    await asyncio.sleep(5)
    assert ({"b"}, 2, "replace 1 at 1003") == (story.mirror.names, story.lists, story.mirror.told[-1])


async def test_a_black_hole_is_noticed_and_left(begin: Begin) -> None:
    """Events stop arriving and the connection stays open: after about 70 seconds a new one brings what was missed."""
    story = await begin()
    story.api.hold_watches()
    story.pod("b")
    await asyncio.sleep(68)
    assert {"a"} == story.mirror.names
    await asyncio.sleep(3)
    story.api.release_watches()
    await asyncio.sleep(1)
    assert ({"a", "b"}, 2, 1) == (story.mirror.names, story.watches, story.lists)


async def test_silence_alone_reopens_the_watch(begin: Begin) -> None:
    """Without events or bookmarks the connection counts as dead after 70 seconds; bookmarks keep it."""
    story = await begin()
    for _ in range(5):
        await asyncio.sleep(60)
        story.server.bookmark()
    assert 1 == story.watches
    await asyncio.sleep(72)
    assert (2, 1) == (story.watches, story.lists)


async def test_a_network_error_is_retried_with_growing_pauses(begin: Begin) -> None:
    """The first reconnect goes on where it was; when that fails too, the next one lists."""
    story = await begin()
    story.api.faults.refuse(Unreachable("down"), times=6)
    story.api.end_watches(Unreachable("reset"))
    await asyncio.sleep(1.5)
    assert not story.reflector.synced.is_set()
    story.pod("b")
    await asyncio.sleep(60)
    assert ({"a", "b"}, True) == (story.mirror.names, story.reflector.synced.is_set())
    assert 10 >= story.watches + story.lists


async def test_a_server_that_closes_at_once_is_not_hammered(begin: Begin) -> None:
    """A watch that ends as soon as it is open is not opened hundreds of times a second."""
    story = await begin()

    async def closing(*_: Any, **__: Any) -> AsyncIterator[WatchEvent]:
        story.watches += 1
        nothing: tuple[WatchEvent, ...] = ()
        for event in nothing:
            yield event

    story.api.watch = closing  # type: ignore[assignment,method-assign]
    story.api.end_watches()
    await asyncio.sleep(60)
    assert 3 <= story.watches <= 10


async def test_a_list_from_which_no_watch_starts_is_not_hammered(begin: Begin) -> None:
    """410 right after a list, again and again: pauses grow."""
    story = await begin()
    story.api.faults.refuse(Gone("too old", status=410), times=10**6, verb="watch")
    story.api.end_watches(Gone("too old", status=410))
    await asyncio.sleep(60)
    assert 3 <= story.lists <= 12


async def test_a_resync_is_a_list_that_starts_after_the_request(begin: Begin) -> None:
    """It ends the watch at once; the view counts as unsynced until the list is in."""
    story = await begin()
    story.api.tamper = lambda _: ()  # the watch loses everything
    story.pod("b")
    await asyncio.sleep(1)
    before = asyncio.get_running_loop().time()
    story.reflector.request_resync()
    assert (False, True) == (story.reflector.synced.is_set(), story.reflector.resync_due)
    await story.reflector.synced.wait()
    assert ({"a", "b"}, 2) == (story.mirror.names, story.lists)
    assert asyncio.get_running_loop().time() - before < 0.1
    assert (0, False) == (round(story.reflector.sync_age()), story.reflector.resync_due)


async def test_a_list_under_way_does_not_count_as_the_resync(begin: Begin) -> None:
    """Its view may be older than the reason for asking."""
    story = await begin()
    listed = story.api.list

    async def slow(*args: Any, **kwargs: Any) -> Any:
        answer = await listed(*args, **kwargs)
        await asyncio.sleep(5)
        return answer

    story.api.list = slow  # type: ignore[method-assign]
    story.reflector.request_resync()
    await asyncio.sleep(2)
    story.pod("b")
    await story.reflector.resync()
    assert ({"a", "b"}, 3) == (story.mirror.names, story.lists)


async def test_many_requests_make_one_list(begin: Begin) -> None:
    """Asking ten times before it is done is asking once."""
    story = await begin()
    for _ in range(10):
        story.reflector.request_resync()
    await asyncio.sleep(1)
    assert 2 == story.lists


async def test_the_sink_may_ask_for_a_resync_itself(begin: Begin) -> None:
    """An event that can't be right is a reason to list."""
    story = await begin()
    observe = story.mirror.observe

    def asking(kind: str, body: Json) -> None:
        observe(kind, body)
        story.reflector.request_resync()

    story.mirror.observe = asking  # type: ignore[method-assign]
    story.pod("b")
    await asyncio.sleep(1)
    assert (2, True, {"a", "b"}) == (story.lists, story.reflector.synced.is_set(), story.mirror.names)


async def test_a_right_that_is_missing_ends_the_process_after_patience(begin: Begin) -> None:
    """RBAC may be late at start; after nine refusals in a row the operator exits with the reason."""
    story = await begin()
    story.api.faults.refuse(Forbidden("pods is forbidden", status=403), times=10**6)
    story.api.end_watches(Unreachable("reset"))
    with pytest.raises(Forbidden, match="pods is forbidden"):
        await asyncio.wait_for(asyncio.shield(story.task), 300)


async def test_a_sick_server_never_ends_the_process(begin: Begin) -> None:
    """An hour of 500 is survived, and ends with a full list."""
    story = await begin()
    story.api.faults.refuse(ServerError("etcdserver: no leader", status=500), times=10**6)
    story.api.end_watches(Unreachable("reset"))
    await asyncio.sleep(3600)
    assert not story.task.done()
    story.api.faults.refusals.clear()
    story.pod("b")
    await asyncio.sleep(31)
    assert ({"a", "b"}, True) == (story.mirror.names, story.reflector.synced.is_set())
