"""The HTTP endpoint: health and metrics for machines, settings and a live page for people."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.resources import files
from typing import Final

import nats.errors
import structlog
from aiohttp import web

from rebaser_core.jetstream import JetStreamError
from rebaser_server.errors import OpsNotStarted
from rebaser_server.ops.auth import Guard, tls_of
from rebaser_server.ops.change_set_page import change_set_asked
from rebaser_server.ops.cluster_status import Peers
from rebaser_server.ops.context import OpsContext
from rebaser_server.ops.discussion import Discussion
from rebaser_server.ops.exposition import CONTENT_TYPE, exposition
from rebaser_server.ops.health import Health
from rebaser_server.ops.status import DeploymentStatus
from rebaser_server.ops.visitors import Bounds, Visitors
from rebaser_server.settings.settings import OpsSettings, Settings

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
async def starting_endpoint(settings: Settings) -> AsyncIterator[None]:
    """Answer probes while the daemon starts, which waits for NATS: it is alive, and not ready.

    On the address that probes know, and no other: without it if that is taken by default.

    Raises:
        OpsNotStarted: the port is taken, or the certificate cannot be read.
    """
    ops = settings.ops
    if not ops.enabled or ops.port == 0:
        yield
        return

    async def alive(_: web.Request) -> web.Response:
        return _verdict(Health(ok=True, reasons={"start": "not over yet"}))

    async def ready(_: web.Request) -> web.Response:
        reason = "waits for NATS and its JetStream; the log says why"
        return _verdict(Health(ok=False, reasons={"start": reason}))

    routes = [web.get("/healthz", alive), web.get("/readyz", ready)]
    guard, ports = Guard(ops, settings.author or "local"), [ops.port or DEFAULT_PORT]
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(_listening(guard, routes, ops, ports))
        except OpsNotStarted:
            if ops.port is not None:
                raise
        yield


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
        context, ops = self._context, self._settings.ops
        discussion = Discussion(context, self._peers)
        routes = [
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
            web.get("/config", self._config),
            web.get("/status", self._status),
            web.get("/sketch", self._sketch),
            web.get("/events", self._events),
            *context.change_sets.routes(),
            *context.operator.routes(),
            *context.actions.routes(),
            web.get("/change-set/discussion", discussion.respond),
            *(web.get(path, self._static) for path in _STATIC),
        ]
        if self._guard.is_open:
            log.warning("ops endpoint unprotected", host=ops.host, remedy=_REMEDY)
        ports = [DEFAULT_PORT, 0] if ops.port is None else [ops.port]
        async with _listening(self._guard, routes, ops, ports) as url, self._peers.serving():
            yield url

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
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
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


@asynccontextmanager
async def _listening(
    guard: Guard, routes: Sequence[web.RouteDef], ops: OpsSettings, ports: Sequence[int]
) -> AsyncIterator[str]:
    """Answer whom `guard` admits on the first of these ports that is free; yields the URL.

    All answers have the same headers.
    """
    tls, visitors = tls_of(ops), Visitors(Bounds.of_process())
    app = web.Application(middlewares=[guard.middleware(), visitors.middleware()])
    app.router.add_routes(routes)

    async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)

    app.on_response_prepare.append(add_headers)
    async with AsyncExitStack() as stack:
        try:
            host, port = await stack.enter_async_context(visitors.served(app, ops.host, ports, tls))
        except OSError as error:
            raise OpsNotStarted(
                f"ops endpoint: cannot listen on {ops.host}:{ports[-1]}: {error.strerror}; "
                "choose another REBASER_OPS__PORT"
            ) from error
        yield f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/"


def _verdict(health: Health) -> web.Response:
    return web.json_response({"ok": health.ok, **health.reasons}, status=200 if health.ok else 503)
