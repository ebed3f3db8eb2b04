"""Work through one change set until it is quiet: its requests in order, its DVU beside them."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Never

import structlog

from rebaser_client.registry import Registry
from rebaser_core.activities import ActivityKind
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStreamError, deadlines
from rebaser_server.errors import NotRetained, Overtaken, SlotWanted
from rebaser_server.processor.branches.branch_runner import Branching
from rebaser_server.processor.checkpointer import Checkpointing
from rebaser_server.processor.context import Workshop
from rebaser_server.processor.dvu.scheduler import SerialDvu
from rebaser_server.processor.outcome_lookup import Outcomes
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.pause_drain import wound_up
from rebaser_server.processor.pending_work import first_head, has_work
from rebaser_server.processor.request_handler import Handler
from rebaser_server.processor.request_queue import RequestQueue
from rebaser_server.processor.slot_lease import Turn
from rebaser_server.runtime.concurrency import Shutdown, background

log: Final = structlog.get_logger()

RELEASE_TIMEOUT: Final = 2.0  # seconds


async def process(shop: Workshop, change_set: ChangeSet, shutdown: Shutdown, turn: Turn) -> bool:
    """Apply the change set's requests until none has come for the quiet period; whether so.

    Then no request is left, its dependent values are right, and a checkpoint holds it.
    If not, its turn is over and requests are left: it needs a new task, at the end of the
    line (W10c). Whatever it raises or however it is cancelled, what was committed is
    sound and what was not is still first in line.

    Raises:
        Interrupted: a stop was asked for.
        RetryLater: the first request in line cannot be handled now.
        Overtaken: another run owns the change set.
        HistoryBroken: log, stream and store contradict each other; nothing was touched.
    """
    async with _taking_up(shop, shutdown):
        if not await has_work(shop, change_set):
            return True
        own = await _taken(shop, change_set)
    await shop.announcer.activity(
        change_set, ActivityKind.TAKEN, epoch=own.state.head.epoch, instance=shop.instance
    )
    try:
        quiet = await _until_quiet(shop, change_set, own, shutdown, turn)
    except Overtaken:
        raise
    except Exception:
        # An orderly end, too: only a death leaves its name in the log. A write that was
        # cut off may have gone through; then this one fails, harmlessly.
        with suppress(Overtaken, JetStreamError, TimeoutError):
            async with deadlines.within(RELEASE_TIMEOUT):
                await own.release()
        raise
    await own.release()
    if quiet:
        await shop.announcer.activity(change_set, ActivityKind.QUIET)
    return quiet


async def _taken(shop: Workshop, change_set: ChangeSet) -> Ownership:
    """Become its owner, which writes a line; not while a look shows that it cannot be restored.

    The look costs as much again, so it is for what could not be restored the last time.
    """
    archive, doubtful = shop.archive(change_set), shop.doubtful
    if change_set in doubtful:
        with suppress(NotRetained):  # deleted, and nothing of it is to be restored
            await archive.restored()
    try:
        own = await Ownership.take(
            archive,
            shop.instance,
            lambda: first_head(Registry(shop.js, shop.subjects), change_set),
        )
    except Overtaken:
        raise
    except Exception:
        doubtful.add(change_set)
        raise
    doubtful.discard(change_set)
    return own


@asynccontextmanager
async def _taking_up(shop: Workshop, shutdown: Shutdown) -> AsyncIterator[None]:
    async with shutdown.interrupts():
        await shop.taking_up.acquire()
    try:
        yield
    finally:
        shop.taking_up.release()


async def _until_quiet(
    shop: Workshop, change_set: ChangeSet, own: Ownership, shutdown: Shutdown, turn: Turn
) -> bool:
    rules = shop.rules
    queue = RequestQueue(shop.js, shop.subjects, change_set)
    dvu = SerialDvu(
        change_set,
        own,
        shop.executor,
        shop.announcer,
        slots=rules.slots,
        deadline=rules.dvu_deadline,
        attempts=rules.dvu_attempts,
        limits=rules.call_limits,
        blob_bytes=rules.blob_bytes,
        cancels=turn.cancels,
    )
    handler = Handler(
        shop.js,
        shop.subjects,
        change_set,
        own,
        queue,
        shop.announcer,
        rules.attempts,
        rules.limits,
    )
    checkpointing = Checkpointing(own, rules.checkpoint_every, rules.retention, shop.upkeep)
    outcomes = Outcomes(shop.js, shop.subjects, shop.checkpoints)
    branching = Branching(shop.js, shop.subjects, own, outcomes, checkpointing, rules.confirm_every)
    if own.former:
        await handler.suspect(own.former)
        await dvu.suspect()
    await branching.begin()
    if own.lines - own.handled >= rules.checkpoint_every:  # runs that came to nothing wrote them
        await checkpointing.now()
    async with (
        queue,
        background(dvu.run()),
        background(branching.run()),
        background(checkpointing.run()),
        background(_confirm(own, rules.confirm_every)),
    ):
        dvu.ask()
        quiet = False
        while not quiet:
            wait = branching.quiet(rules.quiet_period, unfinished=own.state.head.dvu_due)
            requests = await _next(queue, handler, wait, shutdown, turn)
            if turn.paused and await wound_up(dvu, shutdown, turn):
                break
            if requests:
                await handler.handle(requests)
                turn.handled()
                for request in requests:
                    branching.handled(request.stream_sequence)
                if turn.over and _may_go(own, queue):
                    break
                _look_around(own, dvu, checkpointing)
            elif (
                own.state.head.unfinished and branching.busy and (turn.is_set or branching.in_vain)
            ):
                break  # head may need the slot to take what this one brings
            else:
                quiet = not own.state.head.dvu_due and not branching.busy
                checkpointing.when_long()  # by what an update found
        await queue.deleted()
        if not own.state.head.deleted:
            await checkpointing.when_quiet()
    return quiet


def _look_around(own: Ownership, dvu: SerialDvu, checkpointing: Checkpointing) -> None:
    """See to what the requests just handled leave to be done beside them."""
    wishes, own.wishes = own.wishes, set()
    if "recompute" in wishes:
        dvu.hurry()
    dvu.ask()
    if "checkpoint" in wishes:
        checkpointing.soon()
    checkpointing.when_long()


def _may_go(own: Ownership, queue: RequestQueue) -> bool:
    """Whether the run may end although it is not quiet (W10c).

    Not while an update is in hand, which would be lost; and only if a request would tell
    the reconciler of what is left, should nobody be there to make the new task.
    """
    head = own.state.head
    return head.claim is None and (queue.waiting > 0 or not head.dvu_due)


async def _next(
    queue: RequestQueue, handler: Handler, quiet: float, shutdown: Shutdown, turn: Turn
) -> list[Delivery]:
    """The next requests; none if it is quiet, be it early because somebody waits for the slot."""
    async with shutdown.interrupts():
        if requests := await queue.ready(handler.at_once):
            return requests
        try:
            async with turn.waiting(lambda: handler.own.state.head.dvu_due):
                request = await queue.next(quiet)
        except SlotWanted:
            request = await queue.next(0)
    return [request] if request else []


async def _confirm(own: Ownership, every: float) -> Never:
    """A run that was overtaken while idle must not keep the task from redelivery (W10b)."""
    while True:
        await asyncio.sleep(every * random.uniform(0.75, 1.0))  # noqa: S311 - not all at once
        with suppress(JetStreamError):  # that nobody could say shows nothing
            await own.confirm()
