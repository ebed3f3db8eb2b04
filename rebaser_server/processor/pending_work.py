"""Whether there is work for a change set: checked before and after a run, without a commit."""

from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from rebaser_client.errors import NoSuchChangeSet
from rebaser_client.registry import Registry
from rebaser_client.requests import ensure_task
from rebaser_core.commits import BranchState, ClosedState, ControlState
from rebaser_core.errors import MessageError, NewerVersion
from rebaser_core.ids import ChangeSet, RequestId, WorkspaceId
from rebaser_core.jetstream import JetStreamError, StoredMessage, StreamNotFound
from rebaser_core.records import ChangeSetRecordV1, ChangeSetStatus
from rebaser_server.commit_log.log import CommitLogReader, LogEnd
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import HistoryInconsistent, NeedsNewerVersion, NotRetained, RunEnded
from rebaser_server.processor.context import Services
from rebaser_server.processor.request_queue import announced_request
from rebaser_server.processor.stored_requests import StoredRequests

log: Final = structlog.get_logger()


class PendingWork(NamedTuple):
    """What a run finds before it takes the change set over."""

    first: StoredMessage | None
    """The request at the head of the queue."""
    end: LogEnd


async def find_work(services: Services, change_set: ChangeSet) -> PendingWork | None:
    """Return what a run has to do; None: nothing, its task is removed without a commit (W2b).

    It reads the requests first, then the control record, as `recheck_after_ack` does. Both are
    asked for together: if there is a request, an older control record will do, since the takeover
    succeeds only if it is still the last one. An owner that the control record names did not end
    well, so a run has to look for more.

    Raises:
        HistoryInconsistent: the requests' stream ends before the last settled request, or the
            first request was not settled and should have been (S-5); or no build can read the
            change set's record.
        NeedsNewerVersion: this build cannot read it.
    """
    requests = StoredRequests(services.js, services.subjects, change_set)
    log_of = CommitLogReader(services.js, services.subjects, change_set)
    known = services.released.last_commit(change_set)
    asked = await log_of.ask_end() if services.js.connection.is_connected else None
    try:
        first = await requests.lowest()
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
    """Require that the requests' stream is the one that request `settled` came from (S-5)."""
    if first is not None and first.sequence > settled:
        return
    await StoredRequests(services.js, services.subjects, change_set).require_sequence(settled)
    if first is not None:
        await require_settled(services.loader(change_set), first)


async def _has_other_work(services: Services, change_set: ChangeSet, end: LogEnd) -> bool:
    """Whether there is work without a request."""
    registry = Registry(services.js, services.subjects)
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

    It needs no ownership, so that a takeover writes no commit first. Raises as
    `StateLoader.require_settled`.
    """
    with suppress(NotRetained):  # of a deleted change set
        state = (await loader.load()).state
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
    return record.standing != head.closing.standing


async def initial_control(registry: Registry, change_set: ChangeSet) -> ControlState:
    """Return the control record that a change set begins with: empty, or as a branch was forked.

    A change set that the registry knows in another workspace, or as a workspace, begins closed and
    rejects all. The reason does not name that workspace: this one's clients may not know it.
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
    closing = ClosedState(standing=ChangeSetStatus.ABANDONED, request=RequestId(), reason=reason)
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

    A request stored while the task existed created none (W12). It reads the requests first,
    then the control record: a request is deleted only after the control record is dirty.
    """
    try:
        requests = StoredRequests(services.js, services.subjects, change_set)
        needed = await requests.lowest_sequence() is not None
        if not needed:
            log_of = CommitLogReader(services.js, services.subjects, change_set)
            end = await log_of.end(services.released.last_commit(change_set))
            needed = end.entry is not None and end.entry.control.unfinished
    except (JetStreamError, RunEnded) as error:
        log.warning("post-ack check failed", change_set=str(change_set), error=str(error))
        needed = True  # a needless task costs one empty run
    if needed:
        await ensure_task(services.js, services.subjects, change_set)
