"""Checkpoints: one Delta table a change set, appended to under an application transaction.

Every row written is a committed fact, and for each id the row of the greatest commit counts. So it
harms nothing when two Rebasers, one of them fenced off, both write: the table never goes back. All
calls block; run them in a thread.

`CheckpointChanges` are the changes of a graph since the checkpoint before. `GraphCheckpoint` is a
checkpoint as it is read from a table.

A damaged table has sound versions, and is repaired by turning back to the last of them. The commit
log still has what is lost by that: it is purged only behind the checkpoint before the last.

Row groups and pages are small: by default row groups have a million rows, and pages 20,000, all of
which the reader of a few rows would read. Statistics are left out where they are long: Delta's log
repeats of each file the least and the greatest text of each column, in full length.

`vacuum` removes files that no version uses. Columns of a newer release are kept.
`roll_back_to_sound` returns a table to a sound version from which the log continues.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from numpy.typing import NDArray
from pydantic_core import to_json

from rebaser_core.ids import ChangeSet
from rebaser_server.files import SharedFiles, change_set_directory, delta_root
from rebaser_server.runtime.failures import StoreDamaged, StoreFailed
from rebaser_server.store.graph_loader import InputsNeeded
from rebaser_server.store.row_digest import NO_ROWS, Head, RowDigest, SealedDigest
from rebaser_server.store.table_files import (
    APP_ID,
    CheckpointTable,
    DeltaFile,
    DeltaFiles,
    FileContent,
    TableLog,
    data_files,
    dropped_rows,
    require_content,
    require_last,
    rows_up_to,
    transactions,
    translate_store_errors,
)
from rebaser_server.store.table_schema import (
    KEY_COLUMNS,
    LOADED,
    SCHEMA,
    SealedRows,
    checkpoint_record,
    graph_from_batches,
    rows_for,
    select_rows,
    split_rows,
)
from rebaser_server.values.graph import Graph, GraphSnapshot

_FEW: Final = 4_096
_PART: Final = 64
"""Number of values per change from which making rows costs no more than a snapshot of the graph;
nor does it with up to `_FEW` changes."""


@dataclass(frozen=True, slots=True)
class CheckpointChanges:
    """Changes for a checkpoint: taken from a graph at one moment, written later."""

    commit: int
    make_rows: Callable[[], Iterable[pa.RecordBatch]]
    """Function that makes all rows but the head. Reading takes long if they are many; the graph may
    change meanwhile."""
    metadata: bytes
    """JSON of the head."""
    count: int
    whole: bool
    """Whether the rows are complete: they replace the table's rows and the past."""
    base: int = 0
    """Commit of the checkpoint that the rows are added to; 0 if that is not known."""
    values: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """The touched values, as indices into the graph."""
    funcs: frozenset[str] = frozenset()

    def sealed(self, before: RowDigest = NO_ROWS) -> SealedRows:
        """The rows with their head; `before` is the digest of the rows that the table has had."""
        return SealedRows(self.make_rows(), self.metadata, self.commit, before)

    def __len__(self) -> int:
        return self.count


