"""From the rows of a change set's values to its graph, without an object for any of them."""

import json
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_server.graph import STATUSES, Func, Graph, Status, ids_in
from rebaser_server.graph.columns import Columns, Growing
from rebaser_server.graph.hashing import Hashes, Slots, hashes_of
from rebaser_server.graph.ids import raw_ids
from rebaser_server.graph.shapes import NONE, Shapes
from rebaser_server.store.inputs import hashes_in, shape_of

_WORDS: Final = pa.array([status.value for status in STATUSES])
_WITHOUT: Final = pa.array([Status.FAILED.value, Status.BLOCKED.value])


class InputsNeeded(ValueError):
    """The inputs must be read as they are: the columns made for bulk loading cannot say them."""


class _Collision(Exception):
    """Two ids have one hash: one pair of 2^64, unless somebody looks for them."""


def graph_from(rows: pa.Table, funcs: Iterable[Func]) -> Graph:
    """The graph of `value` rows: for each id the row of the greatest commit, less the removed.

    Values come in the order in which their ids were first met, commit by commit.

    Raises:
        InputsNeeded: and they are not in `rows`.
    """
    ids = raw_ids(rows["id"])
    hashes = hashes_of(ids)
    slots: Slots | None
    chosen, slots, is_unique = _latest(rows, ids, hashes)
    if chosen is not None:
        rows = rows.take(pa.array(chosen))
        ids, hashes = ids[chosen], hashes[chosen]
        slots = Slots(len(ids))
        slots.put(hashes, np.arange(len(ids), dtype=np.int32))
    shapes = Shapes()
    func_ids, funcs_of = _coded(rows["func_id"])
    try:
        if not is_unique:
            raise _Collision
        shape, refs = _wired(rows, shapes, funcs_of, hashes, slots)
    except (_Collision, KeyError):
        shape, refs = _parsed(rows, shapes)
    is_named = rows["name"].is_valid().to_numpy()
    columns = Columns(
        len(ids),
        ids=np.array(ids),
        status=_array(pc.index_in(_plain(rows["status"]), _WORDS), np.uint8),
        flags=np.zeros(len(ids), np.uint8),
        func=funcs_of,
        text=np.arange(len(ids), dtype=np.int32),
        name=np.where(is_named, np.cumsum(is_named) - 1, -1).astype(np.int32),
        shape=shape,
        root=_array(rows["root"].fill_null(0), np.int64),
    )
    names = _one(rows["name"].drop_null(), pa.large_string())
    return Graph(
        columns, shapes, refs,
        func_ids=func_ids, funcs=funcs, texts=_texts(rows), names=names, slots=slots,
    )  # fmt: skip


def _latest(
    rows: pa.Table, ids: NDArray[Any], hashes: Hashes
) -> tuple[NDArray[np.int64] | None, Slots, bool]:
    """Which rows count, None for all as they are; their slots then; whether hashes are unique."""
    count = len(ids)
    commits = rows["commit"].to_numpy()
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

    slots = Slots(count)
    dropped, kept = slots.put_unless(by_order, order.astype(np.int32), is_same)
    removed = rows["removed"].to_numpy()
    if is_sorted and not len(dropped) and not removed.any():
        return None, slots, is_unique
    first = np.empty(count, np.int64)
    first[order] = np.arange(count)
    np.minimum.at(first, kept, dropped)
    is_chosen = ~removed
    is_chosen[order[dropped]] = False
    chosen = np.flatnonzero(is_chosen)
    return chosen[np.argsort(first[chosen], kind="stable")], slots, is_unique


def _wired(
    rows: pa.Table, shapes: Shapes, funcs: NDArray[np.int32], hashes: Hashes, slots: Slots
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Shapes and refs by the columns made for it. Raises `KeyError` if they are not enough."""
    if "input_hashes" not in rows.column_names:
        raise KeyError("input_hashes")
    texts, coded = _coded(rows["arguments"])
    places = np.array([NONE, *(shapes.place(shape_of(text)) for text in texts)], np.int32)
    shape = places[coded + 1]
    wanted, widths = hashes_in(rows["input_hashes"])
    refs = slots.find(wanted, lambda some, met: hashes[met] == wanted[some])
    is_known = rows["input_hashes"].is_valid().to_numpy()
    if (
        not (is_known == (funcs >= 0)).all()
        or not (widths == shapes.widths_of(shape)).all()
        or (refs < 0).any()
    ):
        raise KeyError("input_hashes")
    return shape, refs


def _parsed(rows: pa.Table, shapes: Shapes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Shapes and refs by the inputs themselves: tables from before, and hashes that collide."""
    if "inputs" not in rows.column_names:
        raise InputsNeeded("read the rows with their inputs")
    places = {value_id: place for place, value_id in enumerate(rows["id"].to_pylist())}
    shape, refs = Growing(np.int32), Growing(np.int32)
    for text in rows["inputs"].to_pylist():
        inputs = {} if text is None else json.loads(text)
        shape.append(shapes.of(inputs))
        refs.extend([places[value_id] for value_id in ids_in(inputs)])
    return shape.all, refs.all


def _texts(rows: pa.Table) -> pa.Array:
    texts, statuses = rows["value"], _plain(rows["status"])
    is_without = pc.is_in(statuses, _WITHOUT)
    if pc.any(is_without).as_py():
        texts = pc.if_else(is_without, rows["message"], texts)
    return _one(texts, pa.large_string())


def _coded(column: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int32]]:
    """The different texts, and for each row which it is, or -1 for null."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    coded = _one(column.unify_dictionaries(), column.type)
    return coded.dictionary.to_pylist(), _array(coded.indices.fill_null(-1), np.int32)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _array(column: Any, dtype: Any) -> NDArray[Any]:
    return np.array(column.to_numpy(), dtype)


def _one(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """One array of this type."""
    if column.type != kind:
        column = column.cast(kind)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
