"""The run of one change set until it is idle: its requests in order, its DVU beside them.

`find_work` and `recheck_after_ack` look for work before and after a run, without a commit.
"""

import random
from asyncio import get_running_loop, sleep
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, Never

import structlog

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import BranchState, ClosedState, ControlState
from rebaser_core.errors import MessageError, NewerVersion, NoSuchChangeSet
from rebaser_core.ids import ChangeSet, RequestId, WorkspaceId
from rebaser_core.jetstream import Delivery, JetStreamError, StoredMessage, StreamNotFound
from rebaser_core.records import ChangeSetRecordV1, ChangeSetStatus
from rebaser_core.registry import Registry
from rebaser_core.requests import ensure_task
from rebaser_server.commit_log.log import CommitLogReader, LogEnd
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import (
    Fenced,
    HistoryInconsistent,
    NeedsNewerVersion,
    NotRetained,
    Preempted,
    Resumed,
    RetryLater,
    RunEnded,
)
from rebaser_server.processor.application import POLL_EVERY, Companion
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.context import RunContext, Services
from rebaser_server.processor.dvu import STORE_DELAY, DvuScheduler
from rebaser_server.processor.ownership import CommittedEntry, Ownership, acquire_ownership
from rebaser_server.processor.request_queue import RequestQueue, StoredRequests, announced_request
from rebaser_server.processor.requests import RequestHandler
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.tasks import BackgroundTasks, Shutdown, Wakeup
from rebaser_server.telemetry import metrics


