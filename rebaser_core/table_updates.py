"""Puts and sets of values as columns of Arrow, which `UpdatesBatch` version 3 has in base64.

The file docs/wire.md lists the columns. A table is an Arrow IPC stream of one record batch without
compression, so that it takes the memory of its bytes.

Import this module where there is a table: it takes pyarrow, which clients may do without.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pybase64 import b64decode, b64encode_as_string

from rebaser_core import codecs
from rebaser_core.codecs import MAX_DEPTH
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import DIGITS, ID_LENGTH
from rebaser_core.messages import UpdatesBatchV1
from rebaser_core.updates import MAX_ARGUMENT, MAX_NAME, AnyUpdate, LazyUpdates, PutFunc, SizeBounds

MAX_ARGUMENTS: Final = 64
"""Arguments in the column `inputs`. Each may be a list, of any length."""
TEXT: Final = pa.string()
"""The type of all texts in a table."""


def _is_text(kind: pa.DataType) -> bool:
    return bool(kind == TEXT)


def _is_value(kind: pa.DataType) -> bool:
    return kind in (pa.int64(), pa.float64(), pa.bool_(), TEXT)


_COLUMNS: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "id": _is_text,
    "name": _is_text,
    "value": _is_value,
    "json": _is_text,
    "function": _is_text,
    "inputs": pa.types.is_struct,
    "set": pa.types.is_boolean,
}


def _require_columns(schema: pa.Schema) -> None:
    names = schema.names
    if "id" not in names or len(set(names)) < len(names) or {"value", "json"} <= set(names):
        raise MalformedMessage(
            f"a table with the columns {', '.join(names)[:200]}; it has `id`, each of the others "
            "once, and not both `value` and `json`"
        )
    for field in schema:
        is_right = _COLUMNS.get(field.name)
        if is_right is None:
            known = ", ".join(_COLUMNS)
            raise MalformedMessage(f"a table with a column {field.name[:80]!r}; there are {known}")
        if not is_right(field.type):
            raise MalformedMessage(f"a table with {field.name!r} of type {field.type!s:.80}")


def _column_or_nulls(rows: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    return rows.column(name) if name in rows.schema.names else pa.nulls(rows.num_rows, kind)


def _arguments_in(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    if "inputs" not in rows.schema.names:
        return {}
    inputs = rows.column("inputs")
    names = [field.name for field in inputs.type]
    if len(names) > MAX_ARGUMENTS or len(set(names)) < len(names):
        raise MalformedMessage(
            f"a table with {len(names)} arguments in `inputs`; at most {MAX_ARGUMENTS}, each once"
        )
    for field in inputs.type:
        if not 0 < len(field.name) <= MAX_ARGUMENT:
            raise MalformedMessage(f"a table with an argument of {len(field.name)} characters")
        kind = field.type
        if not _is_text(kind) and not (pa.types.is_list(kind) and _is_text(kind.value_type)):
            raise MalformedMessage(f"a table with `inputs.{field.name}` of type {kind!s:.80}")
    return dict(zip(names, inputs.flatten(), strict=True))


def are_ids(cells: pa.Array) -> bool:
    """Whether each cell is a ULID in its canonical text: all at once, as one text."""
    if not len(cells):
        return True
    widths = pc.min_max(pc.binary_length(cells)).as_py()
    if cells.null_count or widths != {"min": ID_LENGTH, "max": ID_LENGTH}:
        return False
    _, bounds, texts = cells.buffers()
    start = memoryview(bounds).cast("i")[cells.offset]
    text = texts.slice(start, len(cells) * ID_LENGTH).to_pybytes()
    return not text.translate(None, DIGITS) and not text[::ID_LENGTH].translate(None, DIGITS[:8])


def canonical_texts(cells: pa.Array) -> pa.Array:
    """Return the JSON of each cell as the values of a graph have it; null where a cell is null."""
    texts = pc.fill_null(cells, "null").to_pylist()
    try:
        values = list(map(orjson.loads, texts))
    except ValueError:
        values = [None] * len(texts)
    canonical = [orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() for value in values]
    for row, text in enumerate(texts):
        if canonical[row] != text:  # orjson reads what is no JSON of ours: keys twice, 10**30
            values[row] = codecs.loads(codecs.JSON, text.encode())
            codecs.validate_json(values[row])
            canonical[row] = orjson.dumps(values[row], option=orjson.OPT_SORT_KEYS).decode()
    codecs.validate_json(values, MAX_DEPTH + 1)  # the list of them is one level
    return pa.array(canonical, TEXT)


_HEADER: Final = 2  # place of the header in the table Message of Arrow's Message.fbs
_COMPRESSION: Final = 3  # place of the compression in its table RecordBatch


def write_stream(rows: pa.RecordBatch) -> pa.Buffer:
    """Return the rows as a stream, byte by byte equal for equal rows and release of pyarrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return sink.getvalue()


