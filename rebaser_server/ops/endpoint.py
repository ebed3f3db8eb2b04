"""The HTTP endpoint: health and metrics for machines, settings and a live page for people.

`/metrics` has the counters of `telemetry.metrics`, and gauges read at the scrape. A change set's
page also gets its comments, and the names of those who look at it.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

import structlog
from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rebaser_client.client import RebaserClient
from rebaser_client.requests import receiving_replies
from rebaser_client.workspaces import AddressBook
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStreamError
from rebaser_core.registry import Registry
from rebaser_server.cluster.deployment_id import DeploymentId
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.nats_watch import fullness
from rebaser_server.cluster.nats_writes import PROBLEMS
from rebaser_server.cluster.slots import SlotPool
from rebaser_server.commit_log.batch_store import open_shared_files
from rebaser_server.errors import OpsNotStarted
from rebaser_server.ops.actions import ActionService
from rebaser_server.ops.auth import Guard, tls_of
from rebaser_server.ops.presentation import Presentation
from rebaser_server.ops.queue_pages import (
    NameCache,
    OperatorPage,
    answering_for_change_set,
)
from rebaser_server.ops.status import (
    DeploymentStatus,
    Health,
    HealthMonitor,
    Onlookers,
    OpsContext,
    Queues,
    QueueWatch,
)
from rebaser_server.ops.visitors import Bounds, Visitors
from rebaser_server.processor.context import Services
from rebaser_server.runtime.tasks import Shutdown, background
from rebaser_server.settings.redaction import redact_url
from rebaser_server.settings.settings import OpsSettings, Settings
from rebaser_server.telemetry.work_stats import WorkStats

MAX_COMMENTS: Final = 100
"""Maximum number of comments of a list, the latest."""


_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, eq=False)
class _Now(Collector):
    """Gauges, as of the scrape."""

    stats: WorkStats
    slots: SlotPool
    queues: Queues | None
    fullness: float
    instances: int

    def collect(self) -> Iterable[Metric]:
        slots = GaugeMetricFamily("rebaser_slots", "SlotPool of this process", labels=["state"])
        slots.add_metric(["busy"], self.slots.busy)
        slots.add_metric(["free"], self.slots.free)
        yield slots
        held = self.stats.held
        yield _gauge("change_sets", "Change sets in slots of this process", len(held))
        running = [holding.update for holding in held.values() if holding.update]
        yield _gauge("dvus_running", "Running dependent values updates", len(running))
        since = min((update.since for update in running), default=None)
        longest = 0.0 if since is None else (datetime.now(UTC) - since).total_seconds()
        yield _gauge("dvu_longest_seconds", "Runtime of the oldest running update", longest)
        absence = self.stats.spark_absence()
        yield _gauge("spark_up", "Whether Spark can compute, as far as is known", absence is None)
        yield _gauge("instances", "Live Rebasers of the deployment", self.instances)
        queues = self.queues
        yield _gauge("nats_up", "Whether NATS answered this scrape", queues is not None)
        kind = self.stats.nats_problem_kind()
        problem = GaugeMetricFamily(
            "rebaser_nats_problem", "Whether NATS takes or keeps no messages", labels=["kind"]
        )
        for each in PROBLEMS:
            problem.add_metric([each.replace(" ", "_")], kind == each)
        yield problem
        what = "Largest part of a limit of NATS that is in use"
        yield _gauge("nats_fullness", what, self.fullness)
        if queues is not None:
            yield _gauge(
                "queue_requests", "Requests that wait, of all change sets", queues.requests
            )
            yield _gauge(
                "queue_oldest_seconds", "Age of the oldest waiting request", queues.oldest_age
            )
            waiting = queues.change_sets_waiting
            yield _gauge("queue_change_sets", "Change sets with requests that wait", waiting)
            yield _gauge("tasks_waiting", "Tasks that wait for a Rebaser", queues.tasks_waiting)
            yield _gauge("tasks_in_hand", "Tasks that a Rebaser works on", queues.tasks_in_hand)
            yield _gauge("dead_letters", "Requests in the dead letters", queues.dead_letters)


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"rebaser_{name}", what, value=value)


log: Final = structlog.get_logger()

DEFAULT_PORT: Final = 7380
_EVENT_EVERY: Final = 1.0  # seconds between two states of the page
_REMEDY: Final = "set REBASER_OPS__TOKEN, or restrict the network access to it"
_TYPES: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_STATIC: Final = {
    "/" if name == "index.html" else f"/{name.removesuffix('.html')}": name
    for name in sorted(
        each.name for each in files("rebaser_server.ops").joinpath("static").iterdir()
    )
    if name.rpartition(".")[2] in _TYPES
}
_NAMED: Final = "/{workspace:(?!(?:actions|change-set|dead-letters|services)/)[^/]+}/{name}"
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

    The endpoint listens only on the address that probes know; a default address that is taken is
    left out.

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


class _Endpoint:
    """Serves health, metrics, settings and status of `context` over HTTP."""

    def __init__(self, settings: Settings, context: OpsContext) -> None:
        self._settings = settings
        self._context = context
        self._deployment = DeploymentStatus(context)
        self._guard = context.guard

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve while the body runs; yield the URL.

        Raises:
            OpsNotStarted: the port is taken, or the certificate cannot be read.
        """
        context, ops = self._context, self._settings.ops
        routes = [
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
            web.get("/config", self._config),
            web.get("/status", self._status),
            web.get("/events", self._events),
            *context.routes,
            web.get("/change-set/discussion", answering_for_change_set(self._discussion)),
            *(web.get(path, self._static) for path in _STATIC),
            web.get(_NAMED, self._named),
        ]
        if self._guard.is_open:
            log.warning("ops endpoint unprotected", host=ops.host, remedy=_REMEDY)
        ports = [DEFAULT_PORT, 0] if ops.port is None else [ops.port]
        async with (
            _listening(self._guard, routes, ops, ports) as url,
            self._deployment.peers.serving(),
        ):
            yield url

    async def _healthz(self, _: web.Request) -> web.Response:
        return _verdict(self._context.health.alive())

    async def _readyz(self, request: web.Request) -> web.Response:
        is_known = self._guard.visitor(request) is not None
        return _verdict(await self._context.health.ready(with_reasons=is_known))

    async def _metrics(self, _: web.Request) -> web.Response:
        context = self._context
        queues, full = None, 0.0
        with suppress(JetStreamError):  # NATS does not answer
            queues = await context.queues.look()
            full = await fullness(context.streams, self._settings.nats.monitoring)
        now, members = CollectorRegistry(), context.members.alive()
        now.register(_Now(context.stats, context.slots, queues, full, members))
        body = generate_latest(REGISTRY) + generate_latest(now)
        return web.Response(body=body, headers={"Content-Type": _CONTENT_TYPE})

    async def _config(self, _: web.Request) -> web.Response:
        return web.Response(
            text=self._settings.model_dump_json(indent=2), content_type="application/json"
        )

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(await self._deployment.of_all())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the status, once a second, until the browser disconnects."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        with suppress(ConnectionError):  # the browser disconnected
            while not self._context.shutdown.is_set:
                status = await self._deployment.of_all()
                await response.write(f"data: {json.dumps(status)}\n\n".encode())
                await asyncio.sleep(_EVENT_EVERY)
        return response

    async def _discussion(self, change_set: ChangeSet, request: web.Request) -> Any:
        """`/change-set/discussion?…&known=NUMBER`: the comments are null if they are known.

        An open page asks every few seconds, which tells who looks at it.
        """
        context, visitor = self._context, self._guard.admitted(request)
        context.onlookers.see(change_set, visitor.name)
        names = await self._deployment.peers.onlookers(change_set, context.members.alive())
        names.update(context.onlookers.of(change_set))  # others may have been quicker
        onlookers = sorted(names - {visitor.name})
        last = await context.registry.last_comment(change_set)
        if request.query.get("known", "") == str(last):
            return {"onlookers": onlookers, "last": last, "comments": None}
        comments = await context.registry.comments(change_set)
        rows = [
            {"id": str(each.id), "at": each.created_at, "by": each.by, "text": each.text}
            for each in comments[-MAX_COMMENTS:]
        ]
        return {"onlookers": onlookers, "last": last, "count": len(comments), "comments": rows}

    async def _static(self, request: web.Request) -> web.Response:
        name = _STATIC[request.path]
        text = self._page(name) if name.endswith(".html") else _file(name)
        return web.Response(text=text, content_type=_TYPES[name.rpartition(".")[2]])

    async def _named(self, _: web.Request) -> web.Response:
        """The page of the change set of that name, which the page itself looks up."""
        text = re.sub(r'(?<=")(?=[a-z-]+\.(?:js|css)")', "../", self._page("change-set.html"))
        return web.Response(text=text, content_type="text/html")

    def _page(self, name: str) -> str:
        if not self._context.presentation.of_services:
            return _file(name)
        text = _file("key.html" if name == "change-set.html" else name)
        return text.replace("<html", '<html data-of="services"', 1)


