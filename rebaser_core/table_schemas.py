"""The columns and rows of tables that are values: types as Arrow, Spark and SQL name them.

Clients bring their tables into these types before they send them, and Rebasers again before they
keep them. A type that is not kept as it is becomes one that holds each of its values; if there is
none, or a name is missing or there twice, the table is refused.

Import this module where there is a table: it takes pyarrow, which clients may do without.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pybase64 import b64decode, b64encode_as_string

from rebaser_core.errors import RebaserError, offer
from rebaser_core.queries import TableColumn

MAX_COLUMNS: Final = 2_000
MAX_PARTITIONS: Final = 4_000
"""Maximum number of partitions of a table: the days of ten years."""
PARTITION_BY: Final = "rebaser.partition_by"
"""Key of a Parquet file's metadata, with the name of the column that partitions the table."""


NUL: Final = "a name with the character NUL, behind which Arrow cuts names: rename it"


class NotATable(RebaserError):
    """The bytes are no file in Parquet, or have what a table cannot keep; the message says what."""


def cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows in a schema of `kept_schema`. Raises `NotATable` if a cell does not fit."""
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        try:
            columns.append(_cast_column(column, field.type))
        except MemoryError:  # one is an `ArrowException`, too
            raise
        except pa.ArrowException as error:
            message = f"column {field.name!r} does not fit {field.type}: {first_line(error)}"
            raise NotATable(message) from error
    return pa.record_batch(columns, schema=schema)


def _cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type) or pa.types.is_nested(column.type):
        # Arrow cannot cast categories of Polars at once.
        column = column.cast(_kept_type(column.type, "", coded=True))
    if pa.types.is_decimal(kind):
        column.validate(full=True)  # a cast to its own type does not look at the digits
    return column.cast(kind)


def first_line(error: BaseException) -> str:
    """Return the first line of an error of Arrow, which may have many."""
    return (str(error).splitlines() or [type(error).__name__])[0]


AS_WRITTEN: Final = {"coerce_int96_timestamp_unit": "us"}
"""Options with which Arrow reads a file in Parquet: it would count the nanoseconds of INT96 in 64
bits, so that the year 1 becomes 1754."""
BY_GROUPS: Final = {"pre_buffer": False}
"""Option with which Arrow reads a file in Parquet by groups of rows: it would keep the bytes of all
groups until the last one is read."""
_ANNOTATIONS: Final = (
    *("NONE", "STRING", "JSON", "UUID", "INT", "DECIMAL", "FLOAT16"),
    *("DATE", "TIME", "TIMESTAMP"),
)
"""Annotations of Parquet that Arrow heeds."""
_SPARK: Final = "org.apache.spark."
_FIRST_DAY: Final = date(1582, 10, 15)
_FIRST_TIME: Final = datetime(1900, 1, 1)  # noqa: DTZ001 - offsets were other ones before


def checked_rows(metadata: Any, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in Parquet if Arrow reads them as the file's metadata says.

    Raises:
        NotATable: it does not.
    """
    for column in map(metadata.schema.column, range(metadata.num_columns)):
        kind = column.logical_type
        if kind.type not in _ANNOTATIONS:
            raise NotATable(f"column {column.path!r} is of type {kind}, which is not read: cast it")
    said = {key.decode("latin-1"): value for key, value in (metadata.metadata or {}).items()}
    if written := said.get(f"{_SPARK}sql.parquet.row.metadata"):
        require_known_types(written)
    is_old = said.get(f"{_SPARK}version", b"3") < b"3" or any(
        f"{_SPARK}{name}" in said for name in ("legacyDateTime", "legacyINT96")
    )
    for batch in batches:
        for column in batch.columns if is_old else ():
            _require_calendar(column)
        yield batch


def require_known_types(schema: str | bytes) -> None:
    """Raise `NotATable` if a schema in Spark's JSON has a type that Parquet does not tell of."""
    try:
        kinds = [*_scalars_in(json.loads(schema))]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise NotATable(f"what it says of its columns cannot be read: {error!r:.200}") from error
    for kind in kinds:
        if kind.partition(" ")[0] not in _BY_NAME.keys() | {"void"} and not _DECIMAL.match(kind):
            raise NotATable(f"a column of type {kind}, which a table cannot keep: cast it")


