"""Indices of values by id and by name, and the sets of values that are marked.

Ids are looked up in a hash table of indices, and in a dictionary of the ids used last. `Roots` and
`Touched` are marks in a column, and lists of the marked values.
"""

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from operator import mul
from struct import unpack
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_server.values.columns import ID_BYTES, TOUCHED, Columns, TextColumn, sorted_unique

Hashes = NDArray[np.uint64]

_WORDS: Final = np.dtype([("a", "<u8"), ("b", "<u8"), ("c", "<u8"), ("d", "<u2")])
_UNPACK: Final = struct.Struct("<QQQH").unpack
_MASK: Final = 2**64 - 1
# Odd, from the fractions of square roots; stored with checkpoints: never change them.
_FACTORS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_MAX_LOAD: Final = 0.6
"""Part of the table that may be in use; beyond, a lookup without a match takes too many steps."""
_MIN_BITS: Final = 3
_EMPTY: Final = np.full(2**_MIN_BITS, -1, np.int32)
"""Every empty table; nothing can be inserted."""


def hash_of(raw: bytes) -> int:
    """The hash of one id, padded to `ID_BYTES` with zeros; equal in every process."""
    mixed = 0
    for word, factor in zip(_UNPACK(raw), _FACTORS, strict=True):
        mixed = (mixed + word) * factor & _MASK
        mixed ^= mixed >> 31
    return mixed


def hashes_of(ids: NDArray[Any]) -> Hashes:
    words = np.ascontiguousarray(ids, f"S{ID_BYTES}").view(_WORDS)
    mixed: Hashes = np.zeros(len(ids), np.uint64)
    for name, factor in zip("abcd", _FACTORS, strict=True):
        mixed += words[name]
        mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return mixed


