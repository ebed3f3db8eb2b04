"""A branch brought to its end: its difference to head, its closing to the registry."""

import asyncio
from contextlib import suppress
from typing import Final, Never

import structlog

from rebaser_client.errors import NoSuchChangeSet
from rebaser_client.registry import Registry
from rebaser_client.request_publisher import ensure_task, publish_request
from rebaser_core.commits import BranchState, ClosedState, Commit, RequestOutcome
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, OrderedPushConsumer
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesRequestV1, ErrorStatus
from rebaser_core.outcome_query import OutcomeQueryV1, RequestState
from rebaser_core.registry_records import ApplyAttempt, ChangeSetRecordV1, ChangeSetStatus, now
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import AUTHOR
from rebaser_server.processor.change_set_commands import at_head, at_rest
from rebaser_server.processor.outcome_lookup import Outcomes
from rebaser_server.processor.ownership import Ownership

log: Final = structlog.get_logger()

ASK_EVERY: Final = 10.0
"""Seconds without a word in head's log after which the outcome is asked for."""

PATIENCE: Final = 30.0
"""Seconds that a branch keeps its slot while head does nothing about what it brings. Head's task
may be one that waits for a slot to be delivered again, and of those nobody knows how many."""


class Closer:
    """Beside the requests of one run. What it does it may do again: each step is idempotent."""

    def __init__(
        self, js: JetStream, subjects: Subjects, own: Ownership, outcomes: Outcomes
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._own = own
        self._outcomes = outcomes
        self._registry = Registry(js, subjects)
        self._asked = asyncio.Event()
        self._told: str | None = None
        self._clock = asyncio.get_running_loop().time
        self._waiting_since: float | None = None

    @property
    def in_vain(self) -> bool:
        """Whether it waits for head, and has for so long that head may wait for the slot."""
        since = self._waiting_since
        return since is not None and self._clock() - since >= PATIENCE

    @property
    def busy(self) -> bool:
        """Whether there is something that must not be left to chance: the run has to go on."""
        closing = self._own.state.head.closing
        return closing is not None and self._told != closing.standing

    def ask(self) -> None:
        """Have the head looked at: something was committed."""
        if self.busy:
            self._asked.set()

    async def run(self) -> Never:
        """Finish what the head says is closing, until cancelled."""
        while True:
            closing = self._own.state.head.closing
            if closing is not None and self.busy:
                await self._go_on(closing)
                continue
            await self._asked.wait()
            self._asked.clear()

    async def _go_on(self, closing: ClosedState) -> None:
        await self._tell(closing)
        if closing.standing == ChangeSetStatus.APPLYING:
            await self._deliver(closing)
        else:
            self._told = closing.standing

    async def _deliver(self, closing: ClosedState) -> None:
        """Have the difference handled by head, once; then the branch is applied, or open again."""
        own, branch = self._own, self._own.state.head.branch
        assert branch is not None  # noqa: S101 - only a branch is applied
        self._waiting_since = self._clock()
        problem, commit = await self._handled(closing, branch)
        self._waiting_since = None
        if problem is not None:  # first the registry: until the line is there, this is repeated
            log.warning("branch not applied", reason=problem)
            await self._tell(closing, problem)
        async with own.lock:
            if problem is None:
                done = closing.model_copy(
                    update={
                        "standing": ChangeSetStatus.APPLIED,
                        "difference": None,
                        "commit": commit,
                    }
                )
                await own.write(closing=done, **at_rest(own.state))
            else:
                await own.write(closing=None)

    async def _handled(
        self, closing: ClosedState, branch: BranchState
    ) -> tuple[str | None, int | None]:
        """What became of it at head: why not, or the line that says it."""
        where = self._own.archive.change_set
        head = ChangeSet(where.workspace_id, branch.head)
        query = OutcomeQueryV1(
            id=at_head(closing.request), workspace_id=head.workspace_id, change_set_id=branch.head
        )
        known = await self._outcomes.of(query)
        if known.state is RequestState.UNKNOWN:
            await self._send(closing, head, where, query)
        elif known.response is None:  # whoever sent it may have ended before there was a task (C3)
            await ensure_task(self._js, self._subjects, head)
        reader = OrderedPushConsumer(
            self._js,
            self._subjects.commits_stream,
            self._subjects.commits(head),
            start_sequence=(branch.cursor or 0) + 1,
        )
        async with reader:
            while known.response is None:
                line = await reader.next(idle_timeout=ASK_EVERY)
                if line is None:
                    known = await self._outcomes.of(query)
                    continue
                handled = Commit.decode(line.headers, line.payload).handled
                if handled is not None and handled.id == query.id:
                    good = handled.outcome is RequestOutcome.APPLIED
                    return (None if good else handled.message or "refused"), line.stream_sequence
        status = known.response.status
        if isinstance(status, ErrorStatus):
            return status.error.message, None
        return None, status.success.commit

    async def _send(
        self, closing: ClosedState, head: ChangeSet, where: ChangeSet, query: OutcomeQueryV1
    ) -> None:
        assert closing.difference is not None  # noqa: S101 - while it is being applied
        request = EnqueueUpdatesRequestV1(
            id=query.id,
            workspace_id=head.workspace_id,
            change_set_id=head.change_set_id,
            updates_address=closing.difference,
            from_change_set_id=where.change_set_id,
        )
        headers, payload = EnqueueUpdatesRequest.encode(request)
        if closing.author is not None:
            headers[AUTHOR] = closing.author
        await publish_request(self._js, self._subjects, head, headers, payload)

    async def _tell(self, closing: ClosedState, problem: str | None = None) -> None:
        """Have the registry say what the head says; a change set without a record needs none.

        With a `problem` that it is open again, and why.
        """

        def as_it_is(record: ChangeSetRecordV1) -> ChangeSetRecordV1:
            standing = (
                ChangeSetStatus.OPEN if problem is not None else ChangeSetStatus(closing.standing)
            )
            changes: dict[str, object] = {
                "standing": standing,
                "problem": problem if problem is not None else closing.reason,
            }
            if standing not in (ChangeSetStatus.OPEN, ChangeSetStatus.APPLYING, record.standing):
                changes["closed_at"] = now()
            if closing.standing in (ChangeSetStatus.APPLYING, ChangeSetStatus.APPLIED):
                changes["application"] = ApplyAttempt(
                    request=closing.request,
                    at_head=at_head(closing.request),
                    commit=closing.commit,
                )
            return record.model_copy(update=changes)

        with suppress(NoSuchChangeSet):
            await self._registry.update(self._own.archive.change_set, as_it_is)
