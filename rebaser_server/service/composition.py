"""The daemon: compose its parts, and take tasks, a bounded number at once, until a shutdown."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
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
    deadlines,
)
from rebaser_core.jetstream.connection import Connection
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_core.stream_configs import StreamOptions
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.deployment_id import DeploymentId
from rebaser_server.cluster.membership import Membership, present
from rebaser_server.cluster.nats_watch import DurabilityWatch, LossWatch, StreamEnds
from rebaser_server.cluster.nats_writes import WriteWatch
from rebaser_server.cluster.pauses import PauseMonitor, serve_cancellations
from rebaser_server.cluster.provisioning import Provisioner, report
from rebaser_server.cluster.reconciler import Reconciler, StrayRequests, UnsavedChangeSets
from rebaser_server.cluster.slots import Fairness, SlotPool
from rebaser_server.cluster.takeover import Takeover
from rebaser_server.cluster.tasks import REPORTS, LeaseSettings, LeaseTerms, TaskRunner
from rebaser_server.cluster.upkeep import CapacityCheck, DeletedDataJob, GarbageJob, Monitor
from rebaser_server.commit_log.batch_store import BatchStore, open_batch_store, open_shared_files
from rebaser_server.commit_log.log import GroupCommit
from rebaser_server.commit_log.state import Retention
from rebaser_server.commit_log.state_loader import StateCache
from rebaser_server.errors import GraceExceeded, Interrupted, WorkStopped
from rebaser_server.files import IN_NATS, SharedFiles
from rebaser_server.ops.endpoint import ops_endpoint, starting_endpoint
from rebaser_server.ops.presentation import Presentation
from rebaser_server.processor.application import Application
from rebaser_server.processor.context import (
    MAX_STARTUPS,
    STARTUP_SHARE,
    ProcessorSettings,
    Services,
    never_stopped,
)
from rebaser_server.processor.outcomes import Notifier, OutcomeLookup
from rebaser_server.processor.ownership import FormerOwners
from rebaser_server.queries.query_service import QueryService
from rebaser_server.runtime.containment import survived
from rebaser_server.runtime.memory import exempt_modules, give_back_memory
from rebaser_server.runtime.tasks import Permits, Shutdown, TaskGroup, background
from rebaser_server.settings.nats_connection import connect_options, open_jetstream
from rebaser_server.settings.settings import FairnessSettings, Settings

MakeApplication = Callable[[Streams, BatchStore, Notifier], Application]
"""Makes the application of a process."""

MakePresentation = Callable[[Services], Presentation]
"""Makes what clients and browsers see of the application, beyond replies to requests."""


def build_services(
    provisioner: Provisioner,
    settings: Settings,
    make_application: MakeApplication,
    members: Membership,
    why_stopped: Callable[[], Awaitable[str | None]] = never_stopped,
) -> Services:
    streams = provisioner.streams
    batches = open_batch_store(streams, settings)
    notifier = Notifier(streams)
    return Services(
        members.instance,
        streams,
        GroupCommit(streams),
        batches,
        make_application(streams, batches, notifier),
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


def query_service(services: Services, presentation: Presentation) -> QueryService:
    outcomes = OutcomeLookup(services.streams, services.application)
    return QueryService(services.streams, presentation.queries, outcomes)


log: Final = structlog.get_logger()

PULL_EXPIRES: Final = 2.5
"""Seconds in which the server may deliver tasks to a process that is frozen or cut off. They are
fewer than the silence after which it is presumed dead: these are among the tasks made anew then
(F7)."""
_PULL_HEARTBEAT: Final = 1.0  # seconds

_CHECK_ROOM_EVERY: Final = 0.1
"""Seconds between two looks whether tasks may be asked for, while those in hand wait to begin."""

_WAIT_FOR_NATS: Final = Backoff(0.5, 10.0)
"""Pauses between two tries to connect at the start."""

_SUBSCRIBED_WITHIN: Final = 10.0  # seconds
_FORGET_EVERY: Final = 10
"""Multiple of the reconciler's period between two looks for deleted change sets."""


