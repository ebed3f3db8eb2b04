"""Frames and Parquet files as batches of Arrow: read exactly, or refused by the column's name.

The unnamed index of a frame of pandas is no data if it is 0, 1, 2, …; any other one is refused, and
a named one is a column. Import this module where there is a table: it takes pyarrow.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rebaser_client.plain_values import INDEX
from rebaser_core.table_schemas import (
    AS_WRITTEN,
    BY_GROUPS,
    NUL,
    NotATable,
    checked_rows,
    first_line,
)


def read_frame(frame: Any) -> pa.RecordBatchReader:
    """Return the rows of a table with Arrow's stream interface. Raises `NotATable`."""
    try:
        # As pandas does it itself, and with whole names.
        is_pandas = _is_of("pandas", frame) and hasattr(frame, "columns")
        rows = pa.Table.from_pandas(frame) if is_pandas else frame
        _require_names(rows)
        reader = pa.RecordBatchReader.from_stream(rows)
    except (MemoryError, NotATable):
        raise
    except Exception as error:  # a library has errors of its own, and those of Python
        what = str(error.args[0] if error.args else type(error).__name__)
        raise NotATable(f"{_culprit(frame)}{what:.300}") from error
    if hasattr(frame, "iloc"):
        for (name, column), kind in zip(frame.items(), reader.schema.types, strict=False):
            if column.dtype == object:
                _require_alike(str(name), column, kind)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except MemoryError:  # one is an `ArrowException`, too
            raise
        except (pa.ArrowException, OSError) as error:  # of a query that runs while it is read
            raise NotATable(first_line(error)) from error

    return without_index(pa.RecordBatchReader.from_batches(reader.schema, batches()))


def _require_names(frame: Any) -> None:
    """Require names and types that Arrow takes from one library to another as they are."""
    columns: list[tuple[str, Any]] = []
    if isinstance(getattr(frame, "schema", None), pa.Schema):
        columns = [(field.name, field.type) for field in frame.schema]
    elif _is_of("polars", frame) and hasattr(frame, "__arrow_c_stream__"):
        is_frame = hasattr(frame, "columns")
        columns = [*frame.schema.items()] if is_frame else [(frame.name, frame.dtype)]
    for name, kind in ((name, str(kind)) for name, kind in columns):
        # Names end there for Arrow, and Polars ends the process.
        if "\0" in name or "\0" in kind.replace(r"\x00", "\0"):
            raise NotATable(f"column {name!r:.80}: {NUL}")
        if kind == "Object":  # Polars gives Arrow their addresses
            raise NotATable(f"column {name!r:.80} has objects of Python: convert it")


_MIXED: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], bool], str]]] = (
    (pa.types.is_date, lambda cell: isinstance(cell, datetime), "days and times"),
    (
        pa.types.is_timestamp,
        lambda cell: getattr(cell, "tzinfo", None) is None,
        "times with and without a time zone",
    ),
    (
        lambda kind: kind in (pa.binary(), pa.string()),
        lambda cell: isinstance(cell, str),
        "bytes and text",
    ),
    (
        lambda kind: pa.types.is_floating(kind) or pa.types.is_integer(kind),
        lambda cell: type(cell).__name__[:4] == "bool",
        "numbers and booleans",
    ),
)
"""Types that Arrow gives a column of objects whose cells it changes, and what tells these apart."""


def _require_alike(name: str, column: Any, kind: pa.DataType) -> None:
    """Require that Arrow changes no cells of a column of pandas, or in them, to be like others."""
    cells = column.dropna()
    if pa.types.is_struct(kind):
        for field in kind:
            inner = [cell.get(field.name) for cell in cells if isinstance(cell, Mapping)]
            _require_alike(name, type(column)(inner, dtype=object), field.type)
    elif pa.types.is_list(kind):
        # The items of an array of NumPy are alike.
        lists = [cell for cell in cells if getattr(cell, "dtype", "O") == "O"]
        inner = [*chain.from_iterable(lists)]
        _require_alike(name, type(column)(inner, dtype=object), kind.value_type)
    for is_kind, test, what in _MIXED:
        if is_kind(kind) and len(set(map(test, cells))) > 1:
            raise NotATable(f"column {name!r:.80} has {what}: convert it")
    if pa.types.is_timestamp(kind) and any(getattr(cell, "nanosecond", 0) for cell in cells):
        raise NotATable(f"column {name!r:.80} has parts of a microsecond: round them")


