"""Apply one request to the owned state: negotiate, fetch its batch, rebase, commit (W7, D5)."""

import asyncio
from contextlib import suppress
from typing import Any, Final

from rebaser_core.commits import Handled, Outcome
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesRequestV1
from rebaser_server.ownership import Ownership
from rebaser_server.rebase import rebase
from rebaser_server.responses import Settled, settled

IN_THREAD: Final = 200
"""Updates from which a rebase leaves the event loop, lest it hold up progress and others."""


class Unprocessable(RebaserError):
    """The request can never take effect."""


async def apply(own: Ownership, request: Delivery) -> Settled:
    """Have `request` committed, whatever its outcome; the caller holds `own.lock`.

    Raises:
        MalformedMessage, UnsupportedMessage, MissingBatch, Unprocessable: nothing was
            committed, and the graph is as before.
        Overtaken: another run owns the change set; the state is worthless.
        Exception: the graph may hold half a batch; the state is worthless.
    """
    archive, sequence = own.archive, request.stream_sequence
    message = EnqueueUpdatesRequest.decode(request.headers, request.payload)
    meant = ChangeSet(message.workspace_id, message.change_set_id)
    if meant != archive.change_set:
        raise Unprocessable(f"published for {archive.change_set}, but is for {meant}")
    if message.id in own.state.recent:  # stored twice: the server had forgotten its id
        handled = Handled(id=message.id, sequence=sequence, outcome=Outcome.DUPLICATE)
        await commit(own, handled)
        return await settled(own, message.id) or Settled(handled, own.state.commit)
    handled, changes = await _rebased(own, message, sequence)
    await commit(own, handled, **changes)
    if handled.updates is None or handled.corrections:  # no line refers to what was sent
        with suppress(JetStreamError, OSError):
            await archive.batches.discard(message.updates_address)
    return Settled(handled, own.state.commit)


async def commit(own: Ownership, handled: Handled, **changes: Any) -> None:
    """Write the line that settles a request."""
    await own.write(handled, last_sequence=handled.sequence, attempts=None, **changes)


async def _rebased(
    own: Ownership, message: EnqueueUpdatesRequestV1, sequence: int
) -> tuple[Handled, dict[str, Any]]:
    """Rebase the batch; the record of it, and what it changes in the head."""
    batches, state = own.archive.batches, own.state
    batch = await batches.fetch(message.updates_address, message.id)
    covers: int | None = None
    changes: dict[str, Any] = {}
    if batch.computed is not None:
        claim = state.head.claim
        if claim is None or claim.id != batch.computed.claim:
            return Handled(id=message.id, sequence=sequence, outcome=Outcome.STALE), {}
        covers = claim.covers
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
