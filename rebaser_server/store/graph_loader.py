"""Loading of a graph from the rows of a change set's values, without an object for any of them.

Inputs are written as JSON text, for millions of values at once, and read back.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic_core import to_json

from rebaser_core.updates import InputSignature
from rebaser_server.values.columns import (
    BLOCKED,
    FAILED,
    ID_BYTES,
    NO_INPUTS,
    STATUSES,
    Columns,
    Func,
    GrowableArray,
    Signatures,
    ValueStatus,
    gather_rows,
    ids_in,
    sorted_unique,
)
from rebaser_server.values.graph import Graph, StoredGraph
from rebaser_server.values.indexes import Hashes, HashIndex, hashes_of, padded_ids

_HASH_BYTES: Final = 8
_PLACEHOLDER: Final = b"?" * ID_BYTES


def arguments_texts(
    signatures: Signatures, indices: NDArray[np.int32], is_source: NDArray[np.bool_]
) -> pa.StringArray:
    """The signature of each value's inputs as JSON; null for a source."""
    used = sorted_unique(indices)
    positions = np.searchsorted(used, indices)
    texts = [to_json(signatures.all[place]).decode() for place in used.tolist()]
    return pa.array(texts, pa.string()).take(pa.array(positions, mask=is_source))


def hashes_column(
    ids: NDArray[Any], widths: NDArray[np.int64], is_source: NDArray[np.bool_]
) -> pa.BinaryArray:
    """The hashes of each value's inputs, little-endian; null for a source."""
    ends = (np.append(0, np.cumsum(widths)) * _HASH_BYTES).astype(np.int32)
    column = pa.BinaryArray.from_buffers(
        pa.binary(), len(widths), [None, pa.py_buffer(ends), pa.py_buffer(hashes_of(ids))]
    )
    return pc.if_else(pa.array(is_source), pa.scalar(None, pa.binary()), column)


def _hashes_in(column: pa.ChunkedArray) -> tuple[Hashes, NDArray[np.int64]]:
    rows = pa.chunked_array(column.fill_null(b"")).cast(pa.large_binary()).combine_chunks()
    rows = rows.chunk(0) if isinstance(rows, pa.ChunkedArray) else rows
    _, offsets, data = rows.buffers()
    if not len(rows) or data is None:
        return np.empty(0, np.uint64), np.zeros(len(rows), np.int64)
    ends = np.frombuffer(offsets, np.int64, len(rows) + 1, 8 * rows.offset)
    count = int(ends[-1] - ends[0]) // _HASH_BYTES
    return np.frombuffer(data, "<u8", count, int(ends[0])), np.diff(ends) // _HASH_BYTES


def _signature_from_json(text: str) -> InputSignature:
    return tuple((argument, count) for argument, count in json.loads(text))


def inputs_texts(
    signatures: Signatures, indices: NDArray[np.int32], ids: NDArray[Any], widths: NDArray[np.int64]
) -> pa.StringArray:
    """Inputs with these signatures, which take `ids` in order, as JSON; null for none."""
    used = sorted_unique(indices)
    is_used = np.array([bool(signatures.all[place]) for place in used.tolist()], np.bool_)
    if not is_used.any():
        return pa.nulls(len(indices), pa.string())
    has_inputs = is_used[np.searchsorted(used, indices)]
    texts = _texts_in_order(signatures, used[is_used], indices[has_inputs], ids, widths[has_inputs])
    return _spread(texts, has_inputs)


def _texts_in_order(
    signatures: Signatures,
    used: NDArray[np.int32],
    indices: NDArray[np.int32],
    ids: NDArray[Any],
    widths: NDArray[np.int64],
) -> pa.StringArray:
    """Inputs as JSON, as `inputs_texts`, if each signature has inputs; `used` are all, sorted."""
    all_padded = ids.view(np.uint8)[ID_BYTES - 1 :: ID_BYTES].all()
    texts = _fill_template if all_padded else _write_each
    if len(used) == 1:
        return texts(signatures, int(used[0]), ids.reshape(len(indices), -1))
    starts = np.cumsum(widths) - widths
    order = np.argsort(indices, kind="stable")
    firsts = np.searchsorted(indices[order], used)
    parts = []
    for place, rows in zip(used.tolist(), np.split(order, firsts[1:]), strict=True):
        id_positions = starts[rows][:, None] + np.arange(signatures.widths[place])
        parts.append(texts(signatures, place, ids[id_positions]))
    order_back = np.empty(len(order), np.int64)
    order_back[order] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(order_back))


