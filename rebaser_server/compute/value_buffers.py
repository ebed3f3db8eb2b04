"""A unit's values while they are computed: in columns, and as Python objects if asked.

A cell is a position in all columns: the unit's values come first, its constants after them.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

from rebaser_core.codecs import MAX_DEPTH
from rebaser_server.compute.json_values import read_only
from rebaser_server.compute.work_unit import OK, STRING_TYPE, WorkUnit, string_buffers
from rebaser_server.values.canonical_json import dumps_numbers, loads, loads_many

Positions = NDArray[np.int64]
Kinds = NDArray[np.uint8]
Bits = NDArray[np.int64]

NONE: Final = 0
"""Kind of a cell without value: failed, blocked, not computed yet, or beyond the limits of a
value."""
NULL: Final = 1
BOOL: Final = 2
INT: Final = 3
FLOAT: Final = 4
TEXT: Final = 5
"""Kind of any other cell, whose value stands in its text alone."""

_BY_FIRST: Final = np.full(256, TEXT, np.uint8)
"""Kind by a text's first byte; a float looks like an integer so far."""
_BY_FIRST[[ord(c) for c in "-0123456789"]] = INT
_BY_FIRST[[ord(c) for c in "tf"]] = BOOL
_BY_FIRST[ord("n")] = NULL

_SHALLOW: Final = 2 * (MAX_DEPTH + 1)
"""Number of bytes below which a text cannot be nested too deep."""


class Nothing:
    """Placeholder in `objects` for a missing value."""


NOTHING: Final = Nothing()


class ValueBuffers:
    """`kinds` and `bits` are right at any time; the rest is made when it is needed."""

    def __init__(self, unit: WorkUnit) -> None:
        self.texts = pa.concat_arrays([unit.texts, unit.constant_texts])
        count = len(self.texts)
        self.kind_bytes = bytearray(count)
        """Memory of `kinds`, faster for one at a time; likewise the two below, of `bits`."""
        memory = bytearray(8 * count)
        self.int_items = memoryview(memory).cast("q")
        self.float_items = memoryview(memory).cast("d")
        self.kinds = np.frombuffer(self.kind_bytes, np.uint8)
        self.bits = np.frombuffer(memory, np.int64)
        """Value of an integer, a boolean as 0 or 1, or the 64 bits of a float; else 0."""
        self.floats = self.bits.view(np.float64)
        self.objects: list[Any] = []
        """Objects of boxed cells; NOTHING where there is no value. Empty if none was ever boxed."""
        self.materialised_bytes = bytearray(count)
        self.is_materialised = np.frombuffer(self.materialised_bytes, np.bool_)
        self.computed_texts: dict[int, str] = {}
        """Texts of cells computed one by one, which replace those in `texts`."""
        self._sources: Positions | None = None
        """Cell whose text is that of each; None: its own is."""
        known = np.concatenate([unit.statuses == OK, unit.constant_known])
        self._load(np.flatnonzero(known))

    def _load(self, positions: Positions) -> None:
        if not len(positions):
            return
        texts = self.texts if len(positions) == len(self.texts) else self.texts.take(positions)
        kinds, bits = _parse_scalars(texts)
        self.kinds[positions] = kinds
        self.bits[positions] = bits

    def materialise(self, positions: Positions) -> None:
        """Make the `objects` of these cells; those beyond the limits become NONE.

        A cell may come twice.
        """
        if not self.objects:
            self.objects = [NOTHING] * len(self.kinds)
        positions = np.unique(positions)
        kinds = self.kinds[positions]
        objects = self.objects
        for kind in _distinct_kinds(kinds):
            chosen = positions[kinds == kind]
            match kind:
                case 0:
                    items: list[Any] = [NOTHING] * len(chosen)
                case 1:
                    items = [None] * len(chosen)
                case 2:
                    items = self.bits[chosen].astype(np.bool_).tolist()
                case 3:
                    items = self.bits[chosen].tolist()
                case 4:
                    items = self.floats[chosen].tolist()
                case _:
                    items = self._parse(chosen)
            for position, item in zip(chosen.tolist(), items, strict=True):
                objects[position] = item
        self.is_materialised[positions] = True

    def set_objects(self, positions: Positions, objects: list[Any]) -> None:
        """Set the objects of cells at ascending positions."""
        self.is_materialised[positions] = True
        first, last = int(positions[0]), int(positions[-1])
        if last - first + 1 == len(positions):
            self.objects[first : last + 1] = objects
            return
        for position, item in zip(positions.tolist(), objects, strict=True):
            self.objects[position] = item

    def _parse(self, positions: Positions) -> list[Any]:
        try:
            return list(map(read_only, loads_many(self.texts_at(positions))))
        except ValueError:
            return [self._parse_one(position) for position in positions.tolist()]

    def _parse_one(self, position: int) -> Any:
        try:
            return read_only(loads(self.texts_at(np.array([position]))[0].as_py()))
        except ValueError:  # stored before there was this limit: blocks its dependents alone
            self.kinds[position] = NONE
            return NOTHING

    def drop_too_deep(self, positions: Positions) -> None:
        """Turn those of these TEXT cells into NONE that are beyond the limits of a value."""
        lengths = pc.binary_length(self.texts_at(positions)).to_numpy(zero_copy_only=False)
        self.materialise(positions[lengths >= _SHALLOW])

    def longer_than(self, positions: Positions, most: int) -> NDArray[np.bool_]:
        """Return which of these TEXT cells have texts of more than `most` bytes; 0: none has."""
        if not most:
            return np.zeros(len(positions), np.bool_)
        lengths: NDArray[np.int64]
        lengths = pc.binary_length(self.texts_at(positions)).to_numpy(zero_copy_only=False)
        return lengths > most

    def alias_texts(self, positions: Positions, chosen: Positions) -> None:
        """Give cells the texts of others; `kinds` and `bits` are left to the caller."""
        if self._sources is None:
            self._sources = np.arange(len(self.kinds))
        self._sources[positions] = self._sources[chosen]

    def texts_at(self, positions: Positions) -> pa.LargeStringArray:
        sources = positions if self._sources is None else self._sources[positions]
        texts = self.texts.take(sources)
        if not self.computed_texts:
            return texts
        computed = self.computed_texts
        return pa.array(
            [
                computed.get(source, text)
                for source, text in zip(sources.tolist(), texts.to_pylist(), strict=True)
            ],
            STRING_TYPE,
        )

    def changes(self, start: int, stop: int) -> list[Any]:
        """Return these cells as they were computed, for `take` in another process."""
        return [
            self.kinds[start:stop].tobytes(),
            self.bits[start:stop].tobytes(),
            {p: text for p, text in self.computed_texts.items() if start <= p < stop},
            None if self._sources is None else self._sources[start:stop].tobytes(),
        ]

    def take(self, start: int, stop: int, changes: list[Any]) -> None:
        kinds, bits, texts, sources = changes
        self.kinds[start:stop] = np.frombuffer(kinds, np.uint8)
        self.bits[start:stop] = np.frombuffer(bits, np.int64)
        self.computed_texts.update(texts)
        if sources is not None:
            if self._sources is None:
                self._sources = np.arange(len(self.kinds))
            self._sources[start:stop] = np.frombuffer(sources, np.int64)

    def fingerprint(self, position: int) -> bytes:
        """Return bytes that only cells with an equal value have. The cell must have one."""
        kind = self.kind_bytes[position : position + 1]
        if kind[0] != TEXT:
            return bytes(kind) + self.int_items[position].to_bytes(8, "little", signed=True)
        source = position if self._sources is None else int(self._sources[position])
        text = self.computed_texts.get(source)
        data = text.encode() if text is not None else self.texts[source].as_buffer()
        return bytes(kind) + blake3(data).digest()

    def canonical_texts_at(self, positions: Positions) -> pa.LargeStringArray:
        if not len(positions):
            return pa.array([], STRING_TYPE)
        kinds = self.kinds[positions]
        met = _distinct_kinds(kinds)
        if len(met) == 1:
            return self._texts_of_kind(met[0], positions)
        parts = [np.flatnonzero(kinds == kind) for kind in met]
        texts = [
            self._texts_of_kind(kind, positions[part])
            for kind, part in zip(met, parts, strict=True)
        ]
        order = np.empty(len(positions), np.int64)
        order[np.concatenate(parts)] = np.arange(len(positions))
        return pa.concat_arrays(texts).take(order)

    def _texts_of_kind(self, kind: int, positions: Positions) -> pa.LargeStringArray:
        if kind == NULL:
            return pa.repeat(pa.scalar("null", STRING_TYPE), len(positions))
        if kind == TEXT:
            return self.texts_at(positions)
        if kind == FLOAT:
            return dumps_numbers(self.floats[positions])
        return dumps_numbers(self.bits[positions].astype(np.bool_ if kind == BOOL else np.int64))


