"""Who may write: election on a Lease, with a deadline on the own monotonic clock that every write is checked against.

A leader that was stopped, or cut off, finds its deadline passed when it comes back, before it sends anything. A Lease
can't fence what is on its way already, though: every write therefore carries a precondition too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import structlog

from sharepod_operator.kube.api import LEASES, Json
from sharepod_operator.kube.clock import Clock, micro_time, wall_clock
from sharepod_operator.kube.errors import AlreadyExists, ApiError, Conflict, NotFound, NotLeading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from sharepod_operator.kube.api import Api

_log = structlog.get_logger("sharepod_operator.kube")


@dataclass(frozen=True, slots=True)
class Terms:
    """Times of the election, in seconds. The gap between `renew_deadline` and `lease_duration` is the time that a last
    request may be on its way before somebody else can lead.
    """

    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry: float = 2.0
    request: float = 5.0
    """One attempt to read or write the Lease."""

    def __post_init__(self) -> None:
        if not self.retry < self.renew_deadline < self.lease_duration:
            raise ValueError(
                f"retry {self.retry} s must be less than renew_deadline {self.renew_deadline} s, "
                f"and that less than lease_duration {self.lease_duration} s"
            )


class Leader:
    """One candidate for one Lease.

    Args:
        identity: names this process and no other, not even an earlier one of the same Pod.
        on_started: called at once when leadership is won.
        on_stopped: called at once when it is lost or given up, before the Lease is released.
    """

    def __init__(  # noqa: PLR0913  # time and chance are passed in
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms | None = None,
        on_started: Callable[[], None] = lambda: None,
        on_stopped: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = wall_clock,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.identity = identity
        self.holder = ""
        """Who held the Lease when it was last read; empty for nobody."""
        self.deadline = float("-inf")
        """Leadership ends here on the monotonic clock unless it is renewed before."""
        self._api = api
        self._namespace = namespace
        self._name = name
        self._terms = terms or Terms()
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._clock = Clock(clock, now, sleep, rng or random.Random())  # noqa: S311  # spreads retries, keeps no secret
        self._stood_by_for = ""
        self._leading = asyncio.Event()
        self._lease: Json | None = None
        self._changed_at = 0.0

    @property
    def is_leading(self) -> bool:
        """Whether a write may be sent now."""
        return self._leading.is_set() and self._clock.monotonic() < self.deadline

    def gate(self) -> None:
        """Stops a write that isn't ours to send.

        Raises:
            NotLeading: somebody else leads, or may lead by now.
        """
        if not self.is_leading:
            if self.holder == self.identity:
                raise NotLeading(
                    f"this process ({self.identity}) could not renew its Lease in time and writes nothing until it can"
                )
            raise NotLeading(
                f"this process ({self.identity}) is not the leader; {self.holder or 'nobody'} holds the Lease"
            )

    async def wait_leading(self) -> None:
        """Returns when leadership is won; it may be lost again at any time."""
        await self._leading.wait()

    async def run(self) -> NoReturn:
        """Competes for the Lease until cancelled, then releases it so that the next one starts at once."""
        try:
            while True:
                while not await self._tried(self._acquire):
                    await self._wait()
                self._start()
                await self._hold()
                self._stop()
        finally:
            self._stop()
            await self._release()

    async def _hold(self) -> None:
        """Renews until the deadline has passed or somebody else holds the Lease."""
        while True:
            await self._wait(self.deadline - self._clock.monotonic())
            if self._clock.monotonic() >= self.deadline:
                return  # also after a sleep that was longer than asked for: this process was stopped meanwhile
            if not await self._tried(self._renew) and self.holder != self.identity:
                return

    async def _tried(self, attempt: Callable[[], Awaitable[bool]]) -> bool:
        """Whether the attempt succeeded in its time; what the server or the network says against it is only logged."""
        limit = self._terms.request
        if self._leading.is_set():
            limit = min(limit, self.deadline - self._clock.monotonic())
        try:
            async with asyncio.timeout(limit):
                return await attempt()
        except TimeoutError:
            _log.warning(
                "LeaseFailed", message="the Lease was not answered in time", lease=self._name, seconds=round(limit, 1)
            )
        except ApiError as error:
            _log.warning("LeaseFailed", message=f"the Lease was refused: {error.message}", lease=self._name)
        return False

    async def _acquire(self) -> bool:
        """Reads the Lease and takes it when it is free: never held, released, or unchanged for its whole duration."""
        started = self._clock.monotonic()
        try:
            self._note(await self._api.get(LEASES, self._name, namespace=self._namespace))
        except NotFound:
            if self._held():
                return False  # somebody deleted it under a leader who doesn't know yet, and will make it again
            return await self._create(started)
        if self._held():
            if self.holder != self._stood_by_for:
                self._stood_by_for = self.holder
                _log.info("StandingBy", message=f"{self.holder} leads; this process stands by", lease=self._name)
            return False
        try:
            return await self._put(started)
        except Conflict:  # another candidate was faster
            return False

    async def _renew(self) -> bool:
        started = self._clock.monotonic()
        if self._lease is not None:
            try:
                return await self._put(started)
            except (Conflict, NotFound):  # an answer of our own that was lost, or somebody else
                self._lease = None
        with contextlib.suppress(NotFound):
            self._note(await self._api.get(LEASES, self._name, namespace=self._namespace))
            return self.holder == self.identity and await self._put(started)
        return await self._create(started)

    async def _create(self, started: float) -> bool:
        spec = self._spec(None)
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        try:
            self._note(await self._api.create(LEASES, body, namespace=self._namespace))
        except AlreadyExists:
            return False
        self.deadline = started + self._terms.renew_deadline
        return True

    async def _put(self, started: float) -> bool:
        """Writes the Lease as ours. The deadline counts from before the request: the server may have seen it that early."""
        assert self._lease is not None
        body = {**self._lease, "spec": self._spec(self._lease.get("spec") or {})}
        self._note(await self._api.update(LEASES, self._name, body, namespace=self._namespace))
        self.deadline = started + self._terms.renew_deadline
        return True

    def _spec(self, before: Json | None) -> Json:
        """The record to write over `before`; taking the Lease from somebody else, or from nobody, is a transition."""
        stamp = micro_time(self._clock.now())
        renewed = before is not None and before.get("holderIdentity") == self.identity
        transitions = 0 if before is None else int(before.get("leaseTransitions") or 0) + (not renewed)
        return {
            **(before or {}),
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._terms.lease_duration,
            "acquireTime": before.get("acquireTime", stamp) if before is not None and renewed else stamp,
            "renewTime": stamp,
            "leaseTransitions": transitions,
        }

    def _note(self, lease: Json) -> None:
        """Keeps the record and, by our own clock, since when it has been as it is."""
        if self._lease is None or self._lease["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            self._changed_at = self._clock.monotonic()
        self._lease = lease
        self.holder = (lease.get("spec") or {}).get("holderIdentity") or ""

    def _held(self) -> bool:
        """Whether somebody else may lead. Wall clocks of others are never compared: a record has expired when we saw it
        unchanged for its duration.
        """
        if self._lease is None or self.holder in {"", self.identity}:
            return False
        duration = (self._lease.get("spec") or {}).get("leaseDurationSeconds") or self._terms.lease_duration
        return self._clock.monotonic() < self._changed_at + float(duration)

    def _start(self) -> None:
        self._leading.set()
        _log.info("LeadershipWon", message="this process leads", lease=self._name, identity=self.identity)
        self._on_started()

    def _stop(self) -> None:
        if self._leading.is_set():
            self._leading.clear()
            self.deadline = float("-inf")
            _log.info(
                "LeadershipEnded",
                message="this process does not lead any more",
                lease=self._name,
                identity=self.identity,
                holder=self.holder,
            )
            self._on_stopped()

    async def _release(self) -> None:
        if self._lease is None or self.holder != self.identity:
            return
        stamp = micro_time(self._clock.now())
        spec = {
            **self._lease["spec"],
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": stamp,
            "acquireTime": stamp,
        }
        try:
            async with asyncio.timeout(self._terms.request):
                await self._api.update(LEASES, self._name, {**self._lease, "spec": spec}, namespace=self._namespace)
            self.holder = ""
        except (ApiError, TimeoutError) as error:  # it expires by itself
            _log.warning(
                "LeaseNotReleased",
                message="the Lease was not given back and expires by itself",
                lease=self._name,
                error=str(error) or "timeout",
            )

    async def _wait(self, at_most: float = float("inf")) -> None:
        await self._clock.sleep(max(0.0, min(at_most, self._terms.retry * self._clock.rng.uniform(0.75, 1.0))))