def _scalars_in(kind: Any) -> Iterator[str]:
    if isinstance(kind, str):
        yield kind
    elif kind["type"] in ("array", "map", "struct"):
        for name in ("elementType", "keyType", "valueType"):
            yield from _scalars_in(kind[name]) if name in kind else ()
        for field in kind.get("fields", ()):
            yield from _scalars_in(field["type"])
    else:
        yield str(kind["type"])


def _require_calendar(column: pa.Array) -> None:
    """Raise `NotATable` if the column of a former Spark has days that it counted otherwise."""
    kind = column.type
    if pa.types.is_map(kind):
        inside = [column.keys, column.items]
    elif pa.types.is_nested(kind):
        inside = column.flatten() if pa.types.is_struct(kind) else [column.flatten()]
    else:
        inside = []
    for each in inside:
        _require_calendar(each)
    first = _FIRST_DAY if pa.types.is_date(kind) else _FIRST_TIME
    if not pa.types.is_temporal(kind) or not column.null_count < len(column):
        return
    if pc.any(pc.less(column, pa.scalar(first).cast(kind))).as_py():
        raise NotATable(
            f"it has dates before {first:%Y-%m-%d} as a former Spark counted them: have Spark "
            "write it anew with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED"
        )


def kept_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema in which the columns are kept.

    Raises:
        NotATable: a column's type or name cannot be kept, or there are none, or too many.
    """
    if not schema.names:
        raise NotATable("a table has at least one column, and this one has none")
    if len(schema.names) > MAX_COLUMNS:
        raise NotATable(f"{len(schema.names):,} columns; a table has at most {MAX_COLUMNS:,}")
    require_distinct(schema.names)
    return pa.schema([pa.field(f.name, _kept_type(f.type, f.name), f.nullable) for f in schema])


def require_distinct(names: Sequence[str], where: str = "") -> None:
    """Raise `NotATable` if two have one name, in upper or lower case, or one is unusable."""
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise NotATable(f"{where}a column without a name: name each column")
        if "\0" in name:
            raise NotATable(f"{where}column {name!r:.80}: {NUL}")
        before = seen.get(name.lower())
        if before == name:
            raise NotATable(f"{where}two columns are called {name!r}: give each a name of its own")
        if before is not None:
            raise NotATable(
                f"{where}columns {before!r} and {name!r} differ in upper and lower case alone, "
                "which Spark does not look at: give each a name of its own"
            )
        seen[name.lower()] = name


_PARTITION_TYPES: Final = ("boolean", "byte", "short", "integer", "long", "string", "date")


def require_partition_column(fields: Sequence[dict[str, Any]], name: str) -> None:
    """Raise `NotATable` if a table with these fields cannot be partitioned by this column."""
    kinds = {field["name"]: field["type"] for field in fields}
    if name not in kinds:
        raise NotATable(
            f"there is no column {name!r}, by which the table is partitioned{offer(name, kinds)}"
        )
    if kinds[name] not in _PARTITION_TYPES:
        [column] = columns_of([field for field in fields if field["name"] == name])
        raise NotATable(
            f"column {name!r} is of type {column.type}, and a table is partitioned by whole "
            "numbers, text, dates or booleans: cast it"
        )


def require_few_partitions(name: str, count: int) -> None:
    """Raise `NotATable` if the column makes too many partitions."""
    if count > MAX_PARTITIONS:
        raise NotATable(
            f"column {name!r} makes more than {MAX_PARTITIONS:,} partitions, the most that a table "
            "has: partition by a coarser one, such as the month of a day"
        )


_INTEGERS: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def _kept_type(kind: pa.DataType, name: str, *, coded: bool = False) -> pa.DataType:
    """Return the type in which a column is kept; `coded`: its categories stay ones, of kept types.

    Raises:
        NotATable: there is none; `name` is the column's.
    """
    kept_type = partial(_kept_type, name=name, coded=coded)
    if pa.types.is_dictionary(kind):
        kept = kept_type(kind.value_type)
        return pa.dictionary(kind.index_type, kept) if coded else kept
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kept_type(kind.value_type))
    if pa.types.is_struct(kind):
        require_distinct([field.name for field in kind], f"column {name!r}: ")
        return pa.struct([pa.field(f.name, kept_type(f.type), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kept_type(kind.key_type), kept_type(kind.item_type))
    kept = _INTEGERS.get(kind, kind)
    for test, plain in _ALIKE:
        if test(kept):
            kept = plain
    if _spark_scalar(kept) is None:
        raise NotATable(f"column {name!r} is of type {kind}, which a table cannot keep: convert it")
    return kept


_ALIKE: Final = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_date64, pa.date32()),
    (pa.types.is_float16, pa.float32()),
)
"""Tests for types that are kept as another type without a loss."""

_SCALARS: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
}


def _spark_scalar(kind: pa.DataType) -> str | None:
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return f"decimal({kind.precision},{kind.scale})"
    return _SCALARS.get(kind)


def spark_fields(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the fields of a kept schema as Spark's JSON has them."""
    return list(map(_spark_field, schema))


