"""Removal of garbage: batches, results, files and holdings, old ones that nothing refers to.

A process that dies at the wrong moment leaves garbage: a client after it stored a batch and before
it sent the request, a Rebaser after it purged a commit and before it deleted the batch, either of
them in the middle of a file. Young ones stay: a batch is stored before anything can refer to it.

`Holdings` of the application, such as tables, are named by values. So their keys are looked for in
requests, dead letters and commits, in the batches and results that these refer to, and in the
metadata of checkpoints. They are removed in two steps: condemned first, and removed by a later
collection that finds them condemned for long enough.
"""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

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
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.errors import RunEnded
from rebaser_server.files import OrphanFile, OrphanFiles, change_sets_in
from rebaser_server.runtime.containment import contained
from rebaser_server.runtime.failures import StoreDamaged

_KEYS: Final = (re.compile(rb"[0-9a-f]{64}"), re.compile(rb"[0-9A-HJKMNP-TV-Z]{26}"))
"""Names of batches and results, which are digests and ULIDs: so a reference is found anywhere in a
message of any version."""

_CLOCKS_DIFFER: Final = timedelta(hours=1)
"""Time by which clocks may differ: the store dates files, NATS dates commits."""


CONDEMNED: Final = "condemned"
"""Kind of the holdings that are to be condemned."""


