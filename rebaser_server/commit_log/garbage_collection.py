"""Removal of garbage: batches, results and files that are old and that nothing refers to.

A process that dies at the wrong moment leaves garbage: a client after it stored a batch and before
it sent the request, a Rebaser after it purged a commit and before it deleted the batch, either of
them in the middle of a file. Young ones stay: a batch is stored before anything can refer to it.
"""

import asyncio
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from rebaser_core.errors import RebaserError
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
from rebaser_server.files import OrphanFile, OrphanFiles
from rebaser_server.runtime.containment import contained

_KEYS: Final = (re.compile(rb"[0-9a-f]{64}"), re.compile(rb"[0-9A-HJKMNP-TV-Z]{26}"))
"""Names of batches and results, which are digests and ULIDs: so a reference is found anywhere in a
message of any version."""


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

    def counts(self) -> dict[str, int]:
        """Count each kind of garbage; kinds without any are left out."""
        counts = {
            "objects": len(self.objects),
            "tombstones": len(self.tombstones),
            "chunks": len(self.chunks),
            "files": len(self.files),
        }
        return {name: count for name, count in counts.items() if count}


class GarbageCollector:
    """Finds and removes garbage. It may run anywhere, at any time, also twice at once."""

    def __init__(self, streams: Streams, leftovers: OrphanFiles, grace: float) -> None:
        """Look for garbage; an unreferenced thing is kept for `grace` seconds."""
        self._streams = streams
        self._leftovers = leftovers
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
        old = [meta for meta in metas if meta.time < limit]
        times = {meta.name: meta.time for meta in old if not meta.deleted}
        for file in files:
            if file.key is not None:
                times[file.key] = datetime.fromtimestamp(file.time, UTC)
        referenced = await self._referenced(times)
        objects = [m for m in old if not m.deleted and m.name not in referenced]
        in_use = {m.nuid for m in set(metas).difference(objects) if not m.deleted}
        return Garbage(
            objects=[m._replace(nuid=None) if m.nuid in in_use else m for m in objects],
            tombstones=[m for m in old if m.deleted],
            chunks=await self._chunks({m.nuid for m in metas if not m.deleted}, limit),
            files=[file for file in files if file.key is None or file.key not in referenced],
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

    async def _referenced(self, times: dict[str, datetime]) -> set[str]:
        """Return those of the keys that a request, a dead letter or a commit refers to.

        `times`: when each was stored, which is before anything could refer to it. Requests are read
        first: a request that is settled meanwhile has its commit by then. They are read once more
        after the dead letters: a letter that is replayed meanwhile is a request by then.
        """
        if not times:
            return set()
        referenced = await self._in_requests()
        referenced |= await self._in_dead_letters(times)
        referenced |= await self._in_requests()
        return referenced | await self._in_commit_logs(times)

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
        return ObjectMeta(info.name, info.nuid, sequence, time, info.deleted)
    return ObjectMeta(message.subject, None, sequence, time, deleted=False)


def _keys(payload: bytes) -> set[str]:
    return {key.decode() for pattern in _KEYS for key in pattern.findall(payload)}