def _spark_field(field: pa.Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": _spark_type(field.type),
        "nullable": field.nullable,
        "metadata": {},
    }


def _spark_type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        key, value = _spark_type(kind.key_type), _spark_type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_spark_field(field) for field in kind]}
    return _spark_scalar(kind)


def _type_text(kind: Any) -> str:
    if isinstance(kind, str):
        return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(
            kind, kind
        )
    match kind["type"]:
        case "array":
            return f"array<{_type_text(kind['elementType'])}>"
        case "map":
            return f"map<{_type_text(kind['keyType'])},{_type_text(kind['valueType'])}>"
        case "struct":
            inner = (f"{f['name']}:{_type_text(f['type'])}" for f in kind["fields"])
            return f"struct<{','.join(inner)}>"
        case other:
            return str(other)


_BY_NAME: Final = {name: kind for kind, name in _SCALARS.items()}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


def arrow_schema(fields: Sequence[dict[str, Any]]) -> pa.Schema:
    """Return the schema that fields of Spark's JSON are in Arrow. Raises `NotATable`."""
    return pa.schema(map(_arrow_field, fields))


def _arrow_field(field: dict[str, Any]) -> pa.Field:
    return pa.field(field["name"], _arrow_type(field["type"]), field["nullable"])


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        decimal = _DECIMAL.fullmatch(kind)
        if decimal is not None:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        found = _BY_NAME.get(kind.partition(" ")[0])  # a text may have a collation
        if found is None:
            raise NotATable(f"the type {kind} cannot be read as Arrow: cast it to another one")
        return found
    match kind["type"]:
        case "array":
            return pa.list_(_arrow_type(kind["elementType"]))
        case "map":
            return pa.map_(_arrow_type(kind["keyType"]), _arrow_type(kind["valueType"]))
        case _:
            return pa.struct(list(map(_arrow_field, kind["fields"])))


def columns_of(fields: Sequence[dict[str, Any]]) -> list[TableColumn]:
    """Return the columns that fields of Spark's JSON are."""
    return [
        TableColumn(name=f["name"], type=_type_text(f["type"]), nullable=f["nullable"])
        for f in fields
    ]


def encode_rows(rows: pa.RecordBatch) -> str:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_batch(rows)
    return b64encode_as_string(sink.getvalue())


def decode_rows(text: str) -> pa.RecordBatch:
    """Return the rows in what `encode_rows` made."""
    return pa.ipc.open_stream(b64decode(text)).read_next_batch()


def rows_of(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return the rows by column, with cells as `cells_of` has them."""
    columns = map(cells_of, rows.columns)
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def cells_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the cells as Python has them, and as text what it has not.

    Those are days before year 1 or behind year 9999, and text with bytes that are no UTF-8.
    """
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        found = list(map(_cell_of, column))
    return found


def _cell_of(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_string(cell.type):
            return cell.as_buffer().to_pybytes().decode(errors="backslashreplace")
        if pa.types.is_struct(cell.type):
            return {name: _cell_of(cell[name]) for name in cell}
        if pa.types.is_map(cell.type):
            return [(_cell_of(entry["key"]), _cell_of(entry["value"])) for entry in cell.values]
        if pa.types.is_list(cell.type):
            return list(map(_cell_of, cell.values))
        text = str(cell.cast(pa.string()))
        if text[0] != "<":  # as "<value out of range: …>", which the infinity of DuckDB is
            text = text.replace(" ", "T").replace(".000000", "").replace("Z", "+00:00")
        return text
