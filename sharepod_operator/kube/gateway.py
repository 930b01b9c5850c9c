"""The verbs of the API over HTTP. How requests are bounded, repeated and read is the transport's story."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, overload
from urllib.parse import quote

import orjson

from sharepod_operator.kube.api import PODS, Json, Listing, Patch, Resource, WatchEvent
from sharepod_operator.kube.clock import Clock
from sharepod_operator.kube.errors import Gone, Unreachable, error_of
from sharepod_operator.kube.transport import Call, Limits, Transport, gate_open, unobserved
from sharepod_operator.manifest.packed import PackedJson

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from sharepod_operator.kube.auth import Connection

WATCH_TIMEOUT = 300
"""Seconds after which the server closes a watch, which then goes on from where it was."""


class Packed(Sequence[Json]):
    """Objects that are kept as text until somebody looks at them.

    managedFields, half of an object and of no interest to us, are left out.
    """

    def __init__(self) -> None:
        self._items: list[PackedJson] = []

    def extend(self, items: Iterable[Json]) -> None:
        """Keep these as well."""
        for item in items:
            item.get("metadata", {}).pop("managedFields", None)
            self._items.append(PackedJson.of(item))

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Json: ...
    @overload
    def __getitem__(self, index: slice) -> list[Json]: ...
    def __getitem__(self, index: int | slice) -> Json | list[Json]:
        if isinstance(index, slice):
            return [item.value for item in self._items[index]]
        return self._items[index].value


class Gateway:
    """The `Api` of a real server; use as an async context manager.

    Args:
        connection: address and credentials.
        write_gate: called immediately before each write is sent, possibly twice; raises `NotLeading` to stop it.
            Writes of Leases pass without it, since a Lease is how leadership is won.
        observe: called after each answer with verb, resource, HTTP status (0: no answer) and seconds; not for a write
            that the gate has stopped.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        write_gate: Callable[[], None] = gate_open,
        observe: Callable[[str, Resource, int, float], None] = unobserved,
        user_agent: str = "sharepod-operator",
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._manager = user_agent.partition("/")[0]
        self._transport = Transport(
            connection,
            user_agent=user_agent,
            limits=limits or Limits(),
            clock=clock or Clock(),
        )
        self._transport.write_gate = write_gate
        self._transport.observe = observe

    @property
    def connection(self) -> Connection:
        return self._transport.connection

    def use_gate(self, write_gate: Callable[[], None]) -> None:
        """Puts the writes behind this gate from now on: the leader needs the gateway, and the gateway the leader's gate."""
        self._transport.write_gate = write_gate

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    # Reads

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json:
        return await self._read("get", resource, path_of(resource, namespace, name))

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int | None = None,
    ) -> Listing:
        path = path_of(resource, namespace)
        query: dict[str, Any] = {"labelSelector": label_selector, "fieldSelector": field_selector}
        if limit is None:
            return _listing(await self._read("list", resource, path, query))
        items = Packed()
        token: str | None = None
        while True:
            try:
                page = await self._read("list", resource, path, {**query, "limit": limit, "continue": token})
            except Gone:
                if token is None:
                    raise
                return _listing(await self._read("list", resource, path, query))  # the snapshot was compacted meanwhile
            items.extend(page.get("items") or ())
            version = page["metadata"]["resourceVersion"]
            token = page["metadata"].get("continue")
            if not token:
                return Listing(items, version)
            del page  # before the next one comes: two would be twice the memory

    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": WATCH_TIMEOUT,
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
        }
        call = Call("watch", resource, "GET", path_of(resource, namespace), query)
        async with contextlib.aclosing(self._transport.lines(call)) as lines:
            async for line in lines:
                yield _event(line)

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
        path = path_of(resource, namespace)
        return await self._write("create", resource, "POST", path, body, _options(strict=strict, dry_run=dry_run))

    async def update(self, resource: Resource, name: str, body: Json, *, namespace: str | None = None) -> Json:
        return await self._write("update", resource, "PUT", path_of(resource, namespace, name), body)

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
        path = path_of(resource, namespace, name, subresource)
        query = _options(strict=strict, dry_run=dry_run)
        if content is Patch.APPLY:
            query |= {"fieldManager": self._manager, "force": "true"}
        return await self._write("patch", resource, "PATCH", path, body, query, content=content.value)

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
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in preconditions.items() if value is not None},
            "propagationPolicy": "Background",
        }
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        return await self._write("delete", resource, "DELETE", path_of(resource, namespace, name), options)

    async def create_binding(
        self, namespace: str, name: str, *, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._write("bind", PODS, "POST", path_of(PODS, namespace, name, "binding"), body)

    async def _read(self, verb: str, resource: Resource, path: str, query: Mapping[str, Any] | None = None) -> Json:
        return await self._transport.send(Call(verb, resource, "GET", path, query or {}))

    async def _write(
        self,
        verb: str,
        resource: Resource,
        method: str,
        path: str,
        body: Json | Sequence[Json],
        query: Mapping[str, Any] | None = None,
        *,
        content: str = "application/json",
    ) -> Json:
        data = orjson.dumps(body)
        return await self._transport.send(Call(verb, resource, method, path, query or {}, data, content))


def path_of(resource: Resource, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
    """The path of a collection, an object or a subresource below the server's base URL."""
    parts = ["apis", resource.group] if resource.group else ["api"]
    parts.append(resource.version)
    if namespace is not None and resource.namespaced:
        parts += ["namespaces", namespace]
    parts.append(resource.plural)
    parts += [part for part in (name, subresource) if part is not None]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _options(*, strict: bool, dry_run: bool) -> dict[str, Any]:
    return {"fieldValidation": "Strict" if strict else None, "dryRun": "All" if dry_run else None}


def _listing(page: Json) -> Listing:
    return Listing(page.get("items") or [], page["metadata"]["resourceVersion"])


def _event(line: bytes) -> WatchEvent:
    try:
        raw = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise Unreachable("the watch sent a line that is no JSON: it was cut off") from error
    if raw["type"] == "ERROR":
        raise error_of(int(raw["object"].get("code") or 500), raw["object"])
    return WatchEvent(raw["type"], raw["object"])
