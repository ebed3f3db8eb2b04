"""Batches of updates, as requests bring them: read, judge and rebase one (W7)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from rebaser_core.commits import RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import EnqueueUpdatesRequestV1, Inline, UpdatesAddress
from rebaser_core.requests import INLINE_BYTES
from rebaser_core.updates import BatchLimits
from rebaser_server.commit_log.batch_store import OversizedBatch
from rebaser_server.commit_log.state import SMALL_BATCH, Batch, State
from rebaser_server.graph_application.commands import admit_difference
from rebaser_server.processor.application import Applied, Unprocessable
from rebaser_server.processor.dead_letters import closed_reason, reject
from rebaser_server.processor.ownership import Ownership

Adopt = Callable[[ChangeSet, Batch], Awaitable[str | None]]
"""Function that takes into the store what a client's batch refers to, before it is applied. It
returns the reason to refuse the batch, or None, and is idempotent."""


def is_batchable(message: EnqueueUpdatesRequestV1) -> bool:
    """Whether the request is small, and needs no batch or other change set to be looked at."""
    address = message.updates_address
    return (
        isinstance(address, Inline)
        and message.from_change_set_id is None
        and address.inline.computed is None
        and len(address.inline.updates) < SMALL_BATCH
    )


@dataclass(frozen=True, slots=True)
class BatchApplier:
    limits: BatchLimits
    adopt: Adopt

    async def apply(
        self, ownership: Ownership, request: Delivery, message: EnqueueUpdatesRequestV1
    ) -> Applied:
        end = partial(SettledRequest, id=message.id, sequence=request.stream_sequence)
        if message.from_change_set_id is not None:
            admission = await admit_difference(ownership, request, message)
            # Of these, an earlier commit may refer to the batch, so it stays.
            if not isinstance(admission, RequestOutcome):
                return Applied(reject(end(outcome=RequestOutcome.REFUSED), admission))
            if admission is not RequestOutcome.APPLIED:
                return Applied(end(outcome=admission))
        batches = ownership.loader.batches
        unused: UpdatesAddress | None = message.updates_address
        batch = await self._read(ownership, message)
        if batch is None:
            return Applied(end(outcome=RequestOutcome.STALE), unused=unused)
        if not isinstance(batch, Batch):
            return Applied(reject(end(outcome=RequestOutcome.REFUSED), batch), unused=unused)
        applied = await ownership.state.content.apply(request.stream_sequence, batch)
        # S-7: the batch is in the store before the commit that names it is written. Else a power
        # cut could leave a commit without its batch.
        address = message.updates_address
        inline = isinstance(address, Inline) and len(request.payload) > INLINE_BYTES
        as_sent = not applied.corrections and len(applied.updates) == len(batch.updates)
        if inline or not as_sent:  # a commit has room for small ones alone
            address = await batches.put(message.id, applied.updates)
        else:
            address = await batches.adopt(address, batch)
        settled = end(
            outcome=RequestOutcome.APPLIED,
            updates=address,
            corrections=await batches.put_corrections(message.id, applied.corrections),
        )
        return Applied(
            settled,
            is_edit=True,
            is_dirty=applied.dirty,
            unused=None if settled.updates is unused else unused,
        )

    async def _read(
        self, ownership: Ownership, message: EnqueueUpdatesRequestV1
    ) -> Batch | str | None:
        """Return the batch; or the reason to refuse it; or None: requests may not bring results."""
        try:
            batch = await ownership.loader.batches.fetch(
                message.updates_address, message.id, from_client=True
            )
        except OversizedBatch as error:
            return f"the batch is too large: {error}"
        if batch.computed is not None:  # D5: of an older Rebaser, whose update is due, or forged
            return None
        if batch.head_side is not None:
            raise Unprocessable("only a branch's own log says what head has under it")
        if batch.results is not None:
            raise Unprocessable("only an update's own result lies in files")
        rejection = batch_rejection(ownership.state, batch, self.limits)
        if rejection is None:
            rejection = await self.adopt(ownership.loader.change_set, batch)
        return rejection or batch


def batch_rejection(state: State, batch: Batch, limits: BatchLimits) -> str | None:
    """Return the reason to reject a client's batch; None if there is none."""
    return closed_reason(state) or limits.violation(batch.updates, len(batch.updates))
