"""Puts and sets of values as columns of Arrow, which `UpdatesBatch` version 3 has in base64.

`docs/wire.md` lists the columns. Takes pyarrow, which clients may do without: import it where there
is a table.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pybase64 import b64decode, b64encode_as_string

from rebaser_core.arrow_stream import read_stream, write_stream
from rebaser_core.errors import MalformedMessage
from rebaser_core.lazy_updates import LazyUpdates, SizeBounds
from rebaser_core.messages import UpdatesBatch, UpdatesBatchV3
from rebaser_core.table_columns import (
    TEXT,
    are_ids,
    arguments_in,
    canonical_texts,
    column_or_nulls,
    is_text,
    require_columns,
)
from rebaser_core.updates import MAX_NAME, AnyUpdate, PutFunc

_ESCAPE: Final = 6
"""Bytes that a character may take in JSON."""
_DIGITS: Final = 8
"""Bytes that one byte of a number may become: 1e9 is 1000000000.0."""


class TableUpdates(LazyUpdates):
    """Updates as objects, and behind them one for each row of a table."""

    def __init__(self, before: Sequence[AnyUpdate], rows: pa.RecordBatch) -> None:
        """Check all that the classes of `updates` would.

        Raises:
            MalformedMessage: the rows are no updates.
        """
        require_columns(rows.schema)
        self.before: Final = before
        self.row_count: Final[int] = rows.num_rows
        """Of rows."""
        self.ids: Final = rows.column("id")
        self.names: Final = column_or_nulls(rows, "name", TEXT)
        self.func_ids: Final = column_or_nulls(rows, "function", TEXT)
        """Null: it is a source, or a set."""
        self.inputs: Final = arguments_in(rows)
        """Argument → ids, or lists of ids; null in rows without the argument."""
        self.is_set: Final = pc.fill_null(
            column_or_nulls(rows, "set", pa.bool_()), fill_value=False
        )
        self.is_json: Final = "json" in rows.schema.names
        """Whether `values` are JSON texts, each in its canonical form."""
        if self.is_json:
            self.values = canonical_texts(rows.column("json"))
        else:
            self.values = column_or_nulls(rows, "value", pa.int64())
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
        """The rows as `UpdatesBatchV3.table` has them, without columns that say nothing."""
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
        """The updates as if each had been sent by itself."""
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
        if is_text(self.values.type):
            longest = pc.max(pc.binary_length(self.values)).as_py() or 0
            value_bytes = longest * (_DIGITS if self.is_json else _ESCAPE) + 2
        return SizeBounds(max(slashes) + 1, sum(widths), value_bytes)


def decode_batch(payload: bytes, *, from_client: bool = False) -> UpdatesBatchV3:
    """As `UpdatesBatch.decode_stored`, with the rows of a table among the `updates`."""
    batch = UpdatesBatch.decode_stored(payload, from_client=from_client)
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