def _distinct_kinds(kinds: Kinds) -> list[int]:
    return np.flatnonzero(np.bincount(kinds)).tolist()


def _parse_scalars(texts: pa.LargeStringArray) -> tuple[Kinds, Bits]:
    """Return the kinds and bits of canonical texts, none of them empty."""
    offsets, text = string_buffers(texts)
    first = np.frombuffer(text, np.uint8)[np.frombuffer(offsets, np.int64)[:-1]]
    kinds = _BY_FIRST[first]
    bits = np.zeros(len(texts), np.int64)
    truths = kinds == BOOL
    bits[truths] = first[truths] == ord("t")
    numbers = np.flatnonzero(kinds == INT)
    if len(numbers):
        _parse_numbers(texts, numbers, kinds, bits)
    return kinds, bits


def _parse_numbers(
    texts: pa.LargeStringArray, numbers: Positions, kinds: Kinds, bits: Bits
) -> None:
    written = texts if len(numbers) == len(texts) else texts.take(numbers)
    is_float = _have_fraction(written)
    floats, integers = numbers[is_float], numbers[~is_float]
    if len(floats):
        kinds[floats] = FLOAT
        numbers = pc.cast(texts.take(floats), pa.float64()).to_numpy()
        bits[floats] = numbers.view(np.int64)
    if len(integers):
        bits[integers] = pc.cast(texts.take(integers), pa.int64()).to_numpy()


def _have_fraction(numbers: pa.LargeStringArray) -> NDArray[np.bool_]:
    text = np.frombuffer(string_buffers(numbers)[1], np.uint8)
    points = np.count_nonzero(text == ord("."))
    if points == len(numbers):  # a number has one at the most
        return np.ones(len(numbers), np.bool_)
    if not points and not (text == ord("e")).any():
        return np.zeros(len(numbers), np.bool_)
    matches = pc.or_(pc.match_substring(numbers, "."), pc.match_substring(numbers, "e"))
    has_fraction: NDArray[np.bool_] = matches.to_numpy(zero_copy_only=False)
    return has_fraction
