"""Checkpoints: one Delta table a change set, appended to under an application transaction.

Every row written is a committed fact, and for each id the row of the greatest
commit counts. So it harms nothing when two Rebasers, one of them fenced off, both
write: the table never goes back. All calls block; run them in a thread.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from rebaser_core.ids import ChangeSet
from rebaser_server.files import SharedFiles, change_set_directory, delta_root
from rebaser_server.runtime.failures import StoreDamaged, StoreFailed
from rebaser_server.store.checkpoint_changes import CheckpointChanges
from rebaser_server.store.graph_checkpoint import (
    GraphCheckpoint,
    read_checkpoint,
    read_head,
    read_metadata,
)
from rebaser_server.store.recovery import repair, require_sound, sound_versions
from rebaser_server.store.row_digest import NO_ROWS, RowDigest
from rebaser_server.store.row_groups import ROW_GROUPS
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_columns import add_missing_columns, add_unknown_columns
from rebaser_server.store.table_files import (
    APP_ID,
    TableFiles,
    dropped_rows,
    transactions,
)
from rebaser_server.store.table_schema import KEY_COLUMNS, SCHEMA
from rebaser_server.store.vacuum import KEEP_ENTRIES

_Found = TypeVar("_Found")

_PROPERTIES: Final = {"delta.logRetentionDuration": "interval 1 days"}
"""The past is not read from Delta's own versions: each row has its commit."""

_MAX_KNOWN: Final = 10_000
"""Tables that something is known of; one that is forgotten is synced and read back whole again."""

_MAX_TRIES: Final = 10
"""Attempts at a save; each loses to another process's save, and two are already rare."""


@dataclass(slots=True)
class _Known:
    """What this process knows of a table."""

    secured: int | None = None
    """The version up to which `secure` has seen to it."""
    ours: int = -1
    """The version up to which only Rebasers have changed it."""
    written: tuple[int, RowDigest] = (0, NO_ROWS)
    """A checkpoint's commit, and the digest of all rows written to the table up to it."""


