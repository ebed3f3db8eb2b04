"""Names of values, and from names to values."""

from collections.abc import Iterator, Mapping
from functools import partial
from operator import mul
from struct import unpack
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_server.values.graph.columns import Columns
from rebaser_server.values.graph.hash_index import HashIndex
from rebaser_server.values.graph.text_column import TextColumn

_RECENT: Final = 1 << 14
"""Names in the dictionary, at most."""
_CHUNK: Final = 1 << 18
"""Names looked up or inserted at once."""
_WORD: Final = 8
"""Bytes of a name that are hashed together; a name ends with zeros."""
_PADDED: Final = 1 << 22
"""Bytes hashed at once."""
_MAX_BYTES: Final = 4 * 512
"""Bytes of a name."""
_MASK: Final = 2**64 - 1
_LAST: Final = 0xD6E8FEB86659FD93


def _powers() -> list[int]:
    powers = [0x9E3779B97F4A7C15]
    while len(powers) < _MAX_BYTES // _WORD:
        powers.append(powers[-1] * 0xC2B2AE3D27D4EB4F & _MASK)
    return powers


_POWERS: Final = _powers()
_POWERS_OF: Final = np.array(_POWERS, np.uint64)


class NameIndex(Mapping[str, str]):
    """Name → the id of the one value that has it. The first lookup indexes all names."""

    def __init__(self, columns: Columns, texts: TextColumn) -> None:
        self._columns = columns
        self.texts = texts
        """Names that values have, and names that they had."""
        self._recent: dict[str, int] = {}
        self._hash_index: HashIndex | None = HashIndex() if not len(texts) else None
        """Of older names, some of them given up since; None: not made yet."""
        self._count = int(np.count_nonzero(columns.name.all >= 0))

    def find(self, name: str) -> int:
        """The index of the value that has it, or -1."""
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
        if len(self._recent) >= _RECENT:
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
        """Whether each of these values has the name in the row beside it."""
        text_rows = self._columns.name.buffer[indices]
        same = text_rows >= 0
        known = self.texts.take(text_rows[same])
        same[same] = pc.equal(known, names.take(pa.array(rows[same])))
        return same

    def assign_all(self, indices: NDArray[np.int32], names: pa.Array) -> None:
        """Give each of these values, which have none, a name that is free."""
        first = self.texts.add_all(names)
        self._columns.name.buffer[indices] = np.arange(first, first + len(names), dtype=np.int32)
        self._count += len(names)
        if self._hash_index is not None:
            self._insert(self._hash_index, indices)

    def compact(self) -> None:
        """Drop the names that no value has any more."""
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
    """Of texts that all have `width` bytes."""
    _, _, data = texts.buffers()
    words = np.frombuffer(data, "<u8", len(texts) * width // _WORD).reshape(len(texts), -1)
    mixed = np.zeros(len(texts), np.uint64)
    for place in range(words.shape[1]):
        mixed += words[:, place] * _POWERS_OF[place]
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(_LAST)
    mixed ^= mixed >> np.uint64(32)
    return mixed
