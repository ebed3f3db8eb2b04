"""Removal of garbage: batches, results, files and tables that are old and that nothing refers to.

A process that dies at the wrong moment leaves garbage: a client after it stored a batch and before
it sent the request, a Rebaser after it purged a commit and before it deleted the batch, either of
them in the middle of a file. Young ones stay: a batch is stored before anything can refer to it.

A table is named by values. So its key is looked for in requests, dead letters and commits, in the
batches and results that these refer to, and in the metadata of checkpoints. See `TableFiles` for
why it is removed in two steps.
"""

import asyncio
import re
import time
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import (
    Delivery,
    NatsUnreachable,
    ObjectInfo,
    ReaderOptions,
    Unavailable,
    ordered_reader,
)
from rebaser_core.messages import EnqueueUpdatesRequest, ObjectRef, StoreRef
from rebaser_core.streams import Streams
from rebaser_core.table_values import TABLE
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.errors import RunEnded
from rebaser_server.files import OrphanFile, OrphanFiles, change_sets_in
from rebaser_server.runtime.containment import contained
from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.tables import Attempt, StoredTable, TableFiles

_KEYS: Final = (re.compile(rb"[0-9a-f]{64}"), re.compile(rb"[0-9A-HJKMNP-TV-Z]{26}"))
"""Names of batches and results, which are digests and ULIDs: so a reference is found anywhere in a
message of any version."""

_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]{64,}")