def read_stream(payload: bytes) -> pa.RecordBatch:
    """Return the rows of a stream, with every buffer checked; they share the payload's memory.

    Raises:
        MalformedMessage: it is none, or compressed, or of more than one record batch.
    """
    try:
        messages = pa.ipc.MessageReader.open_stream(payload)
        schema = pa.ipc.read_schema(messages.read_next_message())
        message = messages.read_next_message()
        if message.type != "record batch":
            raise MalformedMessage(f"a table with a {message.type}; it has one record batch alone")
        if _is_compressed(message.metadata.to_pybytes()):
            raise MalformedMessage("a table that is compressed; send it as it is")
        rows = pa.ipc.read_record_batch(message, schema)
        rows.validate(full=True)
        _require_end(messages)
    except MemoryError:  # one is an `ArrowException`, too, and no fault of the message
        raise
    except (pa.ArrowException, ValueError, OSError, EOFError, StopIteration, struct.error) as error:
        raise MalformedMessage(f"a table that is no Arrow IPC stream: {error!s:.200}") from error
    return rows


def _require_end(messages: Any) -> None:
    try:
        message = messages.read_next_message()
    except StopIteration:
        return
    raise MalformedMessage(f"a table with another {message.type}; it has one record batch alone")


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch's metadata, a flatbuffer that pyarrow has verified, names a codec."""
    [start] = struct.unpack_from("<I", metadata)
    at = _field(metadata, start, _HEADER)
    [offset] = struct.unpack_from("<I", metadata, at)
    return _field(metadata, at + offset, _COMPRESSION) > 0


def _field(data: bytes, table: int, place: int) -> int:
    [back] = struct.unpack_from("<i", data, table)
    vtable = table - back
    [size] = struct.unpack_from("<H", data, vtable)
    slot = 4 + 2 * place
    if slot >= size:
        return 0
    [offset] = struct.unpack_from("<H", data, vtable + slot)
    return table + offset if offset else 0


_ESCAPE: Final = 6
"""Bytes that a character may take in JSON."""
_DIGITS: Final = 8
"""Bytes that one byte of a number may become: 1e9 is 1000000000.0."""


