"""Rows of the answer to a question about values, copied from where the values are."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from rebaser_core.queries import FunctionSnapshot, ValueSnapshot
from rebaser_core.updates import Inputs
from rebaser_server.queries.selection import TooManyValues
from rebaser_server.store.stored_values import StoredValue
from rebaser_server.values.canonical_json import loads
from rebaser_server.values.columns import Func, ids_in
from rebaser_server.values.graph import Graph, ReadableGraph, ValuesById

_ROW: Final = 100
"""Octets of a row beside its texts and inputs, more or less."""
_ID: Final = 30


class ValueRow(NamedTuple):
    """A value's row of a reply."""

    id: str
    text: str
    status: str
    name: str | None
    message: str | None
    func_id: str | None
    inputs: Inputs | None
    octets: int

    def read(self) -> ValueSnapshot:
        return ValueSnapshot.model_construct(
            id=self.id,
            value=loads(self.text),
            status=self.status,
            name=self.name,
            message=self.message,
            func_id=self.func_id,
            inputs=self.inputs,
        )


class FunctionRow(NamedTuple):
    """A function's row of a reply."""

    function: FunctionSnapshot
    octets: int

    def read(self) -> FunctionSnapshot:
        return self.function


Row: TypeAlias = ValueRow | FunctionRow
RowT = TypeVar("RowT", ValueRow, FunctionRow)


class ValuesFound(NamedTuple):
    """All that answers a question, as of one commit."""

    commit: int
    due: bool | None
    rows: Sequence[Row]
    missing: list[str]


def row_of(graph: ReadableGraph, value_id: str) -> ValueRow:
    """The row of a value of a graph, which may change afterwards."""
    value = ValuesById(graph)[value_id]
    text, name, message = value.text, value.name, value.message
    return ValueRow(
        value.id,
        text,
        value.status.value,
        name,
        message,
        value.func_id,
        value.inputs or None,
        _octets(len(value.input_ids()), text, name, message),
    )


def row_of_stored(value: StoredValue) -> ValueRow:
    """The row of a value of a table."""
    inputs = json.loads(value.inputs or "{}") or None
    return ValueRow(
        value.id,
        value.value,
        value.status,
        value.name,
        value.message,
        value.func_id,
        inputs,
        _octets(len(ids_in(inputs or {})), value.value, value.name, value.message),
    )


def function_rows(graph: Graph, which: Sequence[str]) -> tuple[Iterator[FunctionRow], list[str]]:
    """The functions of these names or ids, or all; and what of `which` there is none of."""
    wanted = set(which)
    found = [
        func
        for func in graph.funcs.values()
        if not wanted or func.id in wanted or func.name in wanted
    ]
    known = {func.id for func in found} | {func.name for func in found}
    rows = (_function_row(func, graph.user_count(func.id)) for func in found)
    return rows, [name for name in which if name not in known]


def _function_row(func: Func, users: int) -> FunctionRow:
    return FunctionRow(
        FunctionSnapshot(
            id=func.id, name=func.name, runtime=func.runtime, code=func.code, users=users
        ),
        _octets(0, func.name, func.code),
    )


def within(rows: Iterable[RowT], max_bytes: int) -> Iterator[RowT]:
    """Yield the rows; raise `TooManyValues` once they have more octets."""
    octets = 0
    for row in rows:
        octets += row.octets
        if octets > max_bytes:
            raise TooManyValues(
                f"more than {max_bytes:,} octets of values, too many for one answer: ask for fewer "
                "values at a time, or read the change set's table"
            )
        yield row


def _octets(inputs: int, *texts: str | None) -> int:
    return _ROW + _ID * inputs + sum(_size(text) for text in texts if text)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
