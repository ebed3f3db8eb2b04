"""Compaction of a change set's table: few files, and no superseded rows.

Each step is one Delta commit, refused if another one of ours came in between, and
changes no state that can still be read. All calls block; run them in a thread.
"""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from numpy.typing import NDArray

from rebaser_core.ids import ChangeSet
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.live_rows import find_live_rows
from rebaser_server.store.row_digest import SealedDigest
from rebaser_server.store.row_groups import ROW_GROUPS
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_files import (
    APP_ID,
    dropped_rows,
    require_content,
    transactions,
)
from rebaser_server.store.table_schema import KEY_COLUMNS
from rebaser_server.store.vacuum import KEEP_ENTRIES, vacuum

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset  # which imports pandas, and that takes long

MAX_FILES: Final = 40
"""Appending gets slow with live files, by about a millisecond each (measured: 70 at 1,000)."""

_MERGED_BYTES: Final = 8 * 1024 * 1024
"""Octets up to which a file is merged with others, so that each merge writes little."""

_MIN_SUPERSEDED_ROWS: Final = 1_000
"""More rows than the largest file has, and this many, are looked through for superseded ones."""

_ONE_FILE: Final = 2**40  # octets, more than there will be

_CHUNK: Final = 1 << 16
"""Rows in memory, uncompressed, while a table is rewritten."""

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")


def compact(
    checkpoints: Checkpoints, change_set: ChangeSet, start: int, replaced_retention: float
) -> str | None:
    """Take the step that is worth its cost, if any; return what it did.

    No reader asks for commits below `start`. Replaced files are kept for
    `replaced_retention` seconds for their readers. Any process may call it at any time.

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
    """Of the rows up to commit `start` keep only the live ones as of `start`, in one file.

    Raises:
        CommitFailedError: another process wrote at the same time.
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
    """The rows up to commit `start`, always in the same order; few of them in memory."""
    from pyarrow.dataset import ParquetFragmentScanOptions  # see `import_reader`

    wanted, options = pc.field("commit") <= start, ParquetFragmentScanOptions(pre_buffer=False)
    for fragment in dataset.get_fragments(wanted):
        yield from fragment.to_batches(
            dataset.schema,
            columns,
            wanted,
            batch_size=_CHUNK,
            batch_readahead=1,
            fragment_scan_options=options,
        )


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
        """Of the live ones."""

    def reader(self) -> pa.RecordBatchReader:
        """The live rows, once. What has been read takes no memory any more."""
        return pa.RecordBatchReader.from_batches(self._schema, self._decompressed())

    def _decompressed(self) -> Iterator[pa.RecordBatch]:
        while self._compressed:
            yield from pa.ipc.open_stream(self._compressed.popleft())
