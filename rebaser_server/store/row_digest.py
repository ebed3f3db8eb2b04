"""A digest of rows that does not depend on their order, and the head of a checkpoint sealed by it.

The digest of rows is the sum of a hash of each, modulo 2^64. So rows can be added to it and taken
from it, and an engine that merges or sorts files does not change it. The hash mixes each word of
eight bytes with its place (the finaliser of MurmurHash3): it finds accidents and edits, but no
forger. The digest is stored, so the hash never changes.
"""

import re
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

from rebaser_server.runtime.failures import StoreDamaged

_Hashes = NDArray[np.uint64]

INPUTS: Final = "inputs"
DIGESTED: Final = (
    *("kind", "id", "commit", "removed", "name", "value", "func_id"),
    *("status", "message", "root", "arguments", "input_hashes"),
)
"""Columns in `RowDigest.rows`. A missing column counts as one of nulls."""

_MODULUS: Final = 1 << 64
_FEW_WORDS: Final = frozenset({"kind", "func_id", "status", "arguments"})
"""Columns with few different texts: each is hashed once a batch."""
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTORS: Final = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT: Final = np.uint64(33)
_MASKS: Final = np.array([(1 << 8 * octets) - 1 for octets in range(9)], np.uint64)
"""Masks by the number of bytes of a word that belong to the text."""
_WORD: Final = 8  # bytes
_BLOCK: Final = 1 << 13
"""Number of rows that are hashed at once: their words stay in the processor's cache."""
_LONG: Final = 1 << 12
"""Number of bytes from which a text is hashed by itself, with BLAKE3."""

_SEAL: Final = b',"digest":{"rows":"%016x","inputs":"%016x"'
_SEALED: Final = re.compile(
    rb'(\{.*),?"digest":\{"rows":"([0-9a-f]{16})","inputs":"([0-9a-f]{16})","head":"([0-9a-f]{16})"\}\}',
    re.DOTALL,
)


class RowDigest(NamedTuple):
    """The digest of some rows."""

    rows: int = 0
    """Digest of all columns but `inputs`."""
    inputs: int | None = 0
    """Digest of the column `inputs`; None: it was not read."""

    def plus(self, other: "RowDigest") -> "RowDigest":
        """The digest of the rows of both."""
        if self.inputs is None or other.inputs is None:
            return RowDigest((self.rows + other.rows) % _MODULUS, None)
        return RowDigest(
            (self.rows + other.rows) % _MODULUS, (self.inputs + other.inputs) % _MODULUS
        )

    def minus(self, other: "RowDigest") -> "RowDigest":
        """The digest of these rows without those of the other, whose `inputs` were read."""
        inputs = None if self.inputs is None else (self.inputs - (other.inputs or 0)) % _MODULUS
        return RowDigest((self.rows - other.rows) % _MODULUS, inputs)

    def fits(self, other: "RowDigest") -> bool:
        """Whether both are of equal rows, as far as both have read them."""
        return self.rows == other.rows and (
            None in (self.inputs, other.inputs) or self.inputs == other.inputs
        )


NO_ROWS: Final = RowDigest()


class Head(NamedTuple):
    """The row of a checkpoint with what Rebaser needs to go on."""

    commit: int
    metadata: bytes
    """JSON."""
    digest: RowDigest
    """Digest of all rows ever written up to this one, which counts without its digest."""


def seal(metadata: bytes, digest: RowDigest) -> bytes:
    """The text of a head: metadata, which are a JSON object, with the digest, which covers both."""
    text = metadata[:-1] + _SEAL[metadata == b"{}" :] % digest
    return text + b',"head":"%016x"}}' % _hash(text)


def unseal(commit: int, text: str) -> Head:
    """The head that has this text.

    Raises:
        StoreDamaged: the text is not as it was written.
    """
    raw = text.encode()
    sealed = _SEALED.fullmatch(raw)
    if sealed is None:
        raise StoreDamaged(f"the head of the checkpoint of commit {commit} has no digest")
    metadata, rows, inputs, own = sealed.groups()
    if _hash(raw[: sealed.start(4) - len(',"head":"')]) != int(own, 16):
        raise StoreDamaged(f"the head of the checkpoint of commit {commit} was changed")
    return Head(
        commit, metadata.removesuffix(b",") + b"}", RowDigest(int(rows, 16), int(inputs, 16))
    )


def heads_in(batch: pa.RecordBatch | pa.Table) -> list[Head]:
    """The heads among these rows.

    Raises:
        StoreDamaged: one is not as it was written.
    """
    is_head = pc.equal(batch["kind"], "head")
    if not pc.any(is_head).as_py():
        return []
    rows = batch.select(["commit", "value"]).filter(is_head)
    return [unseal(row["commit"], row["value"] or "") for row in rows.to_pylist()]


