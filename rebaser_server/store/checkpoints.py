"""Checkpoints: one Delta table a change set, appended to under an application transaction.

Every row written is a committed fact, and for each id the row of the greatest
commit counts. So it harms nothing when two Rebasers, one of them fenced off, both
write: the table never goes back. All calls block; run them in a thread.
"""

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from rebaser_core.ids import ChangeSet
from rebaser_server.files.paths import change_set_directory
from rebaser_server.files.shared_files import SharedFiles
from rebaser_server.store.checkpoint_changes import CheckpointChanges
from rebaser_server.store.graph_loader import InputsNeeded
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_files import TableFiles
from rebaser_server.store.table_schema import (
    LOADED,
    SCHEMA,
    checkpoint_record,
    graph_from_batches,
    split_rows,
)
from rebaser_server.values.graph import Graph

APP_ID: Final = "rebaser"

_PROPERTIES: Final = {"delta.logRetentionDuration": "interval 1 days"}
"""The past is not read from Delta's own versions: each row has its commit."""

KEEP_ENTRIES: Final = PostCommitHookProperties(cleanup_expired_logs=False)
"""Delta deletes no entry of its log when it sums them up in a file that is not on the disk yet."""

_DICTIONARY_COLUMNS: Final = ["kind", "func_id", "status", "arguments"]
"""Columns with few different texts are read as dictionaries."""

_MAX_TRIES: Final = 10
"""Attempts at a save; each loses to another process's save, and two are already rare."""


@dataclass(frozen=True, slots=True)
class GraphCheckpoint:
    """A graph as of one commit."""

    commit: int
    metadata: dict[str, Any]
    """Everything but the graph."""
    graph: Graph


class Checkpoints:
    """The checkpoints of all change sets under one root: a directory or an object store's URI."""

    def __init__(self, root: str, options: dict[str, str] | None = None) -> None:
        self._root = root.rstrip("/")
        self._options = options or {}
        self._files = SharedFiles(self._root, self._options)
        self._secured: dict[ChangeSet, int] = {}
        """The version of each table up to which `secure` has seen to it."""

    def uri(self, change_set: ChangeSet) -> str:
        """Where the change set's Delta table is, for any engine to read."""
        return f"{self._root}/{change_set_directory(change_set)}"

    def load(self, change_set: ChangeSet, at: int | None = None) -> GraphCheckpoint | None:
        """The last checkpoint, or the last at or before commit `at`; None if there is none.

        Raises:
            StoreDamaged: a file of the table is gone or is not what was written.
            NewerVersion: only a newer release can read it.
            OSError: the store cannot be read now.
        """
        with translate_store_errors():
            delta = self.open(change_set)
            if delta is None:
                return None
            column_names = {field.name for field in delta.schema().fields}
            try:
                return _load(delta, [name for name in LOADED if name in column_names], at)
            except InputsNeeded:
                return _load(delta, sorted(column_names), at)

    def metadata(self, change_set: ChangeSet) -> dict[str, Any] | None:
        """Everything but the graph of the last checkpoint, at a fraction of the cost."""
        with translate_store_errors():
            delta = self.open(change_set)
            if delta is None:
                return None
            rows = delta.to_pyarrow_table(filters=[("kind", "=", "head")])
        return checkpoint_record(rows)[1] if rows else None

    def last_commit(self, change_set: ChangeSet) -> int:
        """The commit of the last checkpoint; 0 if there is none.

        Raises:
            OSError: the store cannot be read now.
        """
        with translate_store_errors():
            delta = self.open(change_set)
            return 0 if delta is None else delta.transaction_version(APP_ID) or 0

    def save(self, change_set: ChangeSet, changes: CheckpointChanges) -> None:
        """Write the changes, once however often it is called.

        Afterwards all of it is in the table or, if the process dies, none; it was read back, and
        outlasts a power cut. A later checkpoint that is there already, or comes in between,
        stays.

        Raises:
            OSError: the store failed. It may hold the changes or not.
        """
        with translate_store_errors():
            self.secure(change_set, self._save(change_set, changes))

    def secure(self, change_set: ChangeSet, delta: DeltaTable) -> None:
        """Return once this version of the table outlasts a power cut, and was read back.

        Whatever writes to a table calls it, before anything relies on that.

        Raises:
            StoreDamaged: the table is not what was written.
            OSError: the store failed.
        """
        with translate_store_errors():
            self._table_files(change_set).secure(delta, self._secured.get(change_set))
            self._secured[change_set] = delta.version()

    def _save(self, change_set: ChangeSet, changes: CheckpointChanges) -> DeltaTable:
        """Append under the table's version: Delta refuses a write to any but the latest."""
        transaction = Transaction(app_id=APP_ID, version=changes.commit)
        tries = 0
        while True:
            tries += 1
            delta = self.open(change_set) or self._create(change_set)
            _add_missing_columns(delta)
            if (delta.transaction_version(APP_ID) or 0) >= changes.commit:
                return delta
            try:
                write_deltalake(
                    delta,
                    _as_in(delta, changes.rows),
                    mode="overwrite" if changes.whole else "append",
                    commit_properties=CommitProperties(app_transactions=[transaction]),
                    post_commithook_properties=KEEP_ENTRIES,
                )
            except CommitFailedError:
                if tries == _MAX_TRIES:
                    raise
            else:
                return delta

    def open(self, change_set: ChangeSet) -> DeltaTable | None:
        """The change set's table as it is now, if there is one.

        Raises:
            StoreDamaged: an entry of its log is empty.
            DeltaError: the log cannot be read.
        """
        try:
            delta = DeltaTable(self.uri(change_set), storage_options=self._options)
        except TableNotFoundError:
            return None
        self._table_files(change_set).require_entries(delta.version())
        return delta

    def _table_files(self, change_set: ChangeSet) -> TableFiles:
        return TableFiles(self._files, change_set_directory(change_set))

    def table(self, change_set: ChangeSet, version: int | None = None) -> DeltaTable:
        """The table, which exists, in one of Delta's versions or in the latest.

        Raises:
            DeltaError: there is none, or not of that version.
        """
        return DeltaTable(self.uri(change_set), version, storage_options=self._options)

    def _create(self, change_set: ChangeSet) -> DeltaTable:
        """Without rows: Delta does not check a first write that also creates the table."""
        try:
            return DeltaTable.create(
                self.uri(change_set),
                SCHEMA,
                mode="ignore",
                storage_options=self._options,
                configuration=_PROPERTIES,
            )
        except CommitFailedError:
            return DeltaTable(self.uri(change_set), storage_options=self._options)


