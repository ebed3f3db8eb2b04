"""The columns: each value's data of fixed size by its index; and arrays that grow."""

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rebaser_server.values.graph.types import ValueStatus

STATUSES: Final = tuple(ValueStatus)
"""A status in a column is an index into this tuple."""
OK: Final = STATUSES.index(ValueStatus.OK)
FAILED: Final = STATUSES.index(ValueStatus.FAILED)
BLOCKED: Final = STATUSES.index(ValueStatus.BLOCKED)
PENDING: Final = STATUSES.index(ValueStatus.PENDING)
REMOVED: Final = len(STATUSES)
"""The status of an index whose value was removed; defined again, it has the same index."""

ID_BYTES: Final = 26
"""Of a ULID's text; a shorter id is padded with zeros."""

# Flags of a value.
TOUCHED: Final = 1  # changed or removed since the store last saved it
IN_DELTA: Final = 2  # none of its edges is in the compressed index of dependents

_MIN_CAPACITY: Final = 8


@cache
def _empty_view(dtype: np.dtype[Any]) -> memoryview:
    return _empty(dtype).data


@cache
def _empty(dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.empty(0, dtype)


class GrowableArray:
    """A one-dimensional array with spare capacity at its end."""

    __slots__ = ("at", "buffer", "count")

    def __init__(self, dtype: DTypeLike, items: NDArray[Any] | None = None) -> None:
        self.buffer: NDArray[Any]
        self.at: Any
        """The buffer as a memoryview: the fastest way to a single item."""
        if items is None:
            items = _empty(np.dtype(dtype))  # many change sets are small
        self.buffer, self.at = items, items.data
        self.count = len(self.buffer)

    def __deepcopy__(self, memo: dict[int, Any]) -> "GrowableArray":
        return GrowableArray(self.buffer.dtype, self.all.copy())

    @property
    def all(self) -> NDArray[Any]:
        """The items in use. The next item that is added may move them."""
        return self.buffer[: self.count]

    def append(self, item: Any) -> None:
        if self.count == len(self.buffer):
            self.reserve(1)
        self.at[self.count] = item
        self.count += 1

    def extend(self, items: Any) -> None:
        """Add as many at once."""
        more = len(items)
        if self.count + more > len(self.buffer):
            self.reserve(more)
        self.buffer[self.count : self.count + more] = items
        self.count += more

    def reserve(self, more: int) -> None:
        needed = max(self.count + more, 2 * self.count, _MIN_CAPACITY)
        buffer = np.empty(needed, self.buffer.dtype)
        buffer[: self.count] = self.all
        self.buffer, self.at = buffer, buffer.data


class _Size:
    """What columns have in common; were it their owner, a cycle would keep dropped arrays."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count


class Column:
    """One item for each value. A value's item has its default until it is set."""

    __slots__ = ("_size", "at", "buffer", "default")

    def __init__(self, size: _Size, array: NDArray[Any], default: Any) -> None:
        self._size = size
        self.default = default
        self.attach(array)

    def attach(self, array: NDArray[Any]) -> None:
        self.buffer = array
        self.at: Any = array.data if len(array) else _empty_view(array.dtype)
        """The buffer as a memoryview: the fastest way to a single item."""

    @property
    def all(self) -> NDArray[Any]:
        """The items of the values that exist. The next value that is added may move them."""
        return self.buffer[: self._size.count]


_LAYOUT: Final[dict[str, tuple[DTypeLike, Any]]] = {
    "ids": (f"S{ID_BYTES}", b""),
    "status": (np.uint8, OK),
    "flags": (np.uint8, IN_DELTA),
    "func": (np.int32, -1),
    "text": (np.int32, 0),
    "name": (np.int32, -1),
    "signature": (np.int32, 0),
    "start": (np.int64, 0),
    "newest_edge": (np.int32, -1),
    "rank": (np.int64, 0),
    "root": (np.int64, 0),
}


_SHARED: Final = ("ids", "rank")
"""With a snapshot: what never changes, and what no reader of one looks at."""


class Columns:
    """One column for each kind of data, by the index of the value."""

    ids: Column
    status: Column
    flags: Column
    func: Column
    """An index into `Graph.func_ids`, or -1: it is a source."""
    text: Column
    """A row of `Graph.texts`: canonical JSON; of a failed or blocked value its message."""
    name: Column
    """A row of `NameIndex.texts`, or -1."""
    signature: Column
    """An index into `Signatures.all`."""
    start: Column
    """Where its inputs begin among the refs of `Adjacency`."""
    newest_edge: Column
    """The newest delta edge to its dependents, or -1; see `Adjacency`."""
    rank: Column
    """Greater than that of every input: sorting by it is a topological order."""
    root: Column
    """Sequence of the last request that changed its value, function or inputs; 0: none."""

    def __init__(self, count: int = 0, **arrays: NDArray[Any]) -> None:
        """Columns of `count` values: `arrays`, which now belong to them, else the defaults."""
        self._size = _Size(count)
        for name, (dtype, default) in _LAYOUT.items():
            array = arrays.get(name)
            if array is None:
                array = np.full(count, default, dtype) if count else _empty(np.dtype(dtype))
            setattr(self, name, Column(self._size, array, default))

    def __len__(self) -> int:
        return self._size.count

    @property
    def count(self) -> int:
        return self._size.count

    def append(self, raw_id: bytes, text: int, rank: int) -> int:
        """A new source; its index."""
        index = self.count
        if index == len(self.ids.buffer):
            self._grow(max(2 * index, _MIN_CAPACITY))
        self.ids.buffer[index] = raw_id
        self.text.at[index] = text
        self.rank.at[index] = rank
        self._size.count = index + 1
        return index

    def extend(self, raw_ids: NDArray[Any], text: int, ranks: NDArray[np.int64]) -> int:
        """As many new sources; the index of the first, which the others follow."""
        first, count = self.count, self.count + len(raw_ids)
        if count > len(self.ids.buffer):
            self._grow(max(count, 2 * first, _MIN_CAPACITY))
        self.ids.buffer[first:count] = raw_ids
        self.text.buffer[first:count] = text
        self.rank.buffer[first:count] = ranks
        self._size.count = count
        return first

    def _grow(self, size: int) -> None:
        for name in _LAYOUT:
            column: Column = getattr(self, name)
            buffer = np.empty(size, column.buffer.dtype)
            buffer[: self.count] = column.all
            buffer[self.count :] = column.default
            column.attach(buffer)

    def snapshot(self) -> "Columns":
        """As they are now, for reading alone; ranks go on changing."""
        columns = {name: getattr(self, name) for name in _LAYOUT}
        return Columns(
            self.count,
            **{name: c.all if name in _SHARED else c.all.copy() for name, c in columns.items()},
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Columns":
        copied = Columns(self.count, **{name: getattr(self, name).all.copy() for name in _LAYOUT})
        memo[id(self)] = copied
        return copied
