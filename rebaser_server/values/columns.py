"""The columns of a graph: data of fixed size, texts and rows of different widths, by index.

`Columns` has each value's data of fixed size. `TextColumn` holds millions of texts, appended to and
read by the thousand. `Signatures` says which arguments values have, and how many inputs each
argument takes. Rows of different widths lie one after another in one array (compressed sparse
rows).
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from rebaser_core.references import REFERENCE
from rebaser_core.updates import InputSignature

Inputs = dict[str, str | list[str]]
"""Argument name → the id of one value, or a list of ids in the caller's order."""


class ValueStatus(StrEnum):
    """State of a value: how it came to its content. Sources are always `OK`."""

    OK = "ok"
    FAILED = "failed"  # its function raised; the message says what
    BLOCKED = "blocked"  # an input is failed or blocked; the message names it
    PENDING = "pending"  # defined, never computed since


@dataclass(slots=True, eq=False)
class Func:
    """A function as a request defined it; what `code` means depends on `runtime`."""

    id: str
    name: str
    runtime: str
    code: str


def ids_in(inputs: Inputs) -> list[str]:
    """Every value id in `inputs`, in order; one taken twice comes twice."""
    ids: list[str] = []
    for target in inputs.values():
        if isinstance(target, str):
            ids.append(target)
        else:
            ids += target
    return ids


def without(inputs: Inputs, removed: set[str]) -> Inputs:
    """`inputs` without the removed ids: an argument of one value goes with it, a list shrinks."""
    kept: Inputs = {}
    for argument, target in inputs.items():
        if isinstance(target, list):
            kept[argument] = [value_id for value_id in target if value_id not in removed]
        elif target not in removed:
            kept[argument] = target
    return kept


STATUSES: Final = tuple(ValueStatus)
"""Statuses; a column has indices into this tuple."""
OK: Final = STATUSES.index(ValueStatus.OK)
FAILED: Final = STATUSES.index(ValueStatus.FAILED)
BLOCKED: Final = STATUSES.index(ValueStatus.BLOCKED)
PENDING: Final = STATUSES.index(ValueStatus.PENDING)
REMOVED: Final = len(STATUSES)
"""Status of the index of a removed value, which keeps the index if it is defined again."""

ID_BYTES: Final = 26
"""Bytes of a ULID's text; a shorter id is padded with zeros."""

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
        """Buffer as a memoryview: the fastest way to a single item."""
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
            self._reserve(1)
        self.at[self.count] = item
        self.count += 1

    def extend(self, items: Any) -> None:
        more = len(items)
        if self.count + more > len(self.buffer):
            self._reserve(more)
        self.buffer[self.count : self.count + more] = items
        self.count += more

    def _reserve(self, more: int) -> None:
        needed = max(self.count + more, 2 * self.count, _MIN_CAPACITY)
        buffer = np.empty(needed, self.buffer.dtype)
        buffer[: self.count] = self.all
        self.buffer, self.at = buffer, buffer.data


class _Size:
    """Number of values, which columns share.

    If columns referred to their owner instead, a cycle would keep dropped arrays alive.
    """

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
        """Buffer as a memoryview: the fastest way to a single item."""

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


_SHARED: Final = ("ids",)
"""Columns that a snapshot shares, since they never change."""


