"""The run of one change set until it is idle: its requests in order, its DVU beside them."""

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
from rebaser_server.compute.plan.update_planner import UpdatePlanner
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
    """Apply the change set's requests until none has come for the quiet period; return True then.

    Then no request is left, its dependent values are right, and a checkpoint holds it.
    It returns False if its time in the slot is over and requests are left: the change set
    needs a new task, at the end of the queue (W10c). Whether it raises or is cancelled: what was
    committed is sound, and what was not is still at the head of the queue.

    Raises:
        Interrupted: a stop was asked for.
        RetryLater: the request at the head of the queue cannot be handled now.
        Fenced: another run owns the change set.
        HistoryInconsistent: log, stream and store contradict each other; nothing was touched.
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
        # A failed run, too, ends in order: only a death leaves its name in the log. A write
        # that was cut off may have gone through; then this one fails, harmlessly.
        with suppress(Fenced, JetStreamError, TimeoutError):
            async with deadlines.within(RELEASE_TIMEOUT):
                await ownership.release()
        raise
    await ownership.release()
    if quiet:
        await services.notifier.activity(change_set, ActivityKind.QUIET)
    return quiet


async def _acquire(services: Services, change_set: ChangeSet) -> Ownership:
    """Become the owner, which writes a commit.

    If the state could not be loaded the last time, it is loaded first: so a change set that
    cannot be loaded gets no more commits. That costs a second load.
    """
    loader, doubtful = services.loader(change_set), services.failed_to_load
    if change_set in doubtful:
        with suppress(NotRetained):  # the change set is deleted, so there is nothing to load
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
        planner=UpdatePlanner(rules.parallelism, rules.unit_limits, services.costs),
        deadline=rules.dvu_deadline,
        attempts=rules.dvu_attempts,
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
    ):  # failed runs wrote them
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
                break  # head may need the slot to apply this branch's difference
            else:
                quiet = not ownership.state.control.dvu_due and not branching.busy
                checkpointing.if_due()  # an update may have changed many values
        await queue.await_deletes()
        if not ownership.state.control.deleted:
            await checkpointing.on_idle()
    return quiet


def _start_followups(ownership: Ownership, dvu: DvuScheduler, checkpointing: Checkpointer) -> None:
    """Start the background work that the requests just handled ask for."""
    wishes, ownership.followups = ownership.followups, set()
    if "recompute" in wishes:
        dvu.skip_backoff()
    dvu.notify()
    if "checkpoint" in wishes:
        checkpointing.request()
    checkpointing.if_due()


def _may_yield(ownership: Ownership, queue: RequestQueue) -> bool:
    """Whether the run may end although it is not idle (W10c).

    Not while an update is under way, which would be lost; and only if requests are left, or
    no update is due: if this process dies before it makes the new task, the reconciler
    finds the requests.
    """
    head = ownership.state.control
    return head.claim is None and (queue.backlog > 0 or not head.dvu_due)


async def _next_requests(
    queue: RequestQueue, handler: RequestHandler, quiet: float, shutdown: Shutdown, slot: SlotLease
) -> list[Delivery]:
    """Return the next requests; none if it is idle, or if another change set needs the slot."""
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
    """End a run that was fenced while idle: it must not keep the task from redelivery (W10b)."""
    while True:
        await asyncio.sleep(every * random.uniform(0.75, 1.0))
        with suppress(JetStreamError):  # no answer shows nothing
            await ownership.confirm()
