"""The daemon: compose its parts, and take tasks, a bounded number at once, until a shutdown.

What all runs of a process share, and what answers its queries, made from the settings.

Take tasks from the shared consumer while a slot is free, until a stop is asked for.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Final, Never

import structlog
from nats.aio.client import Client

from rebaser_core.ids import Ulid, WorkspaceId
from rebaser_core.jetstream import (
    ConnectOptions,
    ConsumerGone,
    Delivery,
    Drift,
    JetStream,
    JetStreamError,
    NatsUnreachable,
    PullConsumer,
    connected,
)
from rebaser_core.jetstream.connection import await_subscriptions
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_core.stream_configs import StreamOptions
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.cluster.deployment_id import DeploymentId
from rebaser_server.cluster.membership import Membership, present
from rebaser_server.cluster.nats_watch import DurabilityWatch, LossWatch, StreamEnds
from rebaser_server.cluster.nats_writes import WriteWatch
from rebaser_server.cluster.pauses import PauseMonitor, serve_cancellations
from rebaser_server.cluster.provisioning import Provisioner, report
from rebaser_server.cluster.reconciler import Reconciler, StrayRequests, UnsavedChangeSets
from rebaser_server.cluster.slots import Fairness, SlotPool
from rebaser_server.cluster.takeover import Takeover
from rebaser_server.cluster.tasks import LeaseSettings, LeaseTerms, TaskRunner
from rebaser_server.cluster.upkeep import CapacityCheck, DeletedDataJob, GarbageJob, Monitor
from rebaser_server.commit_log.batch_store import BatchStore, open_batch_store, open_shared_files
from rebaser_server.commit_log.log import GroupCommit
from rebaser_server.commit_log.state import Retention
from rebaser_server.commit_log.state_loader import StateCache
from rebaser_server.errors import GraceExceeded, Interrupted, WorkStopped
from rebaser_server.ops.endpoint import ops_endpoint, starting_endpoint
from rebaser_server.processor.application import Application
from rebaser_server.processor.context import (
    MAX_STARTUPS,
    STARTUP_SHARE,
    FormerOwners,
    ProcessorSettings,
    Services,
    never_stopped,
)
from rebaser_server.processor.outcomes import Notifier, OutcomeLookup
from rebaser_server.queries.query_service import QueryService
from rebaser_server.queries.values import QueryBounds
from rebaser_server.runtime.tasks import Permits, Shutdown, background, survived
from rebaser_server.settings.nats_connection import connect_options, open_jetstream
from rebaser_server.settings.settings import FairnessSettings, Settings
from rebaser_server.telemetry.work_stats import WorkStats

MakeApplication = Callable[[Streams, BatchStore, WorkStats], Application]
"""Makes the application of a process."""


def build_services(
    nc: Client,
    provisioner: Provisioner,
    settings: Settings,
    make_application: MakeApplication,
    members: Membership,
    why_stopped: Callable[[], Awaitable[str | None]] = never_stopped,
) -> Services:
    """What all runs of this process, one of the `members`, share."""
    streams = provisioner.streams
    batches = open_batch_store(streams, settings)
    notifier = Notifier(nc, streams)
    return Services(
        members.instance,
        streams,
        GroupCommit(streams.js, streams.commits_stream),
        batches,
        make_application(streams, batches, notifier.stats),
        notifier,
        FormerOwners(members.is_gone),
        ProcessorSettings(
            quiet_period=settings.quiet_period.total_seconds(),
            confirm_every=settings.ack_wait.total_seconds() / 2,
            attempts=settings.max_attempts,
            checkpoint_every=settings.checkpoint_every,
            retention=Retention.of(settings.history),
            dvu_attempts=settings.dvu_max_attempts,
            batch_limits=settings.limits,
        ),
        StateCache(settings.state_cache_bytes),
        why_stopped=why_stopped,
        startup_permits=Permits(MAX_STARTUPS, settings.ack_wait.total_seconds() * STARTUP_SHARE),
    )


def query_service(services: Services, settings: Settings) -> QueryService:
    outcomes = OutcomeLookup(services.streams, services.application)
    queries = settings.queries
    bounds = QueryBounds(
        queries.max_waiting,
        queries.max_waiting_bytes,
        queries.max_reply_bytes,
    )
    return QueryService(services.streams, services.loader, outcomes, bounds)


log: Final = structlog.get_logger()

PULL_EXPIRES: Final = 2.5
"""Seconds in which the server may deliver tasks to a process that is frozen or cut off. Less than
the silence after which it is presumed dead: these are among the tasks made anew then (F7)."""
PULL_HEARTBEAT: Final = 1.0  # seconds


async def take_tasks(runner: TaskRunner, provisioner: Provisioner, grace: float) -> None:
    """Work on a change set in each slot; return once all are given back after a stop.

    Raises:
        GraceExceeded: that took longer than `grace` seconds; the work in hand is dropped.
    """
    shutdown = runner.shutdown
    async with (
        background(_enforce_grace(shutdown, grace)),
        background(runner.slots.preempt()),
        asyncio.TaskGroup() as group,
    ):
        with suppress(Interrupted):
            while True:
                async with shutdown.interrupts():
                    await runner.writes.resumed.wait()
                with suppress(WorkStopped):
                    await _take_until_stopped(runner, provisioner, group)
        log.info("stopping", change_sets=runner.slots.busy)


async def _take_until_stopped(
    runner: TaskRunner, provisioner: Provisioner, group: asyncio.TaskGroup
) -> None:
    """Take tasks; what was delivered and not taken is given back at the end."""
    services = runner.services
    async with PullConsumer(
        services.streams.js,
        services.streams.tasks_stream,
        TASKS_CONSUMER,
        expires=PULL_EXPIRES,
        idle_heartbeat=PULL_HEARTBEAT,
    ) as tasks:
        while True:
            task = await _next_task(tasks, provisioner, runner)
            group.create_task(runner.dispatch(task))


async def _next_task(tasks: PullConsumer, provisioner: Provisioner, runner: TaskRunner) -> Delivery:
    task, slots = None, runner.slots
    try:
        async with runner.shutdown.interrupts(), runner.writes.stop.interrupts():
            while task is None:
                await slots.wait_until_free()
                try:
                    task = await tasks.take(slots.free)
                except ConsumerGone as error:
                    await provisioner.recreate_tasks(error)
    except (Interrupted, WorkStopped):
        if task is not None:  # both came at once
            await task.nak()
        raise
    return task


async def _enforce_grace(shutdown: Shutdown, grace: float) -> Never:
    await shutdown.wait()
    await asyncio.sleep(grace)
    raise GraceExceeded(f"not finished {grace:g} s after a stop was asked for")


_WAIT_FOR_NATS: Final = Backoff(0.5, 10.0)
"""Between two tries to connect at the start."""

FORGET_EVERY: Final = 10
"""Times the reconciler's period between two looks for deleted change sets."""


