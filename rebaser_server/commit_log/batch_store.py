"""The store of batches: how the batches of requests and commits are read, written and deleted.

The stores of a deployment are opened here, as its settings say, without a request.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Final

from blake3 import blake3

from rebaser_core.errors import CostlyMessage, MalformedMessage, RebaserError, UnsupportedMessage
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import NotFound, ObjectDamaged, ObjectStore, ObjectTooLarge
from rebaser_core.messages import (
    MAX_INLINE_CORRECTIONS,
    Correction,
    Corrections,
    CorrectionsV1,
    DvuResultInfo,
    Inline,
    InlineBatch,
    ObjectRef,
    ResultFile,
    StoreRef,
    UpdatesAddress,
    UpdatesBatch,
    UpdatesBatchV1,
    abbreviate,
)
from rebaser_core.requests import INLINE_BYTES, INLINE_UPDATES
from rebaser_core.streams import Streams
from rebaser_core.updates import AnyUpdate, BatchLimits
from rebaser_server.commit_log.state import Batch, ResultFiles
from rebaser_server.errors import MissingBatch
from rebaser_server.files import IN_NATS, BatchFiles, SharedFiles, StoreFiles, run_of_key
from rebaser_server.nats_files import NatsFiles
from rebaser_server.settings.settings import Settings, StoreSettings

_is_digest: Final = re.compile("[0-9a-f]{64}").fullmatch

_LARGE_BATCH: Final = 16 * 1024 * 1024
"""Size of a batch, in bytes, from which it is decoded alone: that takes many times the memory."""


class DamagedBatch(RebaserError):
    """The batch cannot be read."""


class OversizedBatch(RebaserError):
    """A client's batch exceeds the size limit; it was not read."""


