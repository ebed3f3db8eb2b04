"""A column of millions of texts, appended to and read by the thousand."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Rows = NDArray[Any]

_FEW: Final = 32
"""Rows up to which one by one is faster than by the chunk."""
_SPARE: Final = 1 << 16
"""Unused bytes up to which compaction is not worth its cost."""
_OBJECT: Final = 56
"""Bytes of a text that is a Python object of its own, beside its characters."""
_KIND: Final = pa.large_string()
EMPTY: Final = pa.nulls(0, _KIND)  # `pa.array` imports pandas, half a second at each start


class TextColumn:
    """Rows that are appended and never changed; `compact` drops those that no value uses."""

    def __init__(self, *chunks: pa.Array) -> None:
        self._reset(*chunks)

    def _reset(self, *chunks: pa.Array) -> None:
        self._chunks: list[pa.Array] = []
        self._starts: list[int] = []
        self._tail: list[str] = []
        self._tail_start = 0
        self._bytes = self._compact_bytes = 0
        for chunk in filter(len, chunks):
            self._add_chunk(chunk)
        self._compact_bytes = self._bytes

    def __len__(self) -> int:
        return self._tail_start + len(self._tail)

    @property
    def nbytes(self) -> int:
        """Approximate memory of the texts."""
        return self._bytes + _OBJECT * len(self._tail)

    def snapshot(self) -> "TextColumn":
        """The rows that there are now, for reading alone."""
        self._flush_tail()
        return TextColumn(*self._chunks)

    def add(self, text: str) -> int:
        """Append one text; return its row."""
        self._tail.append(text)
        self._bytes += len(text) + 8
        return self._tail_start + len(self._tail) - 1

    def add_all(self, texts: pa.Array) -> int:
        """Append texts; return the row of the first, which the others follow."""
        self._flush_tail()
        first = self._tail_start
        self._add_chunk(texts)
        return first

    def get(self, row: int) -> str:
        if row >= self._tail_start:
            return self._tail[row - self._tail_start]
        number = len(self._starts) - 1
        while self._starts[number] > row:
            number -= 1
        text: str = self._chunks[number][row - self._starts[number]].as_py()
        return text

    def take(self, rows: Rows) -> pa.Array:
        """The texts of these rows, in their order, as `large_string`."""
        if len(rows) <= _FEW:
            return pa.array([self.get(row) for row in rows.tolist()], _KIND)
        self._flush_tail()
        if len(self._chunks) == 1:
            return self._chunks[0].take(pa.array(rows))
        numbers = np.searchsorted(np.array(self._starts), rows, "right") - 1
        parts, orders = [], []
        for number, start in enumerate(self._starts):
            order = np.flatnonzero(numbers == number)
            if len(order):
                parts.append(self._chunks[number].take(pa.array(rows[order] - start)))
                orders.append(order)
        if len(parts) == 1:
            return parts[0]
        back = np.empty(len(rows), np.int64)
        back[np.concatenate(orders)] = np.arange(len(rows))
        return pa.concat_arrays(parts).take(pa.array(back))

    def sizes(self, rows: Rows) -> NDArray[np.int64]:
        """Bytes of the texts of these rows, in their order."""
        if len(rows) <= _FEW:
            return np.array([len(self.get(row).encode()) for row in rows.tolist()], np.int64)
        self._flush_tail()
        sizes = np.zeros(len(rows), np.int64)
        for start, chunk in zip(self._starts, self._chunks, strict=True):
            offsets = np.frombuffer(chunk.buffers()[1], np.int64, len(chunk) + 1, 8 * chunk.offset)
            at = np.flatnonzero((rows >= start) & (rows < start + len(chunk)))
            positions = rows[at] - start
            sizes[at] = offsets[positions + 1] - offsets[positions]
        return sizes

    @property
    def waste(self) -> float:
        """Bytes added since the last `compact`, for each byte that was left then."""
        return (self._bytes - self._compact_bytes) / (self._compact_bytes + _SPARE)

    def compact(self, rows: Rows) -> None:
        """Keep only these rows, numbered anew from 0."""
        self._reset(self.take(rows))

    def _flush_tail(self) -> None:
        if self._tail:
            tail, self._tail = self._tail, []
            self._bytes -= sum(map(len, tail)) + 8 * len(tail)
            self._add_chunk(pa.array(tail, _KIND))

    def _add_chunk(self, chunk: pa.Array) -> None:
        """Merge it with smaller ones: so there are few, and each row is merged few times."""
        if chunk.type != _KIND:
            chunk = pc.cast(chunk, _KIND)
        self._bytes += chunk.nbytes
        start = self._tail_start
        self._tail_start += len(chunk)
        smaller = []
        while self._chunks and len(self._chunks[-1]) < 2 * (self._tail_start - start):
            smaller.append(self._chunks.pop())
            start = self._starts.pop()
        if smaller:
            chunk = pa.concat_arrays([*reversed(smaller), chunk])
        self._chunks.append(chunk)
        self._starts.append(start)
