"""The gateway against a real HTTP server that answers as an API server does when things go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from sharepod_operator.kube import errors
from sharepod_operator.kube.api import LEASES, NODES, PODS, SHAREPODS, Json, Patch, Resource
from sharepod_operator.kube.auth import connect
from sharepod_operator.kube.clock import Clock
from sharepod_operator.kube.gateway import Gateway, path_of
from sharepod_operator.kube.transport import Limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from sharepod_operator.kube.auth import Connection

Answer = "Callable[[web.Request], Awaitable[web.StreamResponse]]"


def status(code: int, reason: str = "", message: str = "no", **details: Any) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    return web.json_response(body, status=code)


class Server:
    """Answers with the scripted answers in turn, the last one again and again, and keeps what it was asked."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.asked: list[web.Request] = []
        self.bodies: list[Any] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.asked.append(request)
        self.bodies.append(orjson.loads(raw) if raw else None)
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, dict):
            return web.json_response(answer)
        if isinstance(answer, web.Response):
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        made: web.StreamResponse = await answer(request)
        return made

    @property
    def seen(self) -> list[str]:
        return [f"{request.method} {request.path_qs}" for request in self.asked]


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    scripted = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield scripted, f"http://127.0.0.1:{port}"
    await runner.cleanup()


async def connection(folder: Path, url: str, **user: Any) -> Connection:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user or {"token": "t-1"}}],
    }
    path = folder / "config"
    path.write_bytes(orjson.dumps(config))
    return await connect(kubeconfig=str(path))


