"""What is known of each value in a fixed number of bytes, and arrays that grow."""

from copy import deepcopy
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rebaser_server.values.graph.types import Status

STATUSES: Final = tuple(Status)
"""A status in a column is a place in here, as in `dvu.blob.STATUSES`."""
OK: Final = STATUSES.index(Status.OK)
FAILED: Final = STATUSES.index(Status.FAILED)
BLOCKED: Final = STATUSES.index(Status.BLOCKED)
PENDING: Final = STATUSES.index(Status.PENDING)
GONE: Final = len(STATUSES)
"""The status of an index whose value was removed; defined again, it has the same index."""

ID_BYTES: Final = 26
"""Of a ULID's text; a shorter id is padded with zeros."""

# Flags of a value.
TOUCHED: Final = 1  # changed or removed since the store last saved it
YOUNG: Final = 2  # none of its edges is in the compressed index of dependents

_LEAST: Final = 8


@cache
def _nothing_at(dtype: np.dtype[Any]) -> memoryview:
    return _nothing(dtype).data


@cache
def _nothing(dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.empty(0, dtype)


class Growing:
    """A one-dimensional array with room at its end."""

    __slots__ = ("at", "count", "room")

    def __init__(self, dtype: DTypeLike, given: NDArray[Any] | None = None) -> None:
        self.room: NDArray[Any]
        self.at: Any
        """The room as a memoryview: the fastest way to a single item."""
        if given is None:
            given = _nothing(np.dtype(dtype))  # many change sets are small
        self.room, self.at = given, given.data
        self.count = len(self.room)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Growing":
        return Growing(self.room.dtype, self.all.copy())

    @property
    def all(self) -> NDArray[Any]:
        """What is in it; moved by the next that is added."""
        return self.room[: self.count]

    def append(self, item: Any) -> None:
        if self.count == len(self.room):
            self.reserve(1)
        self.at[self.count] = item
        self.count += 1

    def extend(self, items: Any) -> None:
        """Add as many at once."""
        more = len(items)
        if self.count + more > len(self.room):
            self.reserve(more)
        self.room[self.count : self.count + more] = items
        self.count += more

    def reserve(self, more: int) -> None:
        needed = max(self.count + more, 2 * self.count, _LEAST)
        room = np.empty(needed, self.room.dtype)
        room[: self.count] = self.all
        self.room, self.at = room, room.data


class Column:
    """One item for each value. A value's item has its default until it is set."""

    __slots__ = ("_columns", "at", "default", "room")

    def __init__(self, columns: "Columns", array: NDArray[Any], default: Any) -> None:
        self._columns = columns
        self.default = default
        self.hold(array)

    def hold(self, array: NDArray[Any]) -> None:
        self.room = array
        self.at: Any = array.data if len(array) else _nothing_at(array.dtype)
        """The room as a memoryview: the fastest way to a single item."""

    @property
    def all(self) -> NDArray[Any]:
        """Of the values there are; moved by the next that is added."""
        return self.room[: self._columns.count]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Column":
        deepcopy(self._columns, memo)
        copied: Column = memo[id(self)]
        return copied


_KINDS: Final[dict[str, tuple[DTypeLike, Any]]] = {
    "ids": (f"S{ID_BYTES}", b""),
    "status": (np.uint8, OK),
    "flags": (np.uint8, YOUNG),
    "func": (np.int32, -1),
    "text": (np.int32, 0),
    "name": (np.int32, -1),
    "shape": (np.int32, 0),
    "start": (np.int64, 0),
    "newest": (np.int32, -1),
    "rank": (np.int64, 0),
    "root": (np.int64, 0),
}


class Columns:
    """What is known of the values, by their indices."""

    ids: Column
    status: Column
    flags: Column
    func: Column
    """A place in `Graph.func_ids`, or -1: it is a source."""
    text: Column
    """A row of `Graph.texts`: canonical JSON; of a failed or blocked value its message."""
    name: Column
    """A row of `Names.texts`, or -1."""
    shape: Column
    """A place in `Shapes.known`."""
    start: Column
    """Of its inputs in `Wiring.refs`."""
    newest: Column
    """Of the younger edges to its dependents, or -1; see `Wiring`."""
    rank: Column
    """Greater than that of every input: sorting by it is a topological order."""
    root: Column
    """Sequence of the last request that changed its value, function or inputs; 0: none."""

    def __init__(self, count: int = 0, **given: NDArray[Any]) -> None:
        """Of `count` values, with these arrays, which are taken over, and defaults."""
        self.count = count
        for name, (dtype, default) in _KINDS.items():
            array = given.get(name)
            if array is None:
                array = np.full(count, default, dtype) if count else _nothing(np.dtype(dtype))
            setattr(self, name, Column(self, array, default))

    def __len__(self) -> int:
        return self.count

    def append(self, raw_id: bytes, text: int, rank: int) -> int:
        """A new source; its index."""
        index = self.count
        if index == len(self.ids.room):
            self._grow(max(2 * index, _LEAST))
        self.ids.room[index] = raw_id
        self.text.at[index] = text
        self.rank.at[index] = rank
        self.count = index + 1
        return index

    def _grow(self, size: int) -> None:
        for name in _KINDS:
            column: Column = getattr(self, name)
            room = np.empty(size, column.room.dtype)
            room[: self.count] = column.all
            room[self.count :] = column.default
            column.hold(room)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Columns":
        columns = {name: getattr(self, name) for name in _KINDS}
        copied = Columns(self.count, **{name: c.all.copy() for name, c in columns.items()})
        memo[id(self)] = copied
        memo.update((id(c), getattr(copied, name)) for name, c in columns.items())
        return copied
