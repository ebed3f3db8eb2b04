"""The tables of values, in the store: immutable directories of Parquet files, each with a manifest.

`tables/<workspace>/<key>/` has `manifest.json`, and a directory for each attempt to write the
table. The manifest is written last and names the files of one attempt; so a directory without one
is no table, and of two attempts one wins, whole. The key of a result is a digest of the query and
of the contents of its inputs. So a table that was computed before is found by its key, in any
branch and after any restart, and is not computed again. The key of an upload is the digest of the
uploaded bytes.

A manifest has a digest of itself and of each file's bytes. These are compared before rows are
believed, once for each file and process. A file that differs is set aside, so its table is not
whole any more: it is uploaded or computed again.

A table that is partitioned by a column consists of *parts*, one for each value of the column. A
part is a table like any other, in a directory of its own; the manifest of the whole names its
parts, with their files. So tables that differ in one partition share the others. A part that is
written anew has other files, which its own manifest names. That one is read where a part's
directory has not just the files that the whole names.

A table that no request, dead letter, kept commit or kept checkpoint names is garbage after a time.
First it is *condemned*: from then on it is not found any more, so that no commit comes to name it
but those under way, which take less than that time. One that was condemned that long ago and is
still not named is removed. A condemned table that is written or uploaded anew is found again.
A part is named by each manifest that there is: it outlives the wholes that have it.

All of this holds in a folder and in an object store. Both put a manifest whole, and once: a link
to a file, or a request that is refused if there is an object. Both show at once what was written or
deleted. A folder's renaming is one step; an object store copies and then deletes. So a manifest
that is written anew in between may be deleted in place of the one before: who writes it looks once
more after taking the mark of the condemned away, and who removes looks for that mark after it.
"""

import io
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from blake3 import blake3

from rebaser_core.errors import RebaserError
from rebaser_core.table_schemas import (
    AS_WRITTEN,
    PARTITION_BY,
    NotATable,
    arrow_schema,
    cast,
    checked_rows,
    first_line,
    kept_schema,
    require_few_partitions,
    require_partition_column,
    spark_fields,
)
from rebaser_core.table_values import TableHandle
from rebaser_server.files import (
    TABLES,
    SharedFiles,
    is_of_store,
    is_table_key,
    table_directory,
    tables_directory,
)

if TYPE_CHECKING:
    from rebaser_server.values.column_hashes import ContentDigest

T = TypeVar("T")
R = TypeVar("R")

log: Final = structlog.get_logger()

_MANIFEST: Final = "manifest.json"
_CONDEMNED: Final = "condemned"
_REMOVED: Final = "removed.json"
"""Name of the manifest of a table that is being removed."""
_DIGITS: Final = 32
"""Hexadecimal digits of the digests of rows and of schemas."""
_BATCH_ROWS: Final = 65_536
"""Rows of an upload that are in memory at a time."""
_READ_ROWS: Final = 8_192
"""Rows of a table that is read that are in memory at a time."""
_WAITING_BYTES: Final = 64 << 20
"""Bytes of partitions that are in memory at a time, until they are written."""
_FILE_BYTES: Final = 64 << 20
"""Bytes from which on a file takes no more rows."""
_CHUNK: Final = 4 << 20
"""Bytes that are hashed at a time."""
_AT_ONCE: Final = 16
"""Requests to an object store at a time."""
_REMEMBERED: Final = 100_000
"""Number of files that are remembered as sound."""
_SEAL: Final = "seal"
"""Key, in a manifest, of the digest of all the rest."""
_REMEDY: Final = (
    "if this table was uploaded, upload it again; else have it computed again with "
    "`rebaser dvu run`"
)


class TableMissing(RebaserError):
    """The directory of a table is not there, or not whole."""


class TableDamaged(TableMissing):
    """A file of a table is not as it was written."""


class DataFile(NamedTuple):
    path: str
    """Path relative to the directory of the workspace's tables."""
    size: int
    digest: str
    """BLAKE3 of its bytes."""