class Waits:
    """A sleep that takes no time and remembers how long it would have been."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 2))


@pytest.fixture
def waits() -> Waits:
    return Waits()


class Middle(random.Random):
    """Every jitter takes the whole of its range."""

    def uniform(self, a: float, b: float) -> float:
        return b


@pytest.fixture
async def gateway(server: tuple[Server, str], tmp_path: Path, waits: Waits) -> AsyncIterator[Gateway]:
    limits = Limits(request=0.3, watch_silence=0.2, attempts=4)
    made = Gateway(
        await connection(tmp_path, server[1]),
        limits=limits,
        user_agent="sharepod-operator/9",
        clock=Clock(sleep=waits, rng=Middle()),
    )
    async with made:
        yield made


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(5)
    raise AssertionError("the client should have gone away")


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


class TestShapes:
    @pytest.mark.parametrize(
        ("resource", "namespace", "rest", "expected"),
        [
            (PODS, "ml", ("a", "binding"), "/api/v1/namespaces/ml/pods/a/binding"),
            (PODS, None, (), "/api/v1/pods"),
            (NODES, "ml", ("gpu-a",), "/api/v1/nodes/gpu-a"),
            (SHAREPODS, "ml", ("a", "status"), "/apis/faasshare.tum/v1/namespaces/ml/sharepods/a/status"),
            (SHAREPODS, "../x", ("a/b",), "/apis/faasshare.tum/v1/namespaces/..%2Fx/sharepods/a%2Fb"),
        ],
    )
    def test_paths(self, resource: Resource, namespace: str | None, rest: tuple[str, ...], expected: str) -> None:
        """Core and group resources, cluster scope, subresources; no name can leave its place in the path."""
        assert expected == path_of(resource, namespace, *rest)

    async def test_every_verb_has_its_method_query_and_content_type(
        self, gateway: Gateway, server: tuple[Server, str]
    ) -> None:
        """What goes over the wire is what the API server's documentation asks for."""
        scripted = server[0]
        scripted.script = [{"metadata": {"resourceVersion": "7"}, "items": []}]
        await gateway.get(PODS, "a", namespace="ml")
        await gateway.list(PODS, label_selector="x=y,z", field_selector="spec.nodeName=n")
        await gateway.create(PODS, {"a": 1}, namespace="ml", strict=True, dry_run=True)
        await gateway.update(LEASES, "l", {}, namespace="ml")
        await gateway.patch(PODS, "a", {}, namespace="ml", subresource="status", content=Patch.STRATEGIC)
        await gateway.patch(SHAREPODS, "s", [{"op": "test"}], namespace="ml", content=Patch.JSON)
        await gateway.patch(SHAREPODS, "s", {}, namespace="ml", content=Patch.APPLY)
        await gateway.delete(PODS, "a", uid="u", namespace="ml", grace_period_seconds=3)
        await gateway.create_binding("ml", "a", uid="u", node="gpu-a", annotations={"k": "v"})
        assert [
            "GET /api/v1/namespaces/ml/pods/a",
            "GET /api/v1/pods?labelSelector=x%3Dy%2Cz&fieldSelector=spec.nodeName%3Dn",
            "POST /api/v1/namespaces/ml/pods?fieldValidation=Strict&dryRun=All",
            "PUT /apis/coordination.k8s.io/v1/namespaces/ml/leases/l",
            "PATCH /api/v1/namespaces/ml/pods/a/status",
            "PATCH /apis/faasshare.tum/v1/namespaces/ml/sharepods/s",
            "PATCH /apis/faasshare.tum/v1/namespaces/ml/sharepods/s?fieldManager=sharepod-operator&force=true",
            "DELETE /api/v1/namespaces/ml/pods/a",
            "POST /api/v1/namespaces/ml/pods/a/binding",
        ] == scripted.seen
        assert [
            "application/json",
            "application/json",
            "application/strategic-merge-patch+json",
            "application/json-patch+json",
            "application/apply-patch+yaml",
            "application/json",
            "application/json",
        ] == [request.headers["Content-Type"] for request in scripted.asked[2:]]
        assert {("sharepod-operator/9", "Bearer t-1")} == {
            (request.headers["User-Agent"], request.headers["Authorization"]) for request in scripted.asked
        }
        assert {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": "u"},
            "propagationPolicy": "Background",
            "gracePeriodSeconds": 3,
        } == scripted.bodies[-2]
        assert {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "a", "namespace": "ml", "uid": "u", "annotations": {"k": "v"}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-a"},
        } == scripted.bodies[-1]

    async def test_lists_come_in_pages_when_asked(self, gateway: Gateway, server: tuple[Server, str]) -> None:
        """All pages are one list of one version."""
        scripted = server[0]
        scripted.script = [
            {"metadata": {"resourceVersion": "7", "continue": "next"}, "items": [{"n": 1}]},
            {"metadata": {"resourceVersion": "7"}, "items": [{"n": 2}]},
        ]
        listing = await gateway.list(PODS, limit=1)
        assert ([{"n": 1}, {"n": 2}], "7") == (list(listing.items), listing.resource_version)
        assert ["GET /api/v1/pods?limit=1", "GET /api/v1/pods?limit=1&continue=next"] == scripted.seen

    async def test_pages_leave_out_what_nobody_reads(self, gateway: Gateway, server: tuple[Server, str]) -> None:
        """ManagedFields are half of what the server sends; an object can be had by its place as well."""
        entry = {"metadata": {"name": "a", "managedFields": [{"manager": "kubectl"}]}, "spec": {"x": 1}}
        server[0].script = [{"metadata": {"resourceVersion": "7"}, "items": [entry, {"n": 2}]}]
        items = (await gateway.list(PODS, limit=2)).items
        assert ({"metadata": {"name": "a"}, "spec": {"x": 1}}, [{"n": 2}], 2) == (items[0], items[1:], len(items))

    async def test_an_expired_page_starts_over_as_a_whole(self, gateway: Gateway, server: tuple[Server, str]) -> None:
        """A continue token lives for minutes only; the answer is still one consistent list."""
        scripted = server[0]
        scripted.script = [
            {"metadata": {"resourceVersion": "7", "continue": "next"}, "items": [{"n": 1}]},
            status(410, "Expired"),
            {"metadata": {"resourceVersion": "9"}, "items": [{"n": 3}]},
        ]
        listing = await gateway.list(PODS, limit=1)
        assert ([{"n": 3}], "9", "GET /api/v1/pods") == (listing.items, listing.resource_version, scripted.seen[-1])