async def serve(
    settings: Settings,
    make_application: MakeApplication,
    shutdown: Shutdown,
    *,
    ready: Callable[[str | None], None] = lambda _: None,
) -> None:
    """Run a Rebaser until `shutdown`, then finish the requests in hand and nak the tasks.

    A cancellation drops the work in hand; nothing that was committed is lost.

    Args:
        settings: of the process.
        make_application: makes what the requests are for, once NATS is connected.
        shutdown: ends it.
        ready: called with the URL of the ops endpoint, or None, before any task is taken.

    Raises:
        NatsUnreachable: there is no JetStream behind NATS. NATS itself is waited for.
        BadServerUrl: a URL is none of a NATS server.
        DeploymentInconsistent: streams are lost, or the store is another deployment's.
        GraceExceeded: the runs took longer than the grace period and were cancelled.
    """
    # Started again under the same name, a process is not who owned its change sets before (F4).
    name, subjects = f"{settings.instance_id}/{Ulid()}", Subjects(settings.nats.prefix)
    async with AsyncExitStack() as stack, AsyncExitStack() as starting:
        try:
            async with shutdown.interrupts():
                # probes are answered until the endpoint is: no outage of NATS gets it restarted
                await starting.enter_async_context(starting_endpoint(settings))
                nc = await _connect_when_up(stack, connect_options(settings))
        except Interrupted:
            log.info("stopped")
            return
        instance = await stack.enter_async_context(present(nc, subjects, name))
        provisioner = provisioner_of(open_jetstream(nc, settings.nats), settings)
        try:
            async with shutdown.interrupts():
                differences = await provisioner.ensure_when_up()
                report(differences)
                await _require_own_store(provisioner, settings)
        except Interrupted:
            log.info("stopped")
            return
        members = Membership(nc, subjects, instance, lambda: work.in_hand)
        writes = WriteWatch(provisioner)
        services = build_services(
            nc, provisioner, settings, make_application, members, writes.why_stopped
        )
        period = settings.reconcile_interval.total_seconds()
        pauses = PauseMonitor(services.streams, lambda: writes.stop.is_set)
        writes.on_change = pauses.notify
        with survived("pauses"):  # seen late is fine
            await pauses.refresh()
        services.notifier.stats.pauses = pauses.to_json
        durability = await _nats_watches(services, writes, settings)
        ends = StreamEnds(services.streams, open_shared_files(settings.store))
        loss_watch = LossWatch(ends, members, durability, settings.nats.monitoring)
        with survived("losses"):
            await loss_watch.look()
        reconciler = Reconciler(
            services.streams,
            period,
            pauses.is_paused,
            has_room=lambda: work.spare > 0,
        )
        lease_terms = LeaseTerms(
            LeaseSettings(
                settings.ack_wait.total_seconds(), settings.progress_interval.total_seconds()
            )
        )
        lease_terms.heed(differences)
        monitor = Monitor(provisioner, settings.alert_after, period, pauses.is_paused, lease_terms)
        takeover = Takeover(services.streams, members, services.notifier.stats.held.__contains__)
        deleted_data_job = DeletedDataJob(
            services.streams,
            open_shared_files(settings.store),
            members,
            keep=settings.change_sets.deleted_retention.total_seconds(),
        )
        work = SlotPool(
            services.streams.js,
            services.streams.tasks_stream,
            settings.concurrency,
            _fairness(settings.fairness),
            members.busy_elsewhere,
            members.in_handover,
        )
        queries = query_service(services, settings)
        unsaved = UnsavedChangeSets(
            services.streams,
            services.states,
            settings.quiet_period.total_seconds(),
            lambda: work.spare,
        )
        await starting.aclose()
        async with (
            ops_endpoint(services, settings, work, members, queries, shutdown) as page,
            background(pauses.run(period)),
            background(durability.run(period)),
            background(writes.run(period)),
            background(loss_watch.run(period)),
            serve_cancellations(nc, services.streams, pauses),
            background(reconciler.run()),
            background(unsaved.run()),
            background(StrayRequests(services.streams, members).run(period)),
            background(deleted_data_job.run(FORGET_EVERY * period)),
            background(monitor.run()),
            background(members.heartbeat()),
            background(members.check_presence()),
            background(takeover.run()),
            background(
                CapacityCheck(
                    services.streams.js,
                    services.streams.tasks_stream,
                    members,
                    settings.concurrency,
                ).run()
            ),
            background(services.application.run()),
            background(GarbageJob.of(services.streams, members, settings.store).run()),
            queries.serve(nc),
        ):
            await await_subscriptions(nc)
            log.info("ready", concurrency=settings.concurrency)
            ready(page)
            runner = TaskRunner(services, lease_terms, shutdown, work, pauses, writes)
            await take_tasks(runner, provisioner, settings.shutdown_grace.total_seconds())
        log.info("stopped")


