"""Apply one request to the owned state: negotiate, fetch its batch, rebase, stage (W7)."""

from typing import Any

from rebaser_client.requests import INLINE_BYTES, request_digest
from rebaser_core.commits import AUTHOR_LENGTH, RequestOutcome, SettledRequest
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    UpdatesAddress,
)
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV2
from rebaser_core.versioning import AUTHOR, MESSAGE_TYPE, header
from rebaser_server.commit_log.batch_store import OversizedBatch
from rebaser_server.commit_log.state import SMALL_BATCH
from rebaser_server.processor.application import Changes
from rebaser_server.processor.change_set_commands import execute
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.ownership.ownership import Ownership
from rebaser_server.processor.rejection import batch_rejection, is_other_request, reject, used_id


class Unprocessable(RebaserError):
    """The request can never take effect."""


ClientRequest = EnqueueUpdatesRequestV1 | ChangeSetRequestV2


def read_request(change_set: ChangeSet, request: Delivery) -> ClientRequest:
    """Read a request to that change set.

    Raises:
        MalformedMessage, UnsupportedMessage, Unprocessable: it can never take effect.
        NewerVersion: this build cannot read it.
    """
    message: ClientRequest
    if header(request.headers, MESSAGE_TYPE) == ChangeSetRequest.name:
        message = ChangeSetRequest.decode(request.headers, request.payload)
    else:
        message = EnqueueUpdatesRequest.decode(request.headers, request.payload)
    addressed = ChangeSet(message.workspace_id, message.change_set_id)
    if addressed != change_set:
        raise Unprocessable(f"published for {change_set}, but is for {addressed}")
    return message


def is_batchable(message: ClientRequest) -> bool:
    """Whether the request is small, and needs no batch or other change set to be looked at.

    Such requests may be committed together.
    """
    if isinstance(message, ChangeSetRequestV2):
        return False
    address = message.updates_address
    return (
        isinstance(address, Inline)
        and message.from_change_set_id is None
        and address.inline.computed is None
        and len(address.inline.updates) < SMALL_BATCH
    )


async def apply_request(
    run: RunContext, request: Delivery, message: ClientRequest
) -> UpdatesAddress | None:
    """Apply `request` and stage its commit, whatever its outcome.

    The caller holds the ownership's lock, has nothing staged unless `message` is batchable,
    and writes the commit with `ownership.flush`. Returns where the batch lies as the client sent
    it, if nothing refers to it once the commit is written.

    Raises:
        MissingBatch, Unprocessable: nothing was staged, and the content is as before.
        Exception: the content may hold half a batch; the state is worthless.
    """
    ownership = run.ownership
    if message.id in ownership.state.recent:
        stage_duplicate(ownership, request, message.id)
        return None
    if isinstance(message, ChangeSetRequestV2):
        handled, changes = await execute(run, message, request.stream_sequence)
        stage_request(ownership, request, handled, action=message.action, **changes)
        return None
    if message.from_change_set_id is not None:
        admission = await run.services.application.admit(ownership, request, message)
        if admission is not RequestOutcome.APPLIED:  # an earlier commit may refer to the batch
            _stage_unapplied(ownership, request, message.id, admission)
            return None
    handled, changes = await _apply_batch(run, message, request)
    stage_request(ownership, request, handled, **changes)
    return None if handled.updates is message.updates_address else message.updates_address


def _stage_unapplied(
    ownership: Ownership, request: Delivery, request_id: RequestId, admission: RequestOutcome | str
) -> None:
    """Stage the commit of a request that the application did not admit; see its `admit`."""
    if isinstance(admission, RequestOutcome):
        stage_duplicate(ownership, request, request_id)
        return
    handled = SettledRequest(
        id=request_id, sequence=request.stream_sequence, outcome=RequestOutcome.REFUSED
    )
    stage_request(ownership, request, reject(handled, admission))


def stage_duplicate(ownership: Ownership, request: Delivery, request_id: RequestId) -> None:
    """Stage the commit of a request whose id was settled before: nothing is applied.

    The request was stored twice, because the server had forgotten its id; or it is another one,
    as its commit says then.
    """
    recent = ownership.state.recent.get(request_id)
    is_other = recent is not None and is_other_request(
        recent.digest, request_digest(request.payload)
    )
    handled = SettledRequest(
        id=request_id,
        sequence=request.stream_sequence,
        outcome=RequestOutcome.DUPLICATE,
        message=used_id(recent.commit) if recent is not None and is_other else None,
    )
    stage_request(ownership, request, handled)


def stage_request(
    ownership: Ownership,
    request: Delivery,
    handled: SettledRequest,
    *,
    action: str | None = None,
    **changes: Any,
) -> None:
    """Stage the commit that settles a request, and carries out `action`."""
    author = header(request.headers, AUTHOR)
    if author:
        author = author[:AUTHOR_LENGTH].encode(errors="replace").decode()
        handled = handled.model_copy(update={"author": author})
    if handled.outcome is not RequestOutcome.APPLIED:
        action = None
    ownership.stage(
        handled,
        stored=request.stored,
        digest=request_digest(request.payload),
        action=action,
        last_sequence=handled.sequence,
        attempts=None,
        **changes,
    )


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
    rejection = batch_rejection(state, batch, run.services.settings.batch_limits)
    if rejection is not None:
        handled = SettledRequest(id=message.id, sequence=sequence, outcome=RequestOutcome.REFUSED)
        return reject(handled, rejection), {}
    applied = await state.content.apply(sequence, batch)
    address = message.updates_address
    inline = isinstance(address, Inline) and len(request.payload) > INLINE_BYTES
    as_sent = not applied.corrections and len(applied.updates) == len(batch.updates)
    if inline or not as_sent:  # a commit has room for small ones alone
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
