"""Probes and metrics over a real socket on loopback."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest

from sharepod_operator.observability.health import Health
from sharepod_operator.observability.http import HttpServer, HttpUnavailable
from sharepod_operator.observability.metrics import GPUSample, Metrics, Sources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOST = "127.0.0.1"


class World:
    """What the server shows."""

    def __init__(self) -> None:
        self.now = 0.0
        self.health = Health(["pods"], clock=lambda: self.now, resync_limit=900)
        self.metrics = Metrics()

    def server(self, port: int = 0) -> HttpServer:
        return HttpServer(health=self.health, metrics=self.metrics, host=HOST, port=port)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
        server = self.server()
        port = await server.start()
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
                yield session, f"http://{HOST}:{port}"
        finally:
            await server.stop()


async def test_probes_follow_health() -> None:
    """200 and 503 with a JSON body that names what is wrong; a standby is ready and says that it doesn't lead."""
    world = World()
    async with world.running() as (session, url):

        async def ask(path: str) -> tuple[int, object]:
            async with session.get(url + path) as answer:
                return answer.status, await answer.json()

        waiting = {"ready": False, "leading": False, "problems": ["pods: not listed yet"]}
        assert (503, waiting) == await ask("/readyz")
        assert (200, {"healthy": True, "leading": False, "problems": []}) == await ask("/healthz")
        world.health.resynced("pods")
        assert (200, {"ready": True, "leading": False, "problems": []}) == await ask("/readyz")
        world.health.lead(leading=True)
        world.now = 42
        stuck = {
            "healthy": False,
            "leading": True,
            "problems": ["scheduling loop: no heartbeat for 42 s (limit 30 s)"],
        }
        assert (503, stuck) == await ask("/healthz")
        assert (200, {"ready": True, "leading": True, "problems": []}) == await ask("/readyz")


async def test_metrics_are_served_in_prometheus_text_format() -> None:
    """A scrape has the content type that Prometheus expects, the counters and the state of this moment."""
    world = World()
    world.metrics.connect(Sources(gpus=lambda: [GPUSample("gpu-a", "GPU-1", "A100", 250, 0, 1)]))
    async with world.running() as (session, url), session.get(url + "/metrics") as answer:
        text = await answer.text()
        assert (200, "text/plain; version=0.0.4; charset=utf-8") == (answer.status, answer.headers["Content-Type"])
    assert 'sharepod_gpu_allocated_ratio{gpu_uuid="GPU-1",model="A100",node="gpu-a"} 0.25\n' in text
    assert 'sharepod_scheduling_attempts_total{outcome="placed"} 0.0\n' in text


async def test_many_scrapers_at_once_are_all_served() -> None:
    """Scrapes wait for each other instead of failing."""
    world = World()
    async with world.running() as (session, url):

        async def scrape() -> int:
            async with session.get(url + "/metrics") as answer:
                await answer.read()
                return answer.status

        assert [200] * 8 == await asyncio.gather(*(scrape() for _ in range(8)))


async def test_only_these_paths_and_reads() -> None:
    """Nothing else is there, and nothing can be written."""
    async with World().running() as (session, url):
        async with session.get(url + "/") as answer:
            assert 404 == answer.status
        async with session.post(url + "/healthz") as answer:
            assert 405 == answer.status


async def test_taken_port_is_one_clear_error() -> None:
    """The error names the port and the setting, and leaves the server startable elsewhere and stoppable."""
    world = World()
    first = world.server()
    port = await first.start()
    second = world.server(port)
    try:
        with pytest.raises(HttpUnavailable) as caught:
            await second.start()
        assert (
            f"HTTP port {HOST}:{port} is taken, probes and metrics are not served: "
            "set SHAREPOD_HTTP_PORT to another one (0 picks a free one)"
        ) == str(caught.value)
        await second.stop()
    finally:
        await first.stop()
    assert port == await second.start()
    await second.stop()


async def test_impossible_host_is_one_clear_error() -> None:
    """An address that isn't this machine's is told in one line as well."""
    world = World()
    server = HttpServer(health=world.health, metrics=world.metrics, host="192.0.2.1", port=0)
    with pytest.raises(HttpUnavailable, match=r"can't listen on 192\.0\.2\.1:0 .* SHAREPOD_HTTP_HOST"):
        await server.start()


async def test_stop_closes_within_a_second() -> None:
    """Open connections, idle, half a request or kept alive, don't delay the end; stopping again is harmless."""
    server = World().server()
    port = await server.start()
    _, idle = await asyncio.open_connection(HOST, port)
    _, half = await asyncio.open_connection(HOST, port)
    half.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
    reader, kept = await asyncio.open_connection(HOST, port)
    kept.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"HTTP/1.1 200 OK\r\n" == await reader.readline()
    started = time.monotonic()
    async with asyncio.timeout(1):
        await server.stop()
    assert time.monotonic() - started < 1
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection(HOST, port)
    await server.stop()
    for writer in (idle, half, kept):
        writer.close()


async def test_start_twice_is_a_mistake() -> None:
    """A second listener would be forgotten by `stop`."""
    server = World().server()
    await server.start()
    try:
        with pytest.raises(RuntimeError, match="running already"):
            await server.start()
    finally:
        await server.stop()
