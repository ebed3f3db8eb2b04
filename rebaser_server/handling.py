"""Handle one request: negotiate, rebase, commit, delete, reply (W4 to W9, L1, L2)."""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import Attempts, Handled, Outcome
from rebaser_core.errors import MessageError, NewerVersion
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery, JetStream, JetStreamError
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    EnqueueUpdatesResponseV2,
    ErrorStatus,
    Failure,
    Inline,
    SuccessStatusV2,
    SuccessV2,
    Updates,
    UpdatesAddress,
)
from rebaser_core.subjects import Subjects
from rebaser_core.versioned import MESSAGE_ID, REPLY_INBOX
from rebaser_server.announcing import Announcer
from rebaser_server.dead_letters import bury
from rebaser_server.errors import RetryLater, WorkEnded
from rebaser_server.ownership import Ownership
from rebaser_server.rebase import rebase
from rebaser_server.requests import RequestQueue

log: Final = structlog.get_logger()

IN_THREAD: Final = 200
"""Updates from which a rebase leaves the event loop, lest it hold up progress and others."""
NEWER_DELAY: Final = 30.0  # seconds until a request of a newer version is offered again
LONGEST_DELAY: Final = 30.0  # seconds between two attempts
CRASHES: Final = 2
"""Times `attempts` that runs may die before the request they died at is buried untried: a
process is more often killed for other reasons than an attempt fails for them."""


class Unprocessable(Exception):
    """The request can never take effect."""


