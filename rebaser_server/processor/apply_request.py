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
from rebaser_core.records.registry_records import ChangeSetRequest, ChangeSetRequestV2
from rebaser_core.versioning import AUTHOR, MESSAGE_TYPE
from rebaser_server.commit_log.batch_store import OversizedBatch
from rebaser_server.commit_log.content import SMALL_BATCH, Batch
from rebaser_server.commit_log.state import State
from rebaser_server.processor.application import Changes
from rebaser_server.processor.change_set_commands import closed_reason, execute
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.rejection import reject
from rebaser_server.processor.replies import CommittedRequest, lookup_result


class Unprocessable(RebaserError):
    """The request can never take effect."""


async def apply_request(run: RunContext, request: Delivery) -> CommittedRequest:
    """Stage or commit `request`, whatever its outcome; the caller holds the ownership's lock.

    A staged one is committed with the next `ownership.flush`, and has no commit before.

    Raises:
        MalformedMessage, UnsupportedMessage, MissingBatch, Unprocessable: nothing was
            staged, and the content is as before.
        Fenced: another run owns the change set; the state is worthless.
        AppendRefused: a commit was refused, this one or one staged before.
        Exception: the content may hold half a batch; the state is worthless.
    """
    ownership, sequence = run.ownership, request.stream_sequence
    loader = ownership.loader
    message = _read(request)
    addressed = ChangeSet(message.workspace_id, message.change_set_id)
    if addressed != loader.change_set:
        raise Unprocessable(f"published for {loader.change_set}, but is for {addressed}")
    alone = not _is_batchable(message) or ownership.has_staged(message.id)
    if alone:
        await ownership.flush()
    if message.id in ownership.state.recent:
        return await answer_duplicate(ownership, request, message.id)
    if isinstance(message, ChangeSetRequestV2):
        handled, changes = await execute(run, message, sequence)
        stage_request(ownership, request, handled, **changes)
        await ownership.flush()
        return CommittedRequest(handled, ownership.state.commit)
    handled, changes = await _apply_batch(run, message, request)
    stage_request(ownership, request, handled, **changes)
    if not alone:
        return CommittedRequest(handled)
    await ownership.flush()
    sent = message.updates_address
    if handled.updates != sent:  # no commit refers to it
        with suppress(JetStreamError, OSError):
            await loader.batches.delete(sent)
    return CommittedRequest(handled, ownership.state.commit)


async def answer_duplicate(
    ownership: Ownership, request: Delivery, request_id: RequestId
) -> CommittedRequest:
    """Settle a request whose id was settled before: the answer is the same, nothing is applied.

    The request was stored twice, because the server had forgotten its id.
    """
    handled = SettledRequest(
        id=request_id, sequence=request.stream_sequence, outcome=RequestOutcome.DUPLICATE
    )
    stage_request(ownership, request, handled)
    await ownership.flush()
    return await lookup_result(ownership, request_id) or CommittedRequest(
        handled, ownership.state.commit
    )


def stage_request(
    ownership: Ownership, request: Delivery, handled: SettledRequest, **changes: Any
) -> None:
    """Stage the commit that settles a request."""
    author = request.headers.get(AUTHOR)
    if author:
        author = author[:AUTHOR_LENGTH].encode(errors="replace").decode()
        handled = handled.model_copy(update={"author": author})
    ownership.stage(
        handled,
        stored=request.stored,
        last_sequence=handled.sequence,
        attempts=None,
        **changes,
    )


def _is_batchable(message: EnqueueUpdatesRequestV1 | ChangeSetRequestV2) -> bool:
    """Whether the request is small and needs no batch to be fetched or deleted.

    Such requests may be committed together.
    """
    if isinstance(message, ChangeSetRequestV2):
        return False
    address = message.updates_address
    return (
        isinstance(address, Inline)
        and address.inline.computed is None
        and len(address.inline.updates) < SMALL_BATCH
    )


def _read(request: Delivery) -> EnqueueUpdatesRequestV1 | ChangeSetRequestV2:
    if request.headers.get(MESSAGE_TYPE) == ChangeSetRequest.name:
        return ChangeSetRequest.decode(request.headers, request.payload)
    return EnqueueUpdatesRequest.decode(request.headers, request.payload)


def _rejection(state: State, batch: Batch, limits: BatchLimits) -> str | None:
    """Return why a client's batch is rejected, or None."""
    if state.control.closing is not None:
        return closed_reason(state.control.closing)
    return limits.violation(batch.updates, len(batch.updates))


async def _apply_batch(
    run: RunContext, message: EnqueueUpdatesRequestV1, request: Delivery
) -> tuple[SettledRequest, Changes]:
    """Apply the batch; return the settled request and the new control fields."""
    batches, state, sequence = run.services.batches, run.ownership.state, request.stream_sequence
    changes: Changes = {}
    try:
        batch = await batches.fetch(message.updates_address, message.id, from_client=True)
    except OversizedBatch as error:
        handled = SettledRequest(id=message.id, sequence=sequence, outcome=RequestOutcome.REFUSED)
        return reject(handled, f"the batch is too large: {error}"), {}
    if batch.computed is not None:  # D5: of an older Rebaser, whose update is due, or forged
        return SettledRequest(id=message.id, sequence=sequence, outcome=RequestOutcome.STALE), {}
    if batch.head_side is not None:
        raise Unprocessable("only a branch's own log says what head has under it")
    if batch.results is not None:
        raise Unprocessable("only an update's own result lies in files")
    rejection = _rejection(state, batch, run.services.settings.batch_limits)
    if rejection is not None:
        handled = SettledRequest(id=message.id, sequence=sequence, outcome=RequestOutcome.REFUSED)
        return reject(handled, rejection), {}
    applied = await state.content.apply(sequence, batch)
    address = message.updates_address
    inline = isinstance(address, Inline) and len(request.payload) > INLINE_BYTES
    if inline or applied.corrections:  # a commit has room for small ones alone
        address = await batches.put(message.id, applied.updates)
    else:
        address = await batches.adopt(address, batch)
    if applied.dirty:
        changes = {"dirty_sequence": sequence}
    handled = SettledRequest(
        id=message.id,
        sequence=sequence,
        outcome=RequestOutcome.APPLIED,
        updates=address,
        corrections=await batches.put_corrections(message.id, applied.corrections),
    )
    return handled, changes