class Part(NamedTuple):
    value: str | None
    """Value of the partition's column, as text."""
    key: str
    rows: int
    content: str
    """Digest of its rows."""
    files: tuple[DataFile, ...] = ()
    """Files that it had when the whole was written."""

    @classmethod
    def decode(
        cls, value: str | None, key: str, rows: int, content: str, files: Sequence[Any] = ()
    ) -> Self:
        """Read a part from a manifest; those of older releases name no files."""
        return cls(value, key, rows, content, tuple(DataFile(*file) for file in files))


@dataclass(frozen=True, slots=True)
class Manifest:
    fields: list[dict[str, Any]]
    """Fields of the schema as Spark's JSON has them: `name`, `type`, `nullable`, `metadata`."""
    files: list[DataFile]
    """All files, also those of its parts."""
    rows: int
    content: str
    """Digest of the rows, see `TableHandle`; of a query that returns one value, that, as JSON."""
    partition_by: str | None = None
    """Column that it is partitioned by; None: it is not."""
    parts: tuple[Part, ...] = ()
    """Partitions, also such without rows, which are known to have none."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def schema_digest(self) -> str:
        text = json.dumps(self.fields, sort_keys=True)
        return blake3(text.encode()).hexdigest()[:_DIGITS]

    def handle(self, key: str) -> TableHandle:
        return TableHandle(key, self.content, self.schema_digest, self.rows, self.size)

    def part(self, value: str | None, key: str) -> Part:
        """Return this table, which lies under that key, as a part of another one."""
        return Part(value, key, self.rows, self.content, tuple(self.files))

    def encode(self) -> bytes:
        files = [] if self.parts else list(map(list, self.files))
        said = asdict(self) | {"files": files}
        return json.dumps(said | {_SEAL: _seal_of(said)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `ValueError`, `TypeError` or `LookupError` for other bytes."""
        found = json.loads(data)
        if found.pop(_SEAL) != _seal_of(found):
            raise ValueError("the manifest is not as it was written")
        files = [DataFile(*file) for file in found["files"]]
        parts = tuple(Part.decode(*part) for part in found["parts"])
        return cls(**found | {"files": files, "parts": parts})


class WrittenPart(NamedTuple):
    value: str | None
    """Value of the partition's column, as text."""
    rows: int
    content: str
    """Digest of the rows."""
    files: Sequence[DataFile]


@dataclass(frozen=True, slots=True)
class Written:
    """Rows that were written to the place of an attempt, which are no table yet."""

    fields: list[dict[str, Any]]
    """Fields as `Manifest.fields`."""
    rows: int
    content: str
    """Digest of the rows, see `TableHandle`; empty if they are written apart."""
    files: Sequence[DataFile] = ()
    parts: Sequence[WrittenPart] = ()
    """Partitions that have rows, if they are written apart."""

    def encode(self) -> list[Any]:
        parts = [[*part[:3], list(map(list, part.files))] for part in self.parts]
        return [self.fields, self.rows, self.content, list(map(list, self.files)), parts]

    @classmethod
    def decode(cls, data: Sequence[Any]) -> Self:
        fields, rows, content, files, parts = data
        return cls(
            fields,
            rows,
            content,
            [DataFile(*file) for file in files],
            [
                WrittenPart(value, count, digest, [DataFile(*file) for file in of_part])
                for value, count, digest, of_part in parts
            ],
        )


class Attempt(NamedTuple):
    workspace: str
    key: str
    name: str
    """Name of the attempt's own directory."""

    @property
    def directory(self) -> str:
        return f"{table_directory(self.workspace, self.key)}/{self.name}"

    def __truediv__(self, name: str) -> str:
        """Return the path of a file of the attempt, as `DataFile` has it."""
        return f"{self.key}/{self.name}/{name}"


class Target(NamedTuple):
    """A place to write rows to, also for a process elsewhere. It may hold secrets."""

    files: SharedFiles
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class View:
    """A table as an input of a query, which a process elsewhere can read. It may hold secrets."""

    files: SharedFiles = field(repr=False)
    workspace: str
    manifest: Manifest

    def of(self, files: Sequence[DataFile]) -> "View":
        """Return a view of these files alone, which have the same columns."""
        return replace(self, manifest=replace(self.manifest, files=[*files]))


