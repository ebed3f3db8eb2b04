"""How a change set looks as rows of its table: a log in which the latest row of an id counts.

Rows, by `kind`: `value`, `func`, and one `head` a checkpoint. A removed value or
function is a row with `removed`. To read the present values with any engine, take
for each `id` the `value` row of the greatest `commit` and leave out the removed.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import to_json

from rebaser_server.graph import Func, Graph, Status, Value

SCHEMA: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("commit", pa.int64(), nullable=False),
        pa.field("removed", pa.bool_(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("value", pa.string()),  # JSON; of a function its runtime and code
        pa.field("func_id", pa.string()),
        pa.field("inputs", pa.string()),  # JSON: argument → id or list of ids
        pa.field("status", pa.string()),
        pa.field("message", pa.string()),
        pa.field("root", pa.int64()),  # sequence of the request that a DVU has yet to cover
    ]
)


_STATUSES: Final = {status.value: status for status in Status}  # an enum's own look-up is slow


def rows_of(
    graph: Graph, values: Iterable[str], funcs: Iterable[str], small: dict[str, Any], commit: int
) -> pa.Table:
    """A row for each of these values and functions as they are now, and one for all the rest."""
    value_ids, func_ids = list(values), list(funcs)
    there = [graph.values[value_id] for value_id in value_ids if value_id in graph.values]
    defined = [graph.funcs[func_id] for func_id in func_ids if func_id in graph.funcs]
    return pa.concat_tables(
        [
            _value_rows(there, graph.roots, commit),
            _func_rows(defined, commit),
            _removals("value", [i for i in value_ids if i not in graph.values], commit),
            _removals("func", [i for i in func_ids if i not in graph.funcs], commit),
            _rows("head", [""], commit, value=[to_json(small)]),
        ]
    )


def _value_rows(values: list[Value], roots: dict[str, int], commit: int) -> pa.Table:
    return _rows(
        "value",
        [value.id for value in values],
        commit,
        name=[value.name for value in values],
        value=[to_json(value.value) for value in values],
        func_id=[value.func_id for value in values],
        inputs=[to_json(value.inputs) if value.inputs else None for value in values],
        status=[value.status for value in values],
        message=[value.message for value in values],
        root=[roots.get(value.id) for value in values],
    )


def _func_rows(funcs: list[Func], commit: int) -> pa.Table:
    return _rows(
        "func",
        [func.id for func in funcs],
        commit,
        name=[func.name for func in funcs],
        value=[to_json({"runtime": func.runtime, "code": func.code}) for func in funcs],
    )


def _removals(kind: str, ids: list[str], commit: int) -> pa.Table:
    return _rows(kind, ids, commit, removed=[True] * len(ids))


def _rows(kind: str, ids: list[str], commit: int, **columns: list[Any]) -> pa.Table:
    count = len(ids)
    nothing = [None] * count
    whole = {
        "kind": [kind] * count,
        "id": ids,
        "commit": [commit] * count,
        "removed": [False] * count,
    } | columns
    return pa.table([whole.get(name, nothing) for name in SCHEMA.names], schema=SCHEMA)


def head_of(rows: pa.Table) -> tuple[int, dict[str, Any]]:
    """The commit of the last checkpoint among `rows`, and all but its graph."""
    heads = rows.filter(pc.equal(rows["kind"], "head")).sort_by("commit")
    return heads["commit"][-1].as_py(), json.loads(heads["value"][-1].as_py())


def graph_of(rows: pa.Table) -> Graph:
    """The graph that `rows` make, in whichever order they are."""
    funcs, values = _latest(rows, "func"), _latest(rows, "value")
    roots = {
        value_id: root for value_id, root in _columns(values, "id", "root") if root is not None
    }
    return Graph.restored(_values(values), _funcs(funcs), roots)


def _latest(rows: pa.Table, kind: str) -> pa.Table:
    """The row of the greatest commit for each id of that kind, without the removed."""
    rows = rows.filter(pc.equal(rows["kind"], kind))
    ids = rows["id"].to_pylist()
    newest = {ids[index]: index for index in pc.sort_indices(rows["commit"]).to_pylist()}
    if len(newest) < len(ids):
        rows = rows.take(pa.array(newest.values(), pa.int64()))
    return rows.filter(pc.invert(rows["removed"]))


def _funcs(rows: pa.Table) -> Iterator[Func]:
    for func_id, name, what in _columns(rows, "id", "name", "value"):
        yield Func(func_id, name, **json.loads(what))


def _values(rows: pa.Table) -> Iterator[Value]:
    columns = _columns(rows, "id", "name", "func_id", "status", "message")
    datas, wirings = _parsed(rows["value"]), _parsed(rows["inputs"])
    for (value_id, name, func_id, status, message), data, inputs in zip(
        columns, datas, wirings, strict=True
    ):
        yield Value(value_id, name, data, func_id, inputs or {}, _STATUSES[status], message)


def _columns(rows: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _parsed(column: pa.ChunkedArray) -> list[Any]:
    """What the column's texts say; no text is null. As one text: half the time of one by one."""
    parsed: list[Any] = json.loads(f"[{','.join(column.fill_null('null').to_pylist())}]")
    return parsed