async def serve(
    settings: Settings,
    make_application: MakeApplication,
    shutdown: Shutdown,
    *,
    ready: Callable[[str | None], None] = lambda _: None,
    make_presentation: MakePresentation = lambda _: Presentation(),
) -> None:
    """Run a Rebaser until `shutdown`, then finish the requests in hand and nak the tasks.

    A cancellation drops the work in hand; nothing that was committed is lost.

    Args:
        settings: of the process.
        make_application: makes the application, once NATS is connected.
        shutdown: ends it.
        ready: called with the URL of the ops endpoint, or None, before any task is taken.
        make_presentation: makes the queries, pages and actions of the application (default: it has
            none).

    Raises:
        NatsUnreachable: there is no JetStream behind NATS. NATS itself is waited for.
        BadServerUrl: a URL is not that of a NATS server.
        DeploymentInconsistent: streams are lost, or the store is another deployment's.
        GraceExceeded: the runs took longer than the grace period and were cancelled.
    """
    # A process that is started again under its name does not own its former change sets (F4).
    name = f"{settings.instance_id}/{Ulid()}"
    async with AsyncExitStack() as stack, AsyncExitStack() as starting:
        try:
            async with shutdown.interrupts():
                # probes are answered until the endpoint is: no outage of NATS gets it restarted
                await starting.enter_async_context(starting_endpoint(settings))
                nc = await _connect_when_up(stack, connect_options(settings))
            provisioner = provisioner_of(open_jetstream(nc, settings.nats), settings)
            instance = await stack.enter_async_context(present(provisioner.streams, name))
            async with shutdown.interrupts():
                with suppress(JetStreamError, OSError):  # both are waited for below
                    await deployment_id(provisioner, settings).require_kept()
                differences = await provisioner.ensure_when_up()
                report(differences)
                await _require_own_store(provisioner, settings)
        except Interrupted:
            log.info("stopped")
            return
        rebaser = _Rebaser(
            settings, provisioner, instance, make_application, make_presentation, shutdown
        )
        rebaser.lease_terms.heed(differences)
        await rebaser.look()
        await starting.aclose()
        async with rebaser.running() as page:
            # Who hears that it is ready may ask at once: the server has all subscriptions by then.
            with suppress(JetStreamError):
                await Connection.of(nc).ping(_SUBSCRIBED_WITHIN)
            log.info("ready", concurrency=settings.concurrency)
            ready(page)
            await rebaser.take_tasks()
        log.info("stopped")