class Columns:
    """One column for each kind of data, by the index of the value."""

    ids: Column
    status: Column
    flags: Column
    func: Column
    """Index into `Graph.func_ids`, or -1: it is a source."""
    text: Column
    """Row of `Graph.texts`: canonical JSON, or the message of a failed or blocked value."""
    name: Column
    """Row of `NameIndex.texts`, or -1."""
    signature: Column
    """Index into `Signatures.all`."""
    start: Column
    """Position of its first input among the refs of `Adjacency`."""
    newest_edge: Column
    """Newest delta edge to its dependents, or -1; see `Adjacency`."""
    rank: Column
    """Rank, greater than that of every input: sorting by it is a topological order."""
    root: Column
    """Sequence of the last request that changed its value, function or inputs; 0: none."""

    def __init__(self, count: int = 0, **arrays: NDArray[Any]) -> None:
        """Make columns of `count` values: `arrays`, which now belong to them, else defaults."""
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
        index = self.count
        if index == len(self.ids.buffer):
            self._grow(max(2 * index, _MIN_CAPACITY))
        self.ids.buffer[index] = raw_id
        self.text.at[index] = text
        self.rank.at[index] = rank
        self._size.count = index + 1
        return index

    def extend(self, raw_ids: NDArray[Any], text: int, ranks: NDArray[np.int64]) -> int:
        """Add a source for each id; return the index of the first, which the others follow."""
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
        """The columns as they are now. Ids are for reading alone."""
        columns = {name: getattr(self, name) for name in _LAYOUT}
        return Columns(
            self.count,
            **{name: c.all if name in _SHARED else c.all.copy() for name, c in columns.items()},
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Columns":
        copied = Columns(self.count, **{name: getattr(self, name).all.copy() for name in _LAYOUT})
        memo[id(self)] = copied
        return copied


Rows = NDArray[Any]

_FEW: Final = 32
"""Number of rows up to which one by one is faster than by the chunk."""
_SPARE: Final = 1 << 16
"""Number of unused bytes up to which compaction is not worth its cost."""
_OBJECT: Final = 56
"""Bytes of a text as a Python object, in addition to its characters."""
_KIND: Final = pa.large_string()
EMPTY: Final = pa.nulls(0, _KIND)  # `pa.array` imports pandas, half a second at each start


class TextColumn:
    """Rows that are appended and never changed; `compact` drops those that no value uses."""

    def __init__(self, *chunks: pa.Array) -> None:
        self._reset(*chunks)
        self.may_refer = False
        """Whether a text that was appended may have a reference."""

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
        return self._bytes + _OBJECT * len(self._tail)

    def snapshot(self) -> "TextColumn":
        """The present rows, for reading alone."""
        self._flush_tail()
        return TextColumn(*self._chunks)

    def add(self, text: str) -> int:
        self.may_refer = self.may_refer or REFERENCE in text
        self._tail.append(text)
        self._bytes += len(text) + 8
        return self._tail_start + len(self._tail) - 1

    def add_all(self, texts: pa.Array) -> int:
        """Append texts; return the row of the first, which the others follow."""
        self._flush_tail()
        first = self._tail_start
        if texts.type != _KIND:
            texts = pc.cast(texts, _KIND)
        self.may_refer = self.may_refer or REFERENCE.encode() in _bytes_of(texts)
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
        """Bytes added since the last `compact`, for each byte that it left."""
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
        """Merge the chunk with smaller ones: so there are few, and each row is merged few times."""
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


NO_INPUTS: Final = 0
"""The index of the signature without arguments."""


def _bytes_of(texts: pa.Array) -> bytes:
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return b""
    bounds = np.frombuffer(offsets, np.int64)
    start, stop = int(bounds[texts.offset]), int(bounds[texts.offset + len(texts)])
    return bytes(data.slice(start, stop - start))


class Signatures:
    """All different signatures; values hold their indices."""

    def __init__(self) -> None:
        self.all: list[InputSignature] = [()]
        self.widths: list[int] = [0]
        """Number of inputs of a value with each signature."""
        self._indices: dict[InputSignature, int] = {(): NO_INPUTS}
        self._widths = np.zeros(1, np.int64)

    def index_for(self, inputs: Inputs) -> int:
        return self.intern(
            tuple(
                (argument, len(target) if isinstance(target, list) else None)
                for argument, target in inputs.items()
            )
        )

    def intern(self, signature: InputSignature) -> int:
        index = self._indices.get(signature)
        if index is None:
            index = self._indices[signature] = len(self.all)
            self.all.append(signature)
            self.widths.append(sum(1 if count is None else count for _, count in signature))
        return index

    def widths_of(self, indices: NDArray[Any]) -> NDArray[np.int64]:
        if len(self._widths) < len(self.widths):
            self._widths = np.array(self.widths, np.int64)
        widths: NDArray[np.int64] = self._widths[indices]
        return widths

    def build_inputs(self, index: int, ids: list[str]) -> Inputs:
        """Inputs with this signature that take these values, in order."""
        inputs: Inputs = {}
        start = 0
        for argument, count in self.all[index]:
            if count is None:
                inputs[argument] = ids[start]
                start += 1
            else:
                inputs[argument] = ids[start : start + count]
                start += count
        return inputs

    def without(self, index: int, is_kept: list[bool]) -> int:
        """The signature that is left when the other inputs are removed."""
        kept: list[tuple[str, int | None]] = []
        start = 0
        for argument, count in self.all[index]:
            if count is None:
                if is_kept[start]:
                    kept.append((argument, None))
                start += 1
            else:
                kept.append((argument, sum(is_kept[start : start + count])))
                start += count
        return self.intern(tuple(kept))


def indptr_of(widths: NDArray[Any]) -> NDArray[np.int64]:
    bounds = np.zeros(len(widths) + 1, np.int64)
    np.cumsum(widths, out=bounds[1:])
    return bounds


def gather_rows(pool: NDArray[Any], starts: NDArray[Any], widths: NDArray[Any]) -> NDArray[Any]:
    bounds = indptr_of(widths)
    shift = np.repeat(starts - bounds[:-1], widths)
    shift += np.arange(bounds[-1])
    return pool[shift]


def transpose(
    columns: NDArray[np.int32], widths: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The transpose of a matrix in compressed rows: the starts of its rows, and their items.

    `columns` are the items of the rows, `widths` their numbers. The result has `count` rows, each
    in ascending order.
    """
    # Sorted as one number each: several times as fast as an argsort.
    pairs = columns.astype(np.uint64)
    pairs <<= np.uint64(32)
    pairs |= np.repeat(np.arange(len(widths), dtype=np.uint32), widths)
    pairs.sort()
    rows = (pairs & np.uint64(0xFFFFFFFF)).astype(np.int32)
    return indptr_of(np.bincount(columns, minlength=count)), rows


def sorted_unique(items: NDArray[Any]) -> NDArray[Any]:
    """The different items, ascending; several times faster than `np.unique`, which hashes them."""
    items_sorted = np.sort(items)
    if len(items_sorted):
        is_first = np.empty(len(items_sorted), np.bool_)
        is_first[0] = True
        np.not_equal(items_sorted[1:], items_sorted[:-1], out=is_first[1:])
        items_sorted = items_sorted[is_first]
    return items_sorted
