"""Tables of others in folders that the operator allows: looked at, and copied into the store.

A table is a folder of Delta, a folder of Parquet files, or one such file. Rebaser reads one version
of it, once: its copy is a table like one that was uploaded, and does not change with it. A version
of Delta is a number. Parquet files have none, so theirs is a digest of their names and bytes, and a
copy is made only of files with that digest.

Nothing outside of the folders is read, by whichever links, nor does a message say what is there.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from rebaser_core.errors import many
from rebaser_core.table_schemas import NotATable, cast, first_line, kept_schema, spark_fields
from rebaser_core.table_values import PinnedTable
from rebaser_server.files import delta_root, local_path
from rebaser_server.runtime.failures import StoreFailed
from rebaser_server.store.table_files import data_files, translate_store_errors
from rebaser_server.tables import Manifest, TableFiles
from rebaser_server.values.column_hashes import ContentDigest

_LOG: Final = "_delta_log"
_PARQUET: Final = ".parquet"
_BATCH_ROWS: Final = 65_536
"""Rows that are in memory at a time."""
_READ: Final = 1024 * 1024
"""Bytes of a file that are read at a time."""


class NewestVersion(NamedTuple):
    """The newest version of a table."""

    table: PinnedTable
    written: float
    """Time of its last change, in seconds since 1970: the same for each who looks."""


class _Opened(NamedTuple):
    """A version of a table that is about to be copied."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    """Rows; the iterator raises `NotATable`, also at its end, if they are not of that version."""


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
                version = _delta(place).version()
                entry = place / _LOG / f"{version:020d}.json"
                written = entry.stat().st_mtime if entry.exists() else 0.0
                return NewestVersion(PinnedTable(path, version), written)
            files = self._parquet_files(place)
            hasher = blake3()
            for file in files:
                with file.open("rb") as opened:
                    _copy(opened, None, file.name, hasher)
            last = max(file.stat().st_mtime for file in files)
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
            opened = self._open_delta if _is_delta(place) else self._open_parquet
            schema, batches = opened(place, table)
            kept = kept_schema(schema)
        attempt, digest = tables.begin(workspace, table.key), ContentDigest()

        def rows() -> Iterator[pa.RecordBatch]:
            with _reading(table.path):
                for batch in batches:
                    made = cast(batch, kept)
                    digest.add(made)
                    yield made

        try:
            tables.write(attempt, kept, rows())
            return tables.finish(attempt, spark_fields(kept), digest.rows, digest.text)
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
        if not isinstance(table.version, int):
            raise NotATable("it is a table of Delta: its versions are numbers")
        for entry in (place / _LOG, *(place / _LOG).iterdir()):
            self._require_allowed(entry.resolve())
        newest = _delta(place).version()
        if table.version > newest:
            raise NotATable(f"it has no version {table.version} yet: the newest is {newest}")
        try:
            delta = _delta(place, table.version)
            dataset = delta.to_pyarrow_dataset()
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
        batches = dataset.to_batches(
            batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1
        )
        return _Opened(dataset.schema, batches)

    def _parquet_files(self, place: Path) -> list[Path]:
        """Return the files of a folder, or the one file, in the order of their names."""
        if place.is_file():
            files = [place]
        else:
            files = []
            for entry in place.iterdir():
                if entry.name.startswith((".", "_")):
                    continue
                if entry.is_dir():
                    raise NotATable(
                        f"it has a folder {entry.name!r:.200}, and Parquet is read from files of "
                        "one folder: name that, or make it a table of Delta"
                    )
                if entry.name.endswith(_PARQUET):
                    files.append(entry)
            if not files:
                raise NotATable(f"it has no {_LOG} and no {_PARQUET} file: it is no table")
        for file in files:
            self._require_allowed(file.resolve())
        self._require_fits(sum(file.stat().st_size for file in files))
        return sorted(files)

    def _open_parquet(self, place: Path, table: PinnedTable) -> _Opened:
        if isinstance(table.version, int):
            raise NotATable("it is no table of Delta: the version of Parquet files is their digest")
        files = self._parquet_files(place)
        with files[0].open("rb") as first, _naming(files[0]):
            schema = pq.read_schema(first)
        return _Opened(schema, _parquet_batches(files, schema, table.version))


def _parquet_batches(
    files: Sequence[Path], schema: pa.Schema, version: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files from copies that do not change, and then require the version."""
    hasher = blake3()
    for file in files:
        with tempfile.TemporaryFile() as copied:
            with file.open("rb") as opened:
                _copy(opened, copied, file.name, hasher)
            copied.seek(0)
            with _naming(file):
                source = pq.ParquetFile(copied)
                if not source.schema_arrow.equals(schema):
                    raise NotATable(
                        f"{file.name} has other columns than {files[0].name}: all files of a "
                        "table have equal ones"
                    )
                yield from source.iter_batches(_BATCH_ROWS)
    if hasher.hexdigest() != version:
        raise NotATable(
            f"{many(len(files), 'file')} changed since this version: `rebaser tables pin` prints "
            "the newest one"
        )


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


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError:  # one is an `ArrowException`, too, and no fault of the file
        raise
    except pa.ArrowException as error:
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
        raise NotATable(f"{path} cannot be read: {first_line(error)}") from error
