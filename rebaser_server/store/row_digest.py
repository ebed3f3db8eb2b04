"""A digest of rows that does not depend on their order, and the head of a checkpoint sealed by it.

The digest of rows is the sum of a hash of each, modulo 2^64. So rows can be added to it and taken
from it, and an engine that merges or sorts files does not change it. It finds accidents and edits,
but no forger.
"""

import re
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.values.column_hashes import column_hashes, is_valid, mix, text_hash

INPUTS: Final = "inputs"
DIGESTED: Final = (
    *("kind", "id", "commit", "removed", "name", "value", "func_id"),
    *("status", "message", "root", "arguments", "input_hashes"),
)
"""Columns in `RowDigest.rows`. A missing column counts as one of nulls."""

_MODULUS: Final = 1 << 64
_FEW_WORDS: Final = frozenset({"kind", "func_id", "status", "arguments"})
"""Columns with few different texts: each is hashed once a batch."""
_BLOCK: Final = 1 << 13
"""Number of rows that are hashed at once: their words stay in the processor's cache."""

_SEAL: Final = b',"digest":{"rows":"%016x","inputs":"%016x"'
_SEALED: Final = re.compile(
    rb'(\{.*),?"digest":\{"rows":"([0-9a-f]{16})","inputs":"([0-9a-f]{16})","head":"([0-9a-f]{16})"\}\}',
    re.DOTALL,
)


class RowDigest(NamedTuple):
    rows: int = 0
    """Digest of all columns but `inputs`."""
    inputs: int | None = 0
    """Digest of the column `inputs`; None: it was not read."""

    def plus(self, other: "RowDigest") -> "RowDigest":
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
    return text + b',"head":"%016x"}}' % text_hash(text)


def unseal(commit: int, text: str) -> Head:
    """The head that has this text. Raises `StoreDamaged`: the text is not as it was written."""
    raw = text.encode()
    sealed = _SEALED.fullmatch(raw)
    if sealed is None:
        raise StoreDamaged(f"the head of the checkpoint of commit {commit} has no digest")
    metadata, rows, inputs, own = sealed.groups()
    if text_hash(raw[: sealed.start(4) - len(',"head":"')]) != int(own, 16):
        raise StoreDamaged(f"the head of the checkpoint of commit {commit} was changed")
    return Head(
        commit, metadata.removesuffix(b",") + b"}", RowDigest(int(rows, 16), int(inputs, 16))
    )


def heads_in(batch: pa.RecordBatch | pa.Table) -> list[Head]:
    """The heads among these rows. Raises `StoreDamaged`: one is not as it was written."""
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
                hashes += column_hashes(block[name], number, few_words=name in _FEW_WORDS)
        mix(hashes)
        rows += int(hashes.sum(dtype=np.uint64))
        if INPUTS in names:
            column = block[INPUTS]
            hashes += column_hashes(column, 0)
            mix(hashes)
            inputs += int(hashes[is_valid(column)].sum(dtype=np.uint64))
    return RowDigest(rows % _MODULUS, inputs % _MODULUS if INPUTS in names else None)