class ChangeSetRun:
    """The work on one delivery of a task, by the owner of the change set."""

    def __init__(self, context: RunContext) -> None:
        services, settings = context.services, context.services.settings
        self._context = context
        self._ownership = context.ownership
        self._slot = context.slot
        self._settings = settings
        self._queue = RequestQueue(services.streams, context.change_set, first=context.first)
        self._handler = RequestHandler(context, self._queue)
        self._dvu = DvuScheduler(context)
        self._checkpointer = Checkpointer(
            context.ownership, settings.checkpoint_every, settings.retention
        )
        self._companion: Companion | None = None
        self._accompanied = Wakeup()
        """Set once the run has a companion."""
        self._clock = get_running_loop().time
        self._last_request = self._clock()
        control = context.ownership.state.control
        if control.branch is not None or control.closing is not None:
            self._accompany()
        context.ownership.on_commit = self._on_commit
        context.services.application.on_commit(context.ownership.loader)
        context.services.application.on_begin(context.ownership)

    async def until_idle(self) -> bool:
        """Work until the change set is idle; return False if the run yields its slot before.

        Then no request is half done, and a checkpoint holds all commits, unless another change set
        needs the slot.
        """
        await self._start()
        async with self._queue, BackgroundTasks() as tasks:
            # D1: an earlier run may have left an update due. Without a request, no commit would
            # wake the scheduler.
            self._dvu.notify()
            tasks.start_on(self._dvu.wakeup, self._dvu.run)
            tasks.start_on(self._accompanied, self._run_companion)
            tasks.start_on(self._checkpointer.requested, self._checkpointer.run)
            tasks.start_after(self._pause_of_watch(), self._watch_ownership)
            is_idle = await self._loop()
            # W9: before the release. Else a run that died soon after it could leave settled
            # requests in the stream, and no task for them.
            await self._queue.handled.wait()
            # The files of a deleted change set are removed in the end; a checkpoint would write
            # some anew.
            if not self._ownership.state.control.deleted:
                await self._checkpointer.on_end(is_preempted=self._slot.is_wanted)
        return is_idle

    async def _start(self) -> None:
        ownership = self._ownership
        if owner := ownership.unreleased_owner:
            former_owners = self._context.services.former_owners
            if await former_owners.counts_as_death(self._context.change_set, owner):
                await self._handler.count_death(owner)
                await self._dvu.count_death()
        if self._companion is not None:
            await self._companion.start()
        unsaved = ownership.state.unsaved
        empty_commits = unsaved.commits - unsaved.requests
        has_other_work = self._context.first is not None or ownership.state.control.unfinished
        was_released = not (has_other_work or ownership.unreleased_owner)
        only_unsaved = was_released and unsaved.requests > 0
        if only_unsaved or empty_commits >= self._settings.checkpoint_every:
            # an earlier run left it without a checkpoint, or runs wrote only empty commits
            self._checkpointer.requested.set()

    def _on_commit(self, committed: CommittedEntry) -> None:
        """Note the commit, and wake the tasks that have something to do about it."""
        request, companion = committed.request, self._companion
        if request is not None:
            self._handler.on_commit(request, committed.sequence, committed.entry.call)
            self._slot.on_request()
            # A branch's own refreshes do not count: else a busy head would keep each of its
            # branches awake.
            if companion is None or not companion.is_own(request):
                self._last_request = self._clock()
        if companion is not None:
            companion.on_commit(committed)
        elif committed.entry.control.closing is not None:
            self._accompany()
        self._dvu.on_commit(committed)
        self._checkpointer.on_commit(committed)
        self._context.services.application.on_commit(self._ownership.loader)

    def _accompany(self) -> None:
        application, ownership = self._context.services.application, self._ownership
        self._companion = application.companion(ownership, self._checkpointer)
        if self._companion is not None:
            self._accompanied.set()

    async def _run_companion(self) -> Never:
        if self._companion is None:
            raise AssertionError("there is one once it is begun")
        await self._companion.run()
        raise AssertionError("it works until it is cancelled")

    async def _loop(self) -> bool:
        while True:
            requests = await self._next_requests()
            # P4: before the requests are handled. Those taken are still in the stream, which
            # deletes none before its commit (W9), so the run after the pause finds them.
            if self._slot.paused and await self._drain():
                return False  # P4
            if requests:
                await self._handler.handle(requests)
                if self._slot.expired and self._may_yield():
                    return False  # W10c
            elif self._must_yield():
                return False  # the change set that it waits for may need this slot
            elif self._is_idle():
                return True  # W10
            if self._dvu.is_postponed and self._slot.is_wanted:
                # W14: what it waits for may need this slot. The task stays, and tells of the work.
                raise RetryLater("an update waits, and others need the slot", STORE_DELAY)

    async def _next_requests(self) -> list[Delivery]:
        """Return the next requests; none after the quiet period, or if another needs the slot."""
        self._context.shutdown.check()
        # Outside the interrupts below: a cancelled `take_buffered` would lose the requests it has
        # taken.
        if requests := await self._queue.take_buffered(self._handler.batch_size):
            return requests
        wait = self._idle_timeout()
        async with self._context.shutdown.interrupts():
            try:
                async with self._slot.wait_for_work(self._has_work):
                    request = await self._queue.next(wait)
            except Preempted:  # the stream is not looked at: its requests are found by W12
                return await self._queue.take_buffered(self._handler.batch_size)
        return [request] if request else []

    def _idle_timeout(self) -> float:
        """Seconds without a request until the run asks whether the change set is idle."""
        quiet = 0.0 if self._ownership.is_for_another else self._settings.quiet_period
        left = self._last_request + quiet - self._clock()
        companion = self._companion
        if companion is not None and companion.busy:
            return min(max(POLL_EVERY, left), companion.patience)
        # While an update is due, the change set is not idle: without a minimum, the run would ask
        # the stream's leader again and again, without a pause.
        return max(POLL_EVERY if self._ownership.state.control.dvu_due else 0.0, left)

    async def _drain(self) -> bool:
        """Finish the update in hand after a pause; return False if that is over meanwhile."""
        try:
            async with self._context.shutdown.interrupts(), self._slot.resume.interrupts():
                await self._dvu.drain()
        except Resumed:
            self._dvu.resume()
            return False
        return True

    def _may_yield(self) -> bool:
        """Whether the run may end although the change set is not idle (W10c).

        It may not while an update is in hand, which would be lost; and only if a request tells the
        reconciler of the work that is left, should this process die before it makes the new task.
        """
        control = self._ownership.state.control
        return control.claim is None and (self._queue.backlog > 0 or not control.dvu_due)

    def _has_work(self) -> bool:
        companion = self._companion
        is_working = companion is not None and companion.busy and not companion.awaits_another
        is_due = self._ownership.state.control.dvu_due and not self._dvu.is_postponed
        return is_due or is_working

    def _must_yield(self) -> bool:
        """Whether to give up the slot so that head can run."""
        companion = self._companion
        if companion is None or not companion.awaits_another:
            return False
        return self._slot.is_set or companion.must_yield

    def _is_idle(self) -> bool:
        is_busy = self._companion is not None and self._companion.busy
        return not self._ownership.state.control.dvu_due and not is_busy

    async def _watch_ownership(self) -> Never:
        """Check from time to time that no other Rebaser took over; if one did, end the run (W10b).

        A run that was overtaken while idle would keep the task from redelivery.
        """
        while True:
            with suppress(JetStreamError):  # an unanswered query shows nothing
                await self._ownership.confirm()
            await sleep(self._pause_of_watch())

    def _pause_of_watch(self) -> float:
        # A random part of the period: runs that began together do not all ask the leader together.
        return self._settings.confirm_every * random.uniform(0.75, 1.0)


