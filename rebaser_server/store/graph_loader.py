"""From the rows of a change set's values to its graph, without an object for any of them."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_server.store.input_columns import hashes_in, signature_from_json
from rebaser_server.values.columns import (
    BLOCKED,
    FAILED,
    NO_INPUTS,
    STATUSES,
    Columns,
    Func,
    GrowableArray,
    Signatures,
    ValueStatus,
    gather_rows,
    ids_in,
)
from rebaser_server.values.graph import Graph, StoredGraph
from rebaser_server.values.indexes import Hashes, HashIndex, hashes_of, padded_ids


class InputsNeeded(ValueError):
    """The column `inputs` must be read: the columns for bulk loading are not enough."""


class _Collision(Exception):
    """Two ids have the same hash: one pair of 2^64, unless chosen on purpose."""


def load_graph(rows: dict[str, pa.ChunkedArray], funcs: Iterable[Func]) -> Graph:
    """The graph of `value` rows: for each id the row of the greatest commit, without removed ones.

    Values come in the order in which their ids were first met, commit by commit. Columns are
    taken out of `rows` as they are used, so that a large table is not there twice.

    Raises:
        InputsNeeded: and they are not in `rows`.
    """
    ids = padded_ids(rows.pop("id"))
    live, hashes, hash_index, is_unique = _find_live_rows(rows, ids)
    ids = np.array(ids) if live.is_all else ids[live.rows]
    signatures = Signatures()
    func_ids, funcs_of = _dictionary_codes(rows.pop("func_id"))
    funcs_of = live.take(funcs_of)
    try:
        if not is_unique:
            raise _Collision
        signature, refs = _refs_from_hashes(rows, live, signatures, funcs_of, hashes, hash_index)
    except (_Collision, KeyError):
        signature, refs = _refs_from_json(rows, live, signatures, ids)
    statuses = _statuses(rows.pop("status"))
    root = _array(rows.pop("root").fill_null(0), np.int64)
    names = live.column(rows.pop("name"))
    is_named = names.is_valid().to_numpy()
    columns = Columns(
        len(ids),
        ids=ids,
        status=live.take(statuses),
        flags=np.zeros(len(ids), np.uint8),
        func=funcs_of,
        text=live.positions(),
        name=np.where(is_named, np.cumsum(is_named) - 1, -1).astype(np.int32)[live.positions()],
        signature=signature,
        root=live.take(root),
    )
    names = _single_array(names.drop_null(), pa.large_string())
    texts = _texts(rows, live, statuses)
    return Graph(
        StoredGraph(
            columns=columns,
            signatures=signatures,
            refs=refs,
            func_ids=func_ids,
            texts=texts,
            names=names,
            funcs=funcs,
            hash_index=hash_index,
        )
    )


class _LiveRows:
    """The live rows, in the order of the graph."""

    def __init__(self, count: int, rows: NDArray[np.int64] | None = None) -> None:
        """Of `count` rows these, or all in their order."""
        self.is_all = rows is None
        self._count = count
        self.rows = np.arange(0) if rows is None else rows
        self._mask = np.ones(0, np.bool_)
        if rows is not None:
            self._mask = np.zeros(count, np.bool_)
            self._mask[rows] = True

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        """The items of the live rows, in their order."""
        return array if self.is_all else array[self.rows]

    def column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The items of the live rows in the order of the table: see `positions`."""
        return column if self.is_all else column.filter(pa.array(self._mask))

    def positions(self) -> NDArray[np.int32]:
        """The position of each live row in the result of `column`."""
        if self.is_all:
            return np.arange(self._count, dtype=np.int32)
        positions = np.cumsum(self._mask, dtype=np.int32)[self.rows]
        positions -= 1
        return positions