class BatchStore:
    """The batches by address. Writing is idempotent, and so is deleting."""

    def __init__(
        self, bucket: ObjectStore, results: BatchFiles, max_bytes: int = BatchLimits().batch_bytes
    ) -> None:
        """Open the store; a client's batch may have `max_bytes`."""
        self._max_bytes = max_bytes
        self._bucket = bucket
        self._results = results
        self.large = asyncio.Lock()
        """Lock for work that takes many times the memory of bytes that a client sent."""

    @property
    def files(self) -> StoreFiles:
        """The store that all Rebasers share."""
        return self._results.files

    async def fetch(
        self, address: UpdatesAddress, request_id: RequestId, *, from_client: bool = False
    ) -> Batch:
        """Read the request's batch at `address`; its results are not read yet.

        `from_client`: the batch was not accepted yet, so that the size limit applies. A batch that
        a commit refers to is read at any size: the limit may have been larger when the batch was
        accepted.

        Raises:
            MissingBatch: there is no batch at the address.
            DamagedBatch: a part of the batch is missing.
            OversizedBatch: the client's batch is too large, or decoding it takes too much memory.
            MalformedMessage: the content is no batch, or not the named one, or belongs to
                another request.
        """
        if isinstance(address, Inline):
            inline = address.inline
            return Batch(inline.updates, inline.computed, inline.under, from_client=from_client)
        untrusted = from_client and isinstance(address, ObjectRef)  # only we write the store
        payload = await self._payload(address, self._max_bytes if untrusted else None)
        raw = payload if isinstance(address, ObjectRef) else None
        if isinstance(address, ObjectRef) and await _digest(payload) != address.object:
            raise MalformedMessage(
                f"object {address.object} has bytes that are not those of its name"
            )
        batch = await self._decode(payload, from_client=untrusted)
        if batch.id != request_id:
            raise MalformedMessage(f"the batch at {address} is of request {batch.id}")
        results = None
        if batch.results:
            run = _run_at(address)
            if run is None:
                raise MalformedMessage(f"the batch at {address} names results of no run")
            results = self.result_files(run, batch.results)
        return Batch(batch.updates, batch.computed, batch.under, results, raw, from_client)

    def result_files(self, run: str, files: Sequence[ResultFile]) -> ResultFiles:
        return ResultFiles(self.files, run, [file.name for file in files])

    async def adopt(self, address: UpdatesAddress, batch: Batch) -> UpdatesAddress:
        """Return the address by which a commit may refer to the batch at `address`.

        Clients can write into the bucket, also over an object whose name they know, so no commit
        refers to the bucket: the bytes are copied into the store, under their name. A repetition is
        harmless; a copy that no commit refers to is garbage.

        Raises:
            OSError: the store failed; nothing was changed.
        """
        if not isinstance(address, ObjectRef) or batch.payload is None:
            return address
        return StoreRef(store=await self.put_bytes(batch.payload))

    async def upload(self, workspace: str, name: str) -> bytes:
        """Return a file that was uploaded to the workspace.

        Raises:
            MissingBatch: it is not there, or not whole.
            ObjectTooLarge: it exceeds the size limit; it was not read.
        """
        try:
            return await self._bucket.part(workspace).get(name, max_bytes=self._max_bytes)
        except (NotFound, ObjectDamaged) as error:
            raise MissingBatch(f"no file {name} of {workspace}") from error

    async def _decode(self, payload: bytes, *, from_client: bool) -> UpdatesBatchV1:
        async with self.large if len(payload) > _LARGE_BATCH else nullcontext():
            try:
                return await asyncio.to_thread(_decode, payload, from_client=from_client)
            except CostlyMessage as error:
                raise OversizedBatch(str(error)) from error

    async def put(
        self,
        request_id: RequestId,
        updates: Sequence[AnyUpdate],
        computed: DvuResultInfo | None = None,
        head_side: Sequence[AnyUpdate] | None = None,
        room: int = INLINE_BYTES,
    ) -> UpdatesAddress:
        """Store the batch and return its address: a small batch inline, else a key in the store.

        `room`: the bytes of the largest inline batch, if that is less than usual.

        The key is the digest of content that names the request, so that two Rebasers, one
        of them fenced off, cannot overwrite one another's batches.
        """
        batch = UpdatesBatchV1(
            id=request_id,
            updates=list(updates),
            computed=computed,
            under=None if head_side is None else list(head_side),
        )
        _, payload = await asyncio.to_thread(UpdatesBatch.encode, batch)
        if len(updates) <= INLINE_UPDATES and len(payload) <= min(INLINE_BYTES, room):
            inline = InlineBatch(updates=batch.updates, computed=computed, under=batch.under)
            return Inline(inline=inline)
        key = blake3(payload).hexdigest()
        await asyncio.to_thread(self._results.put, key, payload)
        return StoreRef(store=key)

    async def put_corrections(
        self, request_id: RequestId, corrections: Sequence[Correction]
    ) -> tuple[Correction, ...]:
        """Return the corrections for a commit: all, or the first few and the address of all."""
        if len(corrections) <= MAX_INLINE_CORRECTIONS:
            return tuple(corrections)
        message = CorrectionsV1(id=request_id, corrections=list(corrections))
        _, payload = await asyncio.to_thread(Corrections.encode, message)
        name = blake3(payload).hexdigest()
        await self._bucket.put_once(name, payload)
        return abbreviate(corrections, name)

    async def put_bytes(self, payload: bytes) -> str:
        """Keep the bytes in the store for as long as a message refers to them; return their key."""
        key = blake3(payload).hexdigest()
        await asyncio.to_thread(self._results.put, key, payload)
        return key

    async def get_bytes(self, key: str) -> bytes:
        """Return the bytes of `put_bytes`. Raises `MissingBatch` if they are missing or changed."""
        try:
            payload = await asyncio.to_thread(self._results.get, key)
        except (FileNotFoundError, ValueError) as error:
            raise MissingBatch(f"nothing is kept as {key}") from error
        if blake3(payload).hexdigest() != key:
            raise MissingBatch(f"the bytes of {key} are not those of its name")
        return payload

    async def put_results(
        self,
        request_id: RequestId,
        computed: DvuResultInfo,
        run: str,
        files: Sequence[ResultFile],
    ) -> UpdatesAddress:
        """Store a batch of results that are in a run's directory, in that directory, too."""
        batch = UpdatesBatchV1(id=request_id, updates=[], computed=computed, results=tuple(files))
        _, payload = UpdatesBatch.encode(batch)
        key = f"{run}.{blake3(payload).hexdigest()}"
        await asyncio.to_thread(self._results.put, key, payload)
        return StoreRef(store=key)

    async def delete(self, address: UpdatesAddress) -> None:
        """Delete the client's batch at `address`, whose request is settled.

        A batch in the store stays: a request may name a key that its sender did not write.
        """
        if isinstance(address, ObjectRef):
            await self._bucket.delete(address.object)

    async def delete_with_results(self, address: UpdatesAddress) -> None:
        """Delete the batch that a purged commit referred to, and the result files it names.

        A batch of a client's bytes stays in the store until garbage collection, which alone looks
        at all logs: another change set may have been sent equal bytes under an equal id.
        """
        run = _run_at(address)
        if run is not None:
            await asyncio.to_thread(self._results.delete_run, run)
        else:
            await self.delete(address)

    async def queued_bytes(self, name: str) -> bytes:
        """Return the bytes of a client's batch that waits; none if it would be refused."""
        with suppress(NotFound, ObjectDamaged, ObjectTooLarge):
            return await self._bucket.get(name, max_bytes=self._max_bytes)
        return b""

    async def _payload(self, address: ObjectRef | StoreRef, max_bytes: int | None) -> bytes:
        try:
            if isinstance(address, ObjectRef):
                return await self._client_object(address.object, max_bytes)
            return await asyncio.to_thread(self._results.get, address.store)
        except (NotFound, FileNotFoundError) as error:
            raise MissingBatch(f"no batch at {address.model_dump(by_alias=True)}") from error
        except ObjectDamaged as error:
            raise DamagedBatch(str(error)) from error
        except ObjectTooLarge as error:
            raise OversizedBatch(str(error)) from error

    async def _client_object(self, name: str, max_bytes: int | None) -> bytes:
        """Read a client's batch from the bucket or, if it is gone from there, from the store."""
        try:
            return await self._bucket.get(name, max_bytes=max_bytes)
        except NotFound:
            if not _is_digest(name):
                raise
            return await asyncio.to_thread(self._results.get, name)