class Checkpoints:
    """The checkpoints of all change sets under one root: a directory or an object store's URI."""

    def __init__(self, root: str, options: dict[str, str] | None = None) -> None:
        self._root = root.rstrip("/")
        self._files = SharedFiles(self._root, options)
        self._delta_root, self._options = delta_root(self._root, options or {})
        self._known: dict[ChangeSet, _Known] = {}
        """The oldest comes first."""

    def uri(self, change_set: ChangeSet) -> str:
        """Where the change set's Delta table is, for any engine to read."""
        return f"{self._root}/{change_set_directory(change_set)}"

    def _delta_uri(self, change_set: ChangeSet) -> str:
        return f"{self._delta_root}/{change_set_directory(change_set)}"

    def load(self, change_set: ChangeSet, at: int | None = None) -> GraphCheckpoint | None:
        """The last checkpoint, or the last at or before commit `at`; None if there is none.

        Of a damaged table, the last checkpoint that is sound.

        Raises:
            StoreDamaged: the table is damaged, and no checkpoint in it is sound.
            NewerVersion: only a newer release can read it.
            OSError: the store cannot be read now.
        """
        loaded = self._read(change_set, partial(read_checkpoint, at=at))
        if loaded is not None:
            self._known_of(change_set).written = loaded.commit, loaded.digest
        return loaded

    def metadata(self, change_set: ChangeSet) -> dict[str, Any] | None:
        """Everything but the graph of the last checkpoint, at a fraction of the cost."""
        return self._read(change_set, read_metadata)

    def _read(
        self, change_set: ChangeSet, read: Callable[[DeltaTable, str], _Found | None]
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

    def sound_versions(self, change_set: ChangeSet) -> Iterator[DeltaTable]:
        """The versions of the table that can be read whole, the latest first.

        Raises:
            OSError: the store cannot be read now.
        """
        return sound_versions(self._table_files(change_set), partial(self.table, change_set))

    def require_sound(self, change_set: ChangeSet) -> None:
        """Require that the table, if there is one, has exactly the rows that were written.

        Reads all of it, also what `load` does not need.

        Raises:
            StoreDamaged: it has not.
            OSError: the store cannot be read now.
        """
        delta = self.open(change_set)
        if delta is not None:
            with translate_store_errors():
                require_sound(self._table_files(change_set), delta)

    def repair(self, change_set: ChangeSet) -> DeltaTable | None:
        """Turn a damaged table back to its last sound version; None: it has none, and is gone.

        Raises:
            OSError: the store failed.
        """
        with translate_store_errors():
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
        """Write the changes, once however often it is called.

        Afterwards all of it is in the table or, if the process dies, none; it was read back, and
        outlasts a power cut. A later checkpoint that is there already, or comes in between,
        stays. A damaged table is repaired.

        Raises:
            StoreDamaged: the table lacks the checkpoint that the changes are added to.
            OSError: the store failed. It may hold the changes or not.
        """
        with translate_store_errors():
            self.secure(change_set, self._save(change_set, changes))

    def secure(self, change_set: ChangeSet, delta: DeltaTable) -> None:
        """Return once this version of the table outlasts a power cut, and was read back (S-7).

        Whatever writes to a table calls it, before anything relies on that.

        Raises:
            StoreDamaged: the table is not what was written.
            OSError: the store failed.
        """
        with translate_store_errors():
            known = self._known_of(change_set)
            self._table_files(change_set).secure(delta, known.secured)
            known.secured = delta.version()

    def _save(self, change_set: ChangeSet, changes: CheckpointChanges) -> DeltaTable:
        """Append under the table's version: Delta refuses a write to any but the latest."""
        tries = 0
        while True:
            tries += 1
            delta = self._open_sound(change_set, changes.base)
            last = delta.transaction_version(APP_ID) or 0
            if not changes.whole and last < changes.base:
                raise StoreDamaged(f"{self.uri(change_set)} lacks commit {changes.base}")
            add_missing_columns(delta)
            if last >= changes.commit:
                return delta
            whole = changes.whole
            rows = changes.sealed(NO_ROWS if whole else self._written(change_set, delta, last))
            dropped = NO_ROWS if whole and dropped_rows(delta) != NO_ROWS else None
            try:
                write_deltalake(
                    delta,
                    add_unknown_columns(delta, rows.reader()),
                    mode="overwrite" if whole else "append",
                    writer_properties=ROW_GROUPS,
                    commit_properties=CommitProperties(
                        app_transactions=transactions(changes.commit, dropped)
                    ),
                    post_commithook_properties=KEEP_ENTRIES,
                )
            except CommitFailedError:
                if tries == _MAX_TRIES:
                    raise
            else:
                self._known_of(change_set).written = changes.commit, rows.digest
                return delta

    def _written(self, change_set: ChangeSet, delta: DeltaTable, commit: int) -> RowDigest:
        """The digest of all rows written to the table up to its last checkpoint, of `commit`."""
        known_commit, digest = self._known_of(change_set).written
        if commit and known_commit == commit:
            return digest
        head = read_head(delta)
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

    def _open_sound(self, change_set: ChangeSet, base: int) -> DeltaTable:
        """Open the table, or create it; a damaged one is repaired.

        It is read whole if its last checkpoint is not `base`: that may be the last sound one.
        """
        try:
            with translate_store_errors():
                delta = self.open(change_set)
                if delta is not None and base not in (0, delta.transaction_version(APP_ID)):
                    require_sound(self._table_files(change_set), delta)
        except StoreDamaged:
            delta = self.repair(change_set)
        return delta or self._create(change_set)

    def open(self, change_set: ChangeSet) -> DeltaTable | None:
        """The change set's table as it is now, if there is one.

        Raises:
            StoreDamaged: its log cannot be read, or another program changed the table.
            OSError: the store cannot be read now.
        """
        with translate_store_errors():
            try:
                delta = DeltaTable(self._delta_uri(change_set), storage_options=self._options)
            except TableNotFoundError:
                return None
            if not _is_ours(delta):
                raise StoreFailed(
                    f"{self.uri(change_set)} is another program's table: nothing is read from it "
                    "or written to it; move it away"
                )
            known, version = self._known_of(change_set), delta.version()
            ours = known.ours if known.ours <= version else -1
            self._table_files(change_set).require_entries(version, ours)
            known.ours = version
            return delta

    def last_log_entry(self, change_set: ChangeSet, version: int) -> bytes | None:
        """The entry with which the table's log ends; None unless it is this version's."""
        return self._table_files(change_set).last_entry(version)

    def _table_files(self, change_set: ChangeSet) -> TableFiles:
        return TableFiles(self._files, change_set_directory(change_set))

    def table(self, change_set: ChangeSet, version: int | None = None) -> DeltaTable:
        """The table, in one of Delta's versions or in the latest.

        Raises `DeltaError` if there is none.
        """
        return DeltaTable(self._delta_uri(change_set), version, storage_options=self._options)

    def _create(self, change_set: ChangeSet) -> DeltaTable:
        """Without rows: Delta does not check a first write that also creates the table."""
        try:
            return DeltaTable.create(
                self._delta_uri(change_set),
                SCHEMA,
                mode="ignore",
                storage_options=self._options,
                configuration=_PROPERTIES,
            )
        except CommitFailedError:
            return DeltaTable(self._delta_uri(change_set), storage_options=self._options)


def _is_ours(delta: DeltaTable) -> bool:
    """Whether a Rebaser made the table: damage leaves either a checkpoint or the columns."""
    columns = {field.name for field in delta.schema().fields}
    return set(KEY_COLUMNS) <= columns or delta.transaction_version(APP_ID) is not None