log: Final = structlog.get_logger()


class PendingWork(NamedTuple):
    """Work that is found before a run takes the change set over."""

    first: StoredMessage | None
    """The request at the head of the queue."""
    end: LogEnd


async def find_work(services: Services, change_set: ChangeSet) -> PendingWork | None:
    """Return the work of a run; None: nothing, its task is removed without a commit (W2b).

    The requests are read first, then the control record, as by `recheck_after_ack`. Both are asked
    for together: if there is a request, an older control record will do, since the takeover
    succeeds only if it is still the last one. An owner that the control record names did not end
    well, so a run has to look for more.

    Raises:
        HistoryInconsistent: the requests' stream ends before the last settled request, or the
            first request was not settled and should have been (S-5); or no build can read the
            change set's record.
        NeedsNewerVersion: this build cannot read it.
    """
    requests = StoredRequests(services.streams, change_set)
    log_of = CommitLogReader(services.streams, change_set)
    known = services.states.last_commit(change_set)
    asked = await log_of.ask_end() if services.streams.js.connection.is_connected else None
    try:
        first = await requests.lowest()
        # W2b: without a request, the record is read after the requests. An earlier answer could be
        # older than a request that left an update due and is deleted by now.
        if first is None or asked is None:
            end = await log_of.end(known)
        else:
            end = await log_of.answered_end(asked, known)
    finally:
        if asked is not None:
            asked.cancel()
    if end.entry is not None:
        await _require_own_requests(services, change_set, first, end.entry.control.last_sequence)
    has_work = first is not None or await _has_other_work(services, change_set, end)
    return PendingWork(first, end) if has_work else None


async def _require_own_requests(
    services: Services, change_set: ChangeSet, first: StoredMessage | None, settled: int
) -> None:
    """Require that the requests' stream is the one from which request `settled` came (S-5)."""
    if first is not None and first.sequence > settled:
        return
    await StoredRequests(services.streams, change_set).require_sequence(settled)
    if first is not None:
        await require_settled(services.loader(change_set), first)


async def _has_other_work(services: Services, change_set: ChangeSet, end: LogEnd) -> bool:
    """Whether the change set has work without a request."""
    registry = Registry(services.streams)
    if end.entry is None:
        return (await initial_control(registry, change_set)).branch is not None
    control = end.entry.control
    return (
        end.unsaved
        or bool(control.owner)
        or control.unfinished
        or _is_unstarted_branch(control)
        or await _is_registry_behind(registry, change_set, control)
    )


async def require_settled(loader: StateLoader, request: StoredMessage) -> None:
    """Require that a request at or below the last settled one was settled itself (S-5).

    No ownership is needed, so that a takeover writes no commit first. Raises as
    `StateLoader.require_settled`.
    """
    with suppress(NotRetained):  # the change set is deleted
        state = await loader.load()
        loader.require_settled(
            state, request.sequence, announced_request(request.headers), request.time
        )


def _is_unstarted_branch(head: ControlState) -> bool:
    return head.branch is not None and head.branch.cursor is None and head.closing is None


async def _is_registry_behind(
    registry: Registry, change_set: ChangeSet, head: ControlState
) -> bool:
    """Whether the change set is closed and the registry does not say so yet."""
    if head.closing is None:
        return False
    try:
        record = await _record(registry, change_set)
    except NoSuchChangeSet:
        return False
    return record.status != head.closing.status


async def initial_control(registry: Registry, change_set: ChangeSet) -> ControlState:
    """Return the control record that a change set begins with: empty, or as a branch was forked.

    A change set that the registry knows in another workspace, or as a workspace, begins closed and
    rejects all. The reason does not name the other workspace: this one's clients may not know it.
    """
    try:
        record = await _record(registry, change_set)
    except NoSuchChangeSet:
        return await _unregistered_control(registry, change_set)
    if record.base is None:
        return ControlState()
    return ControlState(branch=BranchState(base=record.base, head=record.head))


