"""Keys and values in a bucket, as every NATS client stores them (ADR-8, ADR-19)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Self

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.errors import KeyNotFound, Unsendable, WrongLastSequence
from rebaser_core.jetstream.inbox import AsyncCloseable
from rebaser_core.jetstream.messages import Delivery, StoredMessage

if TYPE_CHECKING:
    from rebaser_core.jetstream.configs import Drift, StreamConfig

_OPERATION: Final = "KV-Operation"
_PUT: Final = "_PUT"
DELETE: Final = "DEL"
_PURGE: Final = "_PURGE"
_REASON: Final = "Nats-Marker-Reason"
_MARKERS: Final = {"MaxAge": _PURGE, "Purge": _PURGE, "Remove": DELETE}  # left by the server itself


@dataclass(frozen=True, slots=True)
class KeyValueEntry:
    """One revision of one key. `operation` is PUT, DEL or PURGE; `value` counts for PUT only."""

    bucket: str
    key: str
    value: bytes
    revision: int
    created: datetime
    operation: str = _PUT

    @classmethod
    def of_stored(cls, bucket: str, message: StoredMessage) -> "KeyValueEntry":
        return cls(
            bucket,
            _key(bucket, message.subject),
            message.payload,
            message.sequence,
            message.time,
            _operation(message.headers),
        )

    @classmethod
    def of_delivery(cls, bucket: str, delivery: Delivery) -> "KeyValueEntry":
        return cls(
            bucket,
            _key(bucket, delivery.subject),
            delivery.payload,
            delivery.stream_sequence,
            delivery.timestamp,
            _operation(delivery.headers),
        )

    @property
    def is_deleted(self) -> bool:
        """Whether the key has no value any more."""
        return self.operation != _PUT


def _key(bucket: str, subject: str) -> str:
    return subject.partition(f"$KV.{bucket}.")[2]


def _operation(headers: Mapping[str, str]) -> str:
    return _MARKERS.get(headers.get(_REASON, "")) or headers.get(_OPERATION, _PUT)


_ROLLUP: Final = {"Nats-Rollup": "sub"}
_is_key: Final = re.compile(r"[^\x00-\x20\x7f.*>]+(\.[^\x00-\x20\x7f.*>]+)*").fullmatch
"""Tokens of a subject, without wildcards. ADR-8 allows fewer characters."""


class KeyValue:
    """One bucket. Under a prefix or domain it is the one there, never a local one with that name.

    Reads ask the stream's leader, so they see what was put. Each coroutine may be cancelled;
    whether a write was done is then unknown.
    """

    def __init__(self, js: JetStreamApi, bucket: str, *, direct: bool = False) -> None:
        """Get the bucket; with `direct`, a read's subject contains the key.

        A user may then be permitted some keys; a replica answers, and it may lag.
        """
        self._js = js
        self._direct = direct
        self._bucket = bucket
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def ensure(
        self, config: "StreamConfig | None" = None, *, history: int = 1
    ) -> "list[Drift]":
        """Create the bucket unless it exists; return how its stream differs, never change it.

        `config` is for what a stream has beyond its being a bucket: replicas, storage, limits.
        """
        bucket = self.stream_config(self._bucket, history=history)
        return await self._js.ensure_stream(bucket | config if config else bucket)

    @staticmethod
    def stream_config(bucket: str, *, history: int = 1) -> "StreamConfig":
        """Return the configuration of a stream that is the bucket with that name (ADR-8)."""
        from rebaser_core.jetstream.configs import StreamConfig  # slow, not for keys

        return StreamConfig(
            name=f"KV_{bucket}",
            subjects=[f"$KV.{bucket}.>"],
            max_msgs_per_subject=history,
            discard="new",
            deny_delete=True,
            allow_rollup_hdrs=True,
            allow_direct=True,
        )

    async def get(self, key: str, *, revision: int | None = None) -> KeyValueEntry:
        """Return the last value of the key, or one revision of it.

        Raises:
            KeyNotFound: never put, deleted, or not this key's revision.
        """
        entry = await self._entry(key, revision)
        if entry is None or entry.is_deleted:
            raise KeyNotFound.named(f"no key {key} in {self._bucket}")
        return entry

    async def last(self, pattern: str) -> KeyValueEntry | None:
        """Return the last entry of all keys that match; None if it is a deletion, or there is none.

        `*` and `>` are wildcards, as in a subject.
        """
        stored = await self._last_stored(pattern)
        if stored is None:
            return None
        entry = KeyValueEntry.of_stored(self._bucket, stored)
        return None if entry.is_deleted else entry

    async def _entry(self, key: str, revision: int | None = None) -> KeyValueEntry | None:
        if revision is None:
            stored = await self._last_stored(key)
        else:
            stored = await self._js.get_message(self._stream, sequence=revision)
        if stored is None or stored.subject != f"{self._prefix}{key}":
            return None
        return KeyValueEntry.of_stored(self._bucket, stored)

    async def _last_stored(self, pattern: str) -> "StoredMessage | None":
        subject = f"{self._prefix}{pattern}"
        if self._direct:
            return await self._js.get_last_direct(self._stream, subject)
        return await self._js.get_message(self._stream, last_by_subject=subject)

    async def put(self, key: str, value: bytes) -> int:
        """Set the key, whether or not it was set before; return its revision.

        Raises:
            Unsendable: a key with wildcards, blanks or empty tokens.
        """
        return await self._write(key, value)

    async def create(self, key: str, value: bytes) -> int:
        """Set the key if it has no value; return its revision.

        Raises:
            WrongLastSequence: the key has a value.
        """
        try:
            return await self.update(key, value, 0)
        except WrongLastSequence:
            last = await self._entry(key)
            if last is None or not last.is_deleted:
                raise
            return await self.update(key, value, last.revision)

    async def update(self, key: str, value: bytes, last_revision: int) -> int:
        """Set the key if its last revision is the one given; return its new one.

        Raises:
            WrongLastSequence: it is another revision.
        """
        return await self._write(key, value, last_revision=last_revision)

    async def delete(self, key: str, *, last_revision: int | None = None) -> None:
        """Delete the value of the key; its history stays."""
        await self._write(key, b"", {_OPERATION: DELETE}, last_revision)

    async def purge(self, key: str, *, last_revision: int | None = None) -> None:
        """Delete the value and the history of the key."""
        await self._write(key, b"", {_OPERATION: _PURGE, **_ROLLUP}, last_revision)

    async def _write(
        self,
        key: str,
        value: bytes,
        headers: Mapping[str, str] | None = None,
        last_revision: int | None = None,
    ) -> int:
        if not _is_key(key):
            raise Unsendable(f"not a key: {key[:100]!a}")
        receipt = await self._js.publish(
            self._js.prefixed_subject(f"{self._prefix}{key}"),
            value,
            headers=headers,
            expected_last_subject_sequence=last_revision,
        )
        return receipt.sequence

    async def keys(self, pattern: str = ">") -> list[str]:
        """Return the keys that have a value now, each once, in the order of their last change."""
        revisions: dict[str, bool] = {}
        async with KeyValueWatch(self._js, self._bucket, pattern, headers_only=True) as watch:
            while (entry := await watch.next()) is not None:
                revisions.pop(entry.key, None)
                revisions[entry.key] = entry.is_deleted
        return [key for key, is_deleted in revisions.items() if not is_deleted]

    def watch(self, pattern: str = ">") -> "KeyValueWatch":
        """Return the last entry of each key and then every change; enter it and iterate."""
        return KeyValueWatch(self._js, self._bucket, pattern)


class KeyValueWatch(AsyncCloseable):
    """Entries as they come: first the last one of each key, then None once, then changes.

    An async context manager and iterator; leaving it leaves nothing at the server.
    """

    def __init__(
        self, js: JetStreamApi, bucket: str, pattern: str, *, headers_only: bool = False
    ) -> None:
        from rebaser_core.jetstream.ordered import ordered_reader  # slow to import

        self._bucket = bucket
        self._caught_up = False
        self._reader = ordered_reader(
            js,
            f"KV_{bucket}",
            f"$KV.{bucket}.{pattern}",
            deliver_policy="last_per_subject",
            headers_only=headers_only,
        )

    async def __aenter__(self) -> Self:
        await self._reader.__aenter__()
        return self

    async def close(self) -> None:
        await self._reader.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> KeyValueEntry | None:
        return await self.next()

    async def next(self) -> KeyValueEntry | None:
        """Return the next entry; None, once, when all that is there now was returned."""
        delivery = await self._reader.next(idle_timeout=None if self._caught_up else 0)
        if delivery is None:
            self._caught_up = True
            return None
        return KeyValueEntry.of_delivery(self._bucket, delivery)
