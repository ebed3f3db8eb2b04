"""The run of one change set until it is idle: its requests in order, its DVU beside them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog

from rebaser_client.registry import Registry
from rebaser_core.activities import ActivityKind
from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.log import LogEnd
from rebaser_server.errors import Fenced, NotRetained
from rebaser_server.processor.context import RunContext, Services
from rebaser_server.processor.ownership.acquisition import acquire_ownership
from rebaser_server.processor.ownership.ownership import Ownership
from rebaser_server.processor.pending_work import find_work, initial_control
from rebaser_server.processor.run import ChangeSetRun
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()


async def process(
    services: Services, change_set: ChangeSet, shutdown: Shutdown, slot: SlotLease
) -> bool:
    """Apply the change set's requests until none has come for the quiet period; return True then.

    Then no request is left, its dependent values are right, and a checkpoint holds it, unless it
    made room for another change set: then a later run writes that (W10d).
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
        work = await find_work(services, change_set)
        if work is None:
            return True
        ownership = await _acquire(services, change_set, work.end)
    context = RunContext(services, ownership, shutdown, slot, work.first)
    await services.notifier.activity(
        change_set,
        ActivityKind.TAKEN,
        epoch=ownership.state.control.epoch,
        instance=services.instance,
    )
    try:
        with services.held.owned(ownership):
            is_idle = await ChangeSetRun(context).until_idle()
    except Fenced:
        raise
    except Exception:
        # A failed run, too, ends in order: only a death leaves its name in the log.
        await ownership.leave()
        raise
    await ownership.release()
    services.former_owners.forget(change_set)
    ownership.keep_state()
    if is_idle:
        await services.notifier.activity(change_set, ActivityKind.QUIET)
    return is_idle


async def _acquire(services: Services, change_set: ChangeSet, end: LogEnd) -> Ownership:
    """Become the owner, which writes a commit. `end`: the log's last commit.

    If the state could not be loaded the last time, it is loaded first: so a change set that
    cannot be loaded gets no more commits. That costs a second load.
    """
    loader, doubtful = services.loader(change_set), services.failed_to_load
    if change_set in doubtful:
        with suppress(NotRetained):  # the change set is deleted, so there is nothing to load
            await loader.load()
    try:
        ownership = await acquire_ownership(
            loader,
            services.instance,
            lambda: initial_control(Registry(services.js, services.subjects), change_set),
            end,
        )
    except Fenced:
        raise
    except Exception:
        doubtful.add(change_set)
        raise
    doubtful.discard(change_set)
    if ownership.damage:
        metrics.CHECKPOINTS.labels("damaged").inc()
        log.warning("checkpoint damaged", change_set=str(change_set), reason=ownership.damage)
    return ownership


@asynccontextmanager
async def _startup_permit(services: Services, shutdown: Shutdown) -> AsyncIterator[None]:
    async with shutdown.interrupts():
        permit = await services.startup_permits.acquire()
    try:
        yield
    finally:
        services.startup_permits.release(permit)