async def _unregistered_control(registry: Registry, change_set: ChangeSet) -> ControlState:
    as_workspace = WorkspaceId.from_bytes(change_set.change_set_id.bytes)
    try:
        home = await registry.workspace_of(change_set.change_set_id)
        is_workspace = home is None and await registry.has_workspace(as_workspace)
    except (StreamNotFound, ValueError):  # no registry, or an invalid key
        return ControlState()
    if home == change_set.workspace_id:  # registered a moment ago
        return await initial_control(registry, change_set)
    if home is None and not is_workspace:
        return ControlState()
    reason = "it is a workspace" if is_workspace else "it belongs to another workspace"
    closing = ClosedState(status=ChangeSetStatus.ABANDONED, request=RequestId(), reason=reason)
    return ControlState(closing=closing)


async def _record(registry: Registry, change_set: ChangeSet) -> ChangeSetRecordV1:
    try:
        return await registry.change_set(change_set)
    except NewerVersion as error:
        raise NeedsNewerVersion(error) from error
    except MessageError as error:
        raise HistoryInconsistent(f"{change_set}: its record cannot be read: {error}") from error


async def recheck_after_ack(services: Services, change_set: ChangeSet) -> None:
    """Publish a task if there is work for the change set after its task was removed.

    A request stored while the task existed created none (W12). The requests are read first, then
    the control record: a request is deleted only after the control record is dirty.
    """
    try:
        requests = StoredRequests(services.streams, change_set)
        needed = await requests.lowest_sequence() is not None
        if not needed:
            log_of = CommitLogReader(services.streams, change_set)
            end = await log_of.end(services.states.last_commit(change_set))
            needed = end.entry is not None and end.entry.control.unfinished
    except (JetStreamError, RunEnded) as error:
        log.warning("post-ack check failed", change_set=str(change_set), error=str(error))
        needed = True  # a needless task costs one empty run
    if needed:
        await ensure_task(services.streams, change_set)


async def process(
    services: Services, change_set: ChangeSet, shutdown: Shutdown, slot: SlotLease
) -> bool:
    """Apply requests until none has come for the quiet period; return True then.

    Then no request is left, the dependent values are right, and a checkpoint holds them, unless the
    run made room for another change set: then a later run writes the checkpoint (W10d). The result
    is False if the time in the slot is over and requests are left: the change set needs a new task,
    at the end of the queue (W10c). After an error or a cancellation, committed requests are sound,
    and the others are still at the head of the queue.

    Raises:
        Interrupted: a stop was asked for.
        RetryLater: the request at the head of the queue cannot be handled now, or the update that
            is due waits for what is away, and others need the slot.
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
        with services.states.owned(change_set, ownership):
            is_idle = await ChangeSetRun(context).until_idle()
    except Fenced:
        # W15: log and task are another run's, so this one releases nothing.
        raise
    except Exception:
        # A failed run, too, ends in order: only a death leaves its name in the log.
        await ownership.leave()
        raise
    else:
        await ownership.release()
        services.former_owners.forget(change_set)
        # W2c: only behind the accepted release is it certain that the log has all of the state, and
        # that no other run had committed.
        ownership.keep_state()
    finally:
        # Else the run would be a cycle, and its state stay until a look for garbage.
        ownership.on_commit = None
    if is_idle:
        await services.notifier.activity(change_set, ActivityKind.QUIET)
    return is_idle


async def _acquire(services: Services, change_set: ChangeSet, end: LogEnd) -> Ownership:
    """Become the owner, which writes a commit. `end` is the log's last commit.

    A state that could not be loaded the last time is loaded first: so a change set that cannot be
    loaded gets no more commits. That costs a second load.
    """
    loader, doubtful = services.loader(change_set), services.failed_to_load
    if change_set in doubtful:
        with suppress(NotRetained):  # the change set is deleted, so there is nothing to load
            await loader.load()
    try:
        ownership = await acquire_ownership(
            loader,
            services.instance,
            lambda: initial_control(Registry(services.streams), change_set),
            end,
        )
    except Fenced:
        raise
    except Exception:
        doubtful.add(change_set)
        raise
    doubtful.discard(change_set)
    if damage := ownership.state.damage:
        metrics.CHECKPOINTS.labels("damaged").inc()
        log.warning("checkpoint damaged", change_set=str(change_set), reason=damage)
    return ownership


@asynccontextmanager
async def _startup_permit(services: Services, shutdown: Shutdown) -> AsyncIterator[None]:
    async with shutdown.interrupts():
        permit = await services.startup_permits.acquire()
    try:
        yield
    finally:
        services.startup_permits.release(permit)