def _base64_of(text: bytes, place: int) -> bytes:
    """Return what base64 always has of a text that begins at a place of three bytes."""
    encoded = b64encode(bytes(place) + text)
    return encoded[-(-8 * place // 6) : 8 * (place + len(text)) // 6]


_SIGNS_OF_TABLES: Final = (
    TABLE.encode(),
    *(_base64_of(f'"{TABLE}"'.encode(), place) for place in range(3)),
)
"""Bytes of which a batch or result that names a table has one; see `table_updates` for base64."""

_CLOCKS_DIFFER: Final = timedelta(hours=1)
"""Time by which clocks may differ: the store dates files, NATS dates commits."""


class ObjectMeta(NamedTuple):
    """An object in the bucket of batches, as its metadata message describes it."""

    name: str
    nuid: str | None
    """Id of its chunks; None if it has none: it is unreadable, or names another object's chunks."""
    sequence: int
    time: datetime
    deleted: bool


@dataclass(slots=True)
class Garbage:
    """Stored things that nothing refers to."""

    objects: list[ObjectMeta] = field(default_factory=list)
    tombstones: list[ObjectMeta] = field(default_factory=list)
    """Metadata that the bucket keeps about deleted objects."""
    chunks: list[str] = field(default_factory=list)
    """Chunks of uploads that never finished, by the upload's id."""
    files: list[OrphanFile] = field(default_factory=list)
    unnamed: list[StoredTable] = field(default_factory=list)
    """Tables to condemn."""
    tables: list[StoredTable] = field(default_factory=list)
    """Tables that were condemned, and empty directories of tables."""
    attempts: list[Attempt] = field(default_factory=list)
    """Attempts to write a table that came to nothing, or were replaced."""

    def counts(self) -> dict[str, int]:
        """Count each kind of garbage; kinds without any are left out."""
        counts = {
            "objects": len(self.objects),
            "tombstones": len(self.tombstones),
            "chunks": len(self.chunks),
            "files": len(self.files),
            "condemned": len(self.unnamed),
            "tables": len(self.tables),
            "attempts": len(self.attempts),
        }
        return {name: count for name, count in counts.items() if count}


class GarbageCollector:
    """Finds and removes garbage. It may run anywhere, at any time, also twice at once."""

    def __init__(
        self,
        streams: Streams,
        batches: BatchStore,
        kept_metadata: Callable[[ChangeSet, int], Iterable[bytes]],
        grace: float,
    ) -> None:
        """Look for garbage; an unreferenced thing is kept for `grace` seconds.

        `kept_metadata` is that of the change sets' `StateMachine`.
        """
        self._streams = streams
        self._batches = batches
        self._leftovers = OrphanFiles(batches.files)
        self._tables = TableFiles(batches.files)
        self._kept_metadata = kept_metadata
        self._grace = grace
        self._bucket = streams.batches_bucket
        self._stream = f"OBJ_{self._bucket}"
        self._references: dict[str, int] = {}
        """Key → the commit last seen to refer to it, so that each commit is read once."""

    async def find(self) -> Garbage:
        """Find stored things that are older than the grace time and not referred to."""
        before = await self._now() - self._grace
        limit = datetime.fromtimestamp(before, UTC)
        metas = await self._metas()
        files = await asyncio.to_thread(self._leftovers.older_than, before)
        tables = await asyncio.to_thread(list, self._tables.stored())
        old = [meta for meta in metas if meta.time < limit]
        # A part is named by manifests alone, and goes once none has it any more.
        parts = await asyncio.to_thread(self._tables.parts_in, tables)
        old_tables = [
            table
            for table in tables
            if table.written is not None and table.written < before and table.key not in parts
        ]
        times = {meta.name: meta.time for meta in old if not meta.deleted}
        written = [(file.key, file.time) for file in files if file.key is not None]
        written += [(table.key, table.written or 0) for table in old_tables]
        times |= {key: datetime.fromtimestamp(when, UTC) for key, when in written}
        # An uploaded file has done its duty once it is a table: then no commit keeps it.
        uploads = {table.key for table in tables if table.written is not None}
        queued, referenced = await self._referenced(times, old_tables, uploads)
        objects = [
            meta
            for meta in old
            if not meta.deleted
            and meta.name not in (queued if meta.name in uploads else referenced)
        ]
        unnamed = [table for table in old_tables if table.key not in referenced]
        in_use = {m.nuid for m in set(metas).difference(objects) if not m.deleted}
        return Garbage(
            objects=[m._replace(nuid=None) if m.nuid in in_use else m for m in objects],
            tombstones=[m for m in old if m.deleted],
            chunks=await self._chunks({m.nuid for m in metas if not m.deleted}, limit),
            files=[file for file in files if file.key is None or file.key not in referenced],
            unnamed=[table for table in unnamed if table.condemned is None],
            tables=[
                *(table for table in unnamed if table.condemned and table.condemned < before),
                *(table for table in tables if not table.written and not table.attempts),
            ],
            attempts=await asyncio.to_thread(
                lambda: [each for table in tables for each in self._tables.abandoned(table, before)]
            ),
        )

    async def _now(self) -> float:
        """Return the earlier of NATS' and our time: a wrong clock of ours makes nothing old."""
        info = await self._streams.js.stream_info(self._stream)
        return min(time.time(), info.ts.timestamp())

    async def remove(self, garbage: Garbage) -> None:
        """Remove all garbage. Things stored again meanwhile, under their old names, stay."""
        for meta in (*garbage.objects, *garbage.tombstones):
            await self._streams.js.delete_message(self._stream, meta.sequence)
            if not meta.deleted and meta.nuid is not None:
                await self._purge_chunks(meta.nuid)
        for nuid in garbage.chunks:
            with contained("object", passing=(NatsUnreachable, Unavailable), chunks=nuid):
                await self._purge_chunks(nuid)
        await asyncio.to_thread(self._leftovers.remove, garbage.files)
        await asyncio.to_thread(self._remove_tables, garbage)

    def _remove_tables(self, garbage: Garbage) -> None:
        for table in garbage.unnamed:
            self._tables.condemn(table.workspace, table.key)
        for table in garbage.tables:
            self._tables.remove(table)
        for attempt in garbage.attempts:
            self._tables.discard(attempt)

    async def _purge_chunks(self, nuid: str) -> None:
        await self._streams.js.purge(self._stream, subject=f"$O.{self._bucket}.C.{nuid}")

    async def _metas(self) -> list[ObjectMeta]:
        metas = []
        reader = ordered_reader(
            self._streams.js,
            self._stream,
            f"$O.{self._bucket}.M.>",
            deliver_policy="last_per_subject",
        )
        async with reader:
            while (message := await reader.next(idle_timeout=0)) is not None:
                metas.append(_meta(message))
        return metas

    async def _chunks(self, known: set[str | None], limit: datetime) -> list[str]:
        """List the chunks of unfinished uploads; an upload in progress is younger than `limit`."""
        prefix = f"$O.{self._bucket}.C."
        chunks = []
        for subject in await self._streams.js.stream_subjects(self._stream, f"{prefix}>"):
            nuid = subject.removeprefix(prefix)
            if nuid in known:
                continue
            last = await self._streams.js.get_message(self._stream, last_by_subject=subject)
            if last is not None and last.time < limit:
                chunks.append(nuid)
        return chunks

    async def _referenced(
        self, times: dict[str, datetime], tables: Collection[StoredTable], uploads: set[str]
    ) -> tuple[set[str], set[str]]:
        """Return the keys that a request or a dead letter refers to, and those that anything does.

        `times`: when each was stored, which is before anything could refer to it. Requests are read
        first: a request that is settled meanwhile has its commit by then. They are read once more
        after the dead letters: a letter that is replayed meanwhile is a request by then. For tables
        checkpoints are read twice: what they name saves reading all commits, and the results that a
        purged commit had are in them by then.
        """
        if not times:
            return set(), set()
        queued = await self._in_requests()
        queued |= await self._in_dead_letters(times)
        queued |= await self._in_requests()
        found = queued | await self._in_checkpoints(tables)
        found |= await self._in_commit_logs({key: times[key] for key in times.keys() - found})
        if times.keys() - found or times.keys() & uploads - queued:
            queued |= await self._in_queued_batches(queued)
            found |= queued
        if any(table.key not in found for table in tables):
            found |= await asyncio.to_thread(self._in_results)
            found |= await self._in_checkpoints([t for t in tables if t.key not in found])
        return queued, found

    async def _in_queued_batches(self, queued: Collection[str]) -> set[str]:
        """Return the tables that the batches of requests and dead letters name."""
        keys: set[str] = set()
        for meta in await self._metas():
            if meta.name in queued and not meta.deleted:
                keys |= _tables_in(await self._batches.queued_bytes(meta.name))
        return keys

    def _in_results(self) -> set[str]:
        """Return the tables that batches and results in the store name."""
        return set().union(*map(_tables_in, self._leftovers.payloads()))

    async def _in_checkpoints(self, tables: Collection[StoredTable]) -> set[str]:
        """Return those of the tables that a kept checkpoint of their workspace names."""
        wanted = defaultdict(set)
        for table in tables:
            wanted[table.workspace].add(table.key)
        found: set[str] = set()
        for workspace, keys in wanted.items():
            for change_set in await asyncio.to_thread(
                change_sets_in, self._batches.files, workspace
            ):
                if keys <= found:
                    break
                try:
                    found |= keys & await self._in_checkpoints_of(change_set)
                except (StoreDamaged, RunEnded):  # once it can be read, it may name any
                    found |= keys
        return found

    async def _in_checkpoints_of(self, change_set: ChangeSet) -> set[str]:
        """Return the keys in checkpoints that states can be loaded from."""
        oldest = await CommitLog(self._streams, change_set).oldest()
        begins = 0 if oldest is None else oldest.previous
        found = await asyncio.to_thread(self._kept_metadata, change_set, begins)
        return set().union(*map(_keys, found))

    async def _in_requests(self) -> set[str]:
        keys: set[str] = set()
        reader = ordered_reader(self._streams.js, self._streams.requests_stream)
        async with reader:
            while (message := await reader.next(idle_timeout=0)) is not None:
                keys |= _keys(message.payload)
                try:
                    request = EnqueueUpdatesRequest.decode(message.headers, message.payload)
                except RebaserError:
                    continue  # a future dead letter, or of a newer version
                address = request.updates_address
                if isinstance(address, ObjectRef):
                    keys.add(address.object)
                elif isinstance(address, StoreRef):
                    keys.add(address.store)
        return keys

    async def _in_dead_letters(self, times: dict[str, datetime]) -> set[str]:
        return set(await self._find_references(self._streams.dead_letters_stream, times, None))

    async def _in_commit_logs(self, times: dict[str, datetime]) -> set[str]:
        stream = self._streams.commits_stream
        for key in self._references.keys() - times.keys():
            del self._references[key]
        for key, entry in list(self._references.items()):
            if await self._streams.js.get_message(stream, sequence=entry) is None:
                del self._references[key]
        # A key is nearly always older than what refers to it, so that each commit is read once.
        # It is younger only if a batch was stored again, long after its request was handled.
        for whole in (False, True):
            unknown = times.keys() - self._references.keys()
            if unknown:
                since = None if whole else min(times[key] for key in unknown) - _CLOCKS_DIFFER
                self._references |= await self._find_references(stream, unknown, since)
        return set(self._references)

    async def _find_references(
        self, stream: str, wanted: Collection[str], since: datetime | None
    ) -> dict[str, int]:
        """Map each key found in the messages since `since`, or in all, to the last such message."""
        references: dict[str, int] = {}
        start: ReaderOptions = {}
        if since is not None:
            start = {"deliver_policy": "by_start_time", "opt_start_time": since}
        async with ordered_reader(self._streams.js, stream, **start) as reader:
            while (message := await reader.next(idle_timeout=0)) is not None:
                keys = _keys(message.payload).intersection(wanted)
                references |= dict.fromkeys(keys, message.stream_sequence)
        return references


def _meta(message: Delivery) -> ObjectMeta:
    sequence, time = message.stream_sequence, message.timestamp
    with contained("object", subject=message.subject, sequence=sequence):
        info = ObjectInfo.parse(message.payload, message.subject)
        chunks = f"{info.part}.{info.nuid}" if info.part else info.nuid
        return ObjectMeta(info.name, chunks, sequence, time, info.deleted)
    return ObjectMeta(message.subject, None, sequence, time, deleted=False)


def _keys(payload: bytes) -> set[str]:
    return {key.decode() for pattern in _KEYS for key in pattern.findall(payload)}


def _tables_in(payload: bytes) -> set[str]:
    """Return the keys of tables in an encoded batch or result, and perhaps others."""
    if not any(sign in payload for sign in _SIGNS_OF_TABLES):
        return set()
    keys = _keys(payload)
    for encoded in _BASE64.findall(payload):
        for place in range(4):  # the byte before may be one of base64's, too
            text = encoded[place:]
            keys |= _keys(b64decode(text[: len(text) // 4 * 4]))
    return keys