class _Rebaser:
    """One Rebaser, whose streams exist: its tasks, and the parts that run beside them."""

    def __init__(
        self,
        settings: Settings,
        provisioner: Provisioner,
        instance: str,
        make_application: MakeApplication,
        make_presentation: MakePresentation,
        shutdown: Shutdown,
    ) -> None:
        self._settings, self._provisioner, self._shutdown = settings, provisioner, shutdown
        streams = self._streams = provisioner.streams
        monitoring = settings.nats.monitoring
        self._members = Membership(streams, instance, lambda: self._slots.in_hand)
        self._slots = SlotPool(
            streams,
            settings.concurrency,
            _fairness(settings.fairness),
            self._members.busy_elsewhere,
            self._members.in_handover,
        )
        self._writes = WriteWatch(provisioner)
        self._pauses = PauseMonitor(streams, lambda: self._writes.stop.is_set)
        self._writes.on_change = self._pauses.notify
        self._services = build_services(
            provisioner, settings, make_application, self._members, self._writes.why_stopped
        )
        self._presentation = make_presentation(self._services)
        self._queries = query_service(self._services, self._presentation)
        self._durability = DurabilityWatch(streams, monitoring)
        ends = StreamEnds(streams, self._services.batches.files)
        self._losses = LossWatch(ends, self._members, self._durability, monitoring)
        lease = settings.ack_wait.total_seconds()
        self.lease_terms = LeaseTerms(LeaseSettings(lease, lease / REPORTS))
        stats = self._services.notifier.stats
        stats.pauses, stats.durability = self._pauses.to_json, self._durability.to_json
        stats.nats_problem = self._writes.to_json
        stats.is_stopped = lambda: not self._writes.takes_work
        stats.nats_problem_kind = lambda: self._writes.kind

    async def look(self) -> None:
        """Read once the data that the parts go by; each reads again as it runs, so late is fine."""
        with survived("pauses"):
            await self._pauses.refresh()
        with survived("durability"):
            await self._durability.refresh()
        with survived("durability"):
            await self._writes.look()
        with survived("losses"):
            await self._losses.look()
        try:
            await self._services.application.prepare()
        except JetStreamError as error:
            log.warning("application not prepared", error=str(error))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str | None]:
        """Run all parts beside the body; yield the URL of the ops endpoint, or None.

        An error of a part ends the body, and is raised in its place.
        """
        endpoint = ops_endpoint(
            self._services,
            self._settings,
            self._slots,
            self._members,
            self._presentation,
            self._shutdown,
        )
        async with endpoint as page, AsyncExitStack() as stack:
            for part in self._parts():
                await stack.enter_async_context(part)
            yield page

    def _parts(self) -> Iterator[AbstractAsyncContextManager[None]]:
        """Yield the parts in the order in which they start; they end in the opposite one."""
        settings, streams, members = self._settings, self._streams, self._members
        slots, is_paused, stats = self._slots, self._pauses.is_paused, self._services.notifier.stats
        files, states = self._services.batches.files, self._services.states
        period = settings.reconcile_interval.total_seconds()
        quiet = settings.quiet_period.total_seconds()
        keep = settings.change_sets.deleted_retention.total_seconds()

        yield background(self._pauses.run(period))
        yield background(self._durability.run(period))
        yield background(self._writes.run(period))
        yield background(self._losses.run(period))
        yield serve_cancellations(streams, self._pauses)
        yield background(
            Reconciler(
                streams,
                period,
                is_paused,
                has_room=lambda: slots.spare > 0,
                renewals=self._services.application,
                may_renew=members.is_youngest,
            ).run()
        )
        yield background(UnsavedChangeSets(streams, states, quiet, lambda: slots.spare).run())
        yield background(StrayRequests(streams, members).run(period))
        folder = settings.store.published
        published = None if folder is None else SharedFiles(str(folder))
        deleted = DeletedDataJob(streams, files, members, keep=keep, published=published)
        yield background(deleted.run(_FORGET_EVERY * period))
        monitor = Monitor(self._provisioner, period, is_paused, self.lease_terms)
        yield background(monitor.run())
        yield background(members.heartbeat())
        yield background(members.check_presence())
        yield background(Takeover(streams, members, stats.held.__contains__).run())
        yield background(CapacityCheck(streams, members, settings.concurrency).run())
        yield background(self._services.application.run())
        yield background(GarbageJob.of(self._services, members, settings.store).run())
        yield self._queries.serve()

    async def take_tasks(self) -> None:
        """Work on a change set in each slot; after a stop, return once all are given back.

        Raises:
            GraceExceeded: that took longer than the grace period; the work in hand is dropped.
        """
        runner = TaskRunner(
            self._services,
            self.lease_terms,
            self._shutdown,
            self._slots,
            self._pauses,
            self._writes,
        )
        async with (
            background(self._enforce_grace()),
            background(self._slots.preempt()),
            TaskGroup() as group,
        ):
            with suppress(Interrupted):
                while True:
                    async with self._shutdown.interrupts():
                        await self._writes.resumed.wait()
                    with suppress(WorkStopped):
                        await self._take_until_stopped(runner, group)
            log.info("stopping", change_sets=self._slots.busy)

    async def _enforce_grace(self) -> Never:
        grace = self._settings.shutdown_grace.total_seconds()
        await self._shutdown.wait()
        await asyncio.sleep(grace)
        raise GraceExceeded(f"not finished {grace:g} s after a stop was asked for")

    async def _take_until_stopped(self, runner: TaskRunner, group: TaskGroup) -> None:
        """Take tasks; at the end, give back those that were delivered and not taken."""
        async with PullConsumer(
            self._streams.js,
            self._streams.tasks_stream,
            TASKS_CONSUMER,
            expires=PULL_EXPIRES,
            idle_heartbeat=_PULL_HEARTBEAT,
        ) as tasks:
            while True:
                group.create_task(runner.dispatch(await self._next_task(tasks)))

    async def _next_task(self, tasks: PullConsumer) -> Delivery:
        task = None
        try:
            async with self._shutdown.interrupts(), self._writes.stop.interrupts():
                while task is None:
                    await self._slots.wait_until_free()
                    room = self._services.startup_permits.room
                    try:
                        async with deadlines.within(None if room else _CHECK_ROOM_EVERY):
                            task = await tasks.take(min(self._slots.free, room))
                    except TimeoutError:
                        continue
                    except ConsumerGone as error:
                        await self._provisioner.recreate_tasks(error)
        except (Interrupted, WorkStopped):
            if task is not None:  # both came at once
                await task.nak()
            raise
        return task


