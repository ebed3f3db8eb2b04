"""Hashes of ids, one at a time and by the million, and a table from hashes to indices."""

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
_FULLEST: Final = 0.6
"""Of a table: beyond, looking for what is not there takes too many steps."""
_FEWEST: Final = 3
_EMPTY: Final = np.full(2**_FEWEST, -1, np.int32)
"""Every empty table; nothing can be put in."""


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


class Slots:
    """An open-addressing hash table of indices, four to eight bytes each; nothing is taken out.

    Who looks something up gets candidates, and must see himself whether one is the right one.
    """

    def __init__(self, count: int = 0) -> None:
        """With room for so many."""
        bits = _FEWEST
        while count > _FULLEST * 2**bits:
            bits += 1
        self._slots = np.full(2**bits, -1, np.int32) if count else _EMPTY
        self._shift = 64 - bits
        self.left = int(_FULLEST * 2**bits) if count else 0
        """How many more it takes."""

    def candidates(self, hash_: int) -> Iterator[int]:
        """Indices that were put in with this hash, among others."""
        at, mask = self._slots.data, len(self._slots) - 1
        place = hash_ >> self._shift
        while (index := at[place]) >= 0:
            yield index
            place = place + 1 & mask

    def put(self, hashes: Hashes, indices: NDArray[np.int32]) -> None:
        """Put in indices, none of which is in here, with their hashes."""
        self.put_unless(hashes, indices, lambda rows, _others: np.zeros(len(rows), np.bool_))

    def renumber(self, chosen: NDArray[np.int64], count: int) -> None:
        """Call each index, of `count` that there were, by its place in `chosen`; it is there."""
        places = np.full(count + 1, -1, np.int32)  # the last for what is empty
        places[chosen] = np.arange(len(chosen), dtype=np.int32)
        self._slots = places[self._slots]

    def put_unless(
        self,
        hashes: Hashes,
        indices: NDArray[np.int32],
        is_same: Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[np.bool_]],
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Put in each index unless an equal one is in here; rows left out, and the equal ones.

        `is_same` is asked for rows of `hashes` and the indices that they met. Of equal rows
        the last is put in.
        """
        slots, mask = self._slots, len(self._slots) - 1
        self.left -= len(indices)
        rows = np.arange(len(indices))
        places = (hashes >> np.uint64(self._shift)).astype(np.int64)
        dropped: list[NDArray[np.int64]] = []
        kept: list[NDArray[np.int32]] = []
        while len(rows):
            is_free = slots[places] < 0
            slots[places[is_free]] = indices[rows[is_free]]
            met = slots[places]
            lost = met != indices[rows]
            rows, places, met = rows[lost], places[lost], met[lost]
            same = is_same(rows, met)
            if same.any():
                dropped.append(rows[same])
                kept.append(met[same])
                rows, places = rows[~same], places[~same]
            places = places + 1 & mask
        if not dropped:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        return np.concatenate(dropped), np.concatenate(kept)

    def find(
        self,
        hashes: Hashes,
        is_it: Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[np.bool_]],
    ) -> NDArray[np.int32]:
        """For each hash the index that is it, or -1; `is_it` is asked as in `put_unless`."""
        slots, mask = self._slots, len(self._slots) - 1
        found = np.full(len(hashes), -1, np.int32)
        rows = np.arange(len(hashes))
        places = (hashes >> np.uint64(self._shift)).astype(np.int64)
        while len(rows):
            met = slots[places]
            is_there = met >= 0
            if not is_there.all():
                rows, places, met = rows[is_there], places[is_there], met[is_there]
            right = is_it(rows, met)
            found[rows[right]] = met[right]
            rows, places = rows[~right], places[~right] + 1 & mask
        return found