def _is_of(library: str, frame: Any) -> bool:
    return type(frame).__module__.partition(".")[0] == library


def _culprit(frame: Any) -> str:
    """Return the first column of a frame that Arrow does not take, for a message."""
    columns = getattr(frame, "columns", ())
    is_known = hasattr(frame, "iloc") or _is_of("polars", frame)
    for place in range(len(columns) if is_known else 0):
        try:
            pa.RecordBatchReader.from_stream(getattr(frame, "iloc", frame)[:, [place]])
        except Exception:  # noqa: BLE001 - the one that `read_frame` met
            return f"column {str(columns[place])!r:.80}: "
    return ""


def without_index(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return the rows without unnamed indexes of pandas, which have to be 0, 1, 2, …."""
    unnamed = _unnamed(reader.schema.metadata or {})
    kept = [place for place, name in enumerate(reader.schema.names) if name not in unnamed]
    schema = pa.schema([reader.schema.field(place) for place in kept])

    def batches() -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in reader:
            numbers = pa.array(range(seen, seen + batch.num_rows), pa.int64())
            for place in set(range(batch.num_columns)) - set(kept):
                labels = batch.column(place)
                is_whole = pa.types.is_integer(labels.type)
                if not (is_whole and labels.cast(pa.int64(), safe=False).equals(numbers)):
                    raise NotATable(f"column {batch.schema.names[place]!r}: {INDEX}")
            seen += batch.num_rows
            yield pa.record_batch([batch.column(place) for place in kept], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches()) if unnamed else reader


def _unnamed(metadata: dict[bytes, bytes]) -> set[str]:
    """Return the columns that are unnamed indexes, as pandas says in a schema's metadata."""
    try:
        said = json.loads(metadata[b"pandas"])
        names = {each.get("field_name", each["name"]): each["name"] for each in said["columns"]}
        ranges = [each for each in said["index_columns"] if isinstance(each, dict)]
        found = {each for each in said["index_columns"] if isinstance(each, str)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return set()
    if named := [each["name"] for each in ranges if each.get("name") is not None]:
        raise NotATable(f"index {named[0]!r}: it is no column; give frame.reset_index()")
    return {each for each in found if names.get(each) != each}


def read_parquet(path: Path, batch_size: int = 65_536) -> pa.RecordBatchReader:
    """Return the rows of a file. Raises `NotATable`, or `OSError` if it cannot be read."""
    path.open("rb").close()  # its error has the path, that of Arrow has none
    try:
        source = pq.ParquetFile(path, **AS_WRITTEN, **BY_GROUPS)
        narrow = pq.ParquetFile(path, **BY_GROUPS)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise NotATable(f"not a whole file in Parquet: {first_line(error)}") from error
    pairs = zip(source.schema_arrow, narrow.schema_arrow, strict=True)
    old = [us.name for us, ns in pairs if us.type != ns.type]

    def batches() -> Iterator[pa.RecordBatch]:
        fine = narrow.iter_batches(batch_size, columns=old) if old else None
        try:
            for batch in checked_rows(source.metadata, source.iter_batches(batch_size)):
                for exact in [next(fine)] if fine else ():
                    _require_equal(batch, exact)
                yield batch
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise NotATable(f"not a whole file in Parquet: {first_line(error)}") from error

    return without_index(pa.RecordBatchReader.from_batches(source.schema_arrow, batches()))


def _require_equal(batch: pa.RecordBatch, exact: pa.RecordBatch) -> None:
    """Refuse times of INT96 with parts of a microsecond; in `exact` far ones have overflowed."""
    for name, column in zip(exact.schema.names, exact.columns, strict=True):
        if not batch.column(name).cast(column.type, safe=False).equals(column):
            raise NotATable(f"column {name!r:.80}: times of INT96 with parts of a microsecond")