def _spread(texts: pa.StringArray, is_there: NDArray[np.bool_]) -> pa.StringArray:
    """The texts, one in each row that `is_there` marks, and null in the others; copies no text."""
    _, ends, data = texts.buffers()
    bounds = np.frombuffer(ends, np.int32, len(texts) + 1, 4 * texts.offset)
    spread = bounds[np.append(0, np.cumsum(is_there))]
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.StringArray.from_buffers(len(is_there), pa.py_buffer(spread), data, validity)


def _write_each(signatures: Signatures, index: int, ids: NDArray[Any]) -> pa.StringArray:
    rows = ([raw.decode() for raw in row] for row in ids.tolist())
    return pa.array([to_json(signatures.build_inputs(index, row)) for row in rows], pa.string())


def _fill_template(signatures: Signatures, index: int, ids: NDArray[Any]) -> pa.StringArray:
    """Inputs with ids of full length: copies of one text with other ids in it."""
    template, offsets_of_ids = _template(signatures.all[index])
    count = len(ids)
    block = np.empty((count, len(template)), np.uint8)
    block[:] = np.frombuffer(template, np.uint8)
    raw = np.ascontiguousarray(ids).view(np.uint8).reshape(count, -1)
    for number, start in enumerate(offsets_of_ids):
        block[:, start : start + ID_BYTES] = raw[:, number * ID_BYTES : (number + 1) * ID_BYTES]
    offsets = np.arange(count + 1, dtype=np.int32) * len(template)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(block))


def _template(signature: InputSignature) -> tuple[bytes, list[int]]:
    """The JSON text of inputs with placeholders for ids, and their offsets."""
    text = bytearray(b"{")
    offsets = []

    def add_id() -> None:
        offsets.append(len(text) + 1)
        text.extend(b'"%s"' % _PLACEHOLDER)

    for argument, count in signature:
        text.extend(b",%s:" % to_json(argument) if len(text) > 1 else b"%s:" % to_json(argument))
        if count is None:
            add_id()
            continue
        text.extend(b"[")
        for number in range(count):
            text.extend(b"," if number else b"")
            add_id()
        text.extend(b"]")
    text.extend(b"}")
    return bytes(text), offsets


class InputsNeeded(ValueError):
    """The column `inputs` must be read: the columns for bulk loading are not enough."""


class _Collision(Exception):
    """Two ids have one hash: one pair of 2^64, unless chosen on purpose."""


def load_graph(rows: dict[str, pa.ChunkedArray], funcs: Iterable[Func]) -> Graph:
    """The graph of `value` rows: for each id the row of the greatest commit, without removed ones.

    Values come in the order in which their ids were first met, commit by commit. Columns are
    removed from `rows` as they are used, so that a large table is not in memory twice.

    Raises:
        InputsNeeded: inputs are needed, and are not in `rows`.
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
        """Take `rows` of `count` rows, or all in their order."""
        self.is_all = rows is None
        self._count = count
        self.rows = np.arange(0) if rows is None else rows
        self._mask = np.ones(0, np.bool_)
        if rows is not None:
            self._mask = np.zeros(count, np.bool_)
            self._mask[rows] = True

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        return array if self.is_all else array[self.rows]

    def column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The items of the live rows in the order of the table: see `positions`."""
        return column if self.is_all else column.filter(pa.array(self._mask))

    def positions(self) -> NDArray[np.int32]:
        if self.is_all:
            return np.arange(self._count, dtype=np.int32)
        positions = np.cumsum(self._mask, dtype=np.int32)[self.rows]
        positions -= 1
        return positions


def _find_live_rows(
    rows: dict[str, pa.ChunkedArray], ids: NDArray[Any]
) -> tuple[_LiveRows, Hashes, HashIndex, bool]:
    """The live rows, their hashes, an index of them, and whether the hashes are unique."""
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
    """Signatures and refs from the columns for bulk loading; `KeyError` if these are not enough."""
    texts, codes = _dictionary_codes(rows.pop("arguments"))
    indices = np.array(
        [NO_INPUTS, *(signatures.intern(_signature_from_json(text)) for text in texts)], np.int32
    )
    signature = indices[live.take(codes) + 1]
    column = rows.pop("input_hashes")
    is_known = live.take(column.is_valid().to_numpy())
    wanted, widths = _hashes_in(column)
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
    """Signatures and refs from `inputs`, if hashes collide or the other columns do not fit."""
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