class SealedDigest:
    """The digest of rows as a table has them, with sealed heads, batch by batch."""

    def __init__(self) -> None:
        self._digest = NO_ROWS
        self._heads: list[Head] = []
        self._small: list[pa.RecordBatch] = []
        """Small batches that are not added yet: to add many at once takes less time."""
        self._small_rows = 0

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add these rows, and return them.

        Raises:
            StoreDamaged: a head is not as it was written.
        """
        if len(batch) >= _BLOCK:
            self._add(batch)
            return batch
        self._small.append(without_dictionaries(batch))
        self._small_rows += len(batch)
        if self._small_rows >= _BLOCK:
            self._add_small()
        return batch

    def result(self) -> tuple[RowDigest, list[Head]]:
        """The digest of all rows, and the heads among them. Raises as `add`."""
        self._add_small()
        return self._digest, self._heads

    def _add_small(self) -> None:
        if self._small:
            self._add(pa.concat_batches(self._small))
            self._small, self._small_rows = [], 0

    def _add(self, batch: pa.RecordBatch) -> None:
        heads = heads_in(batch)
        if heads:
            is_head = pc.equal(batch["kind"], "head")
            of_heads = batch.filter(is_head)
            place = of_heads.schema.get_field_index("value")
            plain = pa.array([head.metadata for head in heads], pa.string())
            self._digest = self._digest.plus(digest_of(of_heads.set_column(place, "value", plain)))
            batch = batch.filter(pc.invert(is_head))
        self._digest = self._digest.plus(digest_of(batch))
        self._heads += heads


def without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with plain columns in place of dictionaries."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in batch.schema
    ]
    return batch.cast(pa.schema(fields))


def digest_of(batch: pa.RecordBatch) -> RowDigest:
    """The digest of rows whose heads are not sealed."""
    names = set(batch.schema.names)
    rows, inputs = 0, 0
    for start in range(0, len(batch), _BLOCK):
        block = batch.slice(start, _BLOCK)
        hashes = np.zeros(len(block), np.uint64)
        for number, name in enumerate(DIGESTED, 1):
            if name in names:
                hashes += _column_hashes(block[name], number, few_words=name in _FEW_WORDS)
        _mix(hashes)
        rows += int(hashes.sum(dtype=np.uint64))
        if INPUTS in names:
            column = block[INPUTS]
            hashes += _column_hashes(column, 0, few_words=False)
            _mix(hashes)
            inputs += int(hashes[_is_valid(column)].sum(dtype=np.uint64))
    return RowDigest(rows % _MODULUS, inputs % _MODULUS if INPUTS in names else None)


def _column_hashes(column: pa.Array, key: int, *, few_words: bool) -> _Hashes:
    """The hash of each item under the key; 0 for a null."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.uint64)
    if few_words and not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        words = _column_hashes(column.dictionary, key, few_words=False)
        codes = column.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
        of_codes: _Hashes = np.append(words, np.uint64(0))[codes]
        return of_codes
    hashes: _Hashes
    if pa.types.is_boolean(column.type):
        hashes = (
            column.fill_null(pa.scalar(value=False))
            .to_numpy(zero_copy_only=False)
            .astype(np.uint64)
        )
    elif pa.types.is_integer(column.type):
        hashes = column.cast(pa.int64()).fill_null(0).to_numpy().astype(np.uint64)
    else:
        hashes = _text_hashes(column)
    hashes += np.uint64(key * int(_GOLDEN) % _MODULUS)
    _mix(hashes)
    if column.null_count:
        hashes[~_is_valid(column)] = 0
    return hashes


def _is_valid(column: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _text_hashes(column: pa.Array) -> _Hashes:
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
        _hash(octets[starts[row] : starts[row] + lengths[row]].data) for row in long.tolist()
    ]
    hashes = _hashes_of_words(octets, starts, np.where(lengths < _LONG, lengths, 0))
    hashes[long] = np.array(of_long, np.uint64)
    return hashes


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _hashes_of_words(
    octets: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> _Hashes:
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
        words *= np.uint64((2 * start + 1) * int(_GOLDEN) % _MODULUS)
        words ^= words >> np.uint64(32)
        hashes[rows] += words
    return hashes


def _mix(hashes: _Hashes) -> None:
    """Mix each hash in place."""
    shifted = hashes >> _SHIFT
    hashes ^= shifted
    for factor in _FACTORS:
        hashes *= factor
        np.right_shift(hashes, _SHIFT, out=shifted)
        hashes ^= shifted


def _hash(text: bytes | memoryview) -> int:
    return int.from_bytes(blake3(text).digest(_WORD), "little")
