"""From ids to indices: a hash table, and a dictionary of the ids used last."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.values.graph.columns import ID_BYTES, Columns
from rebaser_server.values.graph.hash_index import HashIndex, hash_of, hashes_of

_RECENT: Final = 1 << 16
"""Ids in the dictionary, at most: some ten megabytes."""


class IdIndex:
    """Which index an id has. An id keeps its index, also while its value is removed."""

    def __init__(self, columns: Columns, hash_index: HashIndex | None = None) -> None:
        """`hash_index`, if given, holds all ids."""
        self._columns = columns
        self._hash_index = hash_index or HashIndex()
        self._indexed = 0 if hash_index is None else len(columns)
        """Indices below this are in the hash index, others in `_recent`."""
        self._recent: dict[str, int] = {}
        self._index_recent()

    def snapshot(self, columns: Columns) -> "IdIndex":
        """The index for a snapshot of the columns. It shares the table, which only grows."""
        self._index_recent()
        return IdIndex(columns, self._hash_index)

    def find(self, value_id: str) -> int:
        """Its index, or -1."""
        index = self._recent.get(value_id)
        if index is not None:
            return index
        if not self._indexed:
            return -1
        raw = value_id.encode()
        if len(raw) > ID_BYTES:
            return -1
        ids = self._columns.ids.buffer
        for candidate in self._hash_index.probe(hash_of(raw.ljust(ID_BYTES, b"\0"))):
            if candidate < self._indexed and ids[candidate] == raw:  # of a snapshot: a later one
                self._remember(value_id, candidate)
                return candidate
        return -1

    def find_all(self, ids: NDArray[Any]) -> NDArray[np.int32]:
        """The index of each of an array of padded ids, or -1."""
        if self._indexed < len(self._columns):
            self._index_recent()
        own = self._columns.ids.buffer
        return self._hash_index.find(hashes_of(ids), lambda rows, met: own[met] == ids[rows])

    def add_all(self) -> None:
        """Add the ids of all indices that were added to the columns."""
        self._index_recent()

    def add(self, value_id: str, index: int) -> None:
        """Add the id of the last index."""
        self._remember(value_id, index)

    def _remember(self, value_id: str, index: int) -> None:
        if len(self._recent) >= _RECENT:
            self._index_recent()
        self._recent[value_id] = index

    def _index_recent(self) -> None:
        first, count = self._indexed, len(self._columns)
        if first < count:
            if self._hash_index.capacity_left < count - first:
                self._hash_index = HashIndex(2 * count)
                first = 0
            hashes = hashes_of(self._columns.ids.buffer[first:count])
            self._hash_index.insert(hashes, np.arange(first, count, dtype=np.int32))
            self._indexed = count
        self._recent.clear()


def padded_ids(ids: Any) -> NDArray[Any]:
    """Arrow strings, or a sequence of text, as an array of padded ids; too long a one fits none."""
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks() if ids.num_chunks != 1 else ids.chunk(0)
    if isinstance(ids, pa.ChunkedArray):  # more text than one array can hold
        return np.concatenate([padded_ids(chunk) for chunk in ids.chunks])
    if not isinstance(ids, pa.Array):
        ids = pa.array(ids, pa.string())
    if ids.type != pa.string():
        ids = ids.cast(pa.string())
    count = len(ids)
    _, offsets, text = ids.buffers()
    if count and text is not None:
        bounds = np.frombuffer(offsets, np.int32, count + 1, 4 * ids.offset)
        first = int(bounds[0])
        if bounds[-1] - first == ID_BYTES * count and (np.diff(bounds) == ID_BYTES).all():
            return np.frombuffer(text, f"S{ID_BYTES}", count, first)
    raw = [value_id.encode() for value_id in ids.to_pylist()]
    return np.array([i if len(i) <= ID_BYTES else b"\xff" for i in raw], f"S{ID_BYTES}")


def arrow_ids(ids: NDArray[Any]) -> pa.StringArray:
    """An array of padded ids as Arrow strings."""
    count = len(ids)
    flat = np.ascontiguousarray(ids)
    if not count or flat.view(np.uint8)[ID_BYTES - 1 :: ID_BYTES].all():
        offsets = np.arange(count + 1, dtype=np.int32) * ID_BYTES
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(flat))
    return pa.array([raw.decode() for raw in flat.tolist()], pa.string())
