"""From ids to indices: a hash table, and a dictionary of those in use."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.values.graph.columns import ID_BYTES, Columns
from rebaser_server.values.graph.hash_index import Slots, hash_of, hashes_of

_RECENT: Final = 1 << 16
"""Ids in the dictionary, at most: some ten megabytes."""


class Ids:
    """Which index an id has. An id that had one keeps it, also while its value is removed."""

    def __init__(self, columns: Columns, slots: Slots | None = None) -> None:
        """`slots` holds all there are, if it is given."""
        self._columns = columns
        self._slots = slots or Slots()
        self._folded = 0 if slots is None else len(columns)
        """Indices below are in the slots, others in `_recent`."""
        self._recent: dict[str, int] = {}
        self._fold()

    def find(self, value_id: str) -> int:
        """Its index, or -1."""
        index = self._recent.get(value_id)
        if index is not None:
            return index
        if not self._folded:
            return -1
        raw = value_id.encode()
        if len(raw) > ID_BYTES:
            return -1
        ids = self._columns.ids.room
        for candidate in self._slots.candidates(hash_of(raw.ljust(ID_BYTES, b"\0"))):
            if ids[candidate] == raw:
                self._remember(value_id, candidate)
                return candidate
        return -1

    def find_all(self, ids: NDArray[Any]) -> NDArray[np.int32]:
        """The index of each of an array of padded ids, or -1."""
        if self._folded < len(self._columns):
            self._fold()
        own = self._columns.ids.room
        return self._slots.find(hashes_of(ids), lambda rows, met: own[met] == ids[rows])

    def added(self, value_id: str, index: int) -> None:
        """Take note of the last index there is."""
        self._remember(value_id, index)

    def _remember(self, value_id: str, index: int) -> None:
        if len(self._recent) >= _RECENT:
            self._fold()
        self._recent[value_id] = index

    def _fold(self) -> None:
        first, count = self._folded, len(self._columns)
        if first < count:
            if self._slots.left < count - first:
                self._slots = Slots(2 * count)
                first = 0
            hashes = hashes_of(self._columns.ids.room[first:count])
            self._slots.put(hashes, np.arange(first, count, dtype=np.int32))
            self._folded = count
        self._recent.clear()


def raw_ids(ids: Any) -> NDArray[Any]:
    """Arrow strings, or a sequence of text, as an array of padded ids; too long a one fits none."""
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks() if ids.num_chunks != 1 else ids.chunk(0)
    if isinstance(ids, pa.ChunkedArray):  # more text than one array can hold
        return np.concatenate([raw_ids(chunk) for chunk in ids.chunks])
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
