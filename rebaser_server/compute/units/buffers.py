"""Columns as bytes and back, without looking at any one value."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ALIGNMENT: Final = 8
_OFFSET_TYPE: Final = np.dtype("<i8")
STRING_TYPE: Final = pa.large_string()
"""Of every column of strings: offsets of 64 bits, since values may be 2 GiB of text together."""

Strings: TypeAlias = "pa.Array | pa.ChunkedArray | Sequence[str]"
"""Any Arrow strings, or a list of them. A null is taken for an empty string."""


def strings(given: Strings) -> pa.LargeStringArray:
    """One Arrow array of strings, without nulls."""
    if not isinstance(given, pa.Array | pa.ChunkedArray):
        return pa.array(given, STRING_TYPE)
    if given.type != STRING_TYPE:
        given = given.cast(STRING_TYPE)
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    return given.fill_null("") if given.null_count else given


def string_buffers(column: pa.LargeStringArray) -> list[bytes | memoryview]:
    """Its offsets, which begin with 0, and its text."""
    _, offsets, text = column.buffers()
    if not len(column):
        return [bytes(_OFFSET_TYPE.itemsize), b""]
    bounds = np.frombuffer(
        offsets, _OFFSET_TYPE, len(column) + 1, column.offset * _OFFSET_TYPE.itemsize
    )
    first, last = int(bounds[0]), int(bounds[-1])
    data = memoryview(text)[first:last] if text is not None else b""
    return [(bounds - bounds[0]).data.cast("B") if first else bounds.data.cast("B"), data]


def strings_from_buffers(count: int, offsets: memoryview, text: memoryview) -> pa.LargeStringArray:
    """Return the strings in these buffers; shares their memory."""
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def contiguous(given: Any, kind: type[np.generic]) -> NDArray[Any]:
    """One contiguous NumPy array of this kind; copied only if it is not that already."""
    return np.ascontiguousarray(given, kind)


def join_sections(sections: Sequence[bytes | memoryview]) -> bytes:
    """All sections, each padded to begin at a multiple of `ALIGNMENT`."""
    parts: list[bytes | memoryview] = []
    for section in sections:
        parts += [section, bytes(-len(section) % ALIGNMENT)]
    return b"".join(parts)


def split_sections(data: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Return the sections, of these lengths, that `join_sections` joined."""
    sections, start = [], 0
    for length in lengths:
        sections.append(data[start : start + length])
        start += length + -length % ALIGNMENT
    if start != len(data):
        raise ValueError(f"{len(data)} bytes are not sections of {start}")
    return sections
