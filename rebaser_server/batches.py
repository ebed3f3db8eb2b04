"""Where the batches of requests and commits lie, and how a Rebaser reads and leaves them."""

import asyncio
from collections.abc import Sequence

from blake3 import blake3

from rebaser_client.batches import INLINE_BYTES, INLINE_UPDATES
from rebaser_core.errors import MalformedMessage, RebaserError
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import NotFound, ObjectStore
from rebaser_core.messages import (
    Computed,
    Inline,
    InObjectStore,
    InStore,
    Updates,
    UpdatesAddress,
    UpdatesBatch,
    UpdatesBatchV1,
)
from rebaser_core.updates import AnyUpdate
from rebaser_server.store.results import Results


class MissingBatch(RebaserError):
    """Nothing lies at the address."""


class Batches:
    """Batches by address. Placing is idempotent, and so is throwing away."""

    def __init__(self, bucket: ObjectStore, results: Results) -> None:
        self._bucket = bucket
        self._results = results

    async def fetch(self, address: UpdatesAddress, request_id: RequestId) -> Updates:
        """The batch of the request that lies at `address`.

        Raises:
            MissingBatch: it is not there.
            MalformedMessage: what is there is no batch, or not the one that was named, or
                another request's: who is done with a batch throws it away.
        """
        if isinstance(address, Inline):
            return address.inline
        payload = await self._payload(address)
        if isinstance(address, InObjectStore) and blake3(payload).hexdigest() != address.object:
            raise MalformedMessage(f"object {address.object} is not what its name says")
        batch = await asyncio.to_thread(UpdatesBatch.decode_at_rest, payload)
        if batch.id != request_id:
            raise MalformedMessage(f"the batch at {address} is of request {batch.id}")
        return Updates(updates=batch.updates, computed=batch.computed)

    async def place(
        self, request_id: RequestId, updates: Sequence[AnyUpdate], computed: Computed | None = None
    ) -> UpdatesAddress:
        """An address for the batch: itself when small, else a key in the store.

        The key is the digest of content that names the request, so that two Rebasers, one
        of them fenced off, cannot overwrite each other's.
        """
        batch = UpdatesBatchV1(id=request_id, updates=list(updates), computed=computed)
        _, payload = await asyncio.to_thread(UpdatesBatch.encode, batch)
        if len(updates) <= INLINE_UPDATES and len(payload) <= INLINE_BYTES:
            return Inline(inline=Updates(updates=batch.updates, computed=computed))
        key = blake3(payload).hexdigest()
        await asyncio.to_thread(self._results.put, key, payload)
        return InStore(store=key)

    async def discard(self, address: UpdatesAddress) -> None:
        """Throw away what lies at `address`, which nothing refers to any more."""
        if isinstance(address, InObjectStore):
            await self._bucket.delete(address.object)
        elif isinstance(address, InStore):
            await asyncio.to_thread(self._results.delete, address.store)

    async def _payload(self, address: InObjectStore | InStore) -> bytes:
        try:
            if isinstance(address, InObjectStore):
                return await self._bucket.get(address.object)
            return await asyncio.to_thread(self._results.get, address.store)
        except (NotFound, FileNotFoundError) as error:
            raise MissingBatch(f"no batch at {address.model_dump(by_alias=True)}") from error