def take_changes(
    graph: Graph, commit: int, metadata: dict[str, Any], *, whole: bool, base: int = 0
) -> CheckpointChanges:
    """Take the changes since the last call, or everything; afterwards no value is touched."""
    make_rows: Callable[[], Iterable[pa.RecordBatch]]
    selection, encoded = select_rows(graph, whole=whole), to_json(metadata)
    if len(selection.indices) > max(_FEW, len(graph.columns) // _PART):
        make_rows = partial(rows_for, GraphSnapshot(graph), selection, commit)
    else:
        make_rows = list(rows_for(graph, selection, commit)).copy
    count = len(selection.indices) + len(selection.funcs) + 1
    touched, funcs = graph.touched.indices(), frozenset(graph.touched_funcs)
    graph.touched.clear()
    graph.touched_funcs.clear()
    graph.compact()
    return CheckpointChanges(commit, make_rows, encoded, count, whole, base, touched, funcs)


def restore_touched(graph: Graph, changes: CheckpointChanges) -> None:
    """Mark these changes as touched again: they may not have been written."""
    graph.touched.mark_all(changes.values)
    graph.touched_funcs |= changes.funcs


_DICTIONARY_COLUMNS: Final = ["kind", "func_id", "status", "arguments"]
"""Columns with few different texts, which are read as dictionaries."""


@dataclass(frozen=True, slots=True)
class GraphCheckpoint:
    commit: int
    metadata: dict[str, Any]
    """All parts of the checkpoint but the graph."""
    graph: Graph
    digest: RowDigest
    """Digest of all rows that were written to the table up to this checkpoint."""
    damage: str = ""
    """Reason why a later checkpoint could not be read; empty if this is the last one."""


def _read_checkpoint(
    delta: CheckpointTable, damage: str, at: int | None = None
) -> GraphCheckpoint | None:
    """The last checkpoint of the table, or the last at or before commit `at`, if there is one."""
    columns = {field.name for field in delta.schema().fields}
    try:
        return _read(delta, [name for name in LOADED if name in columns], damage, at)
    except InputsNeeded:
        return _read(delta, sorted(columns), damage, at)


def _read_heads(delta: CheckpointTable) -> list[Head]:
    with translate_store_errors():
        heads = delta.heads()
        require_last(delta, heads)
        return heads


def _read_head(delta: CheckpointTable) -> Head | None:
    """The head of the last checkpoint, if there is one."""
    return max(_read_heads(delta), default=None)


def _read_metadata(delta: CheckpointTable, damage: str) -> dict[str, Any] | None:
    del damage
    head = _read_head(delta)
    return None if head is None else checkpoint_record(head)


def _read(
    delta: CheckpointTable, columns: list[str], damage: str, at: int | None
) -> GraphCheckpoint | None:
    """Read a checkpoint.

    Errors of `graph_from_batches` are raised only if the rows are those that were written.
    """
    with translate_store_errors():
        rows = scan(delta, columns, at)
        if at is None:
            require_last(delta, rows.heads)
        require_content(delta, rows.digest, rows.heads)
    if not rows.heads:
        return None
    head = max(rows.heads)
    metadata = checkpoint_record(head)
    graph = graph_from_batches(rows.values, rows.others)
    return GraphCheckpoint(head.commit, metadata, graph, head.digest, damage)


class _Rows(NamedTuple):
    values: list[pa.RecordBatch]
    """Rows of values, without their kind."""
    others: pa.Table
    digest: RowDigest
    heads: list[Head]


def scan(delta: CheckpointTable, columns: list[str], at: int | None = None) -> _Rows:
    """The rows of these columns up to commit `at`, or all."""
    from pyarrow.dataset import ParquetReadOptions  # it may import pandas

    options = ParquetReadOptions(dictionary_columns=_DICTIONARY_COLUMNS)
    dataset = delta.to_pyarrow_dataset(parquet_read_options=options)
    batches = rows_up_to(dataset.to_batches(columns=columns), at)
    digests = SealedDigest()
    values, others = split_rows(map(digests.add, batches))
    return _Rows(values, others, *digests.result())


OpenVersion = Callable[[int], CheckpointTable]

_MAX_VERSIONS: Final = 200
"""Number of versions to try, from the latest back."""

_MAX_REPAIRS: Final = 3
"""Attempts at a repair; each gives way to another process that writes to the table."""


def require_sound(files: DeltaFiles, delta: DeltaTable) -> None:
    """Require that a version of a table has the rows that were written. Reads all of it.

    Raises:
        StoreDamaged: the version has other rows.
        OSError: the store cannot be read now.
    """
    _require_sound(delta, [files.read(file) for file in data_files(delta)])


def _require_sound(delta: DeltaTable, contents: Sequence[FileContent]) -> None:
    digest, heads = NO_ROWS, []
    for content in contents:
        digest = digest.plus(content.digest)
        heads += content.heads
    require_last(delta, heads)
    require_content(delta, digest, heads)


def sound_versions(files: DeltaFiles, open_version: OpenVersion) -> Iterator[CheckpointTable]:
    """The versions that can be read whole, and have the rows that were written, the latest first.

    Each data file is read once. If no version after a sum of the log is sound, the sum may be
    damaged: it is set aside if the entries that it sums up exist. So is a hint at a sum that is
    gone.

    Raises:
        OSError: the store cannot be read now.
    """
    inspection = _Inspection(files, open_version)
    table_log, is_any_sound = files.log(), False
    files.set_aside_hint(table_log)
    versions = deque(sorted(table_log.entries, reverse=True)[:_MAX_VERSIONS])
    while versions:
        version = versions.popleft()
        suspect = max((each for each in table_log.sums if each > version), default=None)
        if suspect is not None and not is_any_sound and table_log.repeats(suspect):
            files.set_aside_sum(suspect)
            table_log = files.log()
            versions = deque(sorted(table_log.entries, reverse=True)[:_MAX_VERSIONS])
        elif (delta := inspection.sound(version, table_log)) is not None:
            is_any_sound = True
            yield delta


class _Inspection:
    """Looks at versions of one table, and reads no file twice."""

    def __init__(self, files: DeltaFiles, open_version: OpenVersion) -> None:
        self._files = files
        self._open_version = open_version
        self._contents: dict[DeltaFile, FileContent | None] = {}
        self._ours: dict[int, bool] = {}

    def sound(self, version: int, table_log: TableLog) -> CheckpointTable | None:
        """The version of the table, if it is sound."""
        if not table_log.is_whole(version):
            return None
        try:
            with translate_store_errors():
                entries = range(table_log.summed_up(version) + 1, version + 1)
                if not all(map(self._is_ours, entries)):
                    return None
                delta = self._open_version(version)
                _require_sound(delta, [self._content(file) for file in data_files(delta)])
        except StoreDamaged:
            return None
        return delta

    def _is_ours(self, version: int) -> bool:
        if version not in self._ours:
            self._ours[version] = not self._files.foreign_change(version, version)
        return self._ours[version]

    def _content(self, file: DeltaFile) -> FileContent:
        if file not in self._contents:
            # The note stays if the read finds damage, so no other version reads the file again.
            self._contents[file] = None
            self._contents[file] = self._files.read(file)
        content = self._contents[file]
        if content is None:
            raise StoreDamaged(file.name)
        return content


def repair(files: DeltaFiles, open_version: OpenVersion) -> int | None:
    """Turn the table back to its last sound version; return that, or None if there is none.

    Nothing is deleted: entries of the log get another name. Without a sound version all entries do,
    and the table is gone. A writer that stops for long in the middle, while another one repairs and
    writes, may turn the other's writes back, too; the next checkpoint notices one that is missing.

    Raises:
        OSError: the store failed.
    """
    for _ in range(_MAX_REPAIRS):
        files.set_aside_sums()
        before = files.log()
        sound = next(sound_versions(files, open_version), None)
        version = None if sound is None else sound.version()
        # A log that grew during the search has entries that were not looked at, and may be sound.
        if files.log() == before:
            files.set_aside_entries(-1 if version is None else version)
            return version
    raise StoreDamaged("another process writes to the table while it is repaired")


_UNIQUE: Final = ColumnProperties(dictionary_enabled=False)
"""Properties of columns in which hardly any text comes twice: their dictionary would have to be
read for a single text."""

_LONG: Final = ColumnProperties(statistics_enabled="NONE")
"""Properties of columns with long texts: a head is megabytes long, and so are values and lists of
inputs; no file is skipped by them."""

ROW_GROUPS: Final = WriterProperties(
    compression="SNAPPY",
    max_row_group_size=1 << 17,
    data_page_row_count_limit=1 << 12,
    column_properties={
        **dict.fromkeys(("id", "name"), _UNIQUE),
        **dict.fromkeys(("value", "inputs", "message", "arguments", "input_hashes"), _LONG),
    },
)
"""Properties with which checkpoints and compaction write."""


KEEP_ENTRIES: Final = PostCommitHookProperties(cleanup_expired_logs=False)
"""Properties that keep Delta from deleting entries of its log when it sums them up in a file that
is not on the disk yet."""


def vacuum(delta: DeltaTable, replaced_retention: float) -> list[str]:
    """Delete files that no version refers to and that are old enough; return their names.

    Files of writers that were killed are among them.
    """
    hours = math.ceil(replaced_retention / 3600)
    deleted = delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
    if deleted:
        delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
    delta.cleanup_metadata()
    return deleted


def _add_unknown_columns(delta: DeltaTable, rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The rows with null in the columns that a newer release has added to the table."""
    known = rows.schema
    unknown = [field for field in pa.schema(delta.schema()) if field.name not in known.names]
    if not unknown:
        return rows
    schema = pa.schema([*known, *unknown])

    def widened(batch: pa.RecordBatch) -> pa.RecordBatch:
        nulls = [pa.nulls(len(batch), field.type) for field in unknown]
        return pa.record_batch([*batch.columns, *nulls], schema)

    return pa.RecordBatchReader.from_batches(schema, map(widened, rows))


_Found = TypeVar("_Found")

_PROPERTIES: Final = {"delta.logRetentionDuration": "interval 1 days"}
"""Properties of a table. The past is not read from Delta's own versions: each row has its
commit."""

_MAX_KNOWN: Final = 10_000
"""Maximum number of known tables; a forgotten one is synced and read back whole again."""

_MAX_TRIES: Final = 10
"""Maximum number of attempts at a save; each loses to another process's save, and two are already
rare."""


@dataclass(slots=True)
class _Known:
    """State of a table, as far as this process knows."""

    secured: int | None = None
    """Version up to which `secure` has made it safe."""
    ours: int = -1
    """Version up to which only Rebasers have changed it."""
    written: tuple[int, RowDigest] = (0, NO_ROWS)
    """Commit of a checkpoint, and the digest of all rows written to the table up to it."""


class Checkpoints:
    """The checkpoints of all change sets under one root: a directory or an object store's URI."""

    def __init__(self, root: str, options: dict[str, str] | None = None) -> None:
        self._root = root.rstrip("/")
        self._files = SharedFiles(self._root, options)
        self._delta_root, self._options = delta_root(self._root, options or {})
        self._known: dict[ChangeSet, _Known] = {}
        """Known tables, the oldest first."""

    def uri(self, change_set: ChangeSet) -> str:
        """Location of the change set's Delta table, for any engine to read."""
        return f"{self._root}/{change_set_directory(change_set)}"

    def _delta_uri(self, change_set: ChangeSet) -> str:
        return f"{self._delta_root}/{change_set_directory(change_set)}"

    def load(self, change_set: ChangeSet, at: int | None = None) -> GraphCheckpoint | None:
        """The last checkpoint, or the last at or before commit `at`; None if there is none.

        If the table is damaged, the last sound checkpoint is returned.

        Raises:
            StoreDamaged: the table is damaged, and no checkpoint in it is sound.
            NewerVersion: only a newer release can read it.
            OSError: the store cannot be read now.
        """
        loaded = self._read(change_set, partial(_read_checkpoint, at=at))
        if loaded is not None:
            self._known_of(change_set).written = loaded.commit, loaded.digest
        return loaded

    def metadata(self, change_set: ChangeSet) -> dict[str, Any] | None:
        """The last checkpoint without its graph, at a fraction of the cost."""
        return self._read(change_set, _read_metadata)

    def heads(self, change_set: ChangeSet) -> list[Head]:
        """The heads of all checkpoints in the table; none without a table.

        Raises:
            StoreDamaged: the table is damaged, so that some may be missing.
            OSError: the store cannot be read now.
        """
        delta = self.open(change_set)
        return [] if delta is None else _read_heads(delta)

    def _read(
        self, change_set: ChangeSet, read: Callable[[CheckpointTable, str], _Found | None]
    ) -> _Found | None:
        """Read the table or, if that is damaged, its last sound version."""
        try:
            delta = self.open(change_set)
            return None if delta is None else read(delta, "")
        except StoreDamaged as error:
            damage = error
        with translate_store_errors():
            last = self._table_files(change_set).log().last
            versions = self.sound_versions(change_set)
        for delta in versions:
            # The last one is sound: only what was read before had been tidied away.
            found = read(delta, "" if delta.version() == last else str(damage))
            if found is not None:
                return found
        raise damage

    def _known_of(self, change_set: ChangeSet) -> _Known:
        if change_set not in self._known and len(self._known) >= _MAX_KNOWN:
            self._known.pop(next(iter(self._known)), None)
        return self._known.setdefault(change_set, _Known())

    def sound_versions(self, change_set: ChangeSet) -> Iterator[CheckpointTable]:
        """The versions of the table that can be read whole, the latest first; see the function."""
        return sound_versions(self._table_files(change_set), partial(self.table, change_set))

    def require_sound(self, change_set: ChangeSet) -> None:
        """Require that the table, if there is one, has exactly the rows that were written.

        All of the table is read. Raises as the function.
        """
        delta = self.open(change_set)
        if delta is not None:
            with translate_store_errors():
                require_sound(self._table_files(change_set), delta)

    def repair(self, change_set: ChangeSet) -> CheckpointTable | None:
        """Turn a damaged table back to its last sound version, as the function does."""
        with translate_store_errors():
            # The table gets other versions under the same numbers, of which nothing is known.
            self._known.pop(change_set, None)
            version = repair(self._table_files(change_set), partial(self.table, change_set))
            return None if version is None else self.table(change_set)

    def last_commit(self, change_set: ChangeSet) -> int:
        """The commit of the last checkpoint; 0 if there is none.

        Raises:
            OSError: the store cannot be read now.
        """
        with translate_store_errors():
            delta = self.open(change_set)
            return 0 if delta is None else delta.transaction_version(APP_ID) or 0

    def save(self, change_set: ChangeSet, changes: CheckpointChanges) -> None:
        """Write the changes, once even if it is called again.

        Afterwards all changes are in the table or, if the process dies, none; they were read back,
        and outlast a power cut. A later checkpoint that exists already, or comes in between, stays.
        A damaged table is repaired.

        Raises:
            StoreDamaged: the table lacks the checkpoint that the changes are added to.
            OSError: the store failed. It may hold the changes or not.
        """
        with translate_store_errors():
            self.secure(change_set, self._save(change_set, changes))

    def secure(self, change_set: ChangeSet, delta: DeltaTable) -> None:
        """Return once this version of the table outlasts a power cut, and was read back (S-7).

        Every writer to a table calls it before anything relies on its rows.

        Raises:
            StoreDamaged: the table is not what was written.
            OSError: the store failed.
        """
        with translate_store_errors():
            known = self._known_of(change_set)
            self._table_files(change_set).secure(delta, known.secured)
            # S-7: the note comes last. After a failure, the next call syncs and reads these files.
            known.secured = delta.version()

    def _save(self, change_set: ChangeSet, changes: CheckpointChanges) -> CheckpointTable:
        """Append under the table's version: Delta refuses a write to any but the latest."""
        tries = 0
        while True:
            tries += 1
            delta = self._open_sound(change_set, changes.base)
            last = delta.transaction_version(APP_ID) or 0
            if not changes.whole and last < changes.base:
                raise StoreDamaged(f"{self.uri(change_set)} lacks commit {changes.base}")
            # An attempt whose answer was lost may have written it, or a Rebaser that is further.
            if last >= changes.commit:
                return delta
            whole = changes.whole
            rows = changes.sealed(NO_ROWS if whole else self._written(change_set, delta, last))
            # A whole checkpoint replaces all rows. Rows dropped before must not be subtracted.
            dropped = NO_ROWS if whole and dropped_rows(delta) != NO_ROWS else None
            try:
                write_deltalake(
                    delta,
                    _add_unknown_columns(delta, rows.reader()),
                    mode="overwrite" if whole else "append",
                    writer_properties=ROW_GROUPS,
                    commit_properties=CommitProperties(
                        app_transactions=transactions(changes.commit, dropped)
                    ),
                    post_commithook_properties=KEEP_ENTRIES,
                )
            except CommitFailedError:
                # The table has rows of another process by now, and the digest goes on from these.
                if tries == _MAX_TRIES:
                    raise
            else:
                self._known_of(change_set).written = changes.commit, rows.digest
                return delta

    def _written(self, change_set: ChangeSet, delta: CheckpointTable, commit: int) -> RowDigest:
        """The digest of all rows written to the table up to its last checkpoint, of `commit`."""
        known_commit, digest = self._known_of(change_set).written
        if commit and known_commit == commit:
            return digest
        head = _read_head(delta)
        return NO_ROWS if head is None else head.digest

    def set_aside(self, change_set: ChangeSet, after: int) -> None:
        """Turn the table back to version `after`; no file is deleted.

        Raises:
            OSError: the store failed.
        """
        with translate_store_errors():
            self._known.pop(change_set, None)
            self._table_files(change_set).set_aside_sums()
            self._table_files(change_set).set_aside_entries(after)

    def _open_sound(self, change_set: ChangeSet, base: int) -> CheckpointTable:
        """Open the table, or create it; a damaged one is repaired.

        The table is read whole if its last checkpoint is not `base`: that may be the last sound
        one.
        """
        try:
            with translate_store_errors():
                delta = self.open(change_set)
                if delta is not None and base not in (0, delta.transaction_version(APP_ID)):
                    require_sound(self._table_files(change_set), delta)
        except StoreDamaged:
            delta = self.repair(change_set)
        return delta or self._create(change_set)

    def open(self, change_set: ChangeSet) -> CheckpointTable | None:
        """The change set's table as it is now, if there is one.

        Raises:
            StoreDamaged: its log cannot be read, or another program changed the table.
            OSError: the store cannot be read now.
        """
        with translate_store_errors():
            try:
                delta = self.table(change_set)
            except TableNotFoundError:
                return None
            if not _is_ours(delta):
                raise StoreFailed(
                    f"{self.uri(change_set)} is another program's table: nothing is read from it "
                    "or written to it; move it away"
                )
            known, version = self._known_of(change_set), delta.version()
            # A table that ends before the known version was turned back: its entries are new.
            ours = known.ours if known.ours <= version else -1
            self._table_files(change_set).require_entries(version, ours)
            known.ours = version
            return delta

    def last_log_entry(self, change_set: ChangeSet, version: int) -> bytes | None:
        """The entry with which the table's log ends; None if that is another version's."""
        return self._table_files(change_set).last_entry(version)

    def _table_files(self, change_set: ChangeSet) -> DeltaFiles:
        return DeltaFiles(self._files, change_set_directory(change_set))

    def table(self, change_set: ChangeSet, version: int | None = None) -> CheckpointTable:
        """The table, in one of Delta's versions or in the latest.

        Raises `DeltaError` if there is none.
        """
        files = self._files.below(change_set_directory(change_set))
        return CheckpointTable(self._delta_uri(change_set), files, version, self._options)

    def _create(self, change_set: ChangeSet) -> CheckpointTable:
        """Create the table without rows: Delta does not check a write that creates it."""
        with suppress(CommitFailedError):  # another process did
            DeltaTable.create(
                self._delta_uri(change_set),
                SCHEMA,
                mode="ignore",
                storage_options=self._options,
                configuration=_PROPERTIES,
            )
        return self.table(change_set)


def _is_ours(delta: DeltaTable) -> bool:
    """Whether a Rebaser made the table: damage leaves either a checkpoint or the columns."""
    columns = {field.name for field in delta.schema().fields}
    return set(KEY_COLUMNS) <= columns or delta.transaction_version(APP_ID) is not None


def roll_back_to_sound(
    checkpoints: Checkpoints,
    change_set: ChangeSet,
    earliest: int,
    last: int,
    *,
    dry_run: bool = False,
) -> int | None:
    """Roll the table back; return the version, or None if none is sound.

    A version is sound if it can be read and its commit is from `earliest` to `last`, so that the
    log continues it. Nothing is deleted: later versions are set aside. A table with a checkpoint
    behind the log's end is not emptied: that log may be of a NATS made anew.

    Raises:
        OSError: the store failed.
    """
    ahead = False
    with translate_store_errors():
        for delta in checkpoints.sound_versions(change_set):
            commit = delta.transaction_version(APP_ID) or 0
            ahead |= commit > last
            if max(earliest, ahead) <= commit <= last:
                if not dry_run:
                    checkpoints.set_aside(change_set, delta.version())
                return delta.version()
    return None
