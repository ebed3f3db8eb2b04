"""Texts by the million that are added to, replaced, and taken out by the thousand."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Rows = NDArray[Any]

_FEW: Final = 32
"""Rows up to which one by one is faster than by the chunk."""
_SPARE: Final = 1 << 16
"""Bytes that nobody refers to and that are not worth looking for."""
_OBJECT: Final = 56
"""Bytes of a text that is a Python object of its own, beside its characters."""
_KIND: Final = pa.large_string()
EMPTY: Final = pa.nulls(0, _KIND)  # `pa.array` imports pandas, half a second at each start


class Texts:
    """Rows that are added and never changed. What is replaced stays until `compact`."""

    def __init__(self, first: pa.Array = EMPTY) -> None:
        self._begin(first)

    def _begin(self, first: pa.Array) -> None:
        self._chunks: list[pa.Array] = []
        self._starts: list[int] = []
        self._tail: list[str] = []
        self._tail_start = 0
        self._bytes = self._compact_bytes = 0
        if len(first):
            self._add_chunk(first)
            self._compact_bytes = self._bytes

    def __len__(self) -> int:
        return self._tail_start + len(self._tail)

    @property
    def nbytes(self) -> int:
        """Memory that the texts take, more or less."""
        return self._bytes + _OBJECT * len(self._tail)

    def add(self, text: str) -> int:
        """Its row."""
        self._tail.append(text)
        self._bytes += len(text) + 8
        return self._tail_start + len(self._tail) - 1

    def add_all(self, texts: pa.Array) -> int:
        """The first of their rows, which follow one another."""
        self._settle()
        first = self._tail_start
        self._add_chunk(texts)
        return first

    def get(self, row: int) -> str:
        if row >= self._tail_start:
            return self._tail[row - self._tail_start]
        place = len(self._starts) - 1
        while self._starts[place] > row:
            place -= 1
        text: str = self._chunks[place][row - self._starts[place]].as_py()
        return text

    def take(self, rows: Rows) -> pa.Array:
        """The texts of these rows, in their order, as `large_string`."""
        if len(rows) <= _FEW:
            return pa.array([self.get(row) for row in rows.tolist()], _KIND)
        self._settle()
        if len(self._chunks) == 1:
            return self._chunks[0].take(pa.array(rows))
        places = np.searchsorted(np.array(self._starts), rows, "right") - 1
        parts, orders = [], []
        for place, start in enumerate(self._starts):
            order = np.flatnonzero(places == place)
            if len(order):
                parts.append(self._chunks[place].take(pa.array(rows[order] - start)))
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
        self._settle()
        found = np.zeros(len(rows), np.int64)
        for start, chunk in zip(self._starts, self._chunks, strict=True):
            offsets = np.frombuffer(chunk.buffers()[1], np.int64, len(chunk) + 1, 8 * chunk.offset)
            at = np.flatnonzero((rows >= start) & (rows < start + len(chunk)))
            places = rows[at] - start
            found[at] = offsets[places + 1] - offsets[places]
        return found

    @property
    def waste(self) -> float:
        """How often what was there at the last `compact` was added since."""
        return (self._bytes - self._compact_bytes) / (self._compact_bytes + _SPARE)

    def compact(self, rows: Rows) -> None:
        """Keep these rows alone, numbered anew from 0."""
        self._begin(self.take(rows))

    def _settle(self) -> None:
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
