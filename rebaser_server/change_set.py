"""Work through one change set until it is quiet: its requests in order, its DVU beside them."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Never

import structlog

from rebaser_client.publishing import publish_task
from rebaser_core.activities import ActivityKind
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStream, JetStreamError
from rebaser_core.subjects import Subjects
from rebaser_server.announcing import Announcer
from rebaser_server.batches import Batches
from rebaser_server.checkpointing import Checkpointing
from rebaser_server.commit_log import CommitLog
from rebaser_server.dvu.executor import Executor
from rebaser_server.errors import Overtaken, SlotWanted
from rebaser_server.handling import Handler
from rebaser_server.lifetimes import Shutdown, alongside
from rebaser_server.ownership import Archive, Ownership
from rebaser_server.requests import RequestQueue
from rebaser_server.serial_dvu import SerialDvu
from rebaser_server.slots import Turn
from rebaser_server.store.checkpoints import Checkpoints

log: Final = structlog.get_logger()

RELEASE_TIMEOUT: Final = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that rule the work on one change set."""

    quiet_period: float
    """Seconds."""
    confirm_every: float
    """Seconds between two looks whether the change set is still ours."""
    attempts: int
    checkpoint_every: int
    dvu_deadline: timedelta
    dvu_attempts: int
    slots: int


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all change sets of a process are worked on with."""

    instance: str
    js: JetStream
    subjects: Subjects
    batches: Batches
    checkpoints: Checkpoints
    executor: Executor
    announcer: Announcer
    rules: Rules

    def archive(self, change_set: ChangeSet) -> Archive:
        log_of = CommitLog(self.js, self.subjects, change_set)
        return Archive(change_set, log_of, self.batches, self.checkpoints)


async def process(shop: Workshop, change_set: ChangeSet, shutdown: Shutdown, turn: Turn) -> None:
    """Apply the change set's requests until none has come for the quiet period.

    Returns once no request is left, its dependent values are right, and a checkpoint
    holds it. Whatever it raises or however it is cancelled, what was committed is
    sound and what was not is still first in line.

    Raises:
        Interrupted: a stop was asked for.
        RetryLater: the first request in line cannot be handled now.
        Overtaken: another run owns the change set.
        HistoryBroken: log, stream and store contradict each other; nothing was touched.
    """
    own = await Ownership.take(shop.archive(change_set), shop.instance)
    await shop.announcer.activity(
        change_set, ActivityKind.TAKEN, epoch=own.state.head.epoch, instance=shop.instance
    )
    try:
        await _until_quiet(shop, change_set, own, shutdown, turn)
    except Overtaken:
        raise
    except Exception:
        # An orderly end, too: only a death leaves its name in the log. A write that was
        # cut off may have gone through; then this one fails, harmlessly.
        with suppress(Overtaken, JetStreamError, TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await own.release()
        raise
    await own.release()
    await shop.announcer.activity(change_set, ActivityKind.QUIET)


async def _until_quiet(
    shop: Workshop, change_set: ChangeSet, own: Ownership, shutdown: Shutdown, turn: Turn
) -> None:
    rules = shop.rules
    queue = RequestQueue(shop.js, shop.subjects, change_set)
    await queue.require_sequence(own.state.head.last_sequence)
    dvu = SerialDvu(
        shop.js,
        shop.subjects,
        change_set,
        own,
        shop.executor,
        shop.announcer,
        slots=rules.slots,
        deadline=rules.dvu_deadline,
        attempts=rules.dvu_attempts,
    )
    handler = Handler(
        shop.js, shop.subjects, change_set, own, queue, shop.announcer, rules.attempts
    )
    checkpointing = Checkpointing(own, rules.checkpoint_every)
    if own.former:
        await handler.suspect(own.former)
    async with queue, alongside(dvu.run()), alongside(_confirm(own, rules.confirm_every)):
        dvu.ask()
        while True:
            request = await _next(queue, rules.quiet_period, own, shutdown, turn)
            if request is not None:
                await handler.handle(request)
                dvu.ask()
                await checkpointing.when_long()
            elif not own.state.head.dvu_due:
                break
        await checkpointing.when_quiet()


async def _next(
    queue: RequestQueue, quiet: float, own: Ownership, shutdown: Shutdown, turn: Turn
) -> Delivery | None:
    """The next request; None if it is quiet, be it early because somebody waits for the slot."""
    async with shutdown.interrupts():
        try:
            async with turn.waiting(has_work=own.state.head.dvu_due):
                return await queue.next(quiet)
        except SlotWanted:
            return await queue.next(0)


async def look_again(shop: Workshop, change_set: ChangeSet) -> None:
    """After its task was removed: if there is work for the change set, see that it has a task.

    A request stored while the task was there had none made for it (W12). Requests
    first, then the head: a request is deleted only after the head is dirty.
    """
    try:
        queue = RequestQueue(shop.js, shop.subjects, change_set)
        needed = await queue.first() is not None
        if not needed:
            _, last = await CommitLog(shop.js, shop.subjects, change_set).last()
            needed = last is not None and last.head.dvu_due
    except JetStreamError as error:
        log.warning("not looked again", change_set=str(change_set), error=str(error))
        needed = True  # a task too many costs one empty run
    if needed:
        await publish_task(shop.js, shop.subjects, change_set)


async def _confirm(own: Ownership, every: float) -> Never:
    """A run that was overtaken while idle must not keep the task from redelivery (W10b)."""
    while True:
        await asyncio.sleep(every)
        await own.confirm()
