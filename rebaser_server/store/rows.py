"""How a change set looks as rows of its table: a log in which the latest row of an id counts.

Rows, by `kind`: `value`, `func`, and one `head` a checkpoint. A removed value or
function is a row with `removed`. To read the present values with any engine, take
for each `id` the `value` row of the greatest `commit` and leave out the removed.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from rebaser_core import codecs
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

Row = dict[str, Any]


def value_row(value: Value, commit: int, root: int | None) -> Row:
    return {
        "kind": "value",
        "id": value.id,
        "commit": commit,
        "removed": False,
        "name": value.name,
        "value": _json(value.value),
        "func_id": value.func_id,
        "inputs": _json(value.inputs) if value.inputs else None,
        "status": value.status.value,
        "message": value.message,
        "root": root,
    }


def func_row(func: Func, commit: int) -> Row:
    return {
        "kind": "func",
        "id": func.id,
        "commit": commit,
        "removed": False,
        "name": func.name,
        "value": _json({"runtime": func.runtime, "code": func.code}),
    }


def head_row(state: dict[str, Any], commit: int) -> Row:
    return {"kind": "head", "id": "", "commit": commit, "removed": False, "value": _json(state)}


def changed_rows(graph: Graph, ids: Iterable[str], commit: int) -> Iterator[Row]:
    """A row for each of `ids`, values and functions, as they are now."""
    for changed in ids:
        if (value := graph.values.get(changed)) is not None:
            yield value_row(value, commit, graph.roots.get(changed))
        elif (func := graph.funcs.get(changed)) is not None:
            yield func_row(func, commit)
        else:
            # One row serves: an id names a value or a function, never both.
            yield {"kind": "value", "id": changed, "commit": commit, "removed": True}
            yield {"kind": "func", "id": changed, "commit": commit, "removed": True}


def table(rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def graph_of(rows: Iterable[Row]) -> Graph:
    """The graph that rows in ascending order of `commit` make; nothing in it is `touched`."""
    graph = Graph()
    for row in latest(rows):
        if row["kind"] == "value":
            _add_value(graph, row)
        elif row["kind"] == "func":
            graph.funcs[row["id"]] = _func(row)
    graph.rebuild_order()
    graph.touched.clear()
    return graph


def latest(rows: Iterable[Row]) -> Iterator[Row]:
    """The last row of each id, without the removed."""
    newest = {(row["kind"], row["id"]): row for row in rows}
    return (row for row in newest.values() if not row["removed"])


def _add_value(graph: Graph, row: Row) -> None:
    value = graph.add(row["id"])
    graph.rename(value, row["name"])
    value.value = _plain(row["value"])
    value.inputs = _plain(row["inputs"]) or {}
    value.status = Status(row["status"])
    value.message = row["message"]
    graph.compute_by(value, row["func_id"])
    if row["root"] is not None:
        graph.roots[value.id] = row["root"]


def _func(row: Row) -> Func:
    what = _plain(row["value"])
    return Func(row["id"], row["name"], what["runtime"], what["code"])


def _json(data: Any) -> str:
    return codecs.dumps(codecs.JSON, data).decode()


def _plain(text: str | None) -> Any:
    return None if text is None else codecs.loads(codecs.JSON, text.encode())
