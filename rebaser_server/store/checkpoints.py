"""Checkpoints: one Delta table a change set, appended to under an application transaction.

Every row written is a committed fact, and for each id the row of the greatest
commit counts. So it harms nothing when two Rebasers, one of them fenced off, both
write: the table never goes back. All calls block; run them in a thread.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from rebaser_core.ids import ChangeSet
from rebaser_server.files.filesystems import delta_root
from rebaser_server.files.paths import change_set_directory
from rebaser_server.files.shared_files import SharedFiles
from rebaser_server.runtime.failures import StoreDamaged, StoreFailed
from rebaser_server.store.checkpoint_changes import CheckpointChanges
from rebaser_server.store.graph_checkpoint import (
    GraphCheckpoint,
    read_checkpoint,
    read_metadata,
)
from rebaser_server.store.recovery import is_damage, repair, sound_versions
from rebaser_server.store.row_groups import ROW_GROUPS
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_columns import add_missing_columns, add_unknown_columns
from rebaser_server.store.table_files import TableFiles
from rebaser_server.store.table_schema import SCHEMA
from rebaser_server.store.vacuum import KEEP_ENTRIES

_Found = TypeVar("_Found")

APP_ID: Final = "rebaser"

_PROPERTIES: Final = {"delta.logRetentionDuration": "interval 1 days"}
"""The past is not read from Delta's own versions: each row has its commit."""

_MAX_SECURED: Final = 10_000
"""Tables remembered as secured; one that is forgotten is synced and read back whole once more."""

_MAX_TRIES: Final = 10
"""Attempts at a save; each loses to another process's save, and two are already rare."""


class Checkpoints:
    """The checkpoints of all change sets under one root: a directory or an object store's URI."""

    def __init__(self, root: str, options: dict[str, str] | None = None) -> None:
        self._root = root.rstrip("/")
        self._files = SharedFiles(self._root, options)
        self._delta_root, self._options = delta_root(self._root, options or {})
        self._secured: dict[ChangeSet, int] = {}
        """The version of each table up to which `secure` has seen to it; the last ones written."""

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
        return self._read(change_set, partial(read_checkpoint, at=at))

    def metadata(self, change_set: ChangeSet) -> dict[str, Any] | None:
        """Everything but the graph of the last checkpoint, at a fraction of the cost."""
        return self._read(change_set, read_metadata)

    def _read(
        self, change_set: ChangeSet, read: Callable[[DeltaTable, str], _Found | None]
    ) -> _Found | None:
        """Read the table or, if that is damaged, its last sound version."""
        delta: DeltaTable | None = None
        try:
            with translate_store_errors():
                delta = self.open(change_set)
                return None if delta is None else read(delta, "")
        except StoreFailed as error:
            with translate_store_errors():
                if not is_damage(error, self._table_files(change_set), delta):
                    raise
                last = self._table_files(change_set).log().last
                for delta in self.sound_versions(change_set):
                    # The last one is sound: only what was read before had been tidied away.
                    found = read(delta, "" if delta.version() == last else str(error))
                    if found is not None:
                        return found
            raise StoreDamaged(str(error)) from error

    def sound_versions(self, change_set: ChangeSet) -> Iterator[DeltaTable]:
        """The versions of the table that can be read whole, the latest first.

        Raises:
            OSError: the store cannot be read now.
        """
        return sound_versions(self._table_files(change_set), partial(self.table, change_set))

    def repair(self, change_set: ChangeSet) -> DeltaTable | None:
        """Turn a damaged table back to its last sound version; None: it has none, and is gone.

        Raises:
            OSError: the store failed.
        """
        with translate_store_errors():
            self._secured.pop(change_set, None)
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
            self._table_files(change_set).secure(delta, self._secured.get(change_set))
            self._secured.pop(change_set, None)
            self._secured[change_set] = delta.version()
            if len(self._secured) > _MAX_SECURED:
                self._secured.pop(next(iter(self._secured)), None)

    def _save(self, change_set: ChangeSet, changes: CheckpointChanges) -> DeltaTable:
        """Append under the table's version: Delta refuses a write to any but the latest."""
        transaction = Transaction(app_id=APP_ID, version=changes.commit)
        tries = 0
        while True:
            tries += 1
            delta = self._open_sound(change_set, changes.base)
            if not changes.whole and (delta.transaction_version(APP_ID) or 0) < changes.base:
                raise StoreDamaged(f"{self.uri(change_set)} lacks commit {changes.base}")
            add_missing_columns(delta)
            if (delta.transaction_version(APP_ID) or 0) >= changes.commit:
                return delta
            try:
                write_deltalake(
                    delta,
                    add_unknown_columns(delta, changes.make_rows()),
                    mode="overwrite" if changes.whole else "append",
                    writer_properties=ROW_GROUPS,
                    commit_properties=CommitProperties(app_transactions=[transaction]),
                    post_commithook_properties=KEEP_ENTRIES,
                )
            except CommitFailedError:
                if tries == _MAX_TRIES:
                    raise
            else:
                return delta

    def set_aside(self, change_set: ChangeSet, after: int) -> None:
        """Turn the table back to version `after`; no file is deleted.

        Raises:
            OSError: the store failed.
        """
        with translate_store_errors():
            self._secured.pop(change_set, None)
            self._table_files(change_set).set_aside_sums()
            self._table_files(change_set).set_aside_entries(after)

    def _open_sound(self, change_set: ChangeSet, base: int) -> DeltaTable:
        """Open the table, or create it; a damaged one is repaired.

        Its files are looked through if its last checkpoint is not `base`: that may be the last
        sound one.
        """
        try:
            with translate_store_errors():
                delta = self.open(change_set)
                if delta is not None and base not in (0, delta.transaction_version(APP_ID)):
                    self._table_files(change_set).require_files(delta)
        except StoreDamaged:
            delta = self.repair(change_set)
        return delta or self._create(change_set)

    def open(self, change_set: ChangeSet) -> DeltaTable | None:
        """The change set's table as it is now, if there is one.

        Raises:
            StoreDamaged: an entry of its log is empty.
            DeltaError: the log cannot be read.
        """
        try:
            delta = DeltaTable(self._delta_uri(change_set), storage_options=self._options)
        except TableNotFoundError:
            return None
        self._table_files(change_set).require_entries(delta.version())
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
