"""Inputs as JSON text, for millions of values at once, and back."""

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic_core import to_json

from rebaser_core.updates import InputSignature
from rebaser_server.values.columns import ID_BYTES, Signatures, sorted_unique
from rebaser_server.values.indexes import Hashes, hashes_of

HASH_BYTES: Final = 8
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
    ends = (np.append(0, np.cumsum(widths)) * HASH_BYTES).astype(np.int32)
    column = pa.BinaryArray.from_buffers(
        pa.binary(), len(widths), [None, pa.py_buffer(ends), pa.py_buffer(hashes_of(ids))]
    )
    return pc.if_else(pa.array(is_source), pa.scalar(None, pa.binary()), column)


def hashes_in(column: pa.ChunkedArray) -> tuple[Hashes, NDArray[np.int64]]:
    """All hashes in such a column, and how many each value has."""
    rows = pa.chunked_array(column.fill_null(b"")).cast(pa.large_binary()).combine_chunks()
    rows = rows.chunk(0) if isinstance(rows, pa.ChunkedArray) else rows
    _, offsets, data = rows.buffers()
    if not len(rows) or data is None:
        return np.empty(0, np.uint64), np.zeros(len(rows), np.int64)
    ends = np.frombuffer(offsets, np.int64, len(rows) + 1, 8 * rows.offset)
    count = int(ends[-1] - ends[0]) // HASH_BYTES
    return np.frombuffer(data, "<u8", count, int(ends[0])), np.diff(ends) // HASH_BYTES


def signature_from_json(text: str) -> InputSignature:
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
    """As `inputs_texts`, where each signature has inputs; `used` are all of them, sorted."""
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
    """These texts, one in each row that is there, and null in the others; copies no text."""
    _, ends, data = texts.buffers()
    bounds = np.frombuffer(ends, np.int32, len(texts) + 1, 4 * texts.offset)
    spread = bounds[np.append(0, np.cumsum(is_there))]
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.StringArray.from_buffers(len(is_there), pa.py_buffer(spread), data, validity)


def _write_each(signatures: Signatures, index: int, ids: NDArray[Any]) -> pa.StringArray:
    rows = ([raw.decode() for raw in row] for row in ids.tolist())
    return pa.array([to_json(signatures.build_inputs(index, row)) for row in rows], pa.string())


def _fill_template(signatures: Signatures, index: int, ids: NDArray[Any]) -> pa.StringArray:
    """Ids of full length: copies of one text with other ids in it."""
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