@dataclass(frozen=True, slots=True)
class Handler:
    """What it takes to handle the requests of one change set, in one run."""

    js: JetStream
    subjects: Subjects
    change_set: ChangeSet
    own: Ownership
    queue: RequestQueue
    announcer: Announcer
    attempts: int

    async def handle(self, request: Delivery) -> None:
        """Have `request` applied, or answered, or buried: in any case committed and deleted.

        Raises:
            RetryLater: it could not be handled now and is still first in line.
            Overtaken: the change set has another owner; nothing was done.
        """
        sequence = request.stream_sequence
        handled: Handled | None
        async with self.own.lock:
            if sequence > self.own.state.head.last_sequence:
                handled = await self._decide(request)
            else:
                handled = await self._known(request)
            commit = self.own.state.commit
        await self.queue.delete(sequence)
        if handled is not None:
            await self._answer(request, handled, commit)

    async def suspect(self, former: str) -> None:
        """Count an attempt at the first request in line, at which `former` may have died (L1).

        So a request that ends its process is buried in the end, too.
        """
        head = self.own.state.head
        first = await self.queue.first(after=head.last_sequence)
        if first is not None:
            before = head.attempts
            count = 1 + (before.count if before and before.sequence == first else 0)
            async with self.own.lock:
                await self.own.write(attempts=Attempts(sequence=first, count=count))
            log.warning("owner did not release", former=former, attempts=count, sequence=first)

    async def _decide(self, request: Delivery) -> Handled:
        before = self.own.state.head.attempts
        if (
            before is not None
            and before.sequence == request.stream_sequence
            and before.count >= CRASHES * self.attempts
        ):
            return await self._bury(request, "whoever tried it died", before.count)
        try:
            return await self._apply(request)
        except NewerVersion as error:
            raise RetryLater(f"left for a newer server: {error}", NEWER_DELAY) from error
        except WorkEnded:
            raise
        except JetStreamError as error:
            raise RetryLater(f"NATS: {error}", 1.0) from error
        except (MessageError, Unprocessable) as error:
            return await self._bury(request, f"{type(error).__name__}: {error}", 1)
        except Exception as error:
            log.exception("request failed", sequence=request.stream_sequence)
            return await self._failed(request, f"{type(error).__name__}: {error}")

    async def _apply(self, request: Delivery) -> Handled:
        message = EnqueueUpdatesRequest.decode(request.headers, request.payload)
        if (message.workspace_id, message.change_set_id) != self.change_set:
            raise Unprocessable(
                f"published for {self.change_set}, "
                f"but is for {message.workspace_id}.{message.change_set_id}"
            )
        sequence = request.stream_sequence
        if message.id in self.own.state.recent:  # stored twice: its id was forgotten by the server
            handled = Handled(id=message.id, sequence=sequence, outcome=Outcome.DUPLICATE)
            await self._commit(handled)
            return await self._remembered(message.id) or handled
        handled, changes = await self._rebased(message, sequence)
        await self._commit(handled, **changes)
        if handled.updates is None or handled.corrections:  # nothing refers to it any more
            with suppress(JetStreamError, OSError):
                await self.own.archive.batches.discard(message.updates_address)
        return handled

    async def _rebased(
        self, message: EnqueueUpdatesRequestV1, sequence: int
    ) -> tuple[Handled, dict[str, Any]]:
        """Rebase the batch; the record of it, and what it changes in the head."""
        batches, state = self.own.archive.batches, self.own.state
        batch = await batches.fetch(message.updates_address)
        covers: int | None = None
        changes: dict[str, Any] = {}
        if batch.computed is not None:
            claim = state.head.claim
            if claim is None or claim.id != batch.computed.claim:
                return Handled(id=message.id, sequence=sequence, outcome=Outcome.STALE), {}
            covers = batch.computed.covers
            changes = {"claim": None, "clean_sequence": covers, "dvu_failures": 0}
        if len(batch.updates) < IN_THREAD:
            done = rebase(state.graph, sequence, batch.updates, covers)
        else:
            done = await asyncio.to_thread(rebase, state.graph, sequence, batch.updates, covers)
        address = message.updates_address
        if done.corrections:
            address = await batches.place(message.id, done.updates)
        if done.dirty:
            changes = {"dirty_sequence": sequence}
        handled = Handled(
            id=message.id,
            sequence=sequence,
            outcome=Outcome.APPLIED,
            updates=address,
            corrections=tuple(done.corrections),
            covers=covers,
        )
        return handled, changes

    async def _commit(self, handled: Handled, **changes: Any) -> None:
        await self.own.write(handled, last_sequence=handled.sequence, attempts=None, **changes)

    async def _failed(self, request: Delivery, reason: str) -> Handled:
        """Count an attempt that a repetition might mend; bury the request after too many (L1).

        The graph may hold half a batch, so the run ends in any case.
        """
        sequence, before = request.stream_sequence, self.own.state.head.attempts
        count = 1 + (before.count if before and before.sequence == sequence else 0)
        if count < self.attempts:
            await self.own.write(attempts=Attempts(sequence=sequence, count=count))
            delay = min(2.0 ** (count - 1), LONGEST_DELAY)
            raise RetryLater(reason, delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        await self._bury(request, reason, count)
        raise RetryLater(reason, 0)

    async def _bury(self, request: Delivery, reason: str, attempts: int) -> Handled:
        try:
            await bury(
                self.js, self.subjects, self.change_set, request, reason=reason, attempts=attempts
            )
        except JetStreamError as error:
            raise RetryLater(f"dead letter not stored: {error}", 1.0) from error
        handled = Handled(
            id=_id_of(request),
            sequence=request.stream_sequence,
            outcome=Outcome.DEAD,
            message=reason[:1000],
        )
        await self._commit(handled)
        log.error("request is dead", request=str(handled.id), reason=reason, attempts=attempts)
        return handled

    async def _known(self, request: Delivery) -> Handled | None:
        """A request at or below the last committed one: it was handled, and is never again (W5)."""
        return await self._remembered(_id_of(request))

    async def _remembered(self, request_id: RequestId) -> Handled | None:
        known = self.own.state.recent.get(request_id)
        if known is None:
            return None
        line = await self.own.archive.log.line(known.commit)
        if line is not None and line.handled is not None:
            return line.handled
        return Handled(
            id=request_id,
            sequence=0,
            outcome=known.outcome,
            updates=Inline(inline=Updates(updates=[])),
            message="it went to the dead letters",
        )

    async def _answer(self, request: Delivery, handled: Handled, commit: int) -> None:
        dead = handled.outcome is Outcome.DEAD
        kind = ActivityKind.REQUEST_DEAD if dead else ActivityKind.REQUEST_APPLIED
        await self.announcer.activity(
            self.change_set,
            kind,
            handled.id,
            commit=commit,
            outcome=handled.outcome.value,
            corrections=len(handled.corrections),
        )
        inbox = request.headers.get(REPLY_INBOX)
        if inbox:
            await self.announcer.reply(inbox, self._response(handled, commit))

    def _response(self, handled: Handled, commit: int) -> EnqueueUpdatesResponseV2:
        status: SuccessStatusV2 | ErrorStatus
        if handled.outcome is Outcome.DEAD:
            status = ErrorStatus(error=Failure(message=handled.message or "dead"))
        else:
            nothing: UpdatesAddress = Inline(inline=Updates(updates=[]))
            status = SuccessStatusV2(
                success=SuccessV2(
                    updates_performed=handled.updates or nothing,
                    commit=commit,
                    corrections=handled.corrections,
                )
            )
        return EnqueueUpdatesResponseV2(
            id=handled.id,
            workspace_id=self.change_set.workspace_id,
            change_set_id=self.change_set.change_set_id,
            status=status,
        )


def _id_of(request: Delivery) -> RequestId:
    """The id that the headers announce; of a request that has none, one made of its sequence."""
    try:
        return RequestId.from_str(request.headers.get(MESSAGE_ID, ""))
    except ValueError:
        return RequestId.from_int(request.stream_sequence)
