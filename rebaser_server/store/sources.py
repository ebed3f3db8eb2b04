"""Tables of others in folders that the operator allows: looked at, and copied into the store.

A table is a folder of Delta, a folder of Parquet files, or one such file. Rebaser reads one version
of it, once: its copy is a table like one that was uploaded, and does not change with it. A version
of Delta is a number. Parquet files have none, so theirs is a digest of their names and bytes, and a
copy is made only of files with that digest. Folders such as `day=2026-11-01` add a column to the
Parquet files in them.

The copy of a table that is partitioned by one column is partitioned by it, too, where a table can
be: so versions share the partitions that are equal in both.

Nothing outside of the folders is read, by whichever links, nor does a message say what is there.
"""

import json
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from rebaser_core.errors import many
from rebaser_core.table_schemas import (
    AS_WRITTEN,
    BY_GROUPS,
    NotATable,
    cast,
    checked_rows,
    first_line,
    kept_schema,
    require_few_partitions,
    require_known_types,
    require_partition_column,
    spark_fields,
)
from rebaser_core.table_values import PinnedTable
from rebaser_server.files import delta_root, local_path
from rebaser_server.runtime.failures import StoreFailed
from rebaser_server.store.table_files import data_files, translate_store_errors
from rebaser_server.tables import Manifest, TableFiles, Written
from rebaser_server.values.column_hashes import ContentDigest

_LOG: Final = "_delta_log"
_PARQUET: Final = ".parquet"
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""Value of a folder's name that stands for null."""
_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]*")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MAPPING: Final = "delta.columnMapping.mode"
_READER_VERSIONS: Final = (1, 2, 3)
_READER_FEATURES: Final = {"timestampNtz"}
"""Features of Delta that a reader needs, and that are implemented here."""
_BATCH_ROWS: Final = 65_536
"""Rows that are in memory at a time."""
_READ: Final = 1024 * 1024
"""Bytes of a file that are read at a time."""


class NewestVersion(NamedTuple):
    table: PinnedTable
    written: float
    """Time of its last change, in seconds since 1970: the same for each who looks."""


class _Opened(NamedTuple):
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    """Rows; the iterator raises `NotATable`, also at its end, if they are not of that version."""
    partitions: Mapping[str, Collection[str | None]]
    """Values, as text, of each column that the table is partitioned by."""


class _ParquetFile(NamedTuple):
    """A file of a table, and what the folders between say of its rows."""

    path: Path
    name: str
    """Path from the table's folder on."""
    columns: Mapping[str, str | None] = {}
    """Value of each column that a folder names, as text."""


