"""From the rows of a change set's values to its graph, without an object for any of them."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_server.store.input_columns import hashes_in, shape_of
from rebaser_server.values.graph import STATUSES, Func, Graph, ValueStatus, ids_in
from rebaser_server.values.graph.columns import BLOCKED, FAILED, Columns, GrowableArray
from rebaser_server.values.graph.csr import gather_rows
from rebaser_server.values.graph.hash_index import Hashes, HashIndex, hashes_of
from rebaser_server.values.graph.ids import padded_ids
from rebaser_server.values.graph.signatures import NO_INPUTS, Signatures


class InputsNeeded(ValueError):
    """The inputs must be read as they are: the columns made for bulk loading cannot say them."""


class _Collision(Exception):
    """Two ids have one hash: one pair of 2^64, unless somebody looks for them."""


def graph_from(rows: dict[str, pa.ChunkedArray], funcs: Iterable[Func]) -> Graph:
    """The graph of `value` rows: for each id the row of the greatest commit, less the removed.

    Values come in the order in which their ids were first met, commit by commit. Columns are
    taken out of `rows` as they are used, so that a large table is not there twice.

    Raises:
        InputsNeeded: and they are not in `rows`.
    """
    ids = padded_ids(rows.pop("id"))
    chosen, hashes, slots, is_unique = _latest(rows, ids)
    ids = np.array(ids) if chosen.is_all else ids[chosen.rows]
    shapes = Signatures()
    func_ids, funcs_of = _coded(rows.pop("func_id"))
    funcs_of = chosen.of(funcs_of)
    try:
        if not is_unique:
            raise _Collision
        shape, refs = _wired(rows, chosen, shapes, funcs_of, hashes, slots)
    except (_Collision, KeyError):
        shape, refs = _parsed(rows, chosen, shapes, ids)
    statuses = _statuses(rows.pop("status"))
    root = _array(rows.pop("root").fill_null(0), np.int64)
    names = chosen.column(rows.pop("name"))
    is_named = names.is_valid().to_numpy()
    columns = Columns(
        len(ids),
        ids=ids,
        status=chosen.of(statuses),
        flags=np.zeros(len(ids), np.uint8),
        func=funcs_of,
        text=chosen.places(),
        name=np.where(is_named, np.cumsum(is_named) - 1, -1).astype(np.int32)[chosen.places()],
        signature=shape,
        root=chosen.of(root),
    )
    names = _one(names.drop_null(), pa.large_string())
    texts = _texts(rows, chosen, statuses)
    return Graph(
        columns, shapes, refs,
        func_ids=func_ids, funcs=funcs, texts=texts, names=names, hash_index=slots,
    )  # fmt: skip


class _Chosen:
    """The rows that count, in the order of the graph."""

    def __init__(self, count: int, rows: NDArray[np.int64] | None = None) -> None:
        """Of `count` rows, all as they are without `rows`."""
        self.is_all = rows is None
        self._count = count
        self.rows = np.arange(0) if rows is None else rows
        self._mask = np.ones(0, np.bool_)
        if rows is not None:
            self._mask = np.zeros(count, np.bool_)
            self._mask[rows] = True

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """Of all rows those that count, in their order."""
        return array if self.is_all else array[self.rows]

    def column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Likewise, but in the order of the table: see `places`."""
        return column if self.is_all else column.filter(pa.array(self._mask))

    def places(self) -> NDArray[np.int32]:
        """Where in such a column each of the rows is."""
        if self.is_all:
            return np.arange(self._count, dtype=np.int32)
        places = np.cumsum(self._mask, dtype=np.int32)[self.rows]
        places -= 1
        return places


