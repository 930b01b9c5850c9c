"""The operator's HTTP side: `/healthz` and `/readyz` for the kubelet, `/metrics` for Prometheus."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from aiohttp import web

from sharepod_operator.observability.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from sharepod_operator.observability.health import Health, Report
    from sharepod_operator.observability.metrics import Metrics

_STOP_TIMEOUT = 0.5
"""Seconds that requests in progress get when the listener closes."""


class HttpUnavailable(Exception):  # noqa: N818  # a state to go on with, said in one line
    """The listener could not be opened; scheduling works without it."""


class HttpServer:
    """Listens from `start` until `stop`."""

    def __init__(self, *, health: Health, metrics: Metrics, host: str, port: int) -> None:
        """Opens nothing yet; `port` 0 takes a free one."""
        self._health = health
        self._metrics = metrics
        self._host = host
        self._port = port
        self._scrape = asyncio.Lock()
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Opens the listener and returns its port.

        Raises:
            HttpUnavailable: the port is taken, or host and port can't be listened on; the text is one line to log.
        """
        if self._runner is not None:
            raise RuntimeError("the HTTP server is running already")
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._expose)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_STOP_TIMEOUT)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as error:
            await runner.cleanup()
            raise HttpUnavailable(self._refusal(error)) from error
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        port: int = runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Closes the listener and every connection within a second; harmless when it isn't open."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _refusal(self, error: OSError) -> str:
        where = f"{self._host}:{self._port}"
        without = "probes and metrics are not served"
        if error.errno == errno.EADDRINUSE:
            return f"HTTP port {where} is taken, {without}: set SHAREPOD_HTTP_PORT to another one (0 picks a free one)"
        reason = error.strerror or str(error)
        return f"HTTP can't listen on {where} ({reason}), {without}: set SHAREPOD_HTTP_HOST and SHAREPOD_HTTP_PORT"

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _answer("healthy", self._health.alive())

    async def _readyz(self, _request: web.Request) -> web.Response:
        return _answer("ready", self._health.ready())

    async def _expose(self, _request: web.Request) -> web.Response:
        async with self._scrape:  # one at a time, so that scrapers can't pile up
            state = self._metrics.state()
            body = await asyncio.to_thread(self._metrics.render, state)  # thousands of GPUs take a while to print
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _answer(word: str, report: Report) -> web.Response:
    body = {word: report.ok, "leading": report.leading, "problems": list(report.problems)}
    return web.json_response(body, status=200 if report.ok else 503, headers={"Cache-Control": "no-store"})