class TestErrors:
    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (status(400, "BadRequest"), errors.Invalid),
            (status(403, "Forbidden"), errors.Forbidden),
            (status(404, "NotFound"), errors.NotFound),
            (web.Response(status=404, text="404 page not found"), errors.NotFound),
            (status(405, "MethodNotAllowed"), errors.ApiError),
            (status(409, "Conflict"), errors.Conflict),
            (status(409, "AlreadyExists"), errors.AlreadyExists),
            (status(410, "Expired"), errors.Gone),
            (status(415, "UnsupportedMediaType"), errors.Invalid),
            (status(422, "Invalid"), errors.Invalid),
        ],
    )
    async def test_a_refusal_is_typed_definite_and_not_repeated(
        self, gateway: Gateway, server: tuple[Server, str], answer: web.Response, expected: type[errors.ApiError]
    ) -> None:
        """4xx says that nothing was written, so the caller may forget what it assumed."""
        server[0].script = [answer]
        with pytest.raises(errors.ApiError) as caught:
            await gateway.create(PODS, {}, namespace="ml")
        assert (expected, True, answer.status, 1) == (
            type(caught.value),
            caught.value.definite,
            caught.value.status,
            len(server[0].asked),
        )

    async def test_a_long_message_is_bounded_to_one_line(self, gateway: Gateway, server: tuple[Server, str]) -> None:
        """An Invalid answer may repeat a whole podSpec; logs and conditions must not."""
        server[0].script = [
            status(
                422,
                "Invalid",
                "a\nb " * 1000,
                causes=[{"field": "spec.x", "message": "Required value"}, {"message": "denied by a policy"}],
            )
        ]
        with pytest.raises(errors.Invalid) as caught:
            await gateway.create(PODS, {}, namespace="ml")
        assert (errors.MESSAGE_LIMIT, False) == (len(caught.value.message), "\n" in caught.value.message)
        assert ("spec.x: Required value",) == caught.value.field_causes

    @pytest.mark.parametrize("answer", [hang, cut, status(500), status(503), status(504, "Timeout")])
    async def test_a_write_without_a_clear_answer_has_an_unknown_outcome(
        self, gateway: Gateway, server: tuple[Server, str], answer: Any
    ) -> None:
        """Timeout, reset and 5xx: the write was sent once, and never again."""
        server[0].script = [answer]
        for call in (
            gateway.create(PODS, {}, namespace="ml"),
            gateway.update(LEASES, "l", {}, namespace="ml"),
            gateway.patch(PODS, "a", {}, namespace="ml"),
            gateway.delete(PODS, "a", uid="u", namespace="ml"),
            gateway.create_binding("ml", "a", uid="u", node="n", annotations={}),
        ):
            server[0].asked.clear()
            with pytest.raises(errors.UnknownOutcome) as caught:
                await call
            assert (False, 1) == (caught.value.definite, len(server[0].asked))

    async def test_a_write_on_a_reused_connection_that_breaks_is_not_sent_again(
        self, gateway: Gateway, server: tuple[Server, str]
    ) -> None:
        """The HTTP client's own second try of PUT and DELETE is off."""
        server[0].script = [{"kind": "Pod"}, cut]
        await gateway.get(PODS, "a", namespace="ml")
        with pytest.raises(errors.UnknownOutcome):
            await gateway.delete(PODS, "a", uid="u", namespace="ml")
        assert ["GET", "DELETE"] == [request.method for request in server[0].asked]

    @pytest.mark.parametrize("failure", [hang, cut, status(500), status(503)])
    async def test_reads_are_repeated(
        self, gateway: Gateway, server: tuple[Server, str], waits: Waits, failure: Any
    ) -> None:
        """A GET changes nothing, so network and server failures are tried again after growing pauses."""
        server[0].script = [failure, failure, {"kind": "Pod"}]
        assert {"kind": "Pod"} == await gateway.get(PODS, "a", namespace="ml")
        assert [0.25, 0.5] == waits.pauses

    async def test_reads_give_up(self, gateway: Gateway, server: tuple[Server, str]) -> None:
        """The number of tries is bounded."""
        server[0].script = [status(500, "InternalError", "etcdserver: leader changed")]
        with pytest.raises(errors.ServerError, match="etcdserver: leader changed"):
            await gateway.get(PODS, "a", namespace="ml")
        assert 4 == len(server[0].asked)

    async def test_a_server_that_is_not_there_is_unreachable(self, tmp_path: Path, waits: Waits) -> None:
        """No connection means that nothing was sent: a definite refusal, tried again by itself."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            async with Gateway(
                await connection(tmp_path, url), limits=Limits(attempts=3), clock=Clock(sleep=waits)
            ) as gateway:
                with pytest.raises(errors.Unreachable) as caught:
                    await gateway.create(PODS, {}, namespace="ml")
        assert (True, 2) == (caught.value.definite, len(waits.pauses))


class TestPatience:
    async def test_retry_after_is_honoured(self, gateway: Gateway, server: tuple[Server, str], waits: Waits) -> None:
        """429 says that nothing was done: the write waits as long as asked, plus jitter, and goes out again."""
        slow = web.Response(status=429, headers={"Retry-After": "7"}, text="{}")
        server[0].script = [slow, status(429, "TooManyRequests", retryAfterSeconds=2), {"kind": "Pod"}]
        assert {"kind": "Pod"} == await gateway.create(PODS, {}, namespace="ml")
        assert [7.25, 2.5] == waits.pauses

    async def test_patience_is_bounded(self, gateway: Gateway, server: tuple[Server, str], waits: Waits) -> None:
        """A server that never wants the write, or wants it in an hour, gets a caller that decides."""
        server[0].script = [web.Response(status=429, headers={"Retry-After": "1"})]
        with pytest.raises(errors.TooManyRequests) as caught:
            await gateway.create(PODS, {}, namespace="ml")
        assert (1.0, True, 3) == (caught.value.retry_after, caught.value.definite, len(waits.pauses))
        server[0].script = [web.Response(status=429, headers={"Retry-After": "3600"})]
        with pytest.raises(errors.TooManyRequests):
            await gateway.create(PODS, {}, namespace="ml")
        assert 3 == len(waits.pauses)


class TestBounds:
    async def in_flight(self, gateway: Gateway, scripted: Server, calls: Sequence[Awaitable[Json]]) -> int:
        """The most requests that were at the server at once."""
        now = most = 0

        async def slow(_: web.Request) -> web.StreamResponse:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1
            return web.json_response({})

        scripted.script = [slow]
        await asyncio.gather(*calls)
        return most

    async def test_writes_and_reads_in_flight_are_bounded(self, server: tuple[Server, str], tmp_path: Path) -> None:
        """Each has its own bound; Leases wait for nobody."""
        limits = Limits(writes_in_flight=3, reads_in_flight=2)
        async with Gateway(await connection(tmp_path, server[1]), limits=limits) as gateway:
            writes = [gateway.create(PODS, {}, namespace="ml") for _ in range(9)]
            assert 3 == await self.in_flight(gateway, server[0], writes)
            reads = [gateway.get(PODS, "a", namespace="ml") for _ in range(9)]
            assert 2 == await self.in_flight(gateway, server[0], reads)
            leases = [gateway.update(LEASES, "l", {}, namespace="ml") for _ in range(9)]
            assert 9 == await self.in_flight(gateway, server[0], leases)


class TestGate:
    async def test_a_closed_gate_sends_nothing(self, gateway: Gateway, server: tuple[Server, str]) -> None:
        """A standby reads and competes for the Lease, and writes nothing else."""

        def closed() -> None:
            raise errors.NotLeading("standby")

        gateway.use_gate(closed)
        server[0].script = [{}]
        for call in (
            gateway.create(PODS, {}, namespace="ml"),
            gateway.patch(PODS, "a", {}, namespace="ml"),
            gateway.delete(PODS, "a", uid="u", namespace="ml"),
            gateway.create_binding("ml", "a", uid="u", node="n", annotations={}),
        ):
            with pytest.raises(errors.NotLeading):
                await call
        await gateway.get(PODS, "a", namespace="ml")
        await gateway.update(LEASES, "l", {}, namespace="ml")
        assert ["GET", "PUT"] == [request.method for request in server[0].asked]

    async def test_a_write_that_waited_for_its_turn_is_checked_again(
        self, server: tuple[Server, str], tmp_path: Path
    ) -> None:
        """Leadership may end while a write waits behind others."""
        leading = True

        def gate() -> None:
            if not leading:
                raise errors.NotLeading("lost")

        async def lose(_: web.Request) -> web.StreamResponse:
            nonlocal leading
            leading = False
            return web.json_response({})

        server[0].script = [lose]
        limits = Limits(writes_in_flight=1)
        async with Gateway(await connection(tmp_path, server[1]), limits=limits, write_gate=gate) as gateway:
            calls = [gateway.create(PODS, {}, namespace="ml") for _ in range(3)]
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert [dict, errors.NotLeading, errors.NotLeading] == [type(result) for result in results]
        assert 1 == len(server[0].asked)

    async def test_connecting_may_outlast_the_leadership(self, server: tuple[Server, str], tmp_path: Path) -> None:
        """The gate is asked again once there is a connection, before the first byte of the request."""
        answers = iter([True, False])

        def gate() -> None:
            if not next(answers):
                raise errors.NotLeading("lost while connecting")

        server[0].script = [{}]
        async with Gateway(await connection(tmp_path, server[1]), write_gate=gate) as gateway:
            with pytest.raises(errors.NotLeading, match="lost while connecting"):
                await gateway.create(PODS, {}, namespace="ml")
        assert [] == server[0].asked


class TestCredentials:
    async def test_a_401_is_met_with_renewed_credentials(self, server: tuple[Server, str], tmp_path: Path) -> None:
        """A token file that was renewed is read again, and the request sent once more, a write too: 401 did nothing."""
        token = tmp_path / "token"
        token.write_text("old")
        made = await connection(tmp_path, server[1], tokenFile=str(token))
        server[0].script = [status(401, "Unauthorized"), {"kind": "Pod"}]
        async with Gateway(made) as gateway:
            token.write_text("new")
            assert {"kind": "Pod"} == await gateway.create(PODS, {}, namespace="ml")
        assert ["Bearer old", "Bearer new"] == [request.headers["Authorization"] for request in server[0].asked]

    async def test_a_401_without_other_credentials_is_final(self, gateway: Gateway, server: tuple[Server, str]) -> None:
        """The same token again would be in vain."""
        server[0].script = [status(401, "Unauthorized")]
        with pytest.raises(errors.Unauthorized):
            await gateway.get(PODS, "a", namespace="ml")
        assert 1 == len(server[0].asked)


class TestWatch:
    @staticmethod
    def stream(*chunks: bytes, then: Callable[[web.Request], Awaitable[Any]] | None = None) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            if then is not None:
                with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                    await then(request)
            return response

        return answer

    @staticmethod
    def line(kind: str, /, **body: Any) -> bytes:
        return orjson.dumps({"type": kind, "object": body}) + b"\n"

    async def test_events_arrive_whatever_the_chunks(self, gateway: Gateway, server: tuple[Server, str]) -> None:
        """A line may come in pieces, or many lines at once, and may be longer than any buffer."""
        big = self.line("MODIFIED", data="x" * 3_000_000)
        lines = self.line("ADDED", n=1) + self.line("BOOKMARK", n=2)
        server[0].script = [self.stream(lines[:10], lines[10:] + big[:5], big[5:])]
        seen = [event async for event in gateway.watch(PODS, resource_version="5", label_selector="a=b")]
        assert [("ADDED", {"n": 1}), ("BOOKMARK", {"n": 2})] == seen[:2]
        assert 3_000_000 == len(seen[2].object["data"])
        assert [
            "GET /api/v1/pods?watch=1&allowWatchBookmarks=true&resourceVersion=5&timeoutSeconds=300&labelSelector=a%3Db"
        ] == server[0].seen

    async def test_an_expired_version_is_gone(self, gateway: Gateway, server: tuple[Server, str]) -> None:
        """410 comes as an answer, or as an ERROR event in a stream that has begun."""
        gone = self.line("ERROR", kind="Status", code=410, reason="Expired", message="too old resource version: 5 (9)")
        for answer in (status(410, "Expired"), self.stream(self.line("ADDED"), gone)):
            server[0].script = [answer]
            with pytest.raises(errors.Gone):
                async for _ in gateway.watch(PODS, resource_version="5"):
                    pass

    @pytest.mark.parametrize("ending", [hang, cut])
    async def test_silence_and_cuts_are_noticed(
        self, gateway: Gateway, server: tuple[Server, str], ending: Any
    ) -> None:
        """A watch that says nothing for too long counts as broken, like one that was reset."""
        server[0].script = [self.stream(self.line("ADDED"), then=ending)]
        events = gateway.watch(PODS, resource_version="5")
        assert "ADDED" == (await anext(events)).type
        with pytest.raises(errors.Unreachable):
            await anext(events)

    async def test_an_open_watch_takes_no_slot(self, server: tuple[Server, str], tmp_path: Path) -> None:
        """Watches stay open for minutes; reads go on beside them."""
        server[0].script = [self.stream(self.line("ADDED"), then=hang), {"kind": "Pod"}]
        async with (
            Gateway(await connection(tmp_path, server[1]), limits=Limits(reads_in_flight=1)) as gateway,
            contextlib.aclosing(gateway.watch(PODS, resource_version="5")) as events,
        ):
            assert "ADDED" == (await anext(events)).type
            assert {"kind": "Pod"} == await gateway.get(PODS, "a", namespace="ml")


class TestObservation:
    async def test_every_answer_is_counted_once(self, server: tuple[Server, str], tmp_path: Path) -> None:
        """Verb, resource and status, 0 where no answer came."""
        seen: list[tuple[str, str, int]] = []

        def observe(verb: str, resource: Resource, code: int, seconds: float) -> None:
            assert seconds >= 0
            seen.append((verb, str(resource), code))

        server[0].script = [{}, status(409, "Conflict"), cut]
        async with Gateway(await connection(tmp_path, server[1]), observe=observe) as gateway:
            await gateway.get(PODS, "a", namespace="ml")
            with pytest.raises(errors.Conflict):
                await gateway.create_binding("ml", "a", uid="u", node="n", annotations={})
            with pytest.raises(errors.UnknownOutcome):
                await gateway.patch(SHAREPODS, "s", {}, namespace="ml", subresource="status")
        assert [("get", "pods", 200), ("bind", "pods", 409), ("patch", "sharepods.faasshare.tum", 0)] == seen

    async def test_a_write_that_the_gate_stopped_is_not_counted(
        self, server: tuple[Server, str], tmp_path: Path
    ) -> None:
        """It was never sent: counted as a request without an answer it would look like a broken API server."""
        seen: list[int] = []
        leading = iter([False, True, False])

        def gate() -> None:
            if not next(leading):
                raise errors.NotLeading("standby")

        def observe(_verb: str, _resource: Resource, code: int, _seconds: float) -> None:
            seen.append(code)

        server[0].script = [{}]
        async with Gateway(await connection(tmp_path, server[1]), observe=observe, write_gate=gate) as gateway:
            for _ in ("before it asks for a connection", "when it has one"):
                with pytest.raises(errors.NotLeading):
                    await gateway.create(PODS, {}, namespace="ml")
            await gateway.get(PODS, "a", namespace="ml")
        assert [200] == seen