class Sources:
    """The folders that the operator allows. All methods block, and raise `NotATable`."""

    def __init__(self, folders: str, max_bytes: int = 64 << 30) -> None:
        """Allow the `folders`, with colons between; a table has at most `max_bytes`."""
        self._folders: Final = [*map(Path, filter(None, folders.split(":")))]
        self._max_bytes = max_bytes

    def newest(self, path: str) -> NewestVersion:
        """Look for the newest version of the table that is there now."""
        with _reading(path):
            place = self._place(path)
            if _is_delta(place):
                newest = _delta(place)
                _require_readable(newest)
                version = newest.version()
                entry = place / _LOG / f"{version:020d}.json"
                written = entry.stat().st_mtime if entry.exists() else 0.0
                return NewestVersion(PinnedTable(path, version), written)
            files = self._parquet_files(place)
            hasher = blake3()
            for file in files:
                with file.path.open("rb") as opened:
                    _copy(opened, None, file.name, hasher)
            last = max(file.path.stat().st_mtime for file in files)
            return NewestVersion(PinnedTable(path, hasher.hexdigest()), last)

    def copy(self, table: PinnedTable, workspace: str, tables: TableFiles) -> Manifest:
        """Copy the table into the store; return the manifest of the copy. Idempotent.

        Raises:
            OSError: the store failed; as any other error, it leaves nothing behind.
        """
        found = tables.find(workspace, table.key)
        if found is not None:
            return found
        with _reading(table.path):
            place = self._place(table.path)
            open_version = self._open_delta if _is_delta(place) else self._open_parquet
            opened = open_version(place, table)
            kept = kept_schema(opened.schema)
            by = _partition_column(kept, opened.partitions)

        def rows() -> Iterator[pa.RecordBatch]:
            with _reading(table.path):
                for batch in opened.batches:
                    yield cast(batch, kept)

        if by is not None:
            return tables.write_parts(workspace, table.key, kept, by, rows())
        attempt, digest = tables.begin(workspace, table.key), ContentDigest()

        def digested() -> Iterator[pa.RecordBatch]:
            for batch in rows():
                digest.add(batch)
                yield batch

        try:
            files = tables.write(attempt, kept, digested())
            written = Written(spark_fields(kept), digest.rows, digest.text, files)
            return tables.finish(attempt, written)
        except BaseException:
            tables.discard(attempt)
            raise

    def _place(self, path: str) -> Path:
        """Return where the table lies, without links."""
        if not self._folders:
            raise NotATable(
                "the operator allows no folder: tables of others are read below those that "
                "REBASER_STORE__SOURCES names"
            )
        place = Path(path)
        if not any(self._is_within(place, folder.absolute()) for folder in self._folders):
            raise NotATable("it is not below a folder that the operator allows")
        real = place.resolve()
        self._require_allowed(real)
        if not real.exists():
            raise NotATable("there is no such file or folder")
        return real

    def _require_allowed(self, real: Path) -> None:
        """Require that a path without links is below one of the folders."""
        if not any(self._is_within(real, folder.resolve()) for folder in self._folders):
            raise NotATable("it is, or has, a link to outside of the folders that are allowed")

    @staticmethod
    def _is_within(path: Path, folder: Path) -> bool:
        return path == folder or folder in path.parents

    def _require_fits(self, size: int) -> None:
        if size > self._max_bytes:
            raise NotATable(
                f"it has {size:,} bytes, and at most {self._max_bytes:,} are copied: have an "
                "operator raise REBASER_FUNCTIONS__TABLE_BYTES"
            )

    def _open_delta(self, place: Path, table: PinnedTable) -> _Opened:
        from pyarrow.dataset import ParquetReadOptions  # it may import pandas

        if not isinstance(table.version, int):
            raise NotATable("it is a table of Delta: its versions are numbers")
        for entry in (place / _LOG, *(place / _LOG).iterdir()):
            self._require_allowed(entry.resolve())
        newest = _delta(place).version()
        if table.version > newest:
            raise NotATable(f"it has no version {table.version} yet: the newest is {newest}")
        try:
            delta = _delta(place, table.version)
            _require_readable(delta)
            options = ParquetReadOptions(**AS_WRITTEN)
            dataset = delta.to_pyarrow_dataset(parquet_read_options=options)
        except DeltaError as error:
            text = first_line(error)
            raise NotATable(f"version {table.version} cannot be read: {text}") from error
        files = data_files(delta)
        self._require_fits(sum(file.size for file in files))
        for name, size, _ in files:
            path = local_path(name) if "://" in name else place / name
            if path is None:
                raise NotATable("it has files in an object store")
            real = path.resolve()
            self._require_allowed(real)
            if not real.is_file() or real.stat().st_size != size:
                raise NotATable(
                    f"version {table.version} is not whole any more: {real.name} is gone, as after "
                    f"a vacuum, or cut off; the newest version is {newest}"
                )
        values = {
            name: {values.get(name) for values in delta.partitions()}
            for name in delta.metadata().partition_columns
        }
        _require_known_values(dataset.schema, values)
        return _Opened(dataset.schema, _delta_batches(dataset, values), values)

    def _parquet_files(self, place: Path) -> list[_ParquetFile]:
        """Return the files of a folder, or the one file, in the order of their names."""
        if place.is_file():
            files = [_ParquetFile(place, place.name)]
        else:
            files = sorted(_files_below(place, "", {}))
            if not files:
                raise NotATable(f"it has no {_LOG} and no {_PARQUET} file: it is no table")
        for file in files:
            self._require_allowed(file.path.resolve())
        self._require_fits(sum(file.path.stat().st_size for file in files))
        for file in files:
            if file.columns.keys() != files[0].columns.keys():
                raise NotATable(
                    f"{file.name} and {files[0].name} lie in folders of other columns: all files "
                    "of a table lie as deep, in folders such as day=2026-11-01"
                )
        return files

    def _open_parquet(self, place: Path, table: PinnedTable) -> _Opened:
        if isinstance(table.version, int):
            raise NotATable("it is no table of Delta: the version of Parquet files is their digest")
        files = self._parquet_files(place)
        with files[0].path.open("rb") as first, _naming(files[0]):
            schema = pq.ParquetFile(first, **AS_WRITTEN).schema_arrow
        values = {name: {file.columns[name] for file in files} for name in files[0].columns}
        added = [pa.field(name, _type_of(texts)) for name, texts in values.items()]
        whole = pa.schema([*_without(schema, values), *added])
        return _Opened(whole, _parquet_batches(files, schema, whole, table.version), values)


