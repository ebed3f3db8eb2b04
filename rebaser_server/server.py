"""The daemon: compose what it takes, take tasks, so many at once, until told to stop."""

import asyncio
from contextlib import suppress
from typing import Final, Never

import structlog
from nats.aio.client import Client
from ulid import ULID

from rebaser_core.jetstream import (
    ConnectOptions,
    Delivery,
    Drift,
    JetStream,
    ObjectStore,
    PullConsumer,
    connected,
)
from rebaser_core.streams import StreamOptions, streams, tasks_consumer
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.announcing import Announcer
from rebaser_server.batches import Batches
from rebaser_server.change_set import Rules, Workshop
from rebaser_server.crew import Crew
from rebaser_server.dvu.executor import Executor
from rebaser_server.errors import Interrupted, StopOverdue
from rebaser_server.lifetimes import Shutdown, alongside
from rebaser_server.members import Members
from rebaser_server.outcomes import Outcomes
from rebaser_server.reconciler import Reconciler
from rebaser_server.settings import NatsSettings, Settings
from rebaser_server.slots import Slots
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.results import Results
from rebaser_server.takeover import Takeover
from rebaser_server.tasks import Lease

log: Final = structlog.get_logger()


async def serve(settings: Settings, executor: Executor, shutdown: Shutdown, *, slots: int) -> None:
    """Be a Rebaser until `shutdown`, then finish what is in hand and give the tasks back.

    Cancelled, it drops what is in hand; nothing that was committed is lost.

    Raises:
        Unreachable: no first connection to NATS in time.
        ConsumerGone: somebody deleted the tasks consumer; a restart makes it anew.
        StopOverdue: work in hand was dropped when the grace period was over.
    """
    async with connected(connect_options(settings)) as nc:
        shop = await _open(nc, settings, executor, slots)
        reconciler = Reconciler(shop.js, shop.subjects, settings.reconcile_every.total_seconds())
        lease = Lease(settings.ack_wait.total_seconds(), settings.progress_every.total_seconds())
        log.info("ready", nats=settings.nats.url, concurrency=settings.concurrency)
        members = Members(nc, shop.subjects, shop.instance)
        takeover = Takeover(shop.js, shop.subjects, members)
        async with (
            alongside(reconciler.run()),
            alongside(members.beat()),
            alongside(takeover.run()),
            Outcomes(shop.js, shop.subjects, shop.checkpoints).answered(nc),
        ):
            await _take_tasks(shop, lease, settings, shutdown)
        log.info("stopped")


def connect_options(settings: Settings) -> ConnectOptions:
    nats = settings.nats
    return ConnectOptions(
        servers=tuple(url.strip() for url in nats.url.split(",")),
        name=f"rebaser {settings.instance_id}",
        user=nats.user,
        password=nats.password.get_secret_value() if nats.password else None,
        token=nats.token.get_secret_value() if nats.token else None,
        credentials=nats.creds,
        connect_timeout=nats.connect_timeout.total_seconds(),
    )


def jetstream(nc: Client, settings: NatsSettings) -> JetStream:
    return JetStream(nc, api_prefix=settings.api_prefix, domain=settings.domain)


async def _open(nc: Client, settings: Settings, executor: Executor, slots: int) -> Workshop:
    js, subjects = jetstream(nc, settings.nats), Subjects(settings.nats.prefix)
    for drift in await prepare(js, settings):
        log.warning(
            "configuration differs",
            what=drift.name,
            field=drift.field,
            expected=drift.expected,
            actual=drift.actual,
        )
    bucket = ObjectStore(js, subjects.batches_bucket)
    return Workshop(
        # Started again under the same name, a process is not who owned its change sets before.
        f"{settings.instance_id}/{ULID()}",
        js,
        subjects,
        Batches(bucket, Results(settings.store.root)),
        Checkpoints(settings.store.root, settings.store.options),
        executor,
        Announcer(nc, subjects),
        Rules(
            quiet_period=settings.quiet_period.total_seconds(),
            confirm_every=settings.ack_wait.total_seconds() / 2,
            attempts=settings.attempts,
            checkpoint_every=settings.checkpoint_every,
            dvu_deadline=settings.dvu_deadline,
            dvu_attempts=settings.dvu_attempts,
            slots=slots,
        ),
    )


async def prepare(js: JetStream, settings: Settings) -> list[Drift]:
    """Create streams, consumer and bucket that are missing; how those that are there differ."""
    subjects = Subjects(settings.nats.prefix)
    replicas = settings.nats.replicas
    drifts = []
    for config in streams(subjects, StreamOptions(replicas)):
        drifts += await js.ensure_stream(config)
    consumer = tasks_consumer(subjects, settings.ack_wait)
    drifts += await js.ensure_consumer(subjects.tasks_stream, consumer)
    bucket = ObjectStore(js, subjects.batches_bucket)
    drifts += await bucket.ensure(num_replicas=replicas)
    return drifts


async def _take_tasks(shop: Workshop, lease: Lease, settings: Settings, shutdown: Shutdown) -> None:
    """Work on up to `settings.concurrency` change sets; return once each is settled."""
    stream = shop.subjects.tasks_stream
    slots = Slots(shop.js, stream, settings.concurrency)
    crew = Crew(shop, lease, shutdown, slots)
    grace = settings.shutdown_grace.total_seconds()
    async with (
        PullConsumer(shop.js, stream, TASKS_CONSUMER) as tasks,
        alongside(_overdue(shutdown, grace)),
        alongside(slots.make_room()),
        asyncio.TaskGroup() as group,
    ):
        with suppress(Interrupted):
            while True:
                task = await _next_task(tasks, slots, shutdown)
                group.create_task(crew.work_on(task, slots.take()))
        log.info("stopping", change_sets=slots.busy)
        await tasks.close()


async def _next_task(tasks: PullConsumer, slots: Slots, shutdown: Shutdown) -> Delivery:
    task = None
    try:
        async with shutdown.interrupts():
            await slots.one_free()
            task = await tasks.take(slots.free)
    except Interrupted:
        if task is not None:  # both came at once
            await task.nak()
        raise
    return task


async def _overdue(shutdown: Shutdown, grace: float) -> Never:
    await shutdown.wait()
    await asyncio.sleep(grace)
    raise StopOverdue(f"not finished {grace:g} s after a stop was asked for")