def _latest(
    rows: dict[str, pa.ChunkedArray], ids: NDArray[Any]
) -> tuple[_Chosen, Hashes, HashIndex, bool]:
    """Which rows count; hashes and slots of these; whether hashes are unique."""
    count = len(ids)
    commits, removed = rows.pop("commit").to_numpy(), rows.pop("removed").to_numpy()
    hashes = hashes_of(ids)
    is_sorted = bool((commits[1:] >= commits[:-1]).all())
    order = np.arange(count) if is_sorted else np.argsort(commits, kind="stable")
    is_unique = True
    by_order = hashes if is_sorted else hashes[order]

    def is_same(some: NDArray[np.int64], met: NDArray[np.int32]) -> NDArray[np.bool_]:
        nonlocal is_unique
        same: NDArray[np.bool_] = by_order[some] == hashes[met]
        different = same.copy()
        different[same] = ids[order[some[same]]] != ids[met[same]]
        is_unique &= not different.any()
        return same & ~different

    slots = HashIndex(count)
    dropped, kept = slots.insert_unique(by_order, order.astype(np.int32), is_same)
    if is_sorted and not len(dropped) and not removed.any():
        return _Chosen(count), hashes, slots, is_unique
    first = np.empty(count, np.int64)
    first[order] = np.arange(count)
    np.minimum.at(first, kept, dropped)
    is_chosen = ~removed
    is_chosen[order[dropped]] = False
    found = np.flatnonzero(is_chosen)
    found = found[np.argsort(first[found], kind="stable")]
    hashes = hashes[found]
    if len(found) + len(dropped) == count:
        slots.renumber(found, count)
    else:
        slots = HashIndex(len(found))
        slots.insert(hashes, np.arange(len(found), dtype=np.int32))
    return _Chosen(count, found), hashes, slots, is_unique


def _wired(
    rows: dict[str, pa.ChunkedArray],
    chosen: _Chosen,
    shapes: Signatures,
    funcs: NDArray[np.int32],
    hashes: Hashes,
    slots: HashIndex,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Shapes and refs by the columns made for it. Raises `KeyError` if they are not enough."""
    texts, coded = _coded(rows.pop("arguments"))
    places = np.array([NO_INPUTS, *(shapes.intern(shape_of(text)) for text in texts)], np.int32)
    shape = places[chosen.of(coded) + 1]
    column = rows.pop("input_hashes")
    is_known = chosen.of(column.is_valid().to_numpy())
    wanted, widths = hashes_in(column)
    if not chosen.is_all:
        starts = (np.cumsum(widths) - widths)[chosen.rows]
        widths = widths[chosen.rows]
        wanted = gather_rows(wanted, starts, widths)
    refs = slots.find(wanted, lambda some, met: hashes[met] == wanted[some])
    if (
        not (is_known == (funcs >= 0)).all()
        or not (widths == shapes.widths_of(shape)).all()
        or (refs < 0).any()
    ):
        raise KeyError("input_hashes")
    return shape, refs


def _parsed(
    rows: dict[str, pa.ChunkedArray], chosen: _Chosen, shapes: Signatures, ids: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Shapes and refs by the inputs themselves: tables from before, and hashes that collide."""
    if "inputs" not in rows:
        raise InputsNeeded("read the rows with their inputs")
    known = {raw.decode(): place for place, raw in enumerate(ids.tolist())}
    texts = chosen.column(rows.pop("inputs")).to_pylist()
    shape, refs = GrowableArray(np.int32), GrowableArray(np.int32)
    for place in chosen.places().tolist():
        inputs = {} if texts[place] is None else json.loads(texts[place])
        shape.append(shapes.index_for(inputs))
        refs.extend([known[value_id] for value_id in ids_in(inputs)])
    return shape.all, refs.all


def _statuses(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    words, coded = _coded(column)
    return np.array([STATUSES.index(ValueStatus(word)) for word in words], np.uint8)[coded]


def _texts(
    rows: dict[str, pa.ChunkedArray], chosen: _Chosen, statuses: NDArray[np.uint8]
) -> pa.Array:
    """In the order of `chosen.column`."""
    texts, messages = chosen.column(rows.pop("value")), rows.pop("message")
    is_without = (statuses == FAILED) | (statuses == BLOCKED)
    if is_without.any():
        without = chosen.column(pa.chunked_array([pa.array(is_without)]))
        texts = pc.if_else(without, chosen.column(messages), texts)
    return _one(texts, pa.large_string())


def _coded(column: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int32]]:
    """The different texts, and for each row which it is, or -1 for null."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    known: dict[str, int] = {}
    found = [np.empty(0, np.int32)]
    for chunk in column.chunks:  # Arrow's own way to unify them refuses one with a null
        words = chunk.dictionary.to_pylist()
        places = [-1 if word is None else known.setdefault(word, len(known)) for word in words]
        found.append(
            np.array([*places, -1], np.int32)[_array(chunk.indices.fill_null(-1), np.int32)]
        )
    return list(known), np.concatenate(found)


def _array(column: Any, dtype: Any) -> NDArray[Any]:
    return np.array(column.to_numpy(), dtype)


def _one(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """One array of this type."""
    if column.type != kind:
        column = column.cast(kind)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
