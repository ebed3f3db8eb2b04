"""Objects of any size in a bucket, as every NATS client stores them (ADR-20, ADR-19).

`ObjectInfo` is what a message beside the chunks says of an object.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.errors import (
    ApiError,
    NatsUnreachable,
    ObjectDamaged,
    ObjectNotFound,
    ObjectTooLarge,
    Oversized,
    Unsendable,
    WrongLastSequence,
)
from rebaser_core.jetstream.inbox import best_effort

if TYPE_CHECKING:
    from rebaser_core.jetstream.configs import Drift, StreamConfig
    from rebaser_core.jetstream.connection import PendingReply
    from rebaser_core.jetstream.messages import PubAck

CHUNK_SIZE: Final = 128 * 1024
"""Bytes of a chunk, or fewer, where the server takes no message of that size."""
_MAX_COUNT: Final = 2**53  # bytes or chunks, more than any object has
_UNREADABLE: Final = (
    *(ValueError, TypeError, KeyError, AttributeError, RecursionError),  # not what is expected
    Unsendable,  # a name that is no text
)
_is_nuid: Final = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    bucket: str
    name: str
    nuid: str
    """Names the chunks: each put has its own, so that readers never see a mixture."""
    size: int
    chunks: int
    digest: str
    deleted: bool = False
    part: str = ""
    """Part of the bucket that it lies in, of names with dots between; empty: in none."""

    @classmethod
    def parse(cls, payload: bytes, subject: str) -> "ObjectInfo":
        """Read the message on `subject`, which describes an object. Any client may have written it.

        Raises:
            ObjectDamaged: it describes no object, or not the one in its subject.
        """
        try:
            meta = json.loads(payload)
            info = cls(
                meta["bucket"],
                meta["name"],
                meta["nuid"],
                meta.get("size", 0),
                meta.get("chunks", 0),
                meta.get("digest", ""),
                deleted=meta.get("deleted", False),
                part=_part_in(subject),
            )
            info._require_sound(subject)
        except _UNREADABLE as error:
            raise ObjectDamaged(f"{ascii(subject)[:200]} describes no object: {error!r}") from error
        return info

    def _require_sound(self, subject: str) -> None:
        """Raise `ValueError` unless it is sound.

        Chunks are purged by their subject: a wildcard would take all.
        """
        counts = (self.size, self.chunks)
        texts = (self.bucket, self.name, self.nuid, self.digest)
        if not all(isinstance(text, str) for text in texts) or type(self.deleted) is not bool:
            raise ValueError("a field is of the wrong type")
        if any(type(count) is not int or not 0 <= count <= _MAX_COUNT for count in counts):
            raise ValueError("size or chunks make no sense")
        if not _is_nuid(self.nuid):
            raise ValueError("nuid is no name of chunks")
        if self.part and not all(map(_is_nuid, self.part.split("."))):
            raise ValueError("it is of no part")
        if not _equal_subject(subject, meta_subject(self.bucket, self.name, self.part)):
            raise ValueError("it is of another object")

    def to_json(self) -> bytes:
        shown = {
            "name": self.name,
            "bucket": self.bucket,
            "nuid": self.nuid,
            "size": self.size,
            "chunks": self.chunks,
            "mtime": "0001-01-01T00:00:00Z",  # the time of the message counts
        }
        if self.deleted:
            return json.dumps({**shown, "deleted": True}).encode()
        options = {"max_chunk_size": CHUNK_SIZE}
        return json.dumps({**shown, "digest": self.digest, "options": options}).encode()


def _subject(bucket: str, kind: str, part: str, token: str) -> str:
    return ".".join(filter(None, ("$O", bucket, kind, part, token)))


def meta_subject(bucket: str, name: str, part: str = "") -> str:
    """Return the subject of an object's description. Raises `Unsendable`: the name is no text."""
    try:
        octets = name.encode()
    except UnicodeEncodeError as error:
        raise Unsendable(f"not a name of an object: {name[:100]!a}") from error
    return _subject(bucket, "M", part, base64.urlsafe_b64encode(octets).decode())


def _part_in(subject: str) -> str:
    """Return the part of the bucket in a description's subject, `$O.<bucket>.M.<part>.<name>`."""
    return ".".join(subject.split(".")[3:-1])


def _equal_subject(one: str, other: str) -> bool:
    """Whether two subjects are one description's: not every client pads the name."""
    return one.rstrip("=") == other.rstrip("=")


_GET_TIMEOUT: Final = 30.0  # seconds
_MISSING_AFTER: Final = 1.0  # seconds without a chunk, after which the leader is asked for it
_DROP_TIMEOUT: Final = 2.0  # seconds
_HASH_IN_THREAD: Final = 1_000_000  # bytes that take too long to hash in the event loop
_AHEAD: Final = 16
"""Chunks on their way behind one that is awaited."""
_ROLLUP: Final = {"Nats-Rollup": "sub"}


