"""The HTTP endpoint: health and metrics for machines, settings and a live page for people."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Final

import nats.errors
import structlog
from aiohttp import web

from rebaser_core.jetstream import JetStreamError
from rebaser_server.errors import OpsNotStarted
from rebaser_server.ops.auth import Handler, tls_of
from rebaser_server.ops.change_set_page import change_set_asked
from rebaser_server.ops.cluster_status import Peers
from rebaser_server.ops.context import OpsContext
from rebaser_server.ops.discussion import Discussion
from rebaser_server.ops.exposition import CONTENT_TYPE, exposition
from rebaser_server.ops.health import Health
from rebaser_server.ops.status import DeploymentStatus
from rebaser_server.settings.access import OpsSettings
from rebaser_server.settings.settings import Settings

log: Final = structlog.get_logger()

DEFAULT_PORT: Final = 7380
EVENT_EVERY: Final = 1.0  # seconds between two states of the page
_REMEDY: Final = "set REBASER_OPS__TOKEN, or restrict the network access to it"
_STATIC: Final = {
    "/": "index.html",
    "/change-set": "change-set.html",
    "/operator": "operator.html",
    **{
        f"/{name}": name
        for name in (
            *("page.js", "texts.js", "cells.js", "drawing.js", "page.css"),
            *("reading.js", "actions.js", "change-set.js", "operator.js"),
            *("branch.js", "difference.js", "effects.js", "discussion.js"),
        )
    },
}
_TYPES: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@asynccontextmanager
async def waiting_endpoint(settings: Settings) -> AsyncIterator[None]:
    """Answer probes while the daemon waits for NATS: it is alive, and not ready.

    Raises:
        OpsNotStarted: the port is taken, or the certificate cannot be read.
    """
    if not settings.ops.enabled:
        yield
        return

    async def alive(_: web.Request) -> web.Response:
        return _verdict(Health(ok=True, reasons={"nats": "awaited"}))

    async def ready(_: web.Request) -> web.Response:
        return _verdict(Health(ok=False, reasons={"nats": "no connection yet: see the log"}))

    app = web.Application()
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await _listening(runner, settings.ops)
        yield
    finally:
        await runner.cleanup()


class Endpoint:
    """Serves health, metrics, settings and status of `context` over HTTP."""

    def __init__(self, settings: Settings, context: OpsContext) -> None:
        self._settings = settings
        self._context = context
        self._deployment = DeploymentStatus(context)
        self._peers = Peers(context.nc, context.subjects, self._deployment)
        self._guard = context.guard

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve for as long as the body runs; yields the URL.

        Raises:
            OpsNotStarted: the port is taken, or the certificate cannot be read.
        """
        app = web.Application(middlewares=[self._with_headers, self._guard.middleware()])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/config", self._config)
        app.router.add_get("/status", self._status)
        app.router.add_get("/sketch", self._sketch)
        app.router.add_get("/events", self._events)
        context = self._context
        for pages in (context.change_sets, context.operator, context.actions):
            app.router.add_routes(pages.routes())
        discussion = Discussion(context, self._peers)
        app.router.add_get("/change-set/discussion", discussion.respond)
        for path in _STATIC:
            app.router.add_get(path, self._static)
        if self._guard.is_open:
            log.warning("ops endpoint unprotected", host=self._settings.ops.host, remedy=_REMEDY)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            async with self._peers.serving():
                yield await _listening(runner, self._settings.ops)
        finally:
            await runner.cleanup()

    @web.middleware
    async def _with_headers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    async def _healthz(self, _: web.Request) -> web.Response:
        return _verdict(self._context.health.alive())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _verdict(await self._context.health.ready())

    async def _metrics(self, _: web.Request) -> web.Response:
        context = self._context
        try:
            queues = await context.queues.look()
        except JetStreamError:
            queues = None
        body = exposition(context.stats, context.slots, queues, context.members.alive())
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _config(self, _: web.Request) -> web.Response:
        return web.Response(
            text=self._settings.model_dump_json(indent=2), content_type="application/json"
        )

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(await self._deployment.of_all(self._peers))

    async def _sketch(self, request: web.Request) -> web.Response:
        """Part of the graph of `workspace` and `changeSet` that its latest update recomputes."""
        change_set = change_set_asked(request)
        if change_set is None:
            return web.Response(status=400, text="/sketch?workspace=ULID&changeSet=ULID\n")
        try:
            sketch = await self._peers.sketch(change_set, self._context.members.alive())
        except (nats.errors.Error, OSError) as error:
            return web.Response(status=503, text=f"NATS: {error}\n")
        return web.json_response({"sketch": sketch})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the status, once a second, until the browser disconnects."""
        response = web.StreamResponse(
            headers={**_HEADERS, "Content-Type": "text/event-stream; charset=utf-8"}
        )
        await response.prepare(request)
        with suppress(ConnectionError):  # the browser disconnected
            while not self._context.shutdown.is_set:
                status = await self._deployment.of_all(self._peers)
                await response.write(f"data: {json.dumps(status)}\n\n".encode())
                await asyncio.sleep(EVENT_EVERY)
        return response

    async def _static(self, request: web.Request) -> web.Response:
        name = _STATIC[request.path]
        text = files("rebaser_server.ops").joinpath("static", name).read_text("utf-8")
        return web.Response(text=text, content_type=_TYPES[name.rpartition(".")[2]])


async def _listening(runner: web.AppRunner, ops: OpsSettings) -> str:
    """Listen on the configured port; by default on 7380 or, if that is taken, any free one."""
    tls = tls_of(ops)
    ports = [DEFAULT_PORT, 0] if ops.port is None else [ops.port]
    for port in ports:
        try:
            await web.TCPSite(runner, ops.host, port, ssl_context=tls).start()
        except OSError as error:
            if port == ports[-1]:
                raise OpsNotStarted(
                    f"ops endpoint: cannot listen on {ops.host}:{port}: {error.strerror}; "
                    "choose another REBASER_OPS__PORT"
                ) from error
        else:
            break
    host, port = runner.addresses[0][:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/"


def _verdict(health: Health) -> web.Response:
    return web.json_response({"ok": health.ok, **health.reasons}, status=200 if health.ok else 503)