async def _connect_when_up(stack: AsyncExitStack, options: ConnectOptions) -> Client:
    """Connect for as long as `stack` is open; wait for NATS without end."""
    reason = ""
    for delay in _WAIT_FOR_NATS:
        try:
            nc = await stack.enter_async_context(connected(options, on_error=_note_error))
        except NatsUnreachable as error:
            if str(error) != reason:
                reason = str(error)
                log.warning("waiting for nats", nats=options.redacted_servers, reason=reason)
        else:
            log.info("connected", nats=options.redacted_servers)
            return nc
        await asyncio.sleep(delay)
    raise AssertionError("delays have no end")


def _note_error(error: Exception) -> None:
    """Log what NATS does not permit: a caller hears no answer, and not why."""
    if "permissions violation" in str(error).lower():
        remedy = "deploy/nats/accounts.conf has what each user needs"
        log.warning("nats permission refused", reason=str(error), remedy=remedy)


async def _require_own_store(provisioner: Provisioner, settings: Settings) -> None:
    """Raise `DeploymentInconsistent` if the store is known not to be the deployment's."""
    try:
        await deployment_id(provisioner, settings).ensure()
    except (JetStreamError, OSError) as error:  # requests that need it wait for it
        log.warning("store not checked", error=str(error))


def deployment_id(provisioner: Provisioner, settings: Settings) -> DeploymentId:
    files = open_shared_files(settings.store, provisioner.streams)
    return DeploymentId(provisioner.streams, files)


def _fairness(settings: FairnessSettings) -> Fairness:
    weights = {WorkspaceId.from_str(name): weight for name, weight in settings.weights.items()}
    return Fairness(weights)


def provisioner_of(js: JetStream, settings: Settings) -> Provisioner:
    requests, server = settings.queue.requests, js.nc.connected_server_version
    options = StreamOptions(
        settings.nats.replicas,
        None if requests is None else requests // 10,
        requests,
        settings.nats.stream_bytes,
        settings.nats.batches_rollup,
        atomic_batches=(server.major, server.minor) >= (2, 12),
        has_store=settings.store.root == IN_NATS,
    )
    return Provisioner(Streams(settings.nats.prefix, js=js), options, settings.ack_wait)


async def prepare(js: JetStream, settings: Settings) -> list[Drift]:
    """Create streams, consumer and bucket that are missing; return how existing ones differ."""
    return await provisioner_of(js, settings).ensure()


_GARBAGE_EVERY: Final = 60.0  # seconds
_PUT_OFF: Final = 10
"""Maximum number of times that a look for garbage is put off while a large batch is in hand."""


async def collect_garbage(begins: asyncio.Event, every: float = _GARBAGE_EVERY) -> Never:
    """Free garbage once a minute, and give free memory back to the system.

    A look is at all objects but those of the first minute. Python's own looks are at young objects:
    what has a cycle and became old, as a run that has ended, would stay for ever.
    A look stops the process, for 20 ms or so; it is put off while there are twice as many objects
    as usual, which a large batch in hand has.
    """
    await begins.wait()
    await asyncio.sleep(every)
    exempt_modules()  # Spark's, too
    usual = sys.getallocatedblocks()
    while True:
        for _ in range(_PUT_OFF):
            await asyncio.sleep(every)
            if sys.getallocatedblocks() < 2 * usual:
                break
        gc.collect()
        await asyncio.to_thread(give_back_memory)  # others allocate little meanwhile
        usual = sys.getallocatedblocks()
