"""Which rows of a table count: of each kind and id the one of the greatest commit."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.values.columns import ID_BYTES
from rebaser_server.values.indexes import HashIndex, hashes_of, padded_ids

_PARTS: Final = 32
"""Parts, by hash, of the ids of a kind: so only one part's hash table is in memory at a time."""


def find_live_rows(keys: Iterable[pa.RecordBatch], capacity: int) -> NDArray[np.bool_]:
    """Whether each row is the one of the greatest commit of its kind and id, and not a removal.

    `keys` are the rows' `KEY_COLUMNS`, not more than `capacity`. Takes 37 bytes of memory a row,
    and some 10 more for a large part of the ids.
    """
    ids = np.empty(capacity, f"S{ID_BYTES}")
    commits = np.empty(capacity, np.int64)
    parts = np.empty(capacity, np.uint16)
    is_live = np.empty(capacity, np.bool_)
    codes: dict[str, int] = {}
    count = 0
    for batch in keys:
        rows = slice(count, count + len(batch))
        count = rows.stop
        ids[rows] = padded_ids(batch["id"])
        commits[rows] = batch["commit"].to_numpy()
        is_live[rows] = ~batch["removed"].to_numpy(zero_copy_only=False)
        parts[rows] = _codes_of(batch["kind"], codes) * _PARTS + hashes_of(ids[rows]) % _PARTS
    parts = parts[:count]
    for part in np.flatnonzero(np.bincount(parts)):
        rows_of_part = np.flatnonzero(parts == part)
        superseded = _superseded(ids[rows_of_part], commits[rows_of_part])
        is_live[rows_of_part[superseded]] = False
    return is_live[:count]


def _codes_of(kinds: pa.Array, codes: dict[str, int]) -> NDArray[np.uint64]:
    encoded = kinds.dictionary_encode()
    known = [codes.setdefault(kind, len(codes)) for kind in encoded.dictionary.to_pylist()]
    codes_of_rows: NDArray[np.uint64] = np.array(known, np.uint64)[encoded.indices.to_numpy()]
    return codes_of_rows


def _superseded(ids: NDArray[Any], commits: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of which another one of the same id has a greater commit."""
    order = np.argsort(commits, kind="stable")
    hash_index = HashIndex(len(ids))
    dropped, _ = hash_index.insert_unique(
        hashes_of(ids)[order],
        order.astype(np.int32),
        lambda rows, met: ids[order[rows]] == ids[met],
    )
    return order[dropped]