def _file(name: str) -> str:
    return files("rebaser_server.ops").joinpath("static", name).read_text("utf-8")


@asynccontextmanager
async def _listening(
    guard: Guard, routes: Sequence[web.RouteDef], ops: OpsSettings, ports: Sequence[int]
) -> AsyncIterator[str]:
    """Answer requests that `guard` admits, on the first free port; yield the URL.

    All answers get a fixed set of headers.
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
                f"ops endpoint: cannot listen on {ops.host}:{ports[0]}: {error.strerror}; set "
                "REBASER_OPS__HOST and REBASER_OPS__PORT to an address of this machine that is free"
            ) from error
        yield f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/"


def _verdict(health: Health) -> web.Response:
    return web.json_response({"ok": health.ok, **health.reasons}, status=200 if health.ok else 503)


@asynccontextmanager
async def ops_endpoint(
    services: Services,
    settings: Settings,
    slots: SlotPool,
    members: Membership,
    presentation: Presentation,
    shutdown: Shutdown,
) -> AsyncIterator[str | None]:
    """Serve the endpoint while the body runs; yield its URL, or None if it is disabled.

    Raises:
        OpsNotStarted: the port is taken, or the certificate cannot be read.
    """
    if not settings.ops.enabled:
        yield None
        return
    nc, stats = services.streams.js.nc, services.notifier.stats
    store = open_shared_files(settings.store, services.streams)
    health = HealthMonitor(nc, shutdown, store, stats)
    queues = QueueWatch(services.streams)
    deployment = await DeploymentId(services.streams, store).in_nats()
    guard = Guard(settings.ops, settings.author or "local", deployment or "")
    registry = Registry(services.streams)
    async with (
        background(health.measure_lag()),
        background(presentation.run()),
        receiving_replies(nc) as replies,
    ):
        client = RebaserClient(services.streams.js, replies, prefix=services.streams.prefix)
        addresses = AddressBook(client.workspaces)
        operator = OperatorPage(
            services.streams, services.batches, addresses, of_services=presentation.of_services
        )
        context = OpsContext(
            services.instance,
            redact_url(store.root),
            guard,
            services.streams,
            shutdown,
            stats,
            slots,
            members,
            queues,
            health,
            registry,
            NameCache(registry),
            Onlookers(),
            presentation,
            [
                *presentation.routes(addresses),
                *operator.routes(),
                *ActionService(services, replies, guard, presentation.actions).routes(),
            ],
        )
        async with _Endpoint(settings, context).serving() as url:
            log.info("ops endpoint started", url=url)
            yield url
