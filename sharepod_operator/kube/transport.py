"""How requests reach the API server: bounded in number and time, answers as JSON, everything else as typed errors.

Reads are repeated when the network or the server fails. A write is repeated only after an answer that says it did not
happen (429, or no connection): after anything else its outcome is unknown, and only the caller knows how to find out.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import aiohttp
import orjson
from yarl import URL

from sharepod_operator.kube.api import LEASES, Json, Resource
from sharepod_operator.kube.errors import (
    ApiError,
    AuthError,
    NotLeading,
    ServerError,
    TooManyRequests,
    Unauthorized,
    UnknownOutcome,
    Unreachable,
    error_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import SimpleNamespace

    from sharepod_operator.kube.auth import Connection
    from sharepod_operator.kube.clock import Clock

_BACKOFF = 0.25
_BACKOFF_MAX = 8.0


def gate_open() -> None:
    """The write gate of a process that has nobody to compete with, such as a command of the CLI."""


def unobserved(verb: str, resource: Resource, code: int, seconds: float) -> None:
    """Nobody counts the requests."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the traffic; times in seconds."""

    writes_in_flight: int = 32
    reads_in_flight: int = 16
    request: float = 30.0
    """One request, its answer included."""
    connect: float = 10.0
    watch_silence: float = 70.0
    """Without a byte for so long a watch counts as dead: the server sends a bookmark about once a minute."""
    attempts: int = 6
    """Tries of one request, the first included, where repeating it is safe."""
    retry_after: float = 30.0
    """A server's Retry-After is honoured up to here; a longer wait is the caller's."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as often as it may have to be sent."""

    verb: str
    resource: Resource
    method: str
    path: str
    query: Mapping[str, Any]
    data: bytes | None = None
    content: str = "application/json"

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def gated(self) -> bool:
        """A Lease is how leadership is won: it alone is written without having it."""
        return self.writes and self.resource != LEASES


