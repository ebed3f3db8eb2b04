"""The work of a branch's run beside its requests: start the branch, follow head, close it.

To close a branch, apply its difference to head, and update the registry. To follow head, request
the branch's refresh, one at a time, while a run owns it.

Head publishes nothing for a branch. A branch reads head's log when its run starts and whenever
head's activities report an applied request; it also reads it now and then, since an activity may be
lost.
"""

import asyncio
from contextlib import suppress
from typing import Final, Never

import structlog
from nats.aio.msg import Msg

from rebaser_core.activities import Activity, ActivityKind
from rebaser_core.commits import BranchState, ClosedState, Commit, RequestOutcome, SettledRequest
from rebaser_core.errors import ClientError, MessageError, NoSuchChangeSet
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import deadlines, ordered_reader
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    EnqueueUpdatesResponseV3,
    ErrorStatus,
    OutcomeQueryV1,
    RequestState,
)
from rebaser_core.records import (
    ApplyAttempt,
    ChangeSetRecordV1,
    ChangeSetRequest,
    ChangeSetRequestV1,
    ChangeSetStatus,
    now,
)
from rebaser_core.registry import Registry
from rebaser_core.requests import ensure_task, publish_request
from rebaser_core.streams import Streams
from rebaser_core.versioning import APPLY_REQUEST, AUTHOR
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.graph_application.commands import head_request_id
from rebaser_server.graph_application.content import content_of, require
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.dead_letters import REASON_LENGTH
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.processor.ownership import CommittedEntry, Ownership
from rebaser_server.processor.requests import without_dvu
from rebaser_server.runtime.tasks import background, wait_forever

log: Final = structlog.get_logger()

_POLL_EVERY: Final = 10.0
"""Seconds without a commit in head's log after which the outcome is looked up."""

_HEAD_PATIENCE: Final = 30.0
"""Seconds that a branch keeps its slot while head does not handle its difference. Head's task may
be waiting for a slot, and no process knows how many tasks wait."""