class HashIndex:
    """An open-addressing hash table of indices, four to eight bytes each; without deletion.

    A lookup gives candidates: the caller compares them with what it looks for.
    """

    def __init__(self, count: int = 0) -> None:
        """An index with room for `count` entries."""
        bits = _MIN_BITS
        while count > _MAX_LOAD * 2**bits:
            bits += 1
        self._table = np.full(2**bits, -1, np.int32) if count else _EMPTY
        self._shift = 64 - bits
        self.capacity_left = int(_MAX_LOAD * 2**bits) if count else 0
        """Number of further entries that fit."""

    def probe(self, hash_: int) -> Iterator[int]:
        """The indices with this hash, and perhaps others."""
        table, mask = self._table.data, len(self._table) - 1
        position = hash_ >> self._shift
        while (index := table[position]) >= 0:
            yield index
            position = position + 1 & mask

    def insert(self, hashes: Hashes, indices: NDArray[np.int32]) -> None:
        """Insert indices that are not in the table, with their hashes."""
        self.insert_unique(hashes, indices, lambda rows, _others: np.zeros(len(rows), np.bool_))

    def renumber(self, kept: NDArray[np.int64], count: int) -> None:
        positions = np.full(count + 1, -1, np.int32)  # the last one for empty entries
        positions[kept] = np.arange(len(kept), dtype=np.int32)
        self._table = positions[self._table]

    def insert_unique(
        self,
        hashes: Hashes,
        indices: NDArray[np.int32],
        is_same: Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[np.bool_]],
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Insert each index unless an equal one is in the table.

        `is_same` compares rows of `hashes` with the indices at their positions. The last of equal
        rows is inserted. Returns the rows left out, and the index that each is equal to.
        """
        table, mask = self._table, len(self._table) - 1
        self.capacity_left -= len(indices)
        rows = np.arange(len(indices))
        positions = (hashes >> np.uint64(self._shift)).astype(np.int64)
        dropped: list[NDArray[np.int64]] = []
        kept: list[NDArray[np.int32]] = []
        while len(rows):
            is_free = table[positions] < 0
            table[positions[is_free]] = indices[rows[is_free]]
            occupants = table[positions]
            is_displaced = occupants != indices[rows]
            rows, positions, occupants = (
                rows[is_displaced],
                positions[is_displaced],
                occupants[is_displaced],
            )
            same = is_same(rows, occupants)
            if same.any():
                dropped.append(rows[same])
                kept.append(occupants[same])
                rows, positions = rows[~same], positions[~same]
            positions = positions + 1 & mask
        if not dropped:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        return np.concatenate(dropped), np.concatenate(kept)

    def find(
        self,
        hashes: Hashes,
        matches: Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[np.bool_]],
    ) -> NDArray[np.int32]:
        table, mask = self._table, len(self._table) - 1
        indices = np.full(len(hashes), -1, np.int32)
        rows = np.arange(len(hashes))
        positions = (hashes >> np.uint64(self._shift)).astype(np.int64)
        while len(rows):
            occupants = table[positions]
            is_occupied = occupants >= 0
            if not is_occupied.all():
                rows, positions, occupants = (
                    rows[is_occupied],
                    positions[is_occupied],
                    occupants[is_occupied],
                )
            is_match = matches(rows, occupants)
            indices[rows[is_match]] = occupants[is_match]
            rows, positions = rows[~is_match], positions[~is_match] + 1 & mask
        return indices


_RECENT: Final = 1 << 16
"""Maximum number of ids in the dictionary: some ten megabytes."""


class IdIndex:
    """Indices by id. An id keeps its index, also while its value is removed."""

    def __init__(self, columns: Columns, hash_index: HashIndex | None = None) -> None:
        """Index the columns. `hash_index`, if given, holds all ids."""
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
        """The index of an id, or -1."""
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
            # a snapshot shares the table, which may have later ids, too
            if candidate < self._indexed and ids[candidate] == raw:
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
    """Arrow strings, or a sequence of text, as an array of padded ids.

    A text that is too long equals no id.
    """
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


_RECENT_NAMES: Final = 1 << 14
"""Maximum number of names in the dictionary."""
_CHUNK: Final = 1 << 18
"""Number of names looked up or inserted at once."""
_WORD: Final = 8
"""Number of bytes of a name that are hashed together; a name ends with zeros."""
_PADDED: Final = 1 << 22
"""Number of bytes hashed at once."""
_MAX_BYTES: Final = 4 * 512
"""Maximum bytes of a name."""
_LAST: Final = 0xD6E8FEB86659FD93


def _powers() -> list[int]:
    powers = [0x9E3779B97F4A7C15]
    while len(powers) < _MAX_BYTES // _WORD:
        powers.append(powers[-1] * 0xC2B2AE3D27D4EB4F & _MASK)
    return powers


_POWERS: Final = _powers()
_POWERS_OF: Final = np.array(_POWERS, np.uint64)


class NameIndex(Mapping[str, str]):
    """Values by name, which is unique. The first lookup indexes all names."""

    def __init__(self, columns: Columns, texts: TextColumn) -> None:
        self._columns = columns
        self.texts = texts
        """Names of values, and names that they had."""
        self._recent: dict[str, int] = {}
        self._hash_index: HashIndex | None = HashIndex() if not len(texts) else None
        """Index of older names, some of them given up since; None: not made yet."""
        self._count = int(np.count_nonzero(columns.name.all >= 0))

    def find(self, name: str) -> int:
        """The index of the value with the name, or -1."""
        index = self._recent.get(name, -1)
        if index >= 0 or len(self._recent) == self._count:
            return index
        raw = name.encode()
        if len(raw) > _MAX_BYTES:
            return -1
        for candidate in self._index_of_older().probe(_hash_of(raw)):
            if self.name_at(candidate) == name:
                return candidate
        return -1

    def name_at(self, index: int) -> str | None:
        row = self._columns.name.at[index]
        return None if row < 0 else self.texts.get(row)

    def assign(self, index: int, name: str | None) -> None:
        """Give a value this name, which no other value has, or none."""
        before = self.name_at(index)
        if before is not None:
            self._recent.pop(before, None)
            self._count -= 1
        if name is None:
            self._columns.name.at[index] = -1
            return
        self._count += 1
        self._columns.name.at[index] = self.texts.add(name)
        self._recent[name] = index
        if len(self._recent) >= _RECENT_NAMES:
            self._insert(self._index_of_older(), np.fromiter(self._recent.values(), np.int32))
            self._recent.clear()

    def are_free(self, names: pa.Array) -> bool:
        """Whether no value has any of these names, which are `large_string`."""
        recent = self._recent
        if recent and not recent.keys().isdisjoint(names.to_pylist()):
            return False
        if len(recent) == self._count:
            return True
        older = self._index_of_older()
        for start in range(0, len(names), _CHUNK):
            chunk = names.slice(start, _CHUNK)
            if (older.find(_hashes_of(chunk), partial(self._have, chunk)) >= 0).any():
                return False
        return True

    def _have(
        self, names: pa.Array, rows: NDArray[np.int64], indices: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Whether each of these values has the name in its row."""
        text_rows = self._columns.name.buffer[indices]
        same = text_rows >= 0
        known = self.texts.take(text_rows[same])
        same[same] = pc.equal(known, names.take(pa.array(rows[same])))
        return same

    def assign_all(self, indices: NDArray[np.int32], names: pa.Array) -> None:
        """Give each of these values, which have no name, a name that is free."""
        first = self.texts.add_all(names)
        self._columns.name.buffer[indices] = np.arange(first, first + len(names), dtype=np.int32)
        self._count += len(names)
        if self._hash_index is not None:
            self._insert(self._hash_index, indices)

    def compact(self) -> None:
        """Drop the names that values do not have any more."""
        named = np.flatnonzero(self._columns.name.all >= 0)
        self.texts.compact(self._columns.name.buffer[named])
        self._columns.name.buffer[named] = np.arange(len(named), dtype=np.int32)

    def _index_of_older(self) -> HashIndex:
        if self._hash_index is None:
            is_older = self._columns.name.all >= 0
            is_older[np.fromiter(self._recent.values(), np.int32)] = False
            older = np.flatnonzero(is_older)
            self._hash_index = HashIndex(2 * len(older))
            self._insert(self._hash_index, older.astype(np.int32))
        return self._hash_index

    def _insert(self, hash_index: HashIndex, indices: NDArray[np.int32]) -> None:
        if hash_index.capacity_left < len(indices):
            self._hash_index = hash_index = HashIndex(2 * self._count)
            indices = np.flatnonzero(self._columns.name.all >= 0).astype(np.int32)
        for start in range(0, len(indices), _CHUNK):
            chunk = indices[start : start + _CHUNK]
            hash_index.insert(_hashes_of(self.texts.take(self._columns.name.buffer[chunk])), chunk)

    def __getitem__(self, name: str) -> str:
        index = self.find(name)
        if index < 0:
            raise KeyError(name)
        raw: bytes = self._columns.ids.buffer[index]
        return raw.decode()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        named = np.flatnonzero(self._columns.name.all >= 0)
        return iter(self.texts.take(self._columns.name.buffer[named]).to_pylist())


