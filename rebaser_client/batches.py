"""A batch becomes a request: it lies inside when it is small, else in the bucket of batches."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from blake3 import blake3
from pydantic import TypeAdapter, ValidationError

from rebaser_client.errors import NotConfirmed, TooLarge
from rebaser_client.plain_values import plain
from rebaser_client.request_publisher import queue_full_error
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId
from rebaser_core.jetstream import Full, JetStreamError, ObjectStore
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    ObjectRef,
    UpdatesAddress,
    UpdatesBatch,
    UpdatesBatchV3,
    encode_inline_request,
)
from rebaser_core.messages import InlineBatch as Shipped
from rebaser_core.updates import AnyUpdate, BatchLimits, LazyUpdates, UpdateSequence, size_violation
from rebaser_core.versioning import first_error

Updates = Sequence[AnyUpdate | Mapping[str, Any]]
"""Updates as classes of `rebaser_core.updates`, or as the wire has them. The values of the latter
may be what `plain_values` makes JSON of."""

INLINE_UPDATES: Final = 500
"""A batch of more updates is not inline, however short they are."""

INLINE_BYTES: Final = 64 * 1024
"""A batch that takes more bytes is not inline."""

_UPDATES: Final[TypeAdapter[Sequence[AnyUpdate]]] = TypeAdapter(UpdateSequence)


async def encode_request(
    bucket: ObjectStore,
    request_id: RequestId,
    change_set: ChangeSet,
    origin: ChangeSetId | None,
    updates: Updates,
    content_type: str,
    limits: BatchLimits,
) -> tuple[dict[str, str], bytes]:
    """Headers and payload of the request to apply `updates`, stored first if they are many.

    Raises:
        MalformedMessage: they are no updates; nothing was sent.
        TooLarge: they are beyond a limit; nothing was sent.
        NotConfirmed, QueueFull: the batch is not stored, perhaps, or surely.
    """
    if len(updates) <= INLINE_UPDATES:
        batch = validate(updates)
    else:  # in a thread, since it would hold up the connection, too
        batch = await asyncio.to_thread(validate, updates)
    complaint = limits.violation(batch, len(batch))
    if complaint is not None:
        raise TooLarge(f"request {request_id}: {complaint}")
    if len(batch) <= INLINE_UPDATES:
        encoded = encode_inline_request(request_id, change_set, origin, batch, content_type)
        if len(encoded[1]) <= INLINE_BYTES:  # so is the batch in it: most need no second look
            return encoded
    try:
        address = await store_batch(bucket, request_id, batch, content_type, limits.batch_bytes)
    except Full as error:
        raise queue_full_error(f"the batch of request {request_id}", error) from error
    except JetStreamError as error:
        raise NotConfirmed(f"the batch of request {request_id}: {error}") from error
    request = EnqueueUpdatesRequestV1(
        id=request_id,
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=address,
        from_change_set_id=origin,
    )
    return EnqueueUpdatesRequest.encode(request, content_type)


def validate(updates: Updates) -> Sequence[AnyUpdate]:
    """The updates as classes, or as they are if they are known to be valid.

    Raises:
        MalformedMessage: they are no updates.
    """
    if not isinstance(updates, list) and isinstance(updates, LazyUpdates):
        return updates
    try:
        return _UPDATES.validate_python(list(updates))
    except ValidationError:  # most are plain, and are not looked at twice
        made = [plain(each) if isinstance(each, Mapping) else each for each in updates]
    try:
        return _UPDATES.validate_python(made)
    except ValidationError as error:
        raise MalformedMessage(f"updates: {first_error(error)}") from error


async def store_batch(
    bucket: ObjectStore,
    request_id: RequestId,
    updates: Sequence[AnyUpdate],
    content_type: str,
    max_bytes: int = BatchLimits().batch_bytes,
) -> UpdatesAddress:
    """Store the batch if it is large; its address either way. May be repeated.

    An object is named by the BLAKE3 of its bytes, which hold the request's id: it
    belongs to this request alone, and is the same when the request is sent again.

    Raises:
        TooLarge: it takes more than `max_bytes` bytes; nothing was stored.
    """
    if len(updates) <= INLINE_UPDATES:
        payload = encode_batch(request_id, updates, content_type)
        if len(payload) <= INLINE_BYTES:
            return Inline(inline=Shipped(updates=updates))
    else:  # in a thread, since it would hold up the connection, too
        payload = await asyncio.to_thread(encode_batch, request_id, updates, content_type)
    if len(payload) > max_bytes:
        raise TooLarge(f"request {request_id}: {size_violation(len(payload), max_bytes)}")
    name = blake3(payload).hexdigest()
    await bucket.put_once(name, payload)
    return ObjectRef(object=name)


def encode_batch(request_id: RequestId, updates: Sequence[AnyUpdate], content_type: str) -> bytes:
    listed, table = updates.split() if isinstance(updates, LazyUpdates) else (updates, None)
    batch = UpdatesBatchV3(id=request_id, updates=listed, table=table)
    return UpdatesBatch.encode(batch, content_type)[1]
