"""An operator's connection to the in-memory API server, with the faults that a real connection can have.

One `MemoryApi` stands for one life of one process: after a `Crash` it stays dead, as the process is, and a test that
restarts the operator makes a new one. Deterministic: the only scheduling points are one before and one after each call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sharepod_operator.kube.api import LEASES, PODS, Json, Listing, Patch, Resource, WatchEvent
from sharepod_operator.kube.errors import ApiError, Invalid, NotFound, UnknownOutcome
from sharepod_operator.kube.transport import gate_open
from tests.support.memory_patch import copied, patched
from tests.support.memory_rules import CUSTOM, invalid
from tests.support.memory_server import Change, ManualClock, MemoryServer, Stream, Write, selected

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

__all__ = ["Crash", "Faults", "ManualClock", "MemoryApi", "MemoryServer", "Write"]


class Crash(BaseException):
    """The process was killed here. No `except Exception` may stop it, and nothing that runs after it reaches the server."""


@dataclass(slots=True)
class Refusal:
    """Answers matching calls with an error instead of doing them."""

    error: ApiError
    times: int
    verb: str | None
    resource: Resource | None
    name: str | None

    def takes(self, verb: str, resource: Resource, name: str) -> bool:
        return (
            self.times > 0
            and self.verb in {None, verb}
            and self.resource in {None, resource}
            and self.name in {None, name}
        )


@dataclass(slots=True)
class Faults:
    """What goes wrong, and when. The Nth write counts from 1 over this client's writes; those of Leases don't count,
    because how many there are depends on time and not on the story.
    """

    crash_before: int | None = None
    """The process dies when it is about to send its Nth write."""
    crash_after: int | None = None
    """The Nth write is applied; the process dies before it gets the answer."""
    lose_answer: int | None = None
    """The Nth write is applied, its answer lost."""
    lose_request: int | None = None
    """The Nth write never arrives, which looks the same from here."""
    refusals: list[Refusal] = field(default_factory=list)

    def refuse(
        self,
        error: ApiError,
        *,
        times: int = 1,
        verb: str | None = None,
        resource: Resource | None = None,
        name: str | None = None,
    ) -> None:
        """The next `times` matching calls (get, list, watch, create, update, patch, delete, bind) get this error."""
        self.refusals.append(Refusal(error, times, verb, resource, name))

    def refusal(self, verb: str, resource: Resource, name: str) -> ApiError | None:
        for refusal in self.refusals:
            if refusal.takes(verb, resource, name):
                refusal.times -= 1
                return refusal.error
        return None


class MemoryApi:
    """The `Api` on a `MemoryServer`.

    Attributes:
        faults: what goes wrong on this connection.
        sent: this client's writes but those of Leases, in order; `len(sent)` is the N of a sweep.
        dead: whether the process was killed.
        tamper: what arrives of each watch event: nothing when it is dropped, two when it is doubled.
    """

    def __init__(
        self, server: MemoryServer, *, client: str = "operator", write_gate: Callable[[], None] = gate_open
    ) -> None:
        self.server = server
        self.client = client
        self.faults = Faults()
        self.sent: list[Write] = []
        self.tamper: Callable[[WatchEvent], Sequence[WatchEvent]] = lambda event: (event,)
        self.dead = False
        self._write_gate = write_gate
        self._streams: set[Stream] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def use_gate(self, write_gate: Callable[[], None]) -> None:
        self._write_gate = write_gate

    # Watches going wrong

    def hold_watches(self) -> None:
        """Events stop arriving, silently, until `release_watches`."""
        self._flowing.clear()

    def release_watches(self) -> None:
        self._flowing.set()

    def end_watches(self, error: ApiError | None = None) -> None:
        """Open watches end: cleanly, or with the error (`Gone`, `Unreachable`)."""
        for stream in self._streams:
            stream.put_nowait(error)

    # Reads

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json:
        await self._arrive("get", resource, name)
        found = self.server.find(resource, name, namespace)
        if found is None:
            raise NotFound(f'{resource} "{name}" not found', status=404, reason="NotFound", details={"name": name})
        return await self._answer(found)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int | None = None,
    ) -> Listing:
        await self._arrive("list", resource, "")
        listing = self.server.listing(resource, namespace, label_selector, field_selector)
        await self._answer({})
        return listing

    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        await self._arrive("watch", resource, "")
        stream = self.server.subscribe(int(resource_version))
        self._streams.add(stream)
        try:
            while True:
                change = await stream.get()
                await self._flowing.wait()
                self._alive()
                if change is None:
                    return
                if isinstance(change, ApiError):
                    raise change
                event = _shown(change, resource, namespace, label_selector, field_selector)
                if event is not None:
                    for seen in self.tamper(event):
                        yield seen
        finally:
            self._streams.discard(stream)
            self.server.unsubscribe(stream)

    # Writes

    async def create(
        self,
        resource: Resource,
        body: Json,
        *,
        namespace: str | None = None,
        strict: bool = False,
        dry_run: bool = False,
    ) -> Json:
        metadata = body.get("metadata", {})
        name = metadata.get("name") or metadata.get("generateName", "")
        write = self._write("create", resource, name, metadata.get("namespace") or namespace)
        return await self._send(write, lambda: self.server.create(resource, body, namespace, dry_run=dry_run))

    async def update(self, resource: Resource, name: str, body: Json, *, namespace: str | None = None) -> Json:
        def apply() -> Json:
            if resource == LEASES and "resourceVersion" not in body["metadata"]:
                raise invalid(LEASES, name, "metadata.resourceVersion", "must be specified for an update")
            return self.server.change(resource, name, namespace, lambda _: copied(body))

        return await self._send(self._write("update", resource, name, namespace), apply)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Json | Sequence[Json],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        content: Patch = Patch.MERGE,
        strict: bool = False,
        dry_run: bool = False,
    ) -> Json:
        def apply() -> Json:
            if content is Patch.STRATEGIC and resource in CUSTOM:
                raise Invalid(
                    "the body of the request was in an unknown format", status=415, reason="UnsupportedMediaType"
                )
            return self.server.change(
                resource,
                name,
                namespace,
                lambda before: patched(before, body, content),
                subresource=subresource,
                dry_run=dry_run,
            )

        return await self._send(self._write("patch", resource, name, namespace, subresource), apply)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        uid: str | None,
        namespace: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
    ) -> Json:
        def apply() -> Json:
            return self.server.delete(
                resource,
                name,
                namespace,
                preconditions={"uid": uid, "resourceVersion": resource_version},
                grace_period_seconds=grace_period_seconds,
            )

        return await self._send(self._write("delete", resource, name, namespace), apply)

    async def create_binding(
        self, namespace: str, name: str, *, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        def apply() -> Json:
            self.server.bind(namespace, name, uid, node, annotations)
            return {}

        await self._send(self._write("bind", PODS, name, namespace, "binding"), apply)

    # Inside

    def _write(
        self, verb: str, resource: Resource, name: str, namespace: str | None, subresource: str | None = None
    ) -> Write:
        where = (namespace or "default") if resource.namespaced else ""
        return Write(self.client, verb, resource, subresource, where, name)

    async def _send(self, write: Write, apply: Callable[[], Json]) -> Json:
        """One write: the gate, then the faults due before it, the server, and the faults due after it."""
        self._alive()
        await asyncio.sleep(0)
        self._alive()
        number = 0
        if write.resource != LEASES:
            self._write_gate()
            number = len(self.sent) + 1
        if number and number == self.faults.crash_before:
            self._die()
        if number and number == self.faults.lose_request:
            self._log(replace(write, outcome="lost"))
            raise UnknownOutcome(f"no answer to {write}: connection reset")
        try:
            refusal = self.faults.refusal(write.verb, write.resource, write.name)
            if refusal is not None:
                raise refusal
            answer = apply()
        except ApiError as error:
            self._log(replace(write, outcome=type(error).__name__))
            raise
        self._log(write)
        if number and number == self.faults.crash_after:
            self._die()
        if number and number == self.faults.lose_answer:
            raise UnknownOutcome(f"no answer to {write}: connection reset")
        return await self._answer(answer)

    def _log(self, write: Write) -> None:
        self.server.writes.append(write)
        if write.resource != LEASES:
            self.sent.append(write)

    async def _arrive(self, verb: str, resource: Resource, name: str) -> None:
        self._alive()
        await asyncio.sleep(0)
        self._alive()
        refusal = self.faults.refusal(verb, resource, name)
        if refusal is not None:
            raise refusal

    async def _answer(self, body: Json) -> Json:
        await asyncio.sleep(0)
        self._alive()
        return body

    def _alive(self) -> None:
        if self.dead:
            raise Crash(f"{self.client} is dead")

    def _die(self) -> None:
        self.dead = True
        raise Crash(f"{self.client} was killed at write {len(self.sent)}")


def _shown(
    change: Change, resource: Resource, namespace: str | None, label_selector: str | None, field_selector: str | None
) -> WatchEvent | None:
    """The change as a watch with these selectors sees it: leaving the selection looks like a deletion."""
    if change.type == "BOOKMARK":
        metadata = {"resourceVersion": str(change.version)}
        return WatchEvent("BOOKMARK", {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata})
    if change.resource != resource:
        return None
    now = selected(change.object, namespace, label_selector, field_selector)
    was = change.before is not None and selected(change.before, namespace, label_selector, field_selector)
    if not now and not was:
        return None
    body = copied(change.object)
    if change.type != "MODIFIED" or (now and was):
        return WatchEvent(change.type, body)
    if now:
        return WatchEvent("ADDED", body)
    last = copied(change.before)  # as it was when it still belonged, with the version of the change
    last["metadata"]["resourceVersion"] = body["metadata"]["resourceVersion"]
    return WatchEvent("DELETED", last)
