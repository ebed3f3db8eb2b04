"""Rows of a change set's table: a log in which the latest row of an id counts.

Rows have a `kind`: `value`, `func`, and one `head` a checkpoint. A removed value or function is a
row with `removed`. To read the present values with any engine, take for each `id` the `value` row
of the greatest `commit` and leave out the removed.

The last two columns repeat `inputs`, for Rebaser itself to load in bulk.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic_core import to_json

from rebaser_core.errors import NewerVersion
from rebaser_server.store.graph_loader import (
    arguments_texts,
    hashes_column,
    inputs_texts,
    load_graph,
)
from rebaser_server.store.row_digest import (
    NO_ROWS,
    Head,
    RowDigest,
    digest_of,
    seal,
    without_dictionaries,
)
from rebaser_server.values.columns import REMOVED, STATUSES, Func, ValueStatus
from rebaser_server.values.graph import Graph, ReadableGraph

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
        pa.field("arguments", pa.string()),  # JSON: [[argument, length of its list or null], …]
        pa.field("input_hashes", pa.binary()),  # 8 bytes for each id in `inputs`, in order
    ]
)

_FORMAT_KEY: Final = "format"
_FORMAT: Final = 1
"""Format of rows and metadata, if the metadata do not name it. A release that writes data which
this one cannot read names a higher one."""

KEY_COLUMNS: Final = ["kind", "id", "commit", "removed"]
LOADED: Final = [name for name in SCHEMA.names if name != "inputs"]
"""Columns that are enough to load a graph, except in rare cases."""

_CHUNK: Final = 1 << 17
"""Maximum number of rows of a chunk, which is in memory while a table is written."""
_MAX_COLUMN_BYTES: Final = 1 << 30
"""Approximate bytes of one column of a chunk; an Arrow string array has at most 2 GiB."""
_REF_BYTES: Final = 64
"""Approximate bytes of an input as JSON: longer names of arguments are rare."""


class RowSelection(NamedTuple):
    """Content of a checkpoint: indices of values, and ids of functions."""

    indices: NDArray[Any]
    funcs: list[str]


def select_rows(graph: Graph, *, whole: bool) -> RowSelection:
    """All touched values and functions, or all."""
    if whole:
        return RowSelection(graph.all_indices(), list(graph.funcs))
    return RowSelection(graph.touched.indices(), sorted(graph.touched_funcs))


def rows_of(graph: Graph, metadata: dict[str, Any], commit: int, *, whole: bool) -> pa.Table:
    """Rows of all touched values and functions, or of all, and one row of metadata."""
    rows = rows_for(graph, select_rows(graph, whole=whole), commit)
    return SealedRows(rows, to_json(metadata), commit).reader().read_all()


class SealedRows:
    """The rows of a checkpoint, and behind them its head, which has their digest."""

    def __init__(
        self,
        rows: Iterable[pa.RecordBatch],
        metadata: bytes,
        commit: int,
        before: RowDigest = NO_ROWS,
    ) -> None:
        """Seal `rows`.

        `before` is the digest of all rows that were written to the table before these.
        """
        self._rows = rows
        self._metadata = metadata
        self._commit = commit
        self.digest = before
        """Digest that includes these rows, once they are read."""

    def reader(self) -> pa.RecordBatchReader:
        """The rows; they can be read once."""
        return pa.RecordBatchReader.from_batches(SCHEMA, self._chunks())

    def _chunks(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows:
            self.digest = self.digest.plus(digest_of(batch))
            yield batch
        plain = self._head(self._metadata)
        self.digest = self.digest.plus(digest_of(plain))
        yield self._head(seal(self._metadata, self.digest))

    def _head(self, text: bytes) -> pa.RecordBatch:
        return _rows("head", pa.array([""]), self._commit, value=_array([text]))


def rows_for(
    graph: ReadableGraph, selection: RowSelection, commit: int
) -> Iterator[pa.RecordBatch]:
    """Rows of the selection, in chunks. A chunk is made when it is read."""
    indices, funcs = selection
    graph.adjacency.prune()
    for start in range(0, len(indices), _CHUNK):
        yield from _value_rows(graph, indices[start : start + _CHUNK], commit)
    defined = [graph.funcs[func_id] for func_id in funcs if func_id in graph.funcs]
    removed = [func_id for func_id in funcs if func_id not in graph.funcs]
    yield _func_rows(defined, commit)
    yield _removed_rows("func", _array(removed), commit)


def _value_rows(graph: ReadableGraph, indices: NDArray[Any], commit: int) -> list[pa.RecordBatch]:
    statuses = graph.columns.status.buffer[indices]
    is_removed = statuses == REMOVED
    if not is_removed.any():
        return _present_rows(graph, indices, commit)
    removed = graph.ids_of(indices[is_removed])
    return [
        *_present_rows(graph, indices[~is_removed], commit),
        _removed_rows("value", removed, commit),
    ]


def _present_rows(graph: ReadableGraph, indices: NDArray[Any], commit: int) -> list[pa.RecordBatch]:
    columns, count = graph.columns, len(indices)
    texts = graph.texts_of(indices)
    refs, widths = graph.adjacency.inputs_of(indices)
    if count > 1 and max(texts.nbytes, len(refs) * _REF_BYTES) > _MAX_COLUMN_BYTES:
        halves = indices[: count // 2], indices[count // 2 :]
        return [chunk for half in halves for chunk in _present_rows(graph, half, commit)]
    statuses, funcs = columns.status.buffer[indices], columns.func.buffer[indices]
    roots, signatures = columns.root.buffer[indices], columns.signature.buffer[indices]
    is_source = funcs < 0
    texts = texts.cast(pa.string())
    is_without = pa.array((statuses == _FAILED) | (statuses == _BLOCKED))
    ids = columns.ids.buffer[refs]
    arrays = [
        pa.repeat("value", count),
        graph.ids_of(indices),
        pa.repeat(pa.scalar(commit, pa.int64()), count),
        np.zeros(count, np.bool_),
        _names(graph, columns.name.buffer[indices]),
        pc.if_else(is_without, "null", texts),
        _words_at(graph.func_ids, funcs),
        inputs_texts(graph.signatures, signatures, ids, widths),
        _words_at([status.value for status in STATUSES], statuses),
        pc.if_else(is_without, texts, pa.scalar(None, pa.string())),
        pa.array(roots, mask=roots == 0),
        arguments_texts(graph.signatures, signatures, is_source),
        hashes_column(ids, widths, is_source),
    ]
    return [pa.record_batch(arrays, schema=SCHEMA)]


def _names(graph: ReadableGraph, rows: NDArray[np.int32]) -> pa.Array:
    is_named = rows >= 0
    names = graph.names.texts.take(rows[is_named]).cast(pa.string())
    return names.take(pa.array(np.cumsum(is_named) - 1, mask=~is_named))


def _words_at(words: list[str], codes: NDArray[Any]) -> pa.Array:
    if not words:
        return pa.nulls(len(codes), pa.string())
    return pa.array(words, pa.string()).take(pa.array(codes, mask=codes.astype(np.int32) < 0))


def _func_rows(funcs: list[Func], commit: int) -> pa.RecordBatch:
    return _rows(
        "func",
        _array([func.id for func in funcs]),
        commit,
        name=_array([func.name for func in funcs]),
        value=_array([to_json({"runtime": func.runtime, "code": func.code}) for func in funcs]),
    )


def _removed_rows(kind: str, ids: pa.Array, commit: int) -> pa.RecordBatch:
    return _rows(kind, ids, commit, removed=np.ones(len(ids), np.bool_))


def _array(texts: Iterable[Any]) -> pa.Array:
    return pa.array(texts, pa.string())


def _rows(kind: str, ids: pa.Array, commit: int, **columns: pa.Array) -> pa.RecordBatch:
    count = len(ids)
    whole = {
        "kind": pa.repeat(kind, count),
        "id": ids,
        "commit": pa.repeat(pa.scalar(commit, pa.int64()), count),
        "removed": np.zeros(count, np.bool_),
    } | columns
    arrays = [
        whole[field.name] if field.name in whole else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.record_batch(arrays, schema=SCHEMA)


_FAILED: Final = STATUSES.index(ValueStatus.FAILED)
_BLOCKED: Final = STATUSES.index(ValueStatus.BLOCKED)


def checkpoint_record(head: Head) -> dict[str, Any]:
    """The metadata of a checkpoint.

    Raises:
        NewerVersion: the metadata say that it is of a newer format.
    """
    metadata: dict[str, Any] = json.loads(head.metadata)
    if (version := metadata.get(_FORMAT_KEY, _FORMAT)) > _FORMAT:
        raise NewerVersion(f"checkpoint of format {version}; this build reads up to {_FORMAT}")
    return metadata


def split_rows(batches: Iterable[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], pa.Table]:
    """Split rows into those of values, without their kind, and all others."""
    values, others = [], []
    for batch in batches:
        is_value = pc.equal(batch["kind"], "value")
        of_values = batch if pc.all(is_value).as_py() else batch.filter(is_value)
        values.append(of_values.drop_columns(["kind"]))
        if len(of_values) < len(batch):
            others.append(without_dictionaries(batch.filter(pc.invert(is_value))))
    return values, pa.Table.from_batches(others, None if others else SCHEMA)


def graph_from_batches(values: list[pa.RecordBatch], others: pa.Table) -> Graph:
    """The graph of these rows, in any order. Uses `values` up.

    `inputs` may be missing from them.

    Raises:
        InputsNeeded: the rows need `inputs`.
    """
    funcs = _latest_funcs(others.filter(pc.equal(others["kind"], "func")))
    table = pa.Table.from_batches(values)
    values.clear()
    columns = dict(zip(table.column_names, table.columns, strict=True))
    del table
    return load_graph(columns, funcs)


def _latest_funcs(rows: pa.Table) -> list[Func]:
    latest = {row["id"]: row for row in rows.sort_by("commit").to_pylist()}
    return [
        Func(row["id"], row["name"], **json.loads(row["value"]))
        for row in latest.values()
        if not row["removed"]
    ]