def are_distinct(names: pa.Array) -> bool:
    """Whether no two of these names, which are `large_string`, are equal."""
    hashes = np.sort(_hashes_of(names))
    if (hashes[1:] != hashes[:-1]).all():
        return True
    return bool(pc.count_distinct(names).as_py() == len(names))


def _hash_of(raw: bytes) -> int:
    count = -(-len(raw) // _WORD)
    words = unpack(f"<{count}Q", raw.ljust(count * _WORD, b"\0"))
    mixed: int = sum(map(mul, words, _POWERS)) & _MASK
    mixed = (mixed ^ mixed >> 29) * _LAST & _MASK
    return mixed ^ mixed >> 32


def _hashes_of(texts: pa.Array) -> NDArray[np.uint64]:
    hashes = np.empty(len(texts), np.uint64)
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    width = _WORD * max(1, -(-longest // _WORD))
    step = max(1, _PADDED // width)
    for start in range(0, len(texts), step):
        part = texts.slice(start, step)
        hashes[start : start + step] = _hashes_of_padded(pc.ascii_rpad(part, width, "\0"), width)
    return hashes


def _hashes_of_padded(texts: pa.Array, width: int) -> NDArray[np.uint64]:
    """Hashes of texts that all have `width` bytes."""
    _, _, data = texts.buffers()
    words = np.frombuffer(data, "<u8", len(texts) * width // _WORD).reshape(len(texts), -1)
    mixed = np.zeros(len(texts), np.uint64)
    for place in range(words.shape[1]):
        mixed += words[:, place] * _POWERS_OF[place]
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(_LAST)
    mixed ^= mixed >> np.uint64(32)
    return mixed


_UNTOUCHED: Final = np.uint8(0xFF ^ TOUCHED)
_NO_INDICES: Final = np.empty(0, np.int32)


class Touched(AbstractSet[str]):
    """Values changed or removed since the store last saved them, by id."""

    def __init__(self, columns: Columns, ids: IdIndex) -> None:
        self._columns = columns
        self._ids = ids
        self._marked = array("i")

    def mark(self, index: int) -> None:
        flags = self._columns.flags.at
        if not flags[index] & TOUCHED:
            flags[index] |= TOUCHED
            self._marked.append(index)

    def mark_all(self, indices: NDArray[Any]) -> None:
        flags = self._columns.flags.buffer
        fresh = indices[flags[indices] & TOUCHED == 0]
        flags[fresh] |= np.uint8(TOUCHED)
        self._marked.frombytes(fresh.astype(np.int32).tobytes())

    def indices(self) -> NDArray[np.int32]:
        return np.sort(np.frombuffer(self._marked, np.int32)) if self._marked else _NO_INDICES

    def clear(self) -> None:
        self._columns.flags.buffer[self.indices()] &= _UNTOUCHED
        self._marked = array("i")

    def __contains__(self, value_id: object) -> bool:
        index = self._ids.find(value_id) if isinstance(value_id, str) else -1
        return index >= 0 and bool(self._columns.flags.at[index] & TOUCHED)

    def __len__(self) -> int:
        return len(self._marked)

    def __iter__(self) -> Iterator[str]:
        return (raw.decode() for raw in self._columns.ids.buffer[self.indices()])


class Roots(Mapping[str, int]):
    """Value id → sequence of the last request that changed its value, function or inputs."""

    def __init__(self, columns: Columns, ids: IdIndex) -> None:
        self._columns = columns
        self._ids = ids
        self._by_sequence: dict[int, array[int]] = {}
        """Values that became roots of each sequence, some of them no longer, some twice."""
        marked = np.flatnonzero(columns.root.all)
        self._count = len(marked)
        sequences = columns.root.buffer[marked]
        for sequence in sorted_unique(sequences).tolist():
            self._append(sequence, marked[sequences == sequence])

    def mark(self, index: int, sequence: int) -> None:
        roots = self._columns.root.at
        before = roots[index]
        if before == sequence:
            return
        self._count += not before
        roots[index] = sequence
        indices = self._by_sequence.get(sequence)
        if indices is None:
            indices = self._by_sequence[sequence] = array("i")
        indices.append(index)

    def mark_all(self, indices: NDArray[Any], sequence: int) -> None:
        roots = self._columns.root.buffer
        self._count += int(np.count_nonzero(roots[indices] == 0))
        self._append(sequence, indices[roots[indices] != sequence])
        roots[indices] = sequence

    def unmark(self, index: int) -> None:
        roots = self._columns.root.at
        self._count -= bool(roots[index])
        roots[index] = 0

    def clear_through(self, covers: int) -> NDArray[np.int32]:
        """Unmark the roots up to sequence `covers`, and return them."""
        parts = [_NO_INDICES]
        for sequence in [s for s in self._by_sequence if s <= covers]:
            parts.append(self._indices_of(sequence))
            del self._by_sequence[sequence]
        cleared = np.concatenate(parts)
        self._columns.root.buffer[cleared] = 0
        self._count -= len(cleared)
        return cleared

    def indices(self) -> NDArray[np.int32]:
        return np.concatenate([_NO_INDICES, *map(self._indices_of, sorted(self._by_sequence))])

    def _append(self, sequence: int, indices: NDArray[Any]) -> None:
        of_it = self._by_sequence.setdefault(sequence, array("i"))
        of_it.frombytes(indices.astype(np.int32).tobytes())

    def _indices_of(self, sequence: int) -> NDArray[np.int32]:
        listed = np.frombuffer(self._by_sequence[sequence], np.int32)
        return sorted_unique(listed[self._columns.root.buffer[listed] == sequence])

    def __getitem__(self, value_id: str) -> int:
        index = self._ids.find(value_id)
        sequence: int = self._columns.root.at[index] if index >= 0 else 0
        if not sequence:
            raise KeyError(value_id)
        return sequence

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (raw.decode() for raw in self._columns.ids.buffer[self.indices()])

    def __repr__(self) -> str:
        return f"Roots({dict(self)})"