class ObjectStore:
    """One bucket. Under a prefix or domain it is the one there, never a local one with that name.

    Links, which other clients can make, are not followed.
    """

    def __init__(
        self, js: JetStreamApi, bucket: str, part: str = "", hashing: Executor | None = None
    ) -> None:
        """Open it; large objects are hashed in threads of `hashing`, or else of the event loop."""
        self._js = js
        self._hashing = hashing
        self._bucket = bucket
        self._part = part
        self._stream = f"OBJ_{bucket}"

    def part(self, name: str) -> "ObjectStore":
        """Return a part of the bucket: its objects have subjects of their own, with its name.

        So a user may be bound to it. Other clients of object stores see no parts. A name with dots
        is that of a part within parts.
        """
        return ObjectStore(self._js, self._bucket, name, self._hashing)

    async def ensure(self, config: "StreamConfig | None" = None) -> "list[Drift]":
        """Create the bucket unless it exists; return how its stream differs, never change it.

        `config` is for what a stream has beyond its being a bucket: replicas, storage, limits.
        """
        bucket = self.stream_config(self._bucket)
        return await self._js.ensure_stream(bucket | config if config else bucket)

    @staticmethod
    def stream_config(bucket: str) -> "StreamConfig":
        """Return the configuration of a stream that is the bucket with that name (ADR-20)."""
        from rebaser_core.jetstream.configs import StreamConfig  # slow, not for puts

        return StreamConfig(
            name=f"OBJ_{bucket}",
            subjects=[f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
            discard="new",
            allow_rollup_hdrs=True,
            allow_direct=True,
        )

    async def put(self, name: str, payload: bytes) -> ObjectInfo:
        """Store the object, in place of any with that name. Readers see the old or the new one.

        Cancelled or failed, the chunks sent so far are deleted, or lie there unused
        if the server cannot be reached. If it was the last request that got no answer
        (`NatsUnreachable`), either object may be there; put it again.
        """
        info, chunks = await self._chunk(name, payload)
        before = await self._previous(name)
        try:
            await self._put_chunks(info.nuid, chunks)
        except BaseException:
            await self._drop_chunks(info.nuid)
            raise
        await self._put_meta(info)
        if before and not before.deleted:
            await self._drop_chunks(before.nuid)
        return info

    async def put_once(self, name: str, payload: bytes) -> ObjectInfo:
        """Store an object whose name stands for its bytes, as a digest of them does.

        The right to write suffices: nothing is read or deleted. So a repeated, failed or cancelled
        put leaves chunks that no object refers to. The bucket may refuse rollups, so that no client
        wipes what others put.
        """
        info, chunks = await self._chunk(name, payload)
        await self._put_chunks(info.nuid, chunks)
        await self._put_meta(info, {})
        return info

    async def put_if_absent(self, name: str, payload: bytes) -> bool:
        """Store the object unless there is one; return whether it was stored.

        Of several at once, one is. What `delete` leaves counts as an object; `remove` leaves
        nothing. Failed or cancelled, it is as `put`.
        """
        info, chunks = await self._chunk(name, payload)
        try:
            await self._put_chunks(info.nuid, chunks)
        except BaseException:
            await self._drop_chunks(info.nuid)
            raise
        try:
            await self._put_meta(info, {}, expected_last=0)
        except WrongLastSequence:
            await self._drop_chunks(info.nuid)
            return False
        return True

    async def get(
        self, name: str, *, max_bytes: int | None = None, timeout: float = _GET_TIMEOUT
    ) -> bytes:
        """Return what was put, all of it and nothing else; never more than `max_bytes` bytes.

        Raises:
            ObjectTooLarge: it has more, as was said when it was put.
            ObjectNotFound: never put, or deleted.
            ObjectDamaged: chunks are missing, or are not what was put.
            NatsUnreachable: not read within `timeout` seconds.
        """
        try:
            async with deadlines.within(timeout):
                return await self._get(name, max_bytes)
        except TimeoutError:
            raise NatsUnreachable(f"{self._bucket}/{name} not read within {timeout} s") from None

    async def _get(self, name: str, max_bytes: int | None) -> bytes:
        info = await self.info(name)
        while True:
            if max_bytes is not None and info.size > max_bytes:
                raise ObjectTooLarge(f"{self._bucket}/{name}: {info.size} bytes, over {max_bytes}")
            payload = await self._read(info)
            if len(payload) == info.size and await self._digest(payload) == info.digest:
                return payload
            now = await self.info(name)
            if now.nuid == info.nuid:
                raise ObjectDamaged(f"{self._bucket}/{name}: {len(payload)} of {info.size} bytes")
            info = now  # another one was put while we read

    async def _read(self, info: ObjectInfo) -> bytes:
        from rebaser_core.jetstream.ordered import ordered_reader  # slow to import

        chunks: list[bytes] = []
        size = 0
        async with ordered_reader(
            self._js, self._stream, self._chunks_subject(info.nuid)
        ) as reader:
            while len(chunks) < info.chunks and size <= info.size:
                chunk = await reader.next(idle_timeout=_MISSING_AFTER)
                if chunk is None:
                    break
                chunks.append(chunk.payload)
                size += len(chunk.payload)
        return b"".join(chunks)

    async def info(self, name: str) -> ObjectInfo:
        """Return the description of an object without reading the object.

        Raises:
            ObjectNotFound: never put, or deleted.
            ObjectDamaged: its description cannot be read.
        """
        info = await self._meta(name)
        if info is None or info.deleted:
            raise ObjectNotFound.named(f"no object {name} in {self._bucket}")
        return info

    async def delete(self, name: str) -> None:
        """Delete the object; success if there is none.

        The description is deleted first, then the chunks: an interruption leaves no object without
        chunks.
        """
        try:
            info = await self._meta(name)
        except ObjectDamaged:
            await self._js.purge(self._stream, subject=self._meta_subject(name))
            return
        if info is None:
            return
        if not info.deleted:
            gone = ObjectInfo(info.bucket, name, info.nuid, 0, 0, "", deleted=True)
            await self._put_meta(gone, {})
            await self._js.purge(self._stream, subject=self._meta_subject(name), keep=1)
        await self._js.purge(self._stream, subject=self._chunks_subject(info.nuid))

    async def remove(self, name: str) -> None:
        """Delete the object, and leave nothing that says so; success if there is none.

        As for `delete`, an interruption leaves no object without chunks, but chunks.
        """
        info = await self._previous(name)
        await self._js.purge(self._stream, subject=self._meta_subject(name))
        if info is not None:
            await self._js.purge(self._stream, subject=self._chunks_subject(info.nuid))

    async def _chunk(self, name: str, payload: bytes) -> tuple[ObjectInfo, list[bytes]]:
        """Return the description of a new object, and its chunks."""
        size = max(1, min(CHUNK_SIZE, self._js.message_limits.max_payload))
        chunks = [payload[at : at + size] for at in range(0, len(payload), size)]
        nuid, digest = uuid.uuid4().hex, await self._digest(payload)
        return ObjectInfo(self._bucket, name, nuid, len(payload), len(chunks), digest), chunks

    async def _put_chunks(self, nuid: str, chunks: Sequence[bytes]) -> None:
        """Store all chunks in order; some are on their way while the first ones are awaited."""
        subject = self._js.prefixed_subject(self._chunks_subject(nuid))
        receipts: deque[PendingReply[PubAck]] = deque()
        try:
            for chunk in chunks:
                try:
                    receipts.append(await self._js.publish_async(subject, chunk))
                except Oversized as error:  # they were cut while the server took larger ones
                    raise NatsUnreachable(f"{error}; more before, so put it again") from error
                if len(receipts) > _AHEAD:
                    await receipts.popleft().result(self._js.timeout)
            while receipts:
                await receipts.popleft().result(self._js.timeout)
        finally:
            for receipt in receipts:
                receipt.cancel()

    def _chunks_subject(self, nuid: str) -> str:
        return _subject(self._bucket, "C", self._part, nuid)

    def _meta_subject(self, name: str) -> str:
        return meta_subject(self._bucket, name, self._part)

    async def _meta(self, name: str) -> ObjectInfo | None:
        subject = self._meta_subject(name)
        stored = await self._js.get_message(self._stream, last_by_subject=subject)
        return ObjectInfo.parse(stored.payload, subject) if stored else None

    async def _previous(self, name: str) -> ObjectInfo | None:
        """Return the description of the object to be replaced; None if it cannot be read."""
        try:
            return await self._meta(name)
        except ObjectDamaged:
            return None

    async def _put_meta(
        self,
        info: ObjectInfo,
        headers: Mapping[str, str] = _ROLLUP,
        expected_last: int | None = None,
    ) -> None:
        subject = self._js.prefixed_subject(self._meta_subject(info.name))
        await self._js.publish(
            subject,
            info.to_json(),
            headers=headers or None,
            expected_last_subject_sequence=expected_last,
        )

    async def _drop_chunks(self, nuid: str) -> None:
        """Delete chunks that no object refers to; if that fails, they only take room."""
        with contextlib.suppress(ApiError):
            async with best_effort(_DROP_TIMEOUT):
                await self._js.purge(self._stream, subject=self._chunks_subject(nuid))

    async def _digest(self, payload: bytes) -> str:
        if len(payload) > _HASH_IN_THREAD:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._hashing, _sha256, payload)
        return _sha256(payload)


def _sha256(payload: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(payload).digest()).decode()