class StoredTable(NamedTuple):
    """The directory of a table, as it was found. Times are in seconds since 1970."""

    workspace: str
    key: str
    written: float | None
    """Time of its manifest; None: it has none."""
    condemned: float | None
    """Time at which it was condemned; None: it is not."""
    attempts: tuple[str, ...]
    """Names of the directories in it."""


class TableFiles:
    """The tables of all workspaces. All methods block, and may be called from any thread."""

    def __init__(self, files: SharedFiles) -> None:
        self.files = files
        self._sound: set[str] = set()
        """Paths of files whose digests this process has compared."""

    def find(self, workspace: str, key: str) -> Manifest | None:
        """Return the manifest of a table that is whole; None if there is none, or a condemned one.

        Its files exist in the sizes that the manifest says. They outlast a power cut, also if the
        process that wrote the manifest was killed before it had synced its name.
        """
        manifest = self._look(workspace, key, is_looked_for=True)
        if manifest is None:
            return None
        try:
            self.files.sync([f"{table_directory(workspace, key)}/{_MANIFEST}"])
        except FileNotFoundError:  # it is being removed
            return None
        return manifest

    def find_all(self, workspace: str, keys: Sequence[str]) -> list[Manifest | None]:
        """Return what `find` returns for each key."""
        return self._map(lambda key: self.find(workspace, key), keys)

    def get(self, workspace: str, key: str) -> Manifest:
        """Return the manifest of a table that a value names. Raises `TableMissing`."""
        manifest = self._look(workspace, key)
        if manifest is None:
            raise _not_whole(key)
        return manifest

    def _look(self, workspace: str, key: str, *, is_looked_for: bool = False) -> Manifest | None:
        """Return the manifest, with the files of all parts, of a table that is whole; else None.

        `is_looked_for`: a condemned one is none, either. This takes two requests to an object
        store, and one for each part.
        """
        manifest = self._manifest(workspace, key)
        if manifest is None:
            return None
        sizes = self._sizes(workspace, key) if is_looked_for or not manifest.parts else {}
        if (is_looked_for and _CONDEMNED in sizes) or not _has_files(sizes, manifest.files):
            return None
        found = self._map(lambda part: self._files_of(workspace, part), manifest.parts)
        if any(files is None for files in found):
            return None
        manifest.files.extend(file for files in found for file in files or ())
        return manifest

    def _files_of(self, workspace: str, part: Part) -> Sequence[DataFile] | None:
        """Return the files of a part; None if it is not whole, or has other rows than it had."""
        sizes = self._sizes(workspace, part.key)
        # Then no other manifest can be there than the one that the whole was made of. With files
        # of another attempt beside these there may be another.
        are_alone = sizes.keys() - {_CONDEMNED} == {_MANIFEST, *map(_path_in, part.files)}
        if are_alone and _has_files(sizes, part.files):
            return part.files
        found = self._look(workspace, part.key)
        return found.files if found is not None and found.content == part.content else None

    def _manifest(self, workspace: str, key: str, name: str = _MANIFEST) -> Manifest | None:
        """Return a manifest as it was written; None if there is none, or a damaged one."""
        try:
            return Manifest.decode(self.files.get(f"{table_directory(workspace, key)}/{name}"))
        except (FileNotFoundError, ValueError, TypeError, LookupError):
            return None

    def _sizes(self, workspace: str, key: str) -> dict[str, int]:
        """Return the bytes of each file of a table, by its path in the table's directory."""
        directory = table_directory(workspace, key)
        infos = self.files.list_infos(directory, recursive=True)
        return {
            info.path.removeprefix(f"{directory}/"): info.size or 0
            for info in infos
            if not info.is_directory
        }

    def _map(self, look: Callable[[T], R], items: Collection[T]) -> list[R]:
        """Look at each; in an object store, where each look takes a request, at some at a time."""
        if self.files.is_local or len(items) <= 1:
            return list(map(look, items))
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return list(threads.map(look, items))

    def begin(self, workspace: str, key: str) -> Attempt:
        """Return a new place to write a table to; nothing is there yet."""
        return Attempt(workspace, key, uuid4().hex)

    def require_sound(self, workspace: str, files: Iterable[DataFile]) -> None:
        """Require that the files have the bytes that were written; compare each once.

        Raises:
            TableDamaged: one does not. It is set aside: then its table is computed, or uploaded,
                again.
        """
        found = self.damage(workspace, files)
        if found is not None:
            path = f"{tables_directory(workspace)}/{found.path}"
            with suppress(FileNotFoundError):  # another process was faster
                self.files.rename(path, f"{path}.damaged")
            log.error("damaged file of a table set aside", path=path)
            raise _damaged(found)

    def damage(self, workspace: str, files: Iterable[DataFile]) -> DataFile | None:
        """Return the first file that has not the bytes that were written; compare each once.

        Raises:
            TableMissing: a file is not there.
        """
        for file in files:
            path = f"{tables_directory(workspace)}/{file.path}"
            if path in self._sound:
                continue
            try:
                # A second look, since memory and cables may err, too.
                is_sound = any(self._digest_of(path) == file.digest for _ in range(2))
            except FileNotFoundError:
                raise _not_whole(file.path.partition("/")[0]) from None
            if not is_sound:
                return file
            if len(self._sound) >= _REMEMBERED:
                self._sound.clear()
            self._sound.add(path)
        return None

    def _digest_of(self, path: str, sink: pa.NativeFile | None = None) -> str:
        hasher = blake3()
        with self.files.open(path) as source:
            while chunk := source.read(_CHUNK):
                hasher.update(chunk)
                if sink is not None:
                    sink.write(chunk)
        return hasher.hexdigest()

    def copy(self, workspace: str, file: DataFile, sink: pa.NativeFile) -> None:
        """Write the bytes of a file there. Raises `TableDamaged`: they are not what was written."""
        digest = self._digest_of(f"{tables_directory(workspace)}/{file.path}", sink)
        if file.digest != digest:
            # The note would keep `require_sound` from a second comparison.
            self._sound.discard(f"{tables_directory(workspace)}/{file.path}")
            self.require_sound(workspace, [file])  # sets it aside
            raise _damaged(file)

    def write(
        self, attempt: Attempt, schema: pa.Schema, batches: Iterable[pa.RecordBatch], name: str = ""
    ) -> list[DataFile]:
        """Write rows, in a schema of `kept_schema`, as files of an attempt; return these.

        A file is closed once it has many bytes, so that each can be read whole. `name`: what their
        names begin with, if an attempt has several writers.
        """
        rows, files = _Ahead(batches), list[DataFile]()
        while rows.has_more:
            file = attempt / f"{name}part-{len(files)}.parquet"
            written = _Digested()
            path = f"{tables_directory(attempt.workspace)}/{file}"
            self.files.put(path, partial(_write, rows, schema, written), durable=False)
            files.append(DataFile(file, written.size, written.hasher.hexdigest()))
        return files

    def size(self, attempt: Attempt) -> int:
        infos = self.files.list_infos(attempt.directory, recursive=True)
        return sum(info.size or 0 for info in infos)

    def finish(self, attempt: Attempt, written: Written) -> Manifest:
        """Make what was written the table of its key; afterwards it outlasts a power cut.

        Other files of the attempt are removed: those of tasks that were repeated. If the table is
        there meanwhile, that one stays and what was written is removed.
        """
        workspace, key = attempt.workspace, attempt.key
        if found := self.find(workspace, key):
            self.discard(attempt)
            return found
        names = {file.path.rpartition("/")[2] for file in written.files}
        for info in self.files.list_infos(attempt.directory):
            if info.base_name not in names:
                self.files.delete(f"{attempt.directory}/{info.base_name}")
        return self._keep(attempt, written)

    def _keep(self, attempt: Attempt, written: Written) -> Manifest:
        workspace, files = attempt.workspace, sorted(written.files)
        # S-7: the files are on the disk before the manifest makes them a table. Else a power cut
        # could leave a manifest without them.
        self.files.sync([f"{tables_directory(workspace)}/{file.path}" for file in files])
        manifest = Manifest(written.fields, files, written.rows, written.content)
        found = self._put_manifest(workspace, attempt.key, manifest)
        if found != manifest:
            self.discard(attempt)
        return found

    def _put_manifest(self, workspace: str, key: str, manifest: Manifest) -> Manifest:
        """Write the manifest, unless a sound one came first; return that which is there then."""
        directory = table_directory(workspace, key)
        place = f"{directory}/{_MANIFEST}"
        self.files.put_if_absent(place, manifest.encode())
        found = self.find(workspace, key)
        if found is not None:
            return found
        self.files.put(place, manifest.encode())  # a condemned one is there, or one with a lack
        self.files.delete(f"{directory}/{_CONDEMNED}")
        # In an object store `remove` may have taken it for that which was there before, and seen
        # the mark a moment ago; later it sees none.
        self.files.put_if_absent(place, manifest.encode())
        return manifest

    def finish_part(
        self, workspace: str, key: str, fields: list[dict[str, Any]], written: WrittenPart
    ) -> Part:
        """Make the files of a partition the part with that key, or return the one that is there.

        One may be there that has other rows, if the function is not pure.
        """
        found = self.find(workspace, key)
        if found is None:
            own, moved = self.begin(workspace, key), list[DataFile]()
            try:
                for number, file in enumerate(written.files):
                    path = own / f"part-{number}.parquet"
                    tables = tables_directory(workspace)
                    self.files.rename(f"{tables}/{file.path}", f"{tables}/{path}")
                    moved.append(file._replace(path=path))
                found = self._keep(own, Written(fields, written.rows, written.content, moved))
            except BaseException:
                self.discard(own)
                raise
        return found.part(written.value, key)

    def finish_parts(
        self, workspace: str, fields: list[dict[str, Any]], parts: Sequence[tuple[str, WrittenPart]]
    ) -> list[Part]:
        """Return what `finish_part` returns for each key with what was written of its part."""
        return self._map(lambda one: self.finish_part(workspace, one[0], fields, one[1]), parts)

    def compose(
        self,
        workspace: str,
        key: str,
        fields: list[dict[str, Any]],
        partition_by: str,
        parts: Iterable[Part],
        content: str | None = None,
    ) -> Manifest:
        """Make parts that are there a table, which they outlive; nothing is copied.

        `content`: digest of the rows (default: one of the digests of the parts).

        Raises:
            NotATable: there are too many.
        """
        ordered = tuple(sorted(parts, key=lambda part: (part.value is not None, part.value)))
        filled = [part for part in ordered if part.rows]
        require_few_partitions(partition_by, len(filled))
        if content is None:
            digests = [partition_by, *sorted(part.content for part in filled)]
            content = blake3(json.dumps(digests).encode()).hexdigest()[:_DIGITS]
        rows = sum(part.rows for part in filled)
        manifest = Manifest(fields, [], rows, content, partition_by, ordered)
        found = self._put_manifest(workspace, key, manifest)
        # One that was found has the files of its parts, each of which was looked at.
        return self.get(workspace, key) if found is manifest else found

    def discard(self, attempt: Attempt) -> None:
        self.files.delete_directory(attempt.directory)

    def condemn(self, workspace: str, key: str) -> None:
        """Let a table not be found any more until it is written again; `get` still returns it."""
        self.files.put(f"{table_directory(workspace, key)}/{_CONDEMNED}", b"", durable=False)

    def is_condemned(self, workspace: str, key: str) -> bool:
        return bool(self.files.sizes(table_directory(workspace, key), [_CONDEMNED]))

    def renew(self, workspace: str, key: str) -> bool:
        """Let a table be found again if it was condemned; return whether it is there, whole."""
        # The mark goes first. `remove` hides the manifest and then looks for the mark, so a table
        # that is found here stays.
        self.files.delete(f"{table_directory(workspace, key)}/{_CONDEMNED}")
        return self.find(workspace, key) is not None

    def stored(self) -> Iterator[StoredTable]:
        """Yield all directories of tables, also of those that are not whole."""
        for workspace in self.files.list_names(TABLES):
            for key in self.files.list_names(tables_directory(workspace)):
                if is_table_key(key):
                    yield self._stored(workspace, key)

    def _stored(self, workspace: str, key: str) -> StoredTable:
        infos = self.files.list_infos(table_directory(workspace, key))
        times = {info.base_name: (info.mtime_ns or 0) / 1e9 for info in infos}
        attempts = sorted(info.base_name for info in infos if info.is_directory)
        manifest, condemned = times.get(_MANIFEST), times.get(_CONDEMNED)
        return StoredTable(workspace, key, manifest, condemned, tuple(attempts))

    def parts_in(self, tables: Iterable[StoredTable]) -> set[str]:
        """Return the keys of all parts that these tables have."""
        # A table of parts has no attempts.
        wholes = [table for table in tables if table.written is not None and not table.attempts]
        return {key for table in wholes for key in self.parts_of(table.workspace, table.key)}

    def parts_of(self, workspace: str, key: str) -> list[str]:
        """Return the keys of a table's parts; of none if its manifest cannot be read."""
        manifest = self._manifest(workspace, key)
        return [part.key for part in manifest.parts] if manifest else []

    def abandoned(self, table: StoredTable, before: float) -> list[Attempt]:
        """Return the attempts, from before that time, that came to nothing or were replaced.

        A replaced one counts from its replacement on, since it may be read until then.
        """
        attempts = [Attempt(table.workspace, table.key, name) for name in table.attempts]
        if table.written is not None:
            if len(attempts) == 1 or table.written >= before:
                return []
            used = _attempts_in(self._manifest(table.workspace, table.key), table.key)
            attempts = [attempt for attempt in attempts if attempt.name not in used]
        return [attempt for attempt in attempts if self._newest(attempt.directory) < before]

    def _newest(self, directory: str) -> float:
        """Return the time of the last change in a directory."""
        above, _, name = directory.rpartition("/")
        infos = [info for info in self.files.list_infos(above) if info.base_name == name]
        infos += self.files.list_infos(directory, recursive=True)
        return max(((info.mtime_ns or 0) / 1e9 for info in infos), default=0)

    def remove(self, table: StoredTable) -> None:
        """Remove a condemned table, or an empty directory.

        One that was written or renewed since it was found stays.
        """
        workspace, key = table.workspace, table.key
        directory = table_directory(workspace, key)
        place, aside = f"{directory}/{_MANIFEST}", f"{directory}/{_REMOVED}"
        # The manifest is read before the comparison. Else it could be of a table written since.
        manifest = self._manifest(workspace, key)
        if self._stored(workspace, key) != table:
            return
        if table.written is not None:
            # It is not found from here on; one that found it before has taken the mark away.
            self.files.rename(place, aside)
            if not self.files.has(f"{directory}/{_CONDEMNED}") or manifest != self._manifest(
                workspace, key, _REMOVED
            ):
                # A newer manifest stays. The copy goes last, so that a crash loses none.
                self.files.put_if_absent(place, bytes(self.files.get(aside)))
                self.files.delete(aside)
                return
        for name in _attempts_in(manifest, key):
            self.discard(Attempt(workspace, key, name))
        self.files.delete(f"{directory}/{_CONDEMNED}")
        self.files.delete(aside)
        self.files.delete_empty(directory)

    def adopt(self, workspace: str, digest: str, payload: bytes) -> Manifest:
        """Make uploaded bytes a table; return its manifest.

        Raises:
            NotATable: the bytes are no file in Parquet, or have what a table cannot keep.
            OSError: the store failed.
        """
        found = self.find(workspace, digest)
        if found is not None:
            return found
        with _reading_upload():
            source = pq.ParquetFile(pa.BufferReader(payload), **AS_WRITTEN)
            schema = kept_schema(source.schema_arrow)
            by = (source.metadata.metadata or {}).get(PARTITION_BY.encode())
            rows = checked_rows(source.metadata, source.iter_batches(_BATCH_ROWS))
            batches = (cast(batch, schema) for batch in rows)
            if by is not None:
                whole = digest[:_DIGITS]
                return self.write_parts(workspace, digest, schema, by.decode(), batches, whole)
            attempt = self.begin(workspace, digest)
            try:
                files = self.write(attempt, schema, batches)
            except BaseException:
                self.discard(attempt)
                raise
        count, content = source.metadata.num_rows, digest[:_DIGITS]
        return self.finish(attempt, Written(spark_fields(schema), count, content, files))

    def write_parts(
        self,
        workspace: str,
        key: str,
        schema: pa.Schema,
        by: str,
        batches: Iterable[pa.RecordBatch],
        content: str | None = None,
    ) -> Manifest:
        """Make the rows of each value of column `by` a part, and these parts the table of that key.

        `content`: as `compose` has it. No table is made if the iterator of the rows raises, nor
        does anything stay. Rows of one value that come one after the other make the fewest files.

        Raises:
            NotATable: a table cannot be partitioned by that column.
        """
        fields = spark_fields(schema)
        require_partition_column(fields, by)
        # A table of parts has no attempts of its own.
        attempt = self.begin(workspace, part_key(key, "split"))
        try:
            described = Manifest(fields, [], 0, "").schema_digest
            apart = self.write_apart(attempt, schema, by, batches).items()
            written = [
                (part_key(seen.text, described), WrittenPart(value, seen.rows, seen.text, files))
                for value, (seen, files) in apart
            ]
            parts = self.finish_parts(workspace, fields, written)
        finally:
            self.discard(attempt)
        return self.compose(workspace, key, fields, by, parts, content)

    def write_apart(
        self,
        attempt: Attempt,
        schema: pa.Schema,
        by: str,
        batches: Iterable[pa.RecordBatch],
        name: str = "",
    ) -> "dict[str | None, tuple[ContentDigest, list[DataFile]]]":
        """Write the rows of each value of a column to files of their own; return what these have.

        `name`: as `write` has it. Raises `NotATable` if there are too many values.
        """
        from rebaser_server.values.column_hashes import ContentDigest  # noqa: PLC0415 - has numpy

        found: dict[str | None, tuple[ContentDigest, list[DataFile]]] = {}
        waiting: dict[str | None, list[pa.RecordBatch]] = defaultdict(list)
        size = count = 0

        def write() -> None:
            nonlocal size, count

            def write_one(number: int, rows: list[pa.RecordBatch]) -> list[DataFile]:
                return self.write(attempt, schema, rows, f"{name}{number}-")

            numbered = list(enumerate(waiting.values(), count))
            files = self._map(lambda one: write_one(*one), numbered)
            for value, of_part in zip(waiting, files, strict=True):
                found[value][1].extend(of_part)
            count += len(waiting)
            waiting.clear()
            size = 0

        for batch in batches:
            for value, rows in _partitioned(batch, by):
                found.setdefault(value, (ContentDigest(), []))[0].add(rows)
                waiting[value].append(rows)
            require_few_partitions(by, len(found))
            size += batch.nbytes
            if size > _WAITING_BYTES:
                write()
        write()
        return found

    def batches(
        self, workspace: str, manifest: Manifest, names: Sequence[str], offset: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows behind the first `offset` ones, in batches, with these columns.

        Raises:
            TableDamaged: a file is not as it was written; the rows so far were.
        """
        schema = arrow_schema([_named(manifest.fields, name) for name in names])
        for opened in self._all_opened(workspace, manifest.files):
            with opened as source:
                file = pq.ParquetFile(source)
                groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
                first = 0
                while first < len(groups) and offset >= groups[first]:
                    offset -= groups[first]
                    first += 1
                wanted = range(first, len(groups))
                for batch in file.iter_batches(_READ_ROWS, row_groups=wanted, columns=names):
                    rows = batch.slice(offset)
                    offset -= batch.num_rows - rows.num_rows
                    if rows.num_rows:
                        yield cast(rows.select(names), schema)

    def _all_opened(self, workspace: str, files: Sequence[DataFile]) -> Iterator[pa.NativeFile]:
        """Open one file after the other, as `_opened`; in an object store, ever more at a time.

        Who reads the first rows alone so takes one file, and who reads all of many small ones does
        not wait for each. Those that are open together have few bytes, or are one.
        """
        start, count = 0, 1
        while start < len(files):
            sizes = accumulate(file.size for file in files[start : start + count])
            taken = max(1, sum(size <= _WAITING_BYTES for size in sizes))
            some = files[start : start + taken]
            yield from self._map(lambda file: self._opened(workspace, file), some)
            start += taken
            if not self.files.is_local:
                count = min(2 * count, _AT_ONCE)

    def _opened(self, workspace: str, file: DataFile) -> pa.NativeFile:
        """Open a file that has the bytes that were written. Raises as `require_sound`."""
        path = f"{tables_directory(workspace)}/{file.path}"
        if not self.files.is_local and path not in self._sound:
            # One request brings the bytes that are compared and the rows that are read.
            with suppress(FileNotFoundError):
                is_small = file.size <= _CHUNK  # `get` does not ask for the size first
                data = self.files.get(path) if is_small else self.files.get_buffer(path)
                if blake3(data).hexdigest() == file.digest:
                    self._sound.add(path)
                    return pa.BufferReader(data)
        self.require_sound(workspace, [file])
        return self.files.open(path)


@contextmanager
def _reading_upload() -> Iterator[None]:
    """Raise `NotATable` for errors of reading the bytes; those of the store pass."""
    try:
        yield
    except NotATable:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if is_of_store(error):
            raise
        raise NotATable(f"not a whole file in Parquet: {first_line(error)}") from error


def part_key(*digests: str) -> str:
    return blake3("/".join(["part", *digests]).encode()).hexdigest()


def _partitioned(batch: pa.RecordBatch, by: str) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield the rows of each value of a column, in their order, with the value as text."""
    encoded = batch.column(by).dictionary_encode()
    try:
        texts = [*encoded.dictionary.cast(pa.string()).to_pylist(), None]
    except UnicodeDecodeError:
        message = f"column {by!r}, which partitions the table, has text that is no UTF-8"
        raise NotATable(f"{message}: partition by another one") from None
    codes = encoded.indices.fill_null(len(texts) - 1)
    counts = {each["values"]: each["counts"] for each in pc.value_counts(codes).to_pylist()}
    ordered, start = batch.take(pc.array_sort_indices(codes)), 0  # equal ones keep their order
    for code, text in enumerate(texts):
        if count := counts.get(code, 0):
            yield text, ordered.slice(start, count)
            start += count


def _path_in(file: DataFile) -> str:
    """Return the path of a file in the directory of its table."""
    return file.path.partition("/")[2]


def _has_files(sizes: Mapping[str, int], files: Iterable[DataFile]) -> bool:
    return all(sizes.get(_path_in(file)) == file.size for file in files)


def _attempts_in(manifest: Manifest | None, key: str) -> set[str]:
    """Return the attempts of a table's own that its files are of."""
    paths = [file.path.split("/") for file in manifest.files] if manifest else []
    return {attempt for of, attempt, _ in paths if of == key}


def _named(fields: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(field for field in fields if field["name"] == name)


class _Digested:
    """A digest of the bytes of a file, and their number."""

    def __init__(self) -> None:
        self.hasher = blake3()
        self.size = 0


class _DigestingSink(io.RawIOBase):
    """A file that takes the digest of what is written to it."""

    def __init__(self, sink: pa.NativeFile, seen: _Digested) -> None:
        self._sink = sink
        self._seen = seen

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._seen.hasher.update(data)
        self._seen.size += size
        self._sink.write(data)
        return size


class _Ahead:
    """Batches of which the next one is known to be there, or not."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._next = next(self._batches, None)

    @property
    def has_more(self) -> bool:
        return self._next is not None

    def take(self) -> pa.RecordBatch:
        found, self._next = self._next, next(self._batches, None)
        return found


def _write(batches: _Ahead, schema: pa.Schema, seen: _Digested, sink: pa.NativeFile) -> None:
    # Statistics leave out NaN, the greatest number for Spark, which would pass over its rows.
    sound = [field.name for field in schema if not pa.types.is_floating(field.type)]
    with pq.ParquetWriter(
        _DigestingSink(sink, seen),
        schema,
        compression="zstd",
        coerce_timestamps="us",
        allow_truncated_timestamps=False,
        write_statistics=sound,
    ) as writer:
        while batches.has_more and seen.size < _FILE_BYTES:
            writer.write_batch(batches.take())


def _seal_of(said: dict[str, Any]) -> str:
    """Return the digest of what a manifest says."""
    return blake3(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _damaged(file: DataFile) -> TableDamaged:
    """Return the error about a file that is not as it was written."""
    key = file.path.partition("/")[0]
    return TableDamaged(
        f"table {key[:12]} is damaged in the store: the file {file.path} is not as it was "
        f"written. {_REMEDY}"
    )


def _not_whole(key: str) -> TableMissing:
    return TableMissing(f"the rows of table {key[:12]} are not whole in the store: {_REMEDY}")
