"""Tables of Arrow, in memory or in Parquet files, as updates; takes pyarrow.

The columns are `id`, `name`, `value` or `json`, `function`, `inputs` and `set`; docs/clients.md
says what each means.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rebaser_client.arrow_batches import read_frame, read_parquet, without_index
from rebaser_client.plain_values import plain
from rebaser_client.requests import Updates, validate
from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage, TooLarge
from rebaser_core.table_schemas import AS_WRITTEN, NotATable, first_line, require_distinct
from rebaser_core.table_updates import MAX_ARGUMENTS, TEXT, TableUpdates
from rebaser_core.updates import AnyUpdate, Inputs, PutValue, SetValue

ValueTable: TypeAlias = Any
"""Table that pyarrow can read (its own, of Polars, DuckDB, pandas), or a Parquet path or URI."""

_TYPES: Final[dict[type, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: TEXT,
}


def read_updates(table: ValueTable, functions: Updates = ()) -> TableUpdates:
    """The updates `functions`, and one for each row. Blocks.

    Raises:
        MalformedMessage: they are no updates; the message names the column.
        TooLarge: more than one batch can hold.
        OSError: the file cannot be read.
    """
    columns, given = {}, _open(table)
    for name in given.column_names:
        try:
            made = _wire_column(name, given.column(name))
            made[1].validate(full=True)  # text may be none in UTF-8
        except pa.ArrowException as error:
            raise MalformedMessage(f"column {name!r}: {error!s:.300}") from error
        columns[made[0]] = made[1]
    batches = pa.table(columns).combine_chunks().to_batches()
    if len(batches) > 1:
        raise TooLarge(f"a table of {given.num_rows} rows is too large for one batch")
    rows = batches[0] if batches else pa.RecordBatch.from_pydict({"id": pa.array([], TEXT)})
    return TableUpdates(validate(functions), rows)


def _open(table: ValueTable) -> pa.Table:
    try:
        if not isinstance(table, str | PathLike):
            given = pa.table(table) if isinstance(table, pa.RecordBatch | dict) else table
            rows = read_frame(given)
        elif Path(table).is_file():
            rows = read_parquet(Path(table))
        else:
            found = pq.read_table(str(table), **AS_WRITTEN)
            rows = without_index(found.to_reader())
        require_distinct(rows.schema.names)
        return rows.read_all()
    except MemoryError:  # one is an `ArrowException`, too
        raise
    except (NotATable, pa.ArrowException) as error:
        raise MalformedMessage(f"no table: {first_line(error)}") from error


def _wire_column(name: str, column: pa.ChunkedArray) -> tuple[str, pa.ChunkedArray]:
    """The column as it is sent, and its name on the wire."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _wire_column(name, _decoded(column))
    if name == "value":
        return _values(column)
    if name == "inputs":
        return name, column.cast(_input_type(kind))
    return name, column if pa.types.is_boolean(kind) else column.cast(TEXT)


def _values(column: pa.ChunkedArray) -> tuple[str, pa.ChunkedArray]:
    kind = column.type
    wanted = next((each for is_one, each in _VALUES if is_one(kind)), None)
    if wanted is not None:
        return "value", _without_nan(column.cast(wanted))
    try:
        values = [plain(value) for value in column.to_pylist()]
    except (ValueError, OverflowError, LookupError) as error:  # no such date, or time zone
        raise MalformedMessage(f"column 'value' of type {kind!s:.80}: {error!s:.200}") from error
    if pa.types.is_temporal(kind) and all(isinstance(value, str | None) for value in values):
        return "value", pa.chunked_array([pa.array(values, TEXT)])
    for value in values:
        _require_json(value, kind)
    return "json", pa.chunked_array([pa.array([orjson.dumps(v).decode() for v in values], TEXT)])


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of categories as their texts; Arrow cannot cast Polars' categories at once."""
    kind = column.type.value_type
    taken = pa.large_string() if _is_string(kind) else kind
    chunks = [chunk.dictionary.cast(taken).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, taken)


def _without_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with null in place of NaN."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)


def _require_json(value: Any, kind: pa.DataType) -> None:
    try:
        codecs.validate_json(value)
    except MalformedMessage as error:
        raise MalformedMessage(
            f"column 'value' of type {kind!s:.80}: {error}; or cast it to numbers, booleans or "
            "text, or put JSON into a column 'json' in its place"
        ) from error


def _is_string(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


_VALUES: Final[Sequence[tuple[Callable[[pa.DataType], bool], pa.DataType]]] = (
    (pa.types.is_null, pa.int64()),
    (pa.types.is_integer, pa.int64()),
    (pa.types.is_floating, pa.float64()),
    (pa.types.is_boolean, pa.bool_()),
    (_is_string, TEXT),
)


def _input_type(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_struct(kind):
        raise MalformedMessage(
            f"column 'inputs' of type {kind!s:.80}: it is a struct with a field for each argument, "
            "of value ids or of lists of them"
        )
    fields = []
    for field in kind:
        is_list = pa.types.is_nested(field.type)
        fields.append(pa.field(field.name, pa.list_(TEXT) if is_list else TEXT))
    return pa.struct(fields)


def as_table(updates: Sequence[AnyUpdate]) -> TableUpdates | None:
    """The updates as a table, behind those that precede the first put or set.

    None: a table cannot express all of them.
    """
    kinds = PutValue, SetValue
    start = next((i for i, update in enumerate(updates) if isinstance(update, kinds)), 0)
    rows = [update for update in updates[start:] if isinstance(update, kinds)]
    if not rows or len(rows) < len(updates) - start:
        return None
    puts = [row if isinstance(row, PutValue) else None for row in rows]
    if any(put is not None and put.inputs == {} for put in puts):
        return None  # a row has arguments, or null
    inputs = [put.inputs if put is not None and put.inputs else {} for put in puts]
    types = _argument_types(inputs)
    if types is None:
        return None
    columns: dict[str, Any] = {
        "id": pa.array([row.value_id for row in rows], TEXT),
        "name": pa.array([None if put is None else put.name for put in puts], TEXT),
        "function": pa.array([None if put is None else put.func_id for put in puts], TEXT),
        "set": pa.array([put is None for put in puts]),
    }
    values = [row.value for row in rows]
    kind = _value_type(values)
    if kind is None:
        columns["json"] = pa.array([orjson.dumps(value).decode() for value in values], TEXT)
    else:
        columns["value"] = pa.array(values, kind)
    if types:
        columns["inputs"] = pa.array([each or None for each in inputs], pa.struct(types))
    return TableUpdates(list(updates[:start]), pa.RecordBatch.from_pydict(columns))


def _value_type(values: Sequence[Any]) -> pa.DataType | None:
    """The type of a column `value` that holds all values, if there is one."""
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.int64()
    return _TYPES.get(kinds.pop()) if len(kinds) == 1 else None


def _argument_types(inputs: Sequence[Inputs]) -> list[pa.Field] | None:
    """The fields of a struct that holds all inputs in their order, if there is one."""
    shapes = dict.fromkeys(
        tuple((argument, isinstance(given, list)) for argument, given in each.items())
        for each in inputs
    )
    is_list: dict[str, bool] = {}
    for shape in shapes:
        for argument, many in shape:
            if is_list.setdefault(argument, many) != many:
                return None
    places = {argument: place for place, argument in enumerate(is_list)}
    if len(places) > MAX_ARGUMENTS:
        return None
    for shape in shapes:
        order = [places[argument] for argument, _ in shape]
        if order != sorted(order):
            return None
    return [pa.field(name, pa.list_(TEXT) if many else TEXT) for name, many in is_list.items()]