class BranchCloser:
    """Runs beside the requests of one run. Each step is idempotent, so that it may be repeated."""

    def __init__(self, streams: Streams, ownership: Ownership, outcomes: OutcomeLookup) -> None:
        self._streams = streams
        self._ownership = ownership
        self._outcomes = outcomes
        self._registry = Registry(streams)
        self._wakeup = asyncio.Event()
        self._registered: str | None = None
        self._clock = asyncio.get_running_loop().time
        self._waiting_since: float | None = None

    @property
    def awaits_head(self) -> bool:
        """Whether the difference is in head's queue, not yet settled."""
        return self._waiting_since is not None

    @property
    def gave_up_on_head(self) -> bool:
        """Whether it has waited so long for head that head may be waiting for the slot."""
        since = self._waiting_since
        return since is not None and self._clock() - since >= _HEAD_PATIENCE

    @property
    def busy(self) -> bool:
        """Whether the closing is not finished, so that the run has to go on."""
        closing = self._ownership.state.control.closing
        return closing is not None and self._registered != closing.status

    def notify(self) -> None:
        """Check the control record soon, after a commit."""
        if self.busy:
            self._wakeup.set()

    async def run(self) -> Never:
        """Finish each closing that the control record shows, until cancelled."""
        while True:
            closing = self._ownership.state.control.closing
            if closing is not None and self.busy:
                await self._advance(closing)
                continue
            await self._wakeup.wait()
            self._wakeup.clear()

    async def _advance(self, closing: ClosedState) -> None:
        await self._update_registry(closing)
        if closing.status == ChangeSetStatus.APPLYING:
            await self._apply_to_head(closing)
        else:
            self._registered = closing.status

    async def _apply_to_head(self, closing: ClosedState) -> None:
        """Send the difference to head; then the branch is applied, or open again.

        Head applies it once, even if it is sent several times (B1).
        """
        ownership = self._ownership
        branch = require(ownership.state.control.branch, "a base")
        problem, commit = await self._outcome_at_head(closing, branch)
        self._waiting_since = None
        if problem is not None:  # the registry first: until the commit, this is repeated
            log.warning("branch not applied", reason=problem)
            await self._update_registry(closing, problem)
        async with ownership.lock:
            # While the branch is being applied, every command that changes `closing` is refused: so
            # the one read before the wait still stands.
            if problem is None:
                applied = closing.model_copy(
                    update={
                        "status": ChangeSetStatus.APPLIED,
                        "difference": None,
                        "commit": commit,
                    }
                )
                # Here the commit comes before the registry: a look without a request finds a
                # registry that is behind (W2b).
                await ownership.write(closing=applied, **without_dvu(ownership.state))
            else:
                await ownership.write(closing=None)

    async def _outcome_at_head(
        self, closing: ClosedState, branch: BranchState
    ) -> tuple[str | None, int | None]:
        """Return the outcome at head: the reason for a refusal, or the commit that applied it."""
        branch_change_set = self._ownership.loader.change_set
        head = ChangeSet(branch_change_set.workspace_id, branch.head)
        query = OutcomeQueryV1(
            id=head_request_id(closing.request),
            workspace_id=head.workspace_id,
            change_set_id=branch.head,
        )
        # B1: asked before anything is sent, since an earlier run may have sent the difference.
        outcome = await self._outcomes.find(query)
        if outcome.response is not None:
            return _read(outcome.response)
        if outcome.state is RequestState.UNKNOWN:
            await self._send(closing, head, branch_change_set, query)
        else:  # the sender may have died before it made a task (C3)
            await ensure_task(self._streams, head)
        self._waiting_since = self._clock()
        # B1: the difference was compared with head at the cursor, so its commit can only be behind
        # that.
        return await self._await_head(head, query, after=branch.cursor or 0)

    async def _await_head(
        self, head: ChangeSet, query: OutcomeQueryV1, after: int
    ) -> tuple[str | None, int | None]:
        """Return the outcome once head's log has it behind the commit `after`."""
        reader = ordered_reader(
            self._streams.js,
            self._streams.commits_stream,
            self._streams.commits(head),
            opt_start_seq=after + 1,
        )
        async with reader:
            while True:
                message = await reader.next(idle_timeout=_POLL_EVERY)
                if message is None:
                    # The commit may be purged before it is read here; a checkpoint of head
                    # remembers its outcome.
                    outcome = await self._outcomes.find(query)
                    if outcome.response is not None:
                        return _read(outcome.response)
                    continue
                settled = Commit.decode(message.headers, message.payload).settled
                # A duplicate's commit does not tell what became of the first request with its id.
                if settled is None or settled.outcome is RequestOutcome.DUPLICATE:
                    continue
                if settled.id == query.id:
                    is_applied = settled.outcome is RequestOutcome.APPLIED
                    problem = None if is_applied else settled.message or "refused"
                    return problem, message.stream_sequence

    async def _send(
        self,
        closing: ClosedState,
        head: ChangeSet,
        branch_change_set: ChangeSet,
        query: OutcomeQueryV1,
    ) -> None:
        if closing.difference is None:
            raise HistoryInconsistent("a branch that is being applied has no difference")
        request = EnqueueUpdatesRequestV1(
            id=query.id,
            workspace_id=head.workspace_id,
            change_set_id=head.change_set_id,
            updates_address=closing.difference,
            from_change_set_id=branch_change_set.change_set_id,
        )
        headers, payload = EnqueueUpdatesRequest.encode(request)
        if closing.author is not None:
            headers[AUTHOR] = closing.author
        headers[APPLY_REQUEST] = str(closing.request)
        await publish_request(self._streams, head, headers, payload)

    async def _update_registry(self, closing: ClosedState, problem: str | None = None) -> None:
        """Copy the control record's status to the registry's record, if there is a record.

        With a `problem`, the record says that the change set is open again, and why.
        """

        def updated(record: ChangeSetRecordV1) -> ChangeSetRecordV1:
            status = (
                ChangeSetStatus.OPEN if problem is not None else ChangeSetStatus(closing.status)
            )
            changes: dict[str, object] = {
                "status": status,
                "problem": problem if problem is not None else closing.reason,
            }
            if status not in (ChangeSetStatus.OPEN, ChangeSetStatus.APPLYING, record.status):
                changes["closed_at"] = now()
            if closing.status in (ChangeSetStatus.APPLYING, ChangeSetStatus.APPLIED):
                changes["application"] = ApplyAttempt(
                    request=closing.request,
                    at_head=head_request_id(closing.request),
                    commit=closing.commit,
                )
            return record.model_copy(update=changes)

        with suppress(NoSuchChangeSet):
            await self._registry.update(self._ownership.loader.change_set, updated)


def _read(response: EnqueueUpdatesResponseV3) -> tuple[str | None, int | None]:
    """Return the reason why head refused the difference, or the commit that applied it."""
    status = response.status
    if isinstance(status, ErrorStatus):
        return status.error.message, None
    return None, status.success.commit


_CONFIRM_WITHIN: Final = 5.0
"""Seconds that an ending run waits for the confirmation of a refresh that it has sent."""