async def _nats_watches(
    services: Services, writes: WriteWatch, settings: Settings
) -> DurabilityWatch:
    """Watch NATS's disks and, with `writes`, what it keeps; the status shows what they find."""
    stats = services.notifier.stats
    durability = DurabilityWatch(services.streams, settings.nats.monitoring)
    with survived("durability"):
        await durability.refresh()
    with survived("durability"):
        await writes.look()
    stats.durability = durability.to_json
    stats.nats_problem, stats.is_stopped = writes.to_json, lambda: not writes.takes_work
    return durability


async def _connect_when_up(stack: AsyncExitStack, options: ConnectOptions) -> Client:
    """Connect for as long as `stack` is open; wait for NATS as long as it takes."""
    reason = ""
    for delay in _WAIT_FOR_NATS:
        try:
            nc = await stack.enter_async_context(connected(options))
        except NatsUnreachable as error:
            if str(error) != reason:
                reason = str(error)
                log.warning("waiting for nats", nats=options.redacted_servers, reason=reason)
        else:
            log.info("connected", nats=options.redacted_servers)
            return nc
        await asyncio.sleep(delay)
    raise AssertionError("delays have no end")


async def _require_own_store(provisioner: Provisioner, settings: Settings) -> None:
    """Raise `DeploymentInconsistent` if the store is not the deployment's, as far as is known."""
    try:
        await deployment_id(provisioner, settings).ensure()
    except (JetStreamError, OSError) as error:  # requests that need it wait for it
        log.warning("store not checked", error=str(error))


def deployment_id(provisioner: Provisioner, settings: Settings) -> DeploymentId:
    files = open_shared_files(settings.store)
    return DeploymentId(provisioner.streams, files)


def _fairness(settings: FairnessSettings) -> Fairness:
    weights = {WorkspaceId.from_str(name): weight for name, weight in settings.weights.items()}
    return Fairness(settings.share, weights, settings.max_hold.total_seconds())


def provisioner_of(js: JetStream, settings: Settings) -> Provisioner:
    queue, server = settings.queue, js.nc.connected_server_version
    options = StreamOptions(
        settings.nats.replicas,
        queue.change_set_requests,
        queue.requests,
        queue.requests_bytes,
        settings.nats.batches_rollup,
        atomic_batches=(server.major, server.minor) >= (2, 12),
    )
    return Provisioner(Streams(settings.nats.prefix, js=js), options, settings.ack_wait)


async def prepare(js: JetStream, settings: Settings) -> list[Drift]:
    """Create streams, consumer and bucket that are missing; how those that are there differ."""
    return await provisioner_of(js, settings).ensure()