class TableUpdates(LazyUpdates):
    """Updates as objects, and behind them one update for each row of a table."""

    def __init__(self, before: Sequence[AnyUpdate], rows: pa.RecordBatch) -> None:
        """Check all that the classes of `updates` would.

        Raises:
            MalformedMessage: the rows are no updates.
        """
        _require_columns(rows.schema)
        self.before: Final = before
        self.row_count: Final[int] = rows.num_rows
        self.ids: Final = rows.column("id")
        self.names: Final = _column_or_nulls(rows, "name", TEXT)
        self.func_ids: Final = _column_or_nulls(rows, "function", TEXT)
        """Function of each row; null: the row is a source, or a set."""
        self.inputs: Final = _arguments_in(rows)
        """Argument → ids, or lists of ids; null in rows without the argument."""
        self.is_set: Final = pc.fill_null(
            _column_or_nulls(rows, "set", pa.bool_()), fill_value=False
        )
        self.is_json: Final = "json" in rows.schema.names
        """Whether `values` are JSON texts, each in its canonical form."""
        if self.is_json:
            self.values = canonical_texts(rows.column("json"))
        else:
            self.values = _column_or_nulls(rows, "value", pa.int64())
        self._require_valid()
        self.bounds = self._bounds()

    @classmethod
    def decode(cls, before: Sequence[AnyUpdate], table: str) -> "TableUpdates":
        """Read what `encode` writes.

        Raises:
            MalformedMessage: it is no table, or its rows are no updates.
        """
        try:
            payload = b64decode(table, validate=True)
        except ValueError as error:
            raise MalformedMessage(f"a table that is no base64: {error}") from error
        return cls(before, read_stream(payload))

    def split(self) -> tuple[Sequence[AnyUpdate], str | None]:
        return self.before, self.encode()

    def encode(self) -> str:
        """Return the rows as `UpdatesBatchV1.table` has them, without columns that say nothing."""
        columns = {"id": self.ids, "name": self.names, "function": self.func_ids}
        columns["json" if self.is_json else "value"] = self.values
        columns = {
            name: column
            for name, column in columns.items()
            if name == "id" or column.null_count < self.row_count
        }
        if self.inputs:
            arguments = list(self.inputs.values())
            columns["inputs"] = pa.StructArray.from_arrays(arguments, names=list(self.inputs))
        if self.is_set.true_count:
            columns["set"] = self.is_set
        return b64encode_as_string(write_stream(pa.RecordBatch.from_pydict(columns)))

    def to_wire(self) -> list[Any]:
        """Return the updates as if each had been sent by itself."""
        return [*(update.to_wire() for update in self.before), *self._rows()]

    def __len__(self) -> int:
        return self.row_count + len(self.before)

    def _rows(self) -> Iterator[dict[str, Any]]:
        values = self.values.to_pylist()
        if self.is_json:
            values = list(map(orjson.loads, values))
        names, func_ids = self.names.to_pylist(), self.func_ids.to_pylist()
        columns = [(argument, column.to_pylist()) for argument, column in self.inputs.items()]
        is_set = self.is_set.to_pylist()
        for row, value_id in enumerate(self.ids.to_pylist()):
            if is_set[row]:
                yield {"setValue": {"valueId": value_id, "value": values[row]}}
                continue
            taken = {a: column[row] for a, column in columns if column[row] is not None}
            body = {
                "valueId": value_id,
                "name": names[row],
                "value": values[row],
                "funcId": func_ids[row],
                "inputs": taken or None,
            }
            yield {"putValue": {key: each for key, each in body.items() if each is not None}}

    def _require_valid(self) -> None:
        if self.ids.null_count:
            raise MalformedMessage("a table with a row without `id`")
        _require_ids("id", self.ids)
        _require_ids("function", pc.unique(self.func_ids).drop_null())
        _require_texts("name", self.names, MAX_NAME)
        for argument, column in self.inputs.items():
            ids = pc.list_flatten(column) if pa.types.is_list(column.type) else column.drop_null()
            if ids.null_count:
                raise MalformedMessage(f"a table with a null in a list of `inputs.{argument}`")
            _require_ids(f"inputs.{argument}", ids)
        if not _are_finite(self.values):
            raise MalformedMessage("a table with a `value` that is not finite; write null")
        if self.is_set.true_count:
            for column in (self.names, self.func_ids, *self.inputs.values()):
                if pc.any(pc.and_(self.is_set, column.is_valid()), min_count=0).as_py():
                    raise MalformedMessage("a row with `set` has only `id` and `value` or `json`")

    def _bounds(self) -> SizeBounds | None:
        if not all(isinstance(update, PutFunc) for update in self.before):
            return None
        slashes = [update.name.count("/") for update in self.before if isinstance(update, PutFunc)]
        slashes.append(pc.max(pc.count_substring(self.names, "/")).as_py() or 0)
        widths = [
            (pc.max(pc.list_value_length(column)).as_py() or 0)
            if pa.types.is_list(column.type)
            else 1
            for column in self.inputs.values()
        ]
        value_bytes = 0
        if _is_text(self.values.type):
            longest = pc.max(pc.binary_length(self.values)).as_py() or 0
            value_bytes = longest * (_DIGITS if self.is_json else _ESCAPE) + 2
        return SizeBounds(max(slashes) + 1, sum(widths), value_bytes)


def with_rows(batch: UpdatesBatchV1) -> UpdatesBatchV1:
    """Return the batch with the rows of its table among the `updates`.

    Raises:
        MessageError: as `TableUpdates.decode`.
    """
    if batch.table is None:
        return batch
    updates = TableUpdates.decode(batch.updates, batch.table)
    return batch.model_copy(update={"updates": updates, "table": None})


def _are_finite(values: pa.Array) -> bool:
    if not pa.types.is_floating(values.type):
        return True
    return bool(pc.all(pc.is_finite(values), min_count=0).as_py())


def _require_ids(column: str, ids: pa.Array) -> None:
    if not are_ids(ids):
        raise MalformedMessage(
            f"a table with something in `{column}` that is no ULID in its canonical text"
        )


def _require_texts(column: str, texts: pa.Array, longest: int) -> None:
    lengths = pc.min_max(pc.utf8_length(texts)).as_py()
    if lengths["min"] is not None and not 0 < lengths["min"] <= lengths["max"] <= longest:
        raise MalformedMessage(
            f"a table with a text in `{column}` not of 1 to {longest} characters"
        )