class _HeadFollower:
    """Follows head beside the requests of one run; does nothing if the change set is no branch."""

    def __init__(self, streams: Streams, ownership: Ownership, every: float) -> None:
        """Follow head; read its log every `every` seconds if no activity of head comes."""
        self._streams = streams
        self._ownership = ownership
        self._every = every
        self._wakeup = asyncio.Event()
        self._committed = asyncio.Event()
        self._checked_up_to = 0
        """Commit of head's log up to which there is nothing to refresh from."""
        self._own_refreshes: set[int] = set()

    def is_own_refresh(self, sequence: int) -> bool:
        """Whether that request is one of our refreshes, which does not keep the branch awake."""
        return sequence in self._own_refreshes

    def notify(self) -> None:
        self._committed.set()

    async def run(self) -> Never:
        """Request a refresh whenever head is ahead, until cancelled."""
        branch = self._ownership.state.control.branch
        if branch is None:
            await wait_forever()
        change_set = ChangeSet(self._ownership.loader.change_set.workspace_id, branch.head)
        nc = self._streams.js.connection.nc
        # Subscribed before the first look: else a commit of head between the two would stay
        # unnoticed for `every` seconds.
        async with subscribed(nc, self._streams.activities(change_set), self._on_activity):
            while True:
                # Before the look, so that an activity that comes during it brings another look.
                self._wakeup.clear()
                await self._refresh_if_behind()
                with suppress(TimeoutError):
                    async with deadlines.within(self._every):
                        await self._wakeup.wait()

    async def _on_activity(self, message: Msg) -> None:
        with suppress(MessageError):
            activity = Activity.decode(message.headers or {}, message.data)
            if activity.kind is ActivityKind.REQUEST_APPLIED:
                self._wakeup.set()

    async def _refresh_if_behind(self) -> None:
        head = self._ownership.state.control
        if (
            head.closing is None
            and head.branch is not None
            and await self._is_head_ahead(head.branch)
        ):
            await self._refresh()

    async def _is_head_ahead(self, branch: BranchState) -> bool:
        """Whether head's log has a batch for the branch; DVU results and claims do not count."""
        log_of_head = self._ownership.loader.sibling(branch.head).log
        until, _ = await log_of_head.last()
        after = max(branch.cursor or 0, self._checked_up_to)
        try:
            async for _, entry in log_of_head.entries(after, until):
                if entry.settled and entry.settled.updates and entry.settled.covers is None:
                    return True
        except HistoryInconsistent:  # purged past the cursor: there was a batch
            return True
        self._checked_up_to = max(until, self._checked_up_to)
        return False

    async def _refresh(self) -> None:
        change_set = self._ownership.loader.change_set
        request = ChangeSetRequestV1(
            id=RequestId(),
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
            action="refresh",
        )
        headers, payload = ChangeSetRequest.encode(request)
        publishing = asyncio.ensure_future(
            publish_request(self._streams, change_set, headers, payload)
        )
        try:
            sequence = await asyncio.shield(publishing)
        except asyncio.CancelledError:
            # Stored after the run's last look at the queue (W12), the request would have no task.
            with suppress(TimeoutError, ClientError):
                async with deadlines.within(_CONFIRM_WITHIN):
                    await publishing
            raise
        self._own_refreshes = {sequence}
        while self._ownership.state.control.last_sequence < sequence:
            self._committed.clear()
            await self._committed.wait()


class BranchRunner:
    """A `Companion`: follows head, for a branch, and sees a closing through."""

    def __init__(
        self,
        streams: Streams,
        ownership: Ownership,
        outcomes: OutcomeLookup,
        checkpointer: Checkpointer,
        every: float,
    ) -> None:
        """Run the branch; read head's log every `every` seconds if no activity of head comes."""
        self._ownership = ownership
        self._checkpointer = checkpointer
        self._follower = _HeadFollower(streams, ownership, every)
        self._closer = BranchCloser(streams, ownership, outcomes)

    async def start(self) -> None:
        """Start a branch that is not started: write its base into a checkpoint, then commit that.

        After that commit the branch needs no base, so the checkpoint comes first.

        Raises:
            RetryLater: the store did not take the checkpoint; the branch has not begun.
        """
        ownership, content = self._ownership, content_of(self._ownership.state)
        origin = content.origin
        if origin is None or not content.is_unstarted_branch(ownership.state.control):
            return
        ownership.state.code = ownership.state.code or origin.code
        if origin.lost is None:
            await self._checkpointer.require()
        async with ownership.lock:
            branch = require(ownership.state.control.branch, "a base")
            started = branch.model_copy(update={"cursor": origin.cursor})
            if origin.lost is not None:
                reason = f"its base cannot be had any more: {origin.lost}"
                lost = ClosedState(
                    status=ChangeSetStatus.ABANDONED,
                    request=RequestId(),
                    reason=reason[:REASON_LENGTH],
                )
                await ownership.write(branch=started, closing=lost)
            else:  # the base's roots are the branch's roots, too
                dirty = max(content.graph.roots.values(), default=0)
                await ownership.write(branch=started, dirty_sequence=dirty)

    async def run(self) -> Never:
        """Follow head and finish closings until cancelled."""
        async with background(self._closer.run()):
            await self._follower.run()
        raise AssertionError("it follows until it is cancelled")

    def on_commit(self, committed: CommittedEntry) -> None:
        del committed
        self._follower.notify()
        self._closer.notify()

    def is_own(self, request: SettledRequest) -> bool:
        """Whether it is a refresh that the branch requested."""
        return self._follower.is_own_refresh(request.sequence)

    @property
    def patience(self) -> float:
        """Seconds that the run waits for head to apply the branch before it looks again."""
        return _HEAD_PATIENCE

    @property
    def busy(self) -> bool:
        """Whether the branch is being applied to head, or the registry is not updated yet."""
        return self._closer.busy

    @property
    def awaits_another(self) -> bool:
        """Whether head has to handle the branch's difference next."""
        return self._closer.awaits_head

    @property
    def must_yield(self) -> bool:
        """Whether the branch has waited so long for head that it may be blocking head's slot."""
        return self._closer.gave_up_on_head