def _files_below(
    folder: Path, above: str, columns: Mapping[str, str | None]
) -> Iterator[_ParquetFile]:
    """Yield the Parquet files of a folder, and of those in it that name a column."""
    for entry in folder.iterdir():
        name = f"{above}{entry.name}"
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir():
            column, is_named, text = map(unquote, entry.name.partition("="))
            # U+FFFD stands for bytes that are no text, so it may be two values.
            if not is_named or not column or column in columns or "\ufffd" in column + text:
                raise NotATable(
                    f"it has a folder {name!r:.200}, and Parquet is read from files of one folder, "
                    "or of folders such as day=2026-11-01: name that folder, or make the table one "
                    "of Delta"
                )
            value = None if text == _NULL else text
            yield from _files_below(entry, f"{name}/", {**columns, column: value})
        elif entry.name.endswith(_PARQUET):
            yield _ParquetFile(entry, name, columns)


def _type_of(texts: Collection[str | None]) -> pa.DataType:
    """Return the type of a column that folders name: whole numbers or dates if all are."""
    known = [text for text in texts if text is not None]
    for pattern, kind in ((_NUMBER, pa.int64()), (_DATE, pa.date32())):
        if known and all(map(pattern.fullmatch, known)):
            with suppress(pa.ArrowInvalid):
                pa.array(known).cast(kind)
                return kind
    return pa.string()


def _partition_column(
    schema: pa.Schema, partitions: Mapping[str, Collection[str | None]]
) -> str | None:
    if len(partitions) != 1:
        return None
    [(name, values)] = partitions.items()
    try:
        require_partition_column(spark_fields(schema), name)
        require_few_partitions(name, len(values))
    except NotATable:
        return None
    return name


def _without(schema: pa.Schema, names: Collection[str]) -> list[pa.Field]:
    return [field for field in schema if field.name not in names]


