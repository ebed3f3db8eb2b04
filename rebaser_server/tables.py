"""The tables of values, in the store: immutable directories of Parquet files, each with a manifest.

`tables/<workspace>/<key>/` has `manifest.json`, and a directory for each attempt to write the
table. The manifest is written last and names the files of one attempt; so a directory without one
is no table, and of two attempts one wins, whole. The key of a result is a digest of the query and
of the contents of its inputs. So a table that was computed before is found by its key, in any
branch and after any restart, and is not computed again. The key of an upload is the digest of the
uploaded bytes.

A table that no request, dead letter, kept commit or kept checkpoint names is garbage after a time.
First it is *condemned*: from then on it is not found any more, so that no commit comes to name it
but those under way, which take less than that time. One that was condemned that long ago and is
still not named is removed. A condemned table that is written or uploaded anew is found again.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from pyarrow.fs import FileType

from rebaser_core.errors import RebaserError
from rebaser_core.table_schemas import (
    NotATable,
    arrow_schema,
    cast,
    first_line,
    kept_schema,
    spark_fields,
)
from rebaser_core.table_values import TableHandle
from rebaser_server.files import (
    TABLES,
    SharedFiles,
    is_table_key,
    local_path,
    table_directory,
    tables_directory,
)

_MANIFEST: Final = "manifest.json"
_CONDEMNED: Final = "condemned"
_REMOVED: Final = "removed.json"
"""Name of the manifest of a table that is being removed."""
_SCHEMA_DIGITS: Final = 32
_BATCH_ROWS: Final = 65_536
"""Rows of an upload that are in memory at a time."""
_READ_ROWS: Final = 8_192
"""Rows of a table that is read that are in memory at a time."""


class TableMissing(RebaserError):
    """The directory of a table is not there, or not whole."""


class DataFile(NamedTuple):
    """A file of a table."""

    path: str
    """Path relative to the table's directory."""
    size: int
    """Size in bytes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a table."""

    fields: list[dict[str, Any]]
    """Fields of the schema as Spark's JSON has them: `name`, `type`, `nullable`, `metadata`."""
    files: list[DataFile]
    rows: int
    content: str
    """Digest of the rows, see `TableHandle`; of a query that returns one value, that, as JSON."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def schema_digest(self) -> str:
        text = json.dumps(self.fields, sort_keys=True)
        return blake3(text.encode()).hexdigest()[:_SCHEMA_DIGITS]

    def handle(self, key: str) -> TableHandle:
        return TableHandle(key, self.content, self.schema_digest, self.rows, self.size)

    def encode(self) -> bytes:
        return json.dumps(asdict(self) | {"files": list(map(list, self.files))}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `ValueError`, `TypeError` or `LookupError` for other bytes."""
        found = json.loads(data)
        return cls(**found | {"files": [DataFile(*file) for file in found["files"]]})


