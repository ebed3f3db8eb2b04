"""Compaction of a change set's table: few files, and no superseded rows.

Each step is one Delta commit, refused if another one of ours came in between, and
changes no state that can still be read. All calls block; run them in a thread.

Live rows are those that count: for each kind and id, the row of the greatest commit.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from numpy.typing import NDArray

from rebaser_core.ids import ChangeSet
from rebaser_server.store.checkpoints import KEEP_ENTRIES, ROW_GROUPS, Checkpoints, vacuum
from rebaser_server.store.row_digest import SealedDigest
from rebaser_server.store.table_files import (
    APP_ID,
    dropped_rows,
    require_content,
    rows_up_to,
    transactions,
    translate_store_errors,
)
from rebaser_server.store.table_schema import KEY_COLUMNS
from rebaser_server.values.columns import ID_BYTES
from rebaser_server.values.indexes import HashIndex, hashes_of, padded_ids

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_PARTS: Final = 32
"""Number of parts, by hash, of the ids of a kind: only one part's hash table is in memory at a
time."""


def find_live_rows(keys: Iterable[pa.RecordBatch], capacity: int) -> NDArray[np.bool_]:
    """Whether each row is the one of the greatest commit of its kind and id, and not a removal.

    `keys` are the rows' `KEY_COLUMNS`, not more than `capacity`. The search takes 37 bytes of
    memory a row, and some 10 more for a large part of the ids.
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
    """Positions of the rows whose id has another row with a greater commit."""
    order = np.argsort(commits, kind="stable")
    hash_index = HashIndex(len(ids))
    dropped, _ = hash_index.insert_unique(
        hashes_of(ids)[order],
        order.astype(np.int32),
        lambda rows, met: ids[order[rows]] == ids[met],
    )
    return order[dropped]


MAX_FILES: Final = 40
"""Maximum number of live files: each slows appending by about a millisecond (measured: 70 at
1,000)."""

_MERGED_BYTES: Final = 8 * 1024 * 1024
"""Size in bytes up to which a file is merged with others, so that each merge writes little."""

_MIN_SUPERSEDED_ROWS: Final = 1_000
"""Minimum number of rows that are looked through for superseded ones, if they are also more than
the largest file has."""

_ONE_FILE: Final = 2**40  # bytes, more than there will be

_CHUNK: Final = 1 << 16
"""Number of rows in memory, uncompressed, while a table is rewritten."""

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")


def compact(
    checkpoints: Checkpoints, change_set: ChangeSet, start: int, replaced_retention: float
) -> str | None:
    """Take the step that is worth its cost, if any; return what it did.

    Readers ask for no commits below `start`. Replaced files are kept for `replaced_retention`
    seconds for their readers. Any process may call it at any time.

    Raises:
        OSError: the store failed. All states are in it as before.
    """
    with translate_store_errors():
        delta = checkpoints.open(change_set)
        if delta is None:
            return None
        try:
            step = _compact(delta, start)
        except CommitFailedError:  # a checkpoint came in between; the next one asks again
            return None
        if step:
            delta = checkpoints.table(change_set)
            # S-7: Delta syncs none of the new files, and later checkpoints stand on them.
            checkpoints.secure(change_set, delta)
            vacuum(delta, replaced_retention)
        return step


def _compact(delta: DeltaTable, start: int) -> str | None:
    files = pa.table(delta.get_add_actions(flatten=True))
    old = files.filter(pc.less_equal(files["max.commit"], start))["num_records"].to_pylist()
    if old and sum(old) - max(old) > max(old) + _MIN_SUPERSEDED_ROWS:
        drop_superseded(delta, start)
        return "superseded rows dropped"
    if len(files) > MAX_FILES:
        delta.optimize.compact(
            target_size=_MERGED_BYTES,
            writer_properties=ROW_GROUPS,
            post_commithook_properties=KEEP_ENTRIES,
        )
        return "small files merged"
    return None


def drop_superseded(delta: DeltaTable, start: int) -> None:
    """Keep only the rows up to commit `start` that are live as of `start`, in one file.

    Raises:
        CommitFailedError: another process wrote meanwhile.
        StoreDamaged: the rows are not those that were written.
    """
    dataset = delta.to_pyarrow_dataset()
    is_live = find_live_rows(_batches(dataset, start, KEY_COLUMNS), dataset.count_rows())
    kept = _KeptRows(dataset.schema, _batches(dataset, start), is_live)
    require_content(delta, kept.read, kept.heads)
    version = delta.transaction_version(APP_ID)
    write_deltalake(
        delta,
        kept.reader(),
        mode="overwrite",
        predicate=f"commit <= {start}",
        target_file_size=_ONE_FILE,
        writer_properties=ROW_GROUPS,
        # The one there is: no checkpoint is claimed, but one that comes in between is noticed.
        commit_properties=CommitProperties(
            app_transactions=transactions(
                version or 0, dropped_rows(delta).plus(kept.read.minus(kept.digest))
            )
        ),
        post_commithook_properties=KEEP_ENTRIES,
    )


def _batches(
    dataset: "Dataset", start: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows up to commit `start`, in a stable order; few of them in memory."""
    from pyarrow.dataset import ParquetFragmentScanOptions  # it may import pandas

    options = ParquetFragmentScanOptions(pre_buffer=False)
    for fragment in dataset.get_fragments():
        batches = fragment.to_batches(
            dataset.schema,
            columns,
            batch_size=_CHUNK,
            batch_readahead=1,
            fragment_scan_options=options,
        )
        yield from rows_up_to(batches, start)


class _KeptRows:
    """The live rows, compressed: Delta's writer must not read Delta's files while it writes."""

    def __init__(
        self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], is_live: NDArray[np.bool_]
    ) -> None:
        """Read all of `batches`."""
        self._schema = schema
        self._compressed = deque[pa.Buffer]()
        end, read, kept = 0, SealedDigest(), SealedDigest()
        for batch in batches:
            start, end = end, end + len(read.add(batch))
            live = kept.add(batch.filter(pa.array(is_live[start:end])))
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, schema, options=_COMPRESSED) as writer:
                writer.write_batch(live)
            self._compressed.append(sink.getvalue())
        self.read, self.heads = read.result()
        """The digest of all rows, and the heads among them."""
        self.digest = kept.result()[0]

    def reader(self) -> pa.RecordBatchReader:
        """The live rows, once. Rows that were read take no memory any more."""
        return pa.RecordBatchReader.from_batches(self._schema, self._decompressed())

    def _decompressed(self) -> Iterator[pa.RecordBatch]:
        while self._compressed:
            yield from pa.ipc.open_stream(self._compressed.popleft())