def _parquet_batches(
    files: Sequence[_ParquetFile], schema: pa.Schema, whole: pa.Schema, version: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files from copies that do not change, and then require the version.

    `schema` is that of each file, `whole` has the columns that folders name, too.
    """
    hasher = blake3()
    for file in files:
        with tempfile.TemporaryFile() as copied:
            with file.path.open("rb") as opened:
                _copy(opened, copied, file.name, hasher)
            copied.seek(0)
            with _naming(file):
                source = pq.ParquetFile(copied, **AS_WRITTEN, **BY_GROUPS)
                if not source.schema_arrow.equals(schema):
                    raise NotATable(
                        f"{file.name} has other columns than {files[0].name}: all files of a "
                        "table have equal ones"
                    )
                for batch in checked_rows(source.metadata, source.iter_batches(_BATCH_ROWS)):
                    yield _with_columns(batch, file.columns, whole)
    if hasher.hexdigest() != version:
        raise NotATable(
            f"{many(len(files), 'file')} changed since this version: `rebaser tables pin` prints "
            "the newest one"
        )


def _with_columns(
    batch: pa.RecordBatch, columns: Mapping[str, str | None], whole: pa.Schema
) -> pa.RecordBatch:
    """Return the rows with the columns that folders name, which stand for those of the file."""
    arrays = [
        pa.repeat(pa.scalar(columns[field.name], pa.string()).cast(field.type), batch.num_rows)
        if field.name in columns
        else batch.column(field.name)
        for field in whole
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=whole)


def _copy(opened: BinaryIO, copied: Any, name: str, hasher: Any) -> None:
    """Add a file's name and bytes to the hash; write the bytes to `copied` if that is a file."""
    size = 0
    while part := opened.read(_READ):
        size += len(part)
        hasher.update(part)
        if copied is not None:
            copied.write(part)
    hasher.update(json.dumps([name, size]).encode())


def _is_delta(place: Path) -> bool:
    return (place / _LOG).is_dir()


def _delta(place: Path, version: int | None = None) -> DeltaTable:
    root, options = delta_root(str(place), {})
    return DeltaTable(root, version=version, storage_options=options or None)


def _require_readable(delta: DeltaTable) -> None:
    """Require that nothing which the table declares asks more of a reader than is done here."""
    protocol, mapping = delta.protocol(), delta.metadata().configuration.get(_MAPPING, "none")
    unknown = sorted({*(protocol.reader_features or ())} - _READER_FEATURES)
    if protocol.min_reader_version not in _READER_VERSIONS:
        unknown.append(f"reader version {protocol.min_reader_version}")
    if mapping != "none":
        unknown.append(f"column mapping by {mapping}")
    if unknown:
        raise NotATable(
            f"version {delta.version()} is for readers that know {', '.join(unknown)}, and no such "
            "table is read: have its owner turn that off, or write a copy without"
        )
    require_known_types(delta.schema().to_json())


def _require_known_values(
    schema: pa.Schema, partitions: Mapping[str, Collection[str | None]]
) -> None:
    """Require that the log of Delta says which values the partitions have."""
    for name, texts in partitions.items():
        kind = schema.field(name).type
        if pa.types.is_binary(kind):
            raise NotATable(
                f"it is partitioned by {name!r}, bytes, for which the log has escaped text: "
                "partition it by another column"
            )
        is_instant = getattr(kind, "tz", None) is not None
        if is_instant and not all(text is None or text.endswith("Z") for text in texts):
            raise NotATable(
                f"it is partitioned by {name!r}, times of which the log does not say the time "
                "zone: partition it by dates, or have Spark write them in UTC, with a Z"
            )


def _delta_batches(dataset: Any, partitions: Collection[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow.dataset import ParquetFragmentScanOptions  # it may import pandas

    options = ParquetFragmentScanOptions(**BY_GROUPS)
    for fragment in dataset.get_fragments():
        names = {*fragment.physical_schema.names}
        missing = sorted({*dataset.schema.names} - names - {*partitions})
        others = sorted(name for name in names - {*dataset.schema.names} if name[:1] != "_")
        if (
            missing and others
        ):  # a column that came later is missing, and stands under no other name
            raise NotATable(
                f"{fragment.path} has a column {others[0]!r} and none {missing[0]!r}, and only the "
                "latter is one of the table"
            )
        batches = fragment.to_batches(
            schema=dataset.schema,
            batch_size=_BATCH_ROWS,
            batch_readahead=2,
            fragment_scan_options=options,
        )
        yield from checked_rows(fragment.metadata, batches)


@contextmanager
def _naming(file: _ParquetFile) -> Iterator[None]:
    try:
        yield
    except MemoryError:  # one is an `ArrowException`, too, and no fault of the file
        raise
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise NotATable(f"{file.name} is not a whole file in Parquet: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise NotATable(f"{file.name} is not a whole file in Parquet: {error}") from error


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Raise `NotATable`, which names the table, in place of each error of reading it."""
    try:
        with translate_store_errors():
            yield
    except NotATable as error:
        raise NotATable(f"{path}: {first_line(error)}") from error
    except StoreFailed as error:
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__ from None
        raise NotATable(f"{path} cannot be read: {first_line(error)}") from error
