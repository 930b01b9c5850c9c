"""Election: one leads, writes stop in time, and the next one starts soon. Time is virtual."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sharepod_operator.kube.api import LEASES, PODS, Json
from sharepod_operator.kube.errors import NotLeading, ServerError, UnknownOutcome
from sharepod_operator.kube.leader import Leader, Terms
from tests.support.memory_api import Crash, MemoryApi, MemoryServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Begin = Callable[[], Awaitable[tuple["Candidate", "Candidate"]]]

pytestmark = pytest.mark.looptime


@dataclass
class Candidate:
    """A process that competes; `running` cleared is SIGSTOP, set again SIGCONT."""

    server: MemoryServer
    name: str
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = MemoryApi(self.server, client=self.name)
        self.running = asyncio.Event()
        self.running.set()
        self.leader = Leader(
            self.api,
            namespace="gpu-system",
            name="sharepod-operator",
            identity=self.name,
            on_started=lambda: self.log.append("started"),
            on_stopped=lambda: self.log.append("stopped"),
            clock=now,
            now=lambda: self.server.clock() + timedelta(seconds=now()),
            rng=random.Random(1),
            sleep=self.sleep,
        )
        self.api.use_gate(self.leader.gate)
        self.task: asyncio.Task[None] | None = None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.running.wait()

    def start(self) -> None:
        self.task = asyncio.create_task(self.leader.run())

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
async def begin(server: MemoryServer) -> AsyncIterator[Begin]:
    """Starts, inside the test's virtual time, `a` that leads and `b` that stands by and knows the Lease."""
    started: list[Candidate] = []

    async def both() -> tuple[Candidate, Candidate]:
        a, b = Candidate(server, "a"), Candidate(server, "b")
        started.extend((a, b))
        a.start()
        await a.leader.wait_leading()
        b.start()
        await asyncio.sleep(3)
        return a, b

    yield both
    tasks = [one.task for one in started if one.task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def spec(server: MemoryServer) -> Json:
    lease = server.find(LEASES, "sharepod-operator", "gpu-system")
    assert lease is not None
    found: Json = lease["spec"]
    return found


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_the_first_one_leads_at_once(server: MemoryServer) -> None:
    """A Lease that never was is made; the record has the form that others expect."""
    a = Candidate(server, "a")
    a.start()
    await a.leader.wait_leading()
    assert (True, ["started"], 0) == (a.leader.is_leading, a.log, now())
    assert {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-11-30T11:00:00.000000Z",
        "renewTime": "2026-11-30T11:00:00.000000Z",
        "leaseTransitions": 0,
    } == spec(server)
    await a.stop()


async def test_a_standby_may_read_and_not_write(begin: Begin) -> None:
    """Its gate says who leads."""
    _, b = await begin()
    await b.api.list(PODS)
    with pytest.raises(NotLeading, match=r"\(b\) is not the leader; a holds the Lease"):
        await b.api.delete(PODS, "x", uid="u", namespace="ml")


async def test_a_healthy_leader_stays(begin: Begin, server: MemoryServer) -> None:
    """For ten minutes it renews every two seconds, and nobody takes over."""
    a, b = await begin()
    acquired, before = spec(server)["acquireTime"], len(server.writes)
    for _ in range(120):
        await asyncio.sleep(5)
        server.clock.advance(5)
        assert (True, False) == (a.leader.is_leading, b.leader.is_leading)
    assert (["started"], []) == (a.log, b.log)
    assert (acquired, 0) == (spec(server)["acquireTime"], spec(server)["leaseTransitions"])
    assert 300 <= len(server.writes) - before <= 400


async def test_a_stopping_leader_hands_over_at_once(begin: Begin, server: MemoryServer) -> None:
    """It empties the holder, so the standby needn't wait for the Lease to expire."""
    a, b = await begin()
    await a.stop()
    left = now()
    assert ("", ["started", "stopped"]) == (spec(server)["holderIdentity"], a.log)
    await b.leader.wait_leading()
    assert now() - left <= 2
    assert ("b", 1) == (spec(server)["holderIdentity"], spec(server)["leaseTransitions"])


async def test_a_killed_leader_is_followed_within_twenty_seconds(begin: Begin, server: MemoryServer) -> None:
    """Nobody released the Lease: it has to stay unchanged for its whole duration first."""
    a, b = await begin()
    a.api.dead = True
    died = now()
    await b.leader.wait_leading()
    assert 12 <= now() - died <= 20
    assert "b" == spec(server)["holderIdentity"]
    assert a.task is not None
    with pytest.raises(Crash):
        await a.task


async def test_a_leader_that_was_stopped_writes_nothing_when_it_goes_on(begin: Begin, server: MemoryServer) -> None:
    """SIGSTOP, takeover, SIGCONT: the gate refuses before anything is sent, and the Lease stays the other's."""
    a, b = await begin()
    a.running.clear()
    await b.leader.wait_leading()
    await asyncio.sleep(5)
    assert ["started"] == a.log
    with pytest.raises(NotLeading):
        await a.api.delete(PODS, "x", uid="u", namespace="ml")
    a.running.set()
    await asyncio.sleep(3)
    assert (["started", "stopped"], True, "b") == (a.log, b.leader.is_leading, spec(server)["holderIdentity"])
    assert [] == a.api.sent


async def test_a_leader_alone_that_was_stopped_starts_again(server: MemoryServer) -> None:
    """Nobody took over, yet it starts anew, with a resync, instead of going on from an old view."""
    a = Candidate(server, "a")
    a.start()
    await a.leader.wait_leading()
    a.running.clear()
    await asyncio.sleep(60)
    assert not a.leader.is_leading
    a.running.set()
    await asyncio.sleep(3)
    assert (["started", "stopped", "started"], 0) == (a.log, spec(server)["leaseTransitions"])
    await a.stop()


async def test_a_leader_cut_off_stops_before_the_other_starts(begin: Begin) -> None:
    """At no moment do two gates stand open."""
    a, b = await begin()
    a.api.faults.refuse(ServerError("no route", status=503), times=10**6)
    while not b.leader.is_leading:
        await asyncio.sleep(0.1)
        assert not (a.leader.is_leading and b.leader.is_leading)
    assert ["started", "stopped"] == a.log


async def test_a_hanging_server_is_no_leadership(begin: Begin) -> None:
    """A renewal that gets no answer ends with the deadline, ten seconds after the last one that was sent and answered."""
    a, _ = await begin()
    deadline = a.leader.deadline

    async def hang(*_: object, **__: object) -> Json:
        await asyncio.sleep(3600)
        return {}

    update = a.api.update
    a.api.update = hang  # type: ignore[method-assign]
    await asyncio.sleep(deadline - now() + 0.01)
    a.api.update = update  # type: ignore[method-assign]
    assert ["started", "stopped"] == a.log


async def test_a_lost_answer_of_a_renewal_does_not_end_it(begin: Begin, server: MemoryServer) -> None:
    """The renewal was written; the next one meets its own record and goes on."""
    a, _ = await begin()
    update = a.api.update

    async def lose(*args: object, **kwargs: object) -> Json:
        a.api.update = update  # type: ignore[method-assign]
        await update(*args, **kwargs)  # type: ignore[arg-type]
        raise UnknownOutcome("no answer")

    a.api.update = lose  # type: ignore[method-assign]
    await asyncio.sleep(30)
    assert (["started"], True, 0) == (a.log, a.leader.is_leading, spec(server)["leaseTransitions"])


async def test_a_lost_answer_of_the_first_write_is_found_out(server: MemoryServer) -> None:
    """Who doesn't know whether it leads reads the Lease, and leads when it is its own."""
    a = Candidate(server, "a")
    create = a.api.create

    async def lose(*args: object, **kwargs: object) -> Json:
        await create(*args, **kwargs)  # type: ignore[arg-type]
        raise UnknownOutcome("no answer")

    a.api.create = lose  # type: ignore[method-assign]
    a.start()
    await a.leader.wait_leading()
    assert (True, "a") == (now() <= 2, spec(server)["holderIdentity"])
    await a.stop()


async def test_only_one_of_many_wins(server: MemoryServer) -> None:
    """All start in the same instant; the version of the Lease decides."""
    many = [Candidate(server, f"c{index}") for index in range(8)]
    for one in many:
        one.start()
    await asyncio.sleep(40)
    assert 1 == sum(one.leader.is_leading for one in many)
    for one in many:
        await one.stop()
    assert ["started", "stopped"] in [one.log for one in many]


async def test_a_deleted_lease_is_made_again(begin: Begin, server: MemoryServer) -> None:
    """Somebody cleaned up: the leader makes it again, and the standby who knows that it leads leaves it the time."""
    a, b = await begin()
    server.remove(LEASES, "sharepod-operator", "gpu-system")
    for _ in range(400):
        await asyncio.sleep(0.1)
        assert not (a.leader.is_leading and b.leader.is_leading)
    assert 1 == a.leader.is_leading + b.leader.is_leading


async def test_a_stolen_lease_ends_leadership_at_once(begin: Begin, server: MemoryServer) -> None:
    """An administrator wrote another holder: the next renewal sees it and does not force anything."""
    a, _ = await begin()
    lease = server.find(LEASES, "sharepod-operator", "gpu-system")
    assert lease is not None
    server.put(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": "admin"}})
    await asyncio.sleep(2.1)
    assert (["started", "stopped"], "admin") == (a.log, spec(server)["holderIdentity"])


async def test_wall_clocks_do_not_matter(begin: Begin, server: MemoryServer) -> None:
    """A clock that jumps by a day moves no leadership."""
    a, b = await begin()
    for jump in (86_400, -172_800):
        server.clock.advance(jump)
        await asyncio.sleep(20)
        assert (True, False) == (a.leader.is_leading, b.leader.is_leading)


def test_terms_that_can_not_hold_are_refused() -> None:
    """The deadline must pass before anybody else may start, and a few tries must fit before it."""
    with pytest.raises(ValueError, match="less than lease_duration 10 s"):
        Terms(lease_duration=10, renew_deadline=10)
    with pytest.raises(ValueError, match="retry 12 s must be less"):
        Terms(retry=12)
