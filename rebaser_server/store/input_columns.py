"""Inputs as JSON text, for millions of values at once, and back."""

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic_core import to_json

from rebaser_server.values.graph.columns import ID_BYTES
from rebaser_server.values.graph.csr import sorted_unique
from rebaser_server.values.graph.hash_index import Hashes, hashes_of
from rebaser_server.values.graph.signatures import InputSignature, Signatures

HASH_BYTES: Final = 8
_PLACE: Final = b"?" * ID_BYTES


def arguments_texts(
    shapes: Signatures, places: NDArray[np.int32], is_source: NDArray[np.bool_]
) -> pa.StringArray:
    """The shape of each value's inputs as JSON; of a source null."""
    met = sorted_unique(places)
    which = np.searchsorted(met, places)
    texts = [to_json(shapes.all[place]).decode() for place in met.tolist()]
    return pa.array(texts, pa.string()).take(pa.array(which, mask=is_source))


def hashes_column(
    ids: NDArray[Any], widths: NDArray[np.int64], is_source: NDArray[np.bool_]
) -> pa.BinaryArray:
    """The hashes of the ids that each value takes, little-endian; of a source null."""
    ends = (np.append(0, np.cumsum(widths)) * HASH_BYTES).astype(np.int32)
    column = pa.BinaryArray.from_buffers(
        pa.binary(), len(widths), [None, pa.py_buffer(ends), pa.py_buffer(hashes_of(ids))]
    )
    return pc.if_else(pa.array(is_source), pa.scalar(None, pa.binary()), column)


def hashes_in(column: pa.ChunkedArray) -> tuple[Hashes, NDArray[np.int64]]:
    """What such a column says: all hashes, and how many there are of each value."""
    rows = pa.chunked_array(column.fill_null(b"")).cast(pa.large_binary()).combine_chunks()
    rows = rows.chunk(0) if isinstance(rows, pa.ChunkedArray) else rows
    _, offsets, data = rows.buffers()
    if not len(rows) or data is None:
        return np.empty(0, np.uint64), np.zeros(len(rows), np.int64)
    ends = np.frombuffer(offsets, np.int64, len(rows) + 1, 8 * rows.offset)
    count = int(ends[-1] - ends[0]) // HASH_BYTES
    return np.frombuffer(data, "<u8", count, int(ends[0])), np.diff(ends) // HASH_BYTES


def shape_of(text: str) -> InputSignature:
    return tuple((argument, count) for argument, count in json.loads(text))


def inputs_texts(
    shapes: Signatures, places: NDArray[np.int32], ids: NDArray[Any], widths: NDArray[np.int64]
) -> pa.StringArray:
    """Inputs of these shapes, which take `ids` one after another, as JSON; null for none."""
    if not len(places):
        return pa.array([], pa.string())
    starts = np.cumsum(widths) - widths
    order = np.argsort(places, kind="stable")
    met = sorted_unique(places)
    firsts = np.searchsorted(places[order], met)
    all_padded = not len(ids) or ids.view(np.uint8)[ID_BYTES - 1 :: ID_BYTES].all()
    texts = _filled if all_padded else _written
    parts = []
    for place, rows in zip(met.tolist(), np.split(order, firsts[1:]), strict=True):
        if shapes.all[place]:
            taken = starts[rows][:, None] + np.arange(shapes.widths[place])
            parts.append(texts(shapes, place, ids[taken]))
        else:
            parts.append(pa.nulls(len(rows), pa.string()))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(back))


def _written(shapes: Signatures, place: int, ids: NDArray[Any]) -> pa.StringArray:
    rows = ([raw.decode() for raw in row] for row in ids.tolist())
    return pa.array([to_json(shapes.build_inputs(place, row)) for row in rows], pa.string())


def _filled(shapes: Signatures, place: int, ids: NDArray[Any]) -> pa.StringArray:
    """All of the same length: one text, with other ids in it."""
    template, places = _template(shapes.all[place])
    count = len(ids)
    block = np.empty((count, len(template)), np.uint8)
    block[:] = np.frombuffer(template, np.uint8)
    raw = np.ascontiguousarray(ids).view(np.uint8).reshape(count, -1)
    for number, start in enumerate(places):
        block[:, start : start + ID_BYTES] = raw[:, number * ID_BYTES : (number + 1) * ID_BYTES]
    offsets = np.arange(count + 1, dtype=np.int32) * len(template)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(block))


def _template(shape: InputSignature) -> tuple[bytes, list[int]]:
    """The JSON text of inputs, with places for ids, and where those are."""
    text = bytearray(b"{")
    places = []

    def add_id() -> None:
        places.append(len(text) + 1)
        text.extend(b'"%s"' % _PLACE)

    for argument, count in shape:
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
    return bytes(text), places
