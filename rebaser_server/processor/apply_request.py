"""Apply one request to the owned state: negotiate, fetch its batch, rebase, commit (W7)."""

from contextlib import suppress
from typing import Any

from rebaser_client.batches import INLINE_BYTES
from rebaser_core.batch_limits import BatchLimits
from rebaser_core.commits import AUTHOR_LENGTH, RequestOutcome, SettledRequest
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
)
from rebaser_core.registry_records import ChangeSetRequest, ChangeSetRequestV2
from rebaser_core.versioning import AUTHOR, MESSAGE_TYPE
from rebaser_server.commit_log.apply_batch import IN_THREAD, performed
from rebaser_server.commit_log.batch_store import Batch, OversizedBatch
from rebaser_server.commit_log.state import State
from rebaser_server.processor.change_set_commands import change, closed
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.rejection import refused
from rebaser_server.processor.replies import Settled, settled


class Unprocessable(RebaserError):
    """The request can never take effect."""


async def apply(own: Ownership, request: Delivery, limits: BatchLimits) -> Settled:
    """Have `request` staged or committed, whatever its outcome; the caller holds `own.lock`.

    A staged one is committed with the next `own.flush`, and has no commit before.

    Raises:
        MalformedMessage, UnsupportedMessage, MissingBatch, Unprocessable: nothing was
            staged, and the graph is as before.
        Overtaken: another run owns the change set; the state is worthless.
        Unwritten: a line was refused, this one's or one staged before.
        Exception: the graph may hold half a batch; the state is worthless.
    """
    archive, sequence = own.archive, request.stream_sequence
    message = _read(request)
    meant = ChangeSet(message.workspace_id, message.change_set_id)
    if meant != archive.change_set:
        raise Unprocessable(f"published for {archive.change_set}, but is for {meant}")
    alone = not _is_ordinary(message) or own.has_staged(message.id)
    if alone:
        await own.flush()
    if message.id in own.state.recent:
        return await repeated(own, request, message.id)
    if isinstance(message, ChangeSetRequestV2):
        handled, changes = await change(own, message, sequence)
        stage(own, request, handled, **changes)
        await own.flush()
        return Settled(handled, own.state.commit)
    handled, changes = await _rebased(own, message, request, limits)
    stage(own, request, handled, **changes)
    if not alone:
        return Settled(handled)
    await own.flush()
    sent = message.updates_address
    if handled.updates != sent:  # no line refers to it
        with suppress(JetStreamError, OSError):
            await archive.batches.discard(sent)
    return Settled(handled, own.state.commit)


async def repeated(own: Ownership, request: Delivery, request_id: RequestId) -> Settled:
    """Have a request of an id that was handled answered as then, and do no more.

    It was stored twice, because the server had forgotten its id.
    """
    handled = SettledRequest(
        id=request_id, sequence=request.stream_sequence, outcome=RequestOutcome.DUPLICATE
    )
    stage(own, request, handled)
    await own.flush()
    return await settled(own, request_id) or Settled(handled, own.state.commit)


def stage(own: Ownership, request: Delivery, handled: SettledRequest, **changes: Any) -> None:
    """Stage the line that settles a request."""
    author = request.headers.get(AUTHOR)
    if author:
        said = author[:AUTHOR_LENGTH].encode(errors="replace").decode()
        handled = handled.model_copy(update={"author": said})
    own.stage(handled, last_sequence=handled.sequence, attempts=None, **changes)


def _is_ordinary(message: EnqueueUpdatesRequestV1 | ChangeSetRequestV2) -> bool:
    """Whether nothing has to be fetched or thrown away, and it is small.

    Such requests may be committed together.
    """
    if isinstance(message, ChangeSetRequestV2):
        return False
    address = message.updates_address
    return (
        isinstance(address, Inline)
        and address.inline.computed is None
        and len(address.inline.updates) < IN_THREAD
    )


def _read(request: Delivery) -> EnqueueUpdatesRequestV1 | ChangeSetRequestV2:
    if request.headers.get(MESSAGE_TYPE) == ChangeSetRequest.name:
        return ChangeSetRequest.decode(request.headers, request.payload)
    return EnqueueUpdatesRequest.decode(request.headers, request.payload)


def _objection(state: State, batch: Batch, limits: BatchLimits) -> str | None:
    """Why a client's batch is refused; None if it is not."""
    if state.head.closing is not None:
        return closed(state.head.closing)
    return limits.violation(batch.updates, len(batch.updates))


async def _rebased(
    own: Ownership, message: EnqueueUpdatesRequestV1, request: Delivery, limits: BatchLimits
) -> tuple[SettledRequest, dict[str, Any]]:
    """Rebase the batch; the record of it, and what it changes in the head."""
    batches, state, sequence = own.archive.batches, own.state, request.stream_sequence
    changes: dict[str, Any] = {}
    try:
        batch = await batches.fetch(message.updates_address, message.id, from_client=True)
    except OversizedBatch as error:
        handled = SettledRequest(id=message.id, sequence=sequence, outcome=RequestOutcome.REFUSED)
        return refused(handled, f"the batch is too large: {error}"), {}
    if batch.computed is not None:  # D5: of an older Rebaser, whose update is due, or forged
        return SettledRequest(id=message.id, sequence=sequence, outcome=RequestOutcome.STALE), {}
    if batch.under is not None:
        raise Unprocessable("only a branch's own log says what head has under it")
    if batch.names:
        raise Unprocessable("only an update's own result lies in files")
    why_not = _objection(state, batch, limits)
    if why_not is not None:
        handled = SettledRequest(id=message.id, sequence=sequence, outcome=RequestOutcome.REFUSED)
        return refused(handled, why_not), {}
    done = await performed(state, sequence, batch)
    address = message.updates_address
    inline = isinstance(address, Inline) and len(request.payload) > INLINE_BYTES
    if inline or done.corrections:  # a line has room for small ones alone
        address = await batches.place(message.id, done.updates)
    else:
        address = await batches.adopt(address, batch)
    if done.dirty:
        changes = {"dirty_sequence": sequence}
    handled = SettledRequest(
        id=message.id,
        sequence=sequence,
        outcome=RequestOutcome.APPLIED,
        updates=address,
        corrections=await batches.place_corrections(message.id, done.corrections),
    )
    return handled, changes
