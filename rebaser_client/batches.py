"""Where a batch lies: inside its request when it is small, else in the bucket of batches."""

import asyncio
from collections.abc import Sequence
from typing import Final

from blake3 import blake3

from rebaser_client.errors import TooLarge
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import ObjectStore
from rebaser_core.limits import Limits, oversize
from rebaser_core.messages import (
    Inline,
    InObjectStore,
    Updates,
    UpdatesAddress,
    UpdatesBatch,
    UpdatesBatchV2,
)
from rebaser_core.updates import AnyUpdate

INLINE_UPDATES: Final = 500
"""A batch of more updates is not inline, however short they are."""

INLINE_BYTES: Final = 64 * 1024
"""A batch that takes more bytes is not inline."""


async def place_batch(
    bucket: ObjectStore,
    request_id: RequestId,
    updates: Sequence[AnyUpdate],
    content_type: str,
    at_most: int = Limits().batch_bytes,
) -> UpdatesAddress:
    """Store the batch if it is large; its address either way. May be repeated.

    An object is named by the BLAKE3 of its bytes, which hold the request's id: it
    belongs to this request alone, and is the same when the request is sent again.

    Raises:
        TooLarge: it takes more than `at_most` bytes; nothing was stored.
    """
    batch = UpdatesBatchV2(id=request_id, updates=list(updates))
    if len(updates) <= INLINE_UPDATES:
        payload = UpdatesBatch.encode(batch, content_type)[1]
        if len(payload) <= INLINE_BYTES:
            return Inline(inline=Updates(updates=batch.updates))
    else:  # in a thread, since it would hold up the connection, too
        payload = (await asyncio.to_thread(UpdatesBatch.encode, batch, content_type))[1]
    if len(payload) > at_most:
        raise TooLarge(f"request {request_id}: {oversize(len(payload), at_most)}")
    name = blake3(payload).hexdigest()
    await bucket.put_once(name, payload)
    return InObjectStore(object=name)
