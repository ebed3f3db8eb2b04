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
from rebaser_server.errors import Fenced, NotRetained, Preempted
from rebaser_server.processor.branches.branch_runner import BranchRunner
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.context import Services
from rebaser_server.processor.dvu.scheduler import DvuScheduler
from rebaser_server.processor.outcome_lookup import OutcomeLookup
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.pause_drain import drain_for_pause
from rebaser_server.processor.pending_work import has_work, initial_control
from rebaser_server.processor.request_handler import RequestHandler
from rebaser_server.processor.request_queue import RequestQueue
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.concurrency import Shutdown, background

log: Final = structlog.get_logger()

RELEASE_TIMEOUT: Final = 2.0  # seconds


async def process(
    services: Services, change_set: ChangeSet, shutdown: Shutdown, slot: SlotLease
) -> bool:
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
    async with _startup_permit(services, shutdown):
        if not await has_work(services, change_set):
            return True
        ownership = await _acquire(services, change_set)
    await services.notifier.activity(
        change_set,
        ActivityKind.TAKEN,
        epoch=ownership.state.control.epoch,
        instance=services.instance,
    )
    try:
        quiet = await _run_until_idle(services, change_set, ownership, shutdown, slot)
    except Fenced:
        raise
    except Exception:
        # An orderly end, too: only a death leaves its name in the log. A write that was
        # cut off may have gone through; then this one fails, harmlessly.
        with suppress(Fenced, JetStreamError, TimeoutError):
            async with deadlines.within(RELEASE_TIMEOUT):
                await ownership.release()
        raise
    await ownership.release()
    if quiet:
        await services.notifier.activity(change_set, ActivityKind.QUIET)
    return quiet


async def _acquire(services: Services, change_set: ChangeSet) -> Ownership:
    """Become its owner, which writes a line; not while a look shows that it cannot be restored.

    The look costs as much again, so it is for what could not be restored the last time.
    """
    loader, doubtful = services.loader(change_set), services.failed_to_load
    if change_set in doubtful:
        with suppress(NotRetained):  # deleted, and nothing of it is to be restored
            await loader.load()
    try:
        ownership = await Ownership.acquire(
            loader,
            services.instance,
            lambda: initial_control(Registry(services.js, services.subjects), change_set),
        )
    except Fenced:
        raise
    except Exception:
        doubtful.add(change_set)
        raise
    doubtful.discard(change_set)
    return ownership


@asynccontextmanager
async def _startup_permit(services: Services, shutdown: Shutdown) -> AsyncIterator[None]:
    async with shutdown.interrupts():
        await services.startup_permits.acquire()
    try:
        yield
    finally:
        services.startup_permits.release()


async def _run_until_idle(
    services: Services,
    change_set: ChangeSet,
    ownership: Ownership,
    shutdown: Shutdown,
    slot: SlotLease,
) -> bool:
    rules = services.settings
    queue = RequestQueue(services.js, services.subjects, change_set)
    dvu = DvuScheduler(
        change_set,
        ownership,
        services.executor,
        services.notifier,
        parallelism=rules.parallelism,
        deadline=rules.dvu_deadline,
        attempts=rules.dvu_attempts,
        limits=rules.unit_limits,
        cancels=slot.cancel_dvu,
    )
    handler = RequestHandler(
        services.js,
        services.subjects,
        change_set,
        ownership,
        queue,
        services.notifier,
        rules.attempts,
        rules.batch_limits,
    )
    checkpointing = Checkpointer(
        ownership, rules.checkpoint_every, rules.retention, services.table_maintenance
    )
    outcomes = OutcomeLookup(services.js, services.subjects, services.checkpoints)
    branching = BranchRunner(
        services.js, services.subjects, ownership, outcomes, checkpointing, rules.confirm_every
    )
    if ownership.unreleased_owner:
        await handler.count_death(ownership.unreleased_owner)
        await dvu.count_death()
    await branching.start()
    if (
        ownership.entries_since_checkpoint - ownership.requests_since_checkpoint
        >= rules.checkpoint_every
    ):  # runs that came to nothing wrote them
        await checkpointing.write()
    async with (
        queue,
        background(dvu.run()),
        background(branching.run()),
        background(checkpointing.run()),
        background(_watch_ownership(ownership, rules.confirm_every)),
    ):
        dvu.notify()
        quiet = False
        while not quiet:
            wait = branching.idle_timeout(
                rules.quiet_period, unfinished=ownership.state.control.dvu_due
            )
            requests = await _next_requests(queue, handler, wait, shutdown, slot)
            if slot.paused and await drain_for_pause(dvu, shutdown, slot):
                break
            if requests:
                await handler.handle(requests)
                slot.on_request()
                for request in requests:
                    branching.handled(request.stream_sequence)
                if slot.expired and _may_yield(ownership, queue):
                    break
                _start_followups(ownership, dvu, checkpointing)
            elif (
                ownership.state.control.unfinished
                and branching.busy
                and (slot.is_set or branching.gave_up_on_head)
            ):
                break  # head may need the slot to take what this one brings
            else:
                quiet = not ownership.state.control.dvu_due and not branching.busy
                checkpointing.if_due()  # by what an update found
        await queue.await_deletes()
        if not ownership.state.control.deleted:
            await checkpointing.on_idle()
    return quiet


def _start_followups(ownership: Ownership, dvu: DvuScheduler, checkpointing: Checkpointer) -> None:
    """See to what the requests just handled leave to be done beside them."""
    wishes, ownership.followups = ownership.followups, set()
    if "recompute" in wishes:
        dvu.skip_backoff()
    dvu.notify()
    if "checkpoint" in wishes:
        checkpointing.request()
    checkpointing.if_due()


def _may_yield(ownership: Ownership, queue: RequestQueue) -> bool:
    """Whether the run may end although it is not quiet (W10c).

    Not while an update is in hand, which would be lost; and only if a request would tell
    the reconciler of what is left, should nobody be there to make the new task.
    """
    head = ownership.state.control
    return head.claim is None and (queue.backlog > 0 or not head.dvu_due)


async def _next_requests(
    queue: RequestQueue, handler: RequestHandler, quiet: float, shutdown: Shutdown, slot: SlotLease
) -> list[Delivery]:
    """The next requests; none if it is quiet, be it early because somebody waits for the slot."""
    async with shutdown.interrupts():
        if requests := await queue.take_buffered(handler.batch_size):
            return requests
        try:
            async with slot.wait_for_work(lambda: handler.ownership.state.control.dvu_due):
                request = await queue.next(quiet)
        except Preempted:
            request = await queue.next(0)
    return [request] if request else []


async def _watch_ownership(ownership: Ownership, every: float) -> Never:
    """A run that was overtaken while idle must not keep the task from redelivery (W10b)."""
    while True:
        await asyncio.sleep(every * random.uniform(0.75, 1.0))  # noqa: S311 - not all at once
        with suppress(JetStreamError):  # that nobody could say shows nothing
            await ownership.confirm()