class Transport:
    """One HTTP session to one API server. `write_gate` and `observe` are documented at the gateway."""

    def __init__(
        self,
        connection: Connection,
        *,
        user_agent: str,
        limits: Limits,
        clock: Clock,
    ) -> None:
        self.connection = connection
        self.write_gate: Callable[[], None] = gate_open
        self.observe: Callable[[str, Resource, int, float], None] = unobserved
        self._limits = limits
        self._writes = asyncio.Semaphore(limits.writes_in_flight)
        self._reads = asyncio.Semaphore(limits.reads_in_flight)
        self._timeout = aiohttp.ClientTimeout(total=limits.request, sock_connect=limits.connect)
        self._silence = aiohttp.ClientTimeout(total=None, sock_connect=limits.connect, sock_read=limits.watch_silence)
        self._headers = {"User-Agent": user_agent, "Accept": "application/json"}
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Makes the session; nothing is sent."""
        traced = aiohttp.TraceConfig()
        traced.on_connection_reuseconn.append(self._connected)
        traced.on_connection_create_end.append(self._connected)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # the semaphores bound requests; watches must never wait for them
            headers=self._headers,
            trace_configs=[traced],
        )
        # aiohttp sends PUT and DELETE again by itself when a reused connection breaks: that is a blind repetition.
        self._session._retry_connection = False  # noqa: SLF001

    async def close(self) -> None:
        """Ends every connection; open watches break."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, call: Call) -> Json:
        """The answer to the call, repeated where that is safe."""
        attempt = 1
        while True:
            try:
                async with self._slot(call):
                    return await self._once(call)
            except (Unreachable, ServerError, TooManyRequests) as error:
                if attempt >= self._limits.attempts or self._session is None:
                    raise
                pause = self._clock.jittered(min(_BACKOFF_MAX, _BACKOFF * 2.0 ** (attempt - 1)))
                if isinstance(error, TooManyRequests):
                    if error.retry_after > self._limits.retry_after:
                        raise
                    pause = error.retry_after + pause
            attempt += 1
            await self._clock.sleep(pause)

    async def lines(self, call: Call) -> AsyncGenerator[bytes, None]:
        """The lines of a stream as they arrive, without their ends; raises `Unreachable` when it breaks or is silent."""
        started = self._clock.monotonic()
        code = 0
        try:
            async with self._answered(call, await self._authorization(), self._silence) as answer:
                code = answer.status
                rest = b""
                async for chunk in answer.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        if line:
                            yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"the {call.verb} of {call.resource} broke: {_cause(error)}") from error
        except ApiError as error:
            code = error.status
            raise
        finally:
            self.observe(call.verb, call.resource, code, self._clock.monotonic() - started)

    def _slot(self, call: Call) -> AbstractAsyncContextManager[Any]:
        """Leases never queue behind other requests: a busy leader must not lose its Lease for that."""
        if call.resource == LEASES:
            return contextlib.nullcontext()
        return self._writes if call.writes else self._reads

    async def _once(self, call: Call) -> Json:
        started = self._clock.monotonic()
        code: int | None = 0
        try:
            async with self._answered(call, await self._authorization(), self._timeout) as answer:
                code = answer.status
                payload: Json = orjson.loads(await answer.read())
                return payload
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(f"can't connect to {self.connection.server}: {_cause(error)}") from error
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            kind: type[ApiError] = UnknownOutcome if call.writes else Unreachable
            raise kind(f"no answer to {call.verb} of {call.resource}: {_cause(error)}") from error
        except NotLeading:
            code = None  # it never left, so that there is nothing to count
            raise
        except ApiError as error:
            code = error.status
            raise
        finally:
            if code is not None:
                self.observe(call.verb, call.resource, code, self._clock.monotonic() - started)

    @contextlib.asynccontextmanager
    async def _answered(
        self, call: Call, authorization: str | None, limit: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The successful answer; a 401 is met once with renewed credentials (it says that nothing was done)."""
        async with self._request(call, authorization, limit) as answer:
            if answer.status < 400:
                yield answer
                return
            error = await _refusal(answer, writing=call.writes)
        if not isinstance(error, Unauthorized) or not await self._renew(authorization):
            raise error
        async with self._request(call, await self._authorization(), limit) as answer:
            if answer.status >= 400:
                raise await _refusal(answer, writing=call.writes)
            yield answer

    def _request(
        self, call: Call, authorization: str | None, limit: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            raise Unreachable("the gateway is closed")
        if call.gated:
            self.write_gate()
        headers = {"Authorization": authorization} if authorization else {}
        if call.data is not None:
            headers["Content-Type"] = call.content
        query = urlencode({key: value for key, value in call.query.items() if value is not None})
        return self._session.request(
            call.method,
            URL(
                f"{self.connection.server}{call.path}?{query}" if query else self.connection.server + call.path,
                encoded=True,
            ),
            data=call.data,
            headers=headers,
            timeout=limit,
            ssl=self.connection.tls or True,
            server_hostname=self.connection.server_name,
            proxy=self.connection.proxy,
            allow_redirects=False,
            trace_request_ctx=call,
        )

    async def _connected(self, _session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        """The last moment before bytes leave: connecting may have taken longer than the leadership lasted."""
        call: Call = context.trace_request_ctx
        if call.gated:
            self.write_gate()

    async def _authorization(self) -> str | None:
        try:
            return await self.connection.authorization()
        except AuthError as error:
            raise Unauthorized(str(error), status=401) from error

    async def _renew(self, refused: str | None) -> bool:
        try:
            return await self.connection.renew(refused)
        except AuthError as error:
            raise Unauthorized(str(error), status=401) from error


async def _refusal(answer: aiohttp.ClientResponse, *, writing: bool) -> ApiError:
    raw = await answer.read()
    retry_after = answer.headers.get("Retry-After", "")
    try:
        body: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = raw.decode(errors="replace")
    return error_of(
        answer.status,
        body if isinstance(body, dict) else str(body),
        writing=writing,
        retry_after=float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None,
    )


def _cause(error: BaseException) -> str:
    return str(error) or type(error).__name__