def _add_missing_columns(delta: DeltaTable) -> None:
    """Add the columns that a table of an earlier release lacks."""
    existing = {field.name for field in delta.schema().fields}
    wanted = Schema.from_arrow(SCHEMA).fields
    if existing < {field.name for field in wanted}:
        delta.alter.add_columns(
            [field for field in wanted if field.name not in existing],
            post_commithook_properties=KEEP_ENTRIES,
        )


def _as_in(delta: DeltaTable, rows: pa.Table) -> pa.Table:
    """The rows with null in the columns that a newer release has added to the table."""
    for field in pa.schema(delta.schema()):
        if field.name not in rows.schema.names:
            rows = rows.append_column(field, pa.nulls(len(rows), field.type))
    return rows


def _load(delta: DeltaTable, columns: list[str], at: int | None) -> GraphCheckpoint | None:
    values, others = scan(delta, columns, at)
    if not pc.any(pc.equal(others["kind"], "head")).as_py():
        return None
    commit, metadata = checkpoint_record(others)
    return GraphCheckpoint(commit, metadata, graph_from_batches(values, others))


def scan(
    delta: DeltaTable, columns: list[str], at: int | None = None
) -> tuple[list[pa.RecordBatch], pa.Table]:
    """The rows up to commit `at`, or all, as `split_rows` gives them."""
    # It imports pandas, which takes as long as half of a start.
    from pyarrow.dataset import ParquetReadOptions

    options = ParquetReadOptions(dictionary_columns=_DICTIONARY_COLUMNS)
    dataset = delta.to_pyarrow_dataset(parquet_read_options=options)
    wanted = None if at is None else pc.field("commit") <= at
    return split_rows(dataset.to_batches(columns=columns, filter=wanted))
