"""Checkpoints: one Delta table a change set, appended to under an application transaction.

Every row written is a committed fact, and for each id the row of the greatest
commit counts. So it harms nothing when two Rebasers, one of them fenced off, both
write: the table never goes back. All calls block; run them in a thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from rebaser_core.ids import ChangeSet
from rebaser_server.graph import Graph
from rebaser_server.store.rows import SCHEMA, graph_of, head_of, rows_of

_APP_ID: Final = "rebaser"

_MOST_FILES: Final = 40
"""Appending gets slow with live files, by about a millisecond each (measured: 70 at 1,000)."""

_TRIES: Final = 10
"""Of a save; each is lost to one of somebody else's, and two are already rare."""


class StoreFailed(OSError):
    """The store did not do what it was asked. What it held before, it holds."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A change set as of one line of its commit log."""

    commit: int
    small: dict[str, Any]
    """All but the graph, as `State.small` has it."""
    graph: Graph


@dataclass(frozen=True, slots=True)
class Changes:
    """What a checkpoint has to write: taken from a graph at one moment, written later."""

    commit: int
    rows: pa.Table
    whole: bool
    """The rows are all there are: they replace the table's."""


def changes_of(graph: Graph, commit: int, small: dict[str, Any], *, whole: bool) -> Changes:
    """What changed since the last call, or everything; nothing is touched afterwards."""
    values = graph.values if whole else sorted(graph.touched)
    funcs = graph.funcs if whole else sorted(graph.touched_funcs)
    rows = rows_of(graph, values, funcs, small, commit)
    graph.touched.clear()
    graph.touched_funcs.clear()
    return Changes(commit, rows, whole)


class Checkpoints:
    """The checkpoints of all change sets under one root: a directory or an object store's URI."""

    def __init__(self, root: str, options: dict[str, str] | None = None) -> None:
        self._root = root.rstrip("/")
        self._options = options or {}

    def uri(self, change_set: ChangeSet) -> str:
        """Where the change set's Delta table is, for any engine to read."""
        return f"{self._root}/change_sets/{change_set.workspace_id}/{change_set.change_set_id}"

    def load(self, change_set: ChangeSet) -> Checkpoint | None:
        """The last checkpoint, or None if there never was one.

        Raises:
            OSError: the store cannot be read.
        """
        with _translated():
            delta = self._open(change_set)
            rows = None if delta is None else delta.to_pyarrow_table()
        if not rows:
            return None
        commit, small = head_of(rows)
        return Checkpoint(commit, small, graph_of(rows))

    def small(self, change_set: ChangeSet) -> dict[str, Any] | None:
        """Of the last checkpoint all but the graph, for a fraction of the cost."""
        with _translated():
            delta = self._open(change_set)
            if delta is None:
                return None
            rows = delta.to_pyarrow_table(filters=[("kind", "=", "head")])
        return head_of(rows)[1] if rows else None

    def save(self, change_set: ChangeSet, changes: Changes) -> bool:
        """Write the changes, once however often it is called; whether the next should be whole.

        Afterwards all of it is in the table or, if the process dies, none. A later
        checkpoint that is there already, or comes in between, stays.

        Raises:
            OSError: the store failed. It may hold the changes or not.
        """
        with _translated():
            delta = self._saved(change_set, changes)
            if changes.whole:
                delta.vacuum(dry_run=False)
            return not changes.whole and len(delta.file_uris()) > _MOST_FILES

    def _saved(self, change_set: ChangeSet, changes: Changes) -> DeltaTable:
        """Delta refuses what was written on the strength of a table that is not the last one."""
        transaction = Transaction(app_id=_APP_ID, version=changes.commit)
        tries = 0
        while True:
            tries += 1
            delta = self._open(change_set) or self._created(change_set)
            if (delta.transaction_version(_APP_ID) or 0) >= changes.commit:
                return delta
            try:
                write_deltalake(
                    delta,
                    changes.rows,
                    mode="overwrite" if changes.whole else "append",
                    commit_properties=CommitProperties(app_transactions=[transaction]),
                )
            except CommitFailedError:
                if tries == _TRIES:
                    raise
            else:
                return delta

    def _open(self, change_set: ChangeSet) -> DeltaTable | None:
        try:
            return DeltaTable(self.uri(change_set), storage_options=self._options)
        except TableNotFoundError:
            return None

    def _created(self, change_set: ChangeSet) -> DeltaTable:
        """Without rows, because a first write that also creates the table would not be checked."""
        try:
            return DeltaTable.create(
                self.uri(change_set), SCHEMA, mode="ignore", storage_options=self._options
            )
        except CommitFailedError:
            return DeltaTable(self.uri(change_set), storage_options=self._options)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        raise StoreFailed(str(error)) from error
