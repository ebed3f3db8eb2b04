"""Hashes of the items of Arrow columns: equal in all processes and releases, since they are stored.

A hash has 64 bits, and mixes each word of eight bytes with its place (the finaliser of
MurmurHash3): it finds accidents and edits, but no forger.

With a `secret`, a number that stays in this process, no client can choose two items with one hash,
and items that SQL takes for equal have one: 0.0 and -0.0, too. Such hashes are not stored.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_MODULUS: Final = 1 << 64
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTORS: Final = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT: Final = np.uint64(33)
_MASKS: Final = np.array([(1 << 8 * octets) - 1 for octets in range(9)], np.uint64)
"""Masks by the number of bytes of a word that belong to the text."""
_WORD: Final = 8  # bytes
_KEY: Final = 32  # bytes of a key of BLAKE3
_DIGITS: Final = 32
"""Hexadecimal digits of a digest of rows."""
_BLOCK_ROWS: Final = 8_192
"""Rows that are hashed at once."""
_LONG: Final = 1 << 12
"""Number of bytes from which a text is hashed by itself, with BLAKE3."""


def column_hashes(
    column: pa.Array, key: int, *, few_words: bool = False, secret: int = 0
) -> Hashes:
    """The hash of each item under the key; 0 for a null.

    `few_words`: there are few different items, each of which is hashed once. A map's entries count
    in any order. All NaN are equal; 0.0 and -0.0 are not, without a secret.
    """
    if column.null_count == len(column):
        return np.zeros(len(column), np.uint64)
    if few_words and not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        words = column_hashes(column.dictionary, key, secret=secret)
        codes = column.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
        of_codes: Hashes = np.append(words, np.uint64(0))[codes]
        return of_codes
    hashes: Hashes = _item_hashes(column, secret)
    hashes += np.uint64((key * int(_GOLDEN) + secret) % _MODULUS)
    mix(hashes)
    if column.null_count:
        hashes[~is_valid(column)] = 0
    return hashes


def row_hashes(columns: Sequence[pa.Array], count: int, secret: int = 0) -> Hashes:
    """Return the hash of each of `count` rows, which have these columns."""
    hashes = np.zeros(count, np.uint64)
    for number, column in enumerate(columns, 1):
        hashes += column_hashes(column, number, secret=secret)
        mix(hashes)
    return hashes


class ContentDigest:
    """The digest of rows in any order, and in any batches."""

    def __init__(self) -> None:
        self.rows = 0
        self._exclusive = 0
        self._total = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _BLOCK_ROWS):
            block = batch.slice(start, _BLOCK_ROWS)
            hashes = row_hashes(block.columns, block.num_rows)
            self.rows += len(hashes)
            self._exclusive ^= int(np.bitwise_xor.reduce(hashes))
            self._total += int(hashes.sum(dtype=np.uint64))

    @property
    def state(self) -> list[int]:
        """Numbers that `add_state` takes, as plain data."""
        return [self.rows, self._exclusive, self._total % _MODULUS]

    def add_state(self, state: Sequence[int]) -> None:
        """Add the rows of another digest, by its `state`."""
        rows, exclusive, total = state
        self.rows += rows
        self._exclusive ^= exclusive
        self._total += total

    @property
    def text(self) -> str:
        text = repr(self.state)
        return blake3(text.encode()).hexdigest()[:_DIGITS]


def _item_hashes(column: pa.Array, secret: int) -> Any:  # noqa: PLR0911 - one for each kind of type
    """The hash of each item; anything for a null."""
    kind = column.type
    if pa.types.is_boolean(kind):
        false = pa.scalar(value=False)
        return column.fill_null(false).to_numpy(zero_copy_only=False).astype(np.uint64)
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    if pa.types.is_integer(column.type) or pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).fill_null(0).to_numpy().astype(np.uint64)
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy().copy()
        numbers[np.isnan(numbers)] = np.nan  # of its many forms, one
        if secret:
            numbers += 0.0  # makes 0.0 of -0.0
        return numbers.view(np.uint64)
    if pa.types.is_decimal128(kind):
        words = np.frombuffer(column.buffers()[1], "<u8", 2 * len(column), 16 * column.offset)
        hashes = words[1::2] + np.uint64(secret)
        mix(hashes)
        return hashes + words[::2]
    if pa.types.is_struct(kind):
        fields = [column.field(n) for n in range(kind.num_fields)]
        return row_hashes(fields, len(column), secret)
    if pa.types.is_map(kind):
        entries = [_within(column, each) for each in (column.keys, column.items)]
        return _sums(column, row_hashes(entries, len(entries[0]), secret))
    if pa.types.is_list(kind):
        offsets = column.offsets.to_numpy().astype(np.int64)
        starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
        hashes = column_hashes(_within(column, column.values), 1, secret=secret)
        places = np.arange(len(hashes)) - np.repeat(starts, lengths)
        hashes += places.astype(np.uint64) * _GOLDEN
        mix(hashes)
        return _sums(column, hashes)
    return _text_hashes(column, secret)


def _within(column: pa.Array, items: pa.Array) -> pa.Array:
    """Return those of all lists' items in memory that are in this part of the column."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return items.slice(first, last - first)