class Holding(Protocol):
    @property
    def workspace(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def written(self) -> float | None:
        """Time at which it became whole, in seconds since 1970; None: it is not."""


class HoldingsFound(NamedTuple):
    whole: Collection[str]
    """Keys of those that are whole: their uploads have done their duty."""
    old: Sequence[Holding]
    """Old things, which are garbage if no value names them."""
    garbage: Callable[[Collection[str]], dict[str, list[Any]]]
    """Function from the keys that are named to what is to be removed, by kind."""


class Holdings:
    """Things of an application in the store, which values name by their keys. All calls block.

    An application without any takes this class as it is.
    """

    def find(self, before: float) -> HoldingsFound:
        """Look through the store; those written since `before` are not old."""
        del before
        return HoldingsFound((), (), lambda _: {})

    @staticmethod
    def keys_in(payload: bytes) -> set[str]:
        """Return the keys that an encoded batch or result names, and perhaps others."""
        del payload
        return set()

    def remove(self, garbage: Mapping[str, Sequence[Any]]) -> None:
        """Remove garbage, by kind. Things that were written or named anew meanwhile stay."""
        del garbage


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
    objects: list[ObjectMeta] = field(default_factory=list)
    tombstones: list[ObjectMeta] = field(default_factory=list)
    """Metadata that the bucket keeps about deleted objects."""
    chunks: list[str] = field(default_factory=list)
    """Chunks of uploads that never finished, by the upload's id."""
    files: list[OrphanFile] = field(default_factory=list)
    held: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Things of the application, by kind."""

    def counts(self) -> dict[str, int]:
        """Count each kind of garbage; kinds without any are left out."""
        counts = {
            "objects": len(self.objects),
            "tombstones": len(self.tombstones),
            "chunks": len(self.chunks),
            "files": len(self.files),
            **{kind: len(things) for kind, things in self.held.items()},
        }
        return {name: count for name, count in counts.items() if count}


class GarbageCollector:
    """Finds and removes garbage. It may run anywhere, at any time, also twice at once."""

    def __init__(
        self,
        streams: Streams,
        batches: BatchStore,
        kept_metadata: Callable[[ChangeSet, int], Iterable[bytes]],
        holdings: Holdings,
        grace: float,
    ) -> None:
        """Look for garbage; an unreferenced thing is kept for `grace` seconds.

        `kept_metadata` and `holdings` are those of the change sets' `StateMachine`.
        """
        self._streams = streams
        self._batches = batches
        self._leftovers = OrphanFiles(batches.files)
        self._holdings = holdings
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
        # Things are listed before references are read: one that is stored in between is not listed,
        # and one that gets its first reference in between stays.
        metas = await self._metas()
        files = await asyncio.to_thread(self._leftovers.older_than, before)
        held = await asyncio.to_thread(self._holdings.find, before)
        old = [meta for meta in metas if meta.time < limit]
        times = {meta.name: meta.time for meta in old if not meta.deleted}
        written = [(file.key, file.time) for file in files if file.key is not None]
        written += [(each.key, each.written or 0) for each in held.old]
        times |= {key: datetime.fromtimestamp(when, UTC) for key, when in written}
        # An uploaded file has done its duty once its thing is whole: then no commit keeps it.
        queued, referenced = await self._referenced(times, held)
        objects = [
            meta
            for meta in old
            if not meta.deleted
            and meta.name not in (queued if meta.name in held.whole else referenced)
        ]
        # Clients write metadata, too: theirs may name the chunks of an object that is in use.
        in_use = {m.nuid for m in set(metas).difference(objects) if not m.deleted}
        return Garbage(
            objects=[m._replace(nuid=None) if m.nuid in in_use else m for m in objects],
            tombstones=[m for m in old if m.deleted],
            chunks=await self._chunks({m.nuid for m in metas if not m.deleted}, limit),
            files=[file for file in files if file.key is None or file.key not in referenced],
            held=await asyncio.to_thread(held.garbage, referenced),
        )

    async def _now(self) -> float:
        """Return the earlier of NATS' and our time: a wrong clock of ours makes nothing old."""
        info = await self._streams.js.stream_info(self._stream)
        return min(time.time(), info.ts.timestamp())

    async def remove(self, garbage: Garbage) -> None:
        """Remove all garbage. Things stored again meanwhile, under their old names, stay."""
        for meta in (*garbage.objects, *garbage.tombstones):
            # By sequence, so that an object stored again under this name stays. The metadata goes
            # first: chunks without it are garbage for the next collection, an object without chunks
            # is damaged.
            await self._streams.js.delete_message(self._stream, meta.sequence)
            if not meta.deleted and meta.nuid is not None:
                await self._purge_chunks(meta.nuid)
        for nuid in garbage.chunks:
            with contained("object", passing=(NatsUnreachable, Unavailable), chunks=nuid):
                await self._purge_chunks(nuid)
        await asyncio.to_thread(self._leftovers.remove, garbage.files)
        await asyncio.to_thread(self._holdings.remove, garbage.held)

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
        self, times: dict[str, datetime], held: HoldingsFound
    ) -> tuple[set[str], set[str]]:
        """Return the keys that a request or a dead letter refers to, and those that anything does.

        `times`: when each was stored, which is before anything could refer to it. Requests are read
        first: a request that is settled meanwhile has its commit by then. They are read once more
        after the dead letters: a letter that is replayed meanwhile is a request by then. With
        holdings, checkpoints are read twice: what they name saves reading all commits, and the
        results that a purged commit had are in them by then.
        """
        if not times:
            return set(), set()
        queued = await self._in_requests()
        queued |= await self._in_dead_letters(times)
        queued |= await self._in_requests()
        found = queued | await self._in_checkpoints(held.old)
        found |= await self._in_commit_logs({key: times[key] for key in times.keys() - found})
        if times.keys() - found or times.keys() & {*held.whole} - queued:
            queued |= await self._in_queued_batches(queued)
            found |= queued
        if any(each.key not in found for each in held.old):
            found |= await asyncio.to_thread(self._in_results)
            found |= await self._in_checkpoints([e for e in held.old if e.key not in found])
        return queued, found

    async def _in_queued_batches(self, queued: Collection[str]) -> set[str]:
        """Return the keys of holdings that the batches of requests and dead letters name."""
        keys: set[str] = set()
        for meta in await self._metas():
            if meta.name in queued and not meta.deleted:
                keys |= self._holdings.keys_in(await self._batches.queued_bytes(meta.name))
        return keys

    def _in_results(self) -> set[str]:
        """Return the keys of holdings that batches and results in the store name."""
        return set().union(*map(self._holdings.keys_in, self._leftovers.payloads()))

    async def _in_checkpoints(self, holdings: Collection[Holding]) -> set[str]:
        """Return the keys of those that a kept checkpoint of their workspace names."""
        wanted = defaultdict(set)
        for each in holdings:
            wanted[each.workspace].add(each.key)
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