class Attempt(NamedTuple):
    """A place to write a table to."""

    workspace: str
    key: str
    name: str
    """Name of the attempt's own directory."""

    @property
    def directory(self) -> str:
        return f"{table_directory(self.workspace, self.key)}/{self.name}"


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

    def find(self, workspace: str, key: str) -> Manifest | None:
        """Return the manifest of a table that is whole; None if there is none, or a condemned one.

        Its files exist in the sizes that the manifest says. They outlast a power cut, also if the
        process that wrote the manifest was killed before it had synced its name.
        """
        directory = table_directory(workspace, key)
        manifest = self._manifest(directory)
        if manifest is None or self.files.has(f"{directory}/{_CONDEMNED}"):
            return None
        if not self._is_whole(directory, manifest):
            return None
        try:
            self.files.sync([f"{directory}/{_MANIFEST}"])
        except FileNotFoundError:  # it is being removed
            return None
        return manifest

    def get(self, workspace: str, key: str) -> Manifest:
        """Return the manifest of a table that a value names. Raises `TableMissing`."""
        directory = table_directory(workspace, key)
        manifest = self._manifest(directory)
        if manifest is None or not self._is_whole(directory, manifest):
            raise TableMissing(
                f"the rows of table {key[:12]} are not whole in the store: if this table was "
                "uploaded, upload it again; else have it computed again with `rebaser dvu run`"
            )
        return manifest

    def _manifest(self, directory: str, name: str = _MANIFEST) -> Manifest | None:
        try:
            return Manifest.decode(bytes(self.files.get(f"{directory}/{name}")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, LookupError):  # damaged
            return None

    def _is_whole(self, directory: str, manifest: Manifest) -> bool:
        by_folder: dict[str, dict[str, int]] = {}
        for path, size in manifest.files:
            folder, _, name = path.rpartition("/")
            by_folder.setdefault(folder, {})[name] = size
        return all(
            self.files.sizes(f"{directory}/{folder}", sizes) == sizes
            for folder, sizes in by_folder.items()
        )

    def begin(self, workspace: str, key: str) -> Attempt:
        """Return a new place to write a table to; nothing is there yet."""
        return Attempt(workspace, key, uuid4().hex)

    def uri(self, attempt: Attempt) -> str:
        """Return the URI by which Spark writes to the place of an attempt.

        Raises:
            NotATable: the store is none that Spark can write to.
        """
        return self._uri(attempt.directory)

    def uris(self, workspace: str, key: str, manifest: Manifest) -> list[str]:
        """Return the URIs by which Spark reads the files of a table. Raises as `uri` does."""
        directory = table_directory(workspace, key)
        return [self._uri(f"{directory}/{path}") for path, _ in manifest.files]

    def _uri(self, path: str) -> str:
        root = local_path(self.files.root)
        if root is None:
            raise NotATable(
                "tables need a store in a folder that Rebasers and Spark share: set "
                "REBASER_STORE__ROOT to one"
            )
        return f"file://{root}/{path}"

    def write(self, attempt: Attempt, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows, in a schema of `kept_schema`, as the one file of an attempt."""
        self.files.put(_only_file(attempt), partial(_write, batches, schema), durable=False)

    def size(self, attempt: Attempt) -> int:
        """Return the bytes that an attempt has written so far."""
        infos = self.files.list_infos(attempt.directory, recursive=True)
        return sum(info.size or 0 for info in infos)

    def written(self, attempt: Attempt) -> tuple[pa.Schema, int]:
        """Return the schema and the number of the rows that `write` has written."""
        with self.files.open(_only_file(attempt)) as source:
            file = pq.ParquetFile(source)
            return file.schema_arrow, file.metadata.num_rows

    def finish(
        self, attempt: Attempt, fields: list[dict[str, Any]], rows: int, content: str
    ) -> Manifest:
        """Make what was written the table of its key; afterwards it outlasts a power cut.

        Files that are not data are left out. If the table is there meanwhile, that one stays and
        what was written is removed.
        """
        workspace, key = attempt.workspace, attempt.key
        if found := self.find(workspace, key):
            self.discard(attempt)
            return found
        infos = self.files.list_infos(attempt.directory)
        files = [
            DataFile(f"{attempt.name}/{info.base_name}", info.size)
            for info in infos
            if info.base_name.endswith(".parquet") and not info.base_name.startswith((".", "_"))
        ]
        directory = table_directory(workspace, key)
        self.files.sync([f"{directory}/{path}" for path, _ in files])
        manifest, place = Manifest(fields, sorted(files), rows, content), f"{directory}/{_MANIFEST}"
        self.files.put_if_absent(place, manifest.encode())
        found = self.find(workspace, key)
        if found is None:  # a condemned one is there, or one that is not whole
            self.files.put(place, manifest.encode())
            self.files.delete(f"{directory}/{_CONDEMNED}")
        elif found != manifest:  # another attempt's came first
            self.discard(attempt)
            return found
        return manifest

    def discard(self, attempt: Attempt) -> None:
        """Remove what an attempt has written, if anything."""
        self.files.delete_directory(attempt.directory)

    def condemn(self, workspace: str, key: str) -> None:
        """Let a table not be found any more until it is written again; `get` still returns it."""
        self.files.put(f"{table_directory(workspace, key)}/{_CONDEMNED}", b"", durable=False)

    def is_condemned(self, workspace: str, key: str) -> bool:
        return self.files.has(f"{table_directory(workspace, key)}/{_CONDEMNED}")

    def renew(self, workspace: str, key: str) -> bool:
        """Let a table be found again if it was condemned; return whether it is there, whole."""
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
        attempts = sorted(info.base_name for info in infos if info.type is FileType.Directory)
        manifest, condemned = times.get(_MANIFEST), times.get(_CONDEMNED)
        return StoredTable(workspace, key, manifest, condemned, tuple(attempts))

    def abandoned(self, table: StoredTable, before: float) -> list[Attempt]:
        """Return the attempts, from before that time, that came to nothing or were replaced.

        A replaced one counts from its replacement on, since it may be read until then.
        """
        attempts = [Attempt(table.workspace, table.key, name) for name in table.attempts]
        if table.written is not None:
            if len(attempts) == 1 or table.written >= before:
                return []
            used = _attempts_in(self._manifest(table_directory(table.workspace, table.key)))
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
        directory = table_directory(table.workspace, table.key)
        place, aside = f"{directory}/{_MANIFEST}", f"{directory}/{_REMOVED}"
        manifest = self._manifest(directory)
        if self._stored(table.workspace, table.key) != table:
            return
        if table.written is not None:
            # It is not found from here on; one that found it before has taken the mark away.
            self.files.rename(place, aside)
            if not self.files.has(f"{directory}/{_CONDEMNED}") or manifest != self._manifest(
                directory, _REMOVED
            ):
                self.files.put_if_absent(place, bytes(self.files.get(aside)))
                self.files.delete(aside)
                return
        for name in _attempts_in(manifest):
            self.discard(Attempt(table.workspace, table.key, name))
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
        try:
            source = pq.ParquetFile(pa.BufferReader(payload))
        except (pa.ArrowException, OSError) as error:
            raise NotATable(f"not a whole file in Parquet: {first_line(error)}") from error
        schema = kept_schema(source.schema_arrow)
        attempt = self.begin(workspace, digest)
        try:
            batches = (cast(batch, schema) for batch in source.iter_batches(_BATCH_ROWS))
            self.write(attempt, schema, batches)
        except (NotATable, pa.ArrowException, OSError) as error:
            self.discard(attempt)
            if isinstance(error, NotATable) or getattr(error, "errno", None) is not None:
                raise  # a number: it is the store's error, not that of reading the bytes
            raise NotATable(f"not a whole file in Parquet: {first_line(error)}") from error
        return self.finish(
            attempt, spark_fields(schema), source.metadata.num_rows, digest[:_SCHEMA_DIGITS]
        )

    def batches(
        self, workspace: str, key: str, manifest: Manifest, names: Sequence[str], offset: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows behind the first `offset` ones, in batches, with these columns."""
        schema = arrow_schema([_named(manifest.fields, name) for name in names])
        for path, _ in manifest.files:
            with self.files.open(f"{table_directory(workspace, key)}/{path}") as source:
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


def _only_file(attempt: Attempt) -> str:
    return f"{attempt.directory}/part-0.parquet"


def _attempts_in(manifest: Manifest | None) -> set[str]:
    return {path.partition("/")[0] for path, _ in manifest.files} if manifest else set()


def _named(fields: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(field for field in fields if field["name"] == name)


def _write(batches: Iterable[pa.RecordBatch], schema: pa.Schema, sink: pa.NativeFile) -> None:
    # Statistics leave out NaN, the greatest number for Spark, which would pass over its rows.
    sound = [field.name for field in schema if not pa.types.is_floating(field.type)]
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        coerce_timestamps="us",
        allow_truncated_timestamps=False,
        write_statistics=sound,
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)