def _sums(column: pa.Array, hashes: Hashes) -> Hashes:
    """Return the hash of each list, which is a sum of the hashes of its items."""
    offsets = column.offsets.to_numpy() - column.offsets[0].as_py()
    totals = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    lengths = np.diff(offsets).astype(np.uint64)
    sums: Hashes = totals[offsets[1:]] - totals[offsets[:-1]] + lengths * _GOLDEN
    mix(sums)
    return sums


def is_valid(column: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _text_hashes(column: pa.Array, secret: int) -> Hashes:
    """The hash of each text, string or binary."""
    if column.type not in (pa.large_string(), pa.large_binary()):
        column = column.cast(pa.large_string() if _is_string(column.type) else pa.large_binary())
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset)
    first, last = int(bounds[0]), int(bounds[-1])
    octets = np.zeros(last - first + _WORD, np.uint8)
    if last > first:
        octets[: last - first] = np.frombuffer(data, np.uint8, last - first, first)
    starts, lengths = bounds[:-1] - first, np.diff(bounds)
    long = np.flatnonzero(lengths >= _LONG)
    of_long = [
        text_hash(octets[starts[row] : starts[row] + lengths[row]].data, secret)
        for row in long.tolist()
    ]
    hashes = _hashes_of_words(octets, starts, np.where(lengths < _LONG, lengths, 0), secret)
    hashes[long] = np.array(of_long, np.uint64)
    return hashes


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _hashes_of_words(
    octets: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], secret: int
) -> Hashes:
    """The hash of each text: the sum of its words, each mixed with its place, and its length."""
    words_at = np.ndarray(len(octets) - _WORD + 1, "<u8", octets, strides=(1,))
    hashes = lengths.astype(np.uint64)
    hashes *= _GOLDEN
    rows: Any = slice(None)
    for start in range(0, int(lengths.max(initial=0)), _WORD):
        left = lengths[rows] - start
        if (left <= 0).any():
            more = np.flatnonzero(left > 0)
            rows, left = more if isinstance(rows, slice) else rows[more], left[more]
        words = words_at[starts[rows] + start]
        words &= _MASKS[np.minimum(left, _WORD)]
        if secret:  # the steps below alone let a client find other words with one sum
            words += np.uint64(secret)
            mix(words)
        words *= np.uint64((2 * start + 1) * int(_GOLDEN) % _MODULUS)
        words ^= words >> np.uint64(32)
        hashes[rows] += words
    return hashes


def mix(hashes: Hashes) -> None:
    """Mix each hash in place."""
    shifted = hashes >> _SHIFT
    hashes ^= shifted
    for factor in _FACTORS:
        hashes *= factor
        np.right_shift(hashes, _SHIFT, out=shifted)
        hashes ^= shifted


def text_hash(text: bytes | memoryview, secret: int = 0) -> int:
    hasher = blake3(text, key=secret.to_bytes(_KEY)) if secret else blake3(text)
    return int.from_bytes(hasher.digest(_WORD), "little")
