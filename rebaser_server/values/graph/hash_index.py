"""Hashes of ids, one at a time and by the million, and a hash table of indices."""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.values.graph.columns import ID_BYTES

Hashes = NDArray[np.uint64]

_WORDS: Final = np.dtype([("a", "<u8"), ("b", "<u8"), ("c", "<u8"), ("d", "<u2")])
_UNPACK: Final = struct.Struct("<QQQH").unpack
_MASK: Final = 2**64 - 1
# Odd, from the fractions of square roots; stored with checkpoints: never change them.
_FACTORS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_MAX_LOAD: Final = 0.6
"""Part of the table in use; beyond, a lookup without a match takes too many steps."""
_MIN_BITS: Final = 3
_EMPTY: Final = np.full(2**_MIN_BITS, -1, np.int32)
"""Every empty table; nothing can be inserted."""


def hash_of(raw: bytes) -> int:
    """The hash of one id, padded to `ID_BYTES` with zeros; the same in every process."""
    mixed = 0
    for word, factor in zip(_UNPACK(raw), _FACTORS, strict=True):
        mixed = (mixed + word) * factor & _MASK
        mixed ^= mixed >> 31
    return mixed


def hashes_of(ids: NDArray[Any]) -> Hashes:
    """The hash of each of an array of ids."""
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
        """How many more entries fit."""

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
        """Replace each index, of `count` that there were, by its position in `kept`."""
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

        `is_same` compares rows of `hashes` with the indices at their positions. Of equal rows
        the last is inserted. Returns the rows left out, and the index that each is equal to.
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
        """For each hash its index, or -1; `matches` compares rows of `hashes` with indices."""
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