def _find_live_rows(
    rows: dict[str, pa.ChunkedArray], ids: NDArray[Any]
) -> tuple[_LiveRows, Hashes, HashIndex, bool]:
    """The live rows, their hashes, an index of them; whether hashes are unique."""
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

    hash_index = HashIndex(count)
    dropped, kept = hash_index.insert_unique(by_order, order.astype(np.int32), is_same)
    if is_sorted and not len(dropped) and not removed.any():
        return _LiveRows(count), hashes, hash_index, is_unique
    first = np.empty(count, np.int64)
    first[order] = np.arange(count)
    np.minimum.at(first, kept, dropped)
    is_live = ~removed
    is_live[order[dropped]] = False
    live = np.flatnonzero(is_live)
    live = live[np.argsort(first[live], kind="stable")]
    hashes = hashes[live]
    if len(live) + len(dropped) == count:
        hash_index.renumber(live, count)
    else:
        hash_index = HashIndex(len(live))
        hash_index.insert(hashes, np.arange(len(live), dtype=np.int32))
    return _LiveRows(count, live), hashes, hash_index, is_unique


def _refs_from_hashes(
    rows: dict[str, pa.ChunkedArray],
    live: _LiveRows,
    signatures: Signatures,
    funcs: NDArray[np.int32],
    hashes: Hashes,
    hash_index: HashIndex,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Signatures and refs from the columns for bulk loading; `KeyError` if not enough."""
    texts, codes = _dictionary_codes(rows.pop("arguments"))
    indices = np.array(
        [NO_INPUTS, *(signatures.intern(signature_from_json(text)) for text in texts)], np.int32
    )
    signature = indices[live.take(codes) + 1]
    column = rows.pop("input_hashes")
    is_known = live.take(column.is_valid().to_numpy())
    wanted, widths = hashes_in(column)
    if not live.is_all:
        starts = (np.cumsum(widths) - widths)[live.rows]
        widths = widths[live.rows]
        wanted = gather_rows(wanted, starts, widths)
    refs = hash_index.find(wanted, lambda some, met: hashes[met] == wanted[some])
    if (
        not (is_known == (funcs >= 0)).all()
        or not (widths == signatures.widths_of(signature)).all()
        or (refs < 0).any()
    ):
        raise KeyError("input_hashes")
    return signature, refs


def _refs_from_json(
    rows: dict[str, pa.ChunkedArray], live: _LiveRows, signatures: Signatures, ids: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Signatures and refs from `inputs`: for tables of earlier releases and colliding hashes."""
    if "inputs" not in rows:
        raise InputsNeeded("read the rows with their inputs")
    index_of = {raw.decode(): position for position, raw in enumerate(ids.tolist())}
    texts = live.column(rows.pop("inputs")).to_pylist()
    signature, refs = GrowableArray(np.int32), GrowableArray(np.int32)
    for position in live.positions().tolist():
        inputs = {} if texts[position] is None else json.loads(texts[position])
        signature.append(signatures.index_for(inputs))
        refs.extend([index_of[value_id] for value_id in ids_in(inputs)])
    return signature.all, refs.all


def _statuses(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    words, codes = _dictionary_codes(column)
    return np.array([STATUSES.index(ValueStatus(word)) for word in words], np.uint8)[codes]


def _texts(
    rows: dict[str, pa.ChunkedArray], live: _LiveRows, statuses: NDArray[np.uint8]
) -> pa.Array:
    """Texts or messages, in the order of `live.column`."""
    texts, messages = live.column(rows.pop("value")), rows.pop("message")
    is_without = (statuses == FAILED) | (statuses == BLOCKED)
    if is_without.any():
        without = live.column(pa.chunked_array([pa.array(is_without)]))
        texts = pc.if_else(without, live.column(messages), texts)
    return _single_array(texts, pa.large_string())


def _dictionary_codes(column: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int32]]:
    """The different texts, and each row's index into them, or -1 for null."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    word_codes: dict[str, int] = {}
    codes = [np.empty(0, np.int32)]
    for chunk in column.chunks:  # Arrow's own way to unify them refuses one with a null
        words = chunk.dictionary.to_pylist()
        chunk_codes = [
            -1 if word is None else word_codes.setdefault(word, len(word_codes)) for word in words
        ]
        codes.append(
            np.array([*chunk_codes, -1], np.int32)[_array(chunk.indices.fill_null(-1), np.int32)]
        )
    return list(word_codes), np.concatenate(codes)


def _array(column: Any, dtype: Any) -> NDArray[Any]:
    return np.array(column.to_numpy(), dtype)


def _single_array(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """The column as one array of this type."""
    if column.type != kind:
        column = column.cast(kind)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