def _run_at(address: UpdatesAddress) -> str | None:
    """The key of the run whose results a batch names; None if it names none."""
    return run_of_key(address.store) if isinstance(address, StoreRef) else None


async def _digest(payload: bytes) -> str:
    return await asyncio.to_thread(lambda: blake3(payload).hexdigest())


def _decode(payload: bytes, *, from_client: bool) -> UpdatesBatchV1:
    """Decode a batch, with the rows of a table among its updates.

    Raises:
        UnsupportedMessage: it has a table, which takes Arrow, and that is not installed.
    """
    batch = UpdatesBatch.decode_stored(payload, from_client=from_client)
    if batch.table is None:
        return batch
    try:
        from rebaser_core.table_updates import with_rows  # noqa: PLC0415 - where there is a table
    except ModuleNotFoundError as error:
        raise UnsupportedMessage(
            f"a batch with a table, and {error.name} is not installed here: pip install "
            "'rebaser[server]'"
        ) from error
    return with_rows(batch)


def open_shared_files(store: StoreSettings, streams: Streams) -> StoreFiles:
    """Return the files under the store's root; those in NATS on its event loop alone."""
    if store.root == IN_NATS:
        return NatsFiles(streams)
    return SharedFiles(store.root, store.options)


def open_batch_store(streams: Streams, settings: Settings) -> BatchStore:
    return BatchStore(
        ObjectStore(streams.js, streams.batches_bucket),
        BatchFiles(open_shared_files(settings.store, streams)),
        settings.limits.batch_bytes,
    )
