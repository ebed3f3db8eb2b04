"""A few values out of a table, without its graph: for large change sets that are not in memory.

`OpenTables` keeps the tables of the latest queries open: a query costs the pages that it reads.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from rebaser_core.ids import ID_LENGTH, ChangeSet
from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.row_digest import heads_in
from rebaser_server.store.table_files import require_last, translate_store_errors
from rebaser_server.store.table_schema import checkpoint_record
from rebaser_server.values.columns import STATUSES

KEPT: Final = 4
"""Number of tables kept open. Each takes some megabytes: what Delta's log says of its files, and
their footers, with the bounds of each page."""

_NAME: Final = "rows"
_SETTINGS: Final = {"datafusion.execution.target_partitions": "1"}
"""Settings of DataFusion: one row group at a time is in memory."""


class OpenTable:
    """One version of a table. All calls block.

    DataFusion reads it, since it passes over pages by their bounds, which Arrow does not.
    """

    def __init__(self, delta: DeltaTable, log_entry: bytes | None) -> None:
        """Open the version `delta`.

        `log_entry` is the last one of the table's log; None if another came meanwhile.

        Raises:
            LookupError: the table has no checkpoint.
            NewerVersion: only a newer release can read the table.
        """
        self.version: Final = delta.version()
        self.log_entry: Final = log_entry
        self._engine = QueryBuilder(_SETTINGS).register(_NAME, delta)
        found = self._select(["kind", "commit", "value"], "kind = 'head'")
        heads = heads_in(pa.Table.from_pylist(found)) if found else []
        require_last(delta, heads)
        if not heads:
            raise LookupError("the table has no checkpoint")
        head = max(heads)
        self.commit: Final = head.commit
        self.commit_id: Final[str | None] = checkpoint_record(head).get("commitId")
        """Id of that commit; None in a table of an early release."""

    def values(
        self, columns: Sequence[str], column: str, texts: Collection[str]
    ) -> list[dict[str, Any]]:
        """The rows of values that have in this column one of these texts.

        The range serves many texts: DataFusion compares only some with bounds one by one.
        """
        if not texts:
            return []
        quoted = ", ".join(map(_quoted, texts))
        bounds = f"BETWEEN {_quoted(min(texts))} AND {_quoted(max(texts))}"
        return self._select(
            columns, f"kind = 'value' AND {column} {bounds} AND {column} IN ({quoted})"
        )

    def _select(self, columns: Sequence[str], condition: str) -> list[dict[str, Any]]:
        query = f"SELECT {', '.join(columns)} FROM {_NAME} WHERE {condition}"  # noqa: S608 - quoted
        batches = pa.RecordBatchReader.from_stream(self._engine.execute(query))
        # Rows are read one by one: a found row keeps the whole page in memory.
        return [row for batch in batches for row in batch.to_pylist()]


class OpenTables:
    """The tables of the change sets of the latest queries. All calls block, one at a time."""

    def __init__(self) -> None:
        self._kept: dict[ChangeSet, OpenTable] = {}
        """Open tables, the latest used last."""

    def table(
        self, checkpoints: Checkpoints, change_set: ChangeSet, min_rows: int
    ) -> OpenTable | None:
        """The newest version of the table; None, and raises, as `find_values`."""
        with translate_store_errors():
            kept = self._kept.pop(change_set, None)
            if kept is None or not _is_newest(checkpoints, change_set, kept):
                delta = checkpoints.open(change_set)
                if delta is None or delta.count() < min_rows:
                    return None
                entry = checkpoints.last_log_entry(change_set, delta.version())
                kept = OpenTable(delta, entry)
            self._kept[change_set] = kept
            if len(self._kept) > KEPT:
                self._kept.pop(next(iter(self._kept)))
            return kept

    def forget(self, change_set: ChangeSet) -> None:
        self._kept.pop(change_set, None)


def _is_newest(checkpoints: Checkpoints, change_set: ChangeSet, table: OpenTable) -> bool:
    """Whether the log still ends with that entry, byte by byte: each entry names new files."""
    if table.log_entry is None:
        return False
    return checkpoints.last_log_entry(change_set, table.version) == table.log_entry


def _quoted(text: str) -> str:
    """The text as a literal of SQL, in which only the quote is special."""
    return "'" + text.replace("'", "''") + "'"


class StoredValue(NamedTuple):
    id: str
    name: str | None
    value: str
    """JSON; `null` if there is none."""
    func_id: str | None
    inputs: str | None
    """JSON: argument → id or list of ids."""
    status: str
    message: str | None


class StoredValues(NamedTuple):
    commit: int
    commit_id: str | None
    """Id of that commit; None in a table of an early release."""
    values: dict[str, StoredValue]
    """Values by the id or name that was asked for."""


def find_values(
    tables: OpenTables,
    checkpoints: Checkpoints,
    change_set: ChangeSet,
    which: Sequence[str],
    min_rows: int,
) -> StoredValues | None:
    """The values of these ids or names as of the last checkpoint; unknown ones are left out.

    In the columns `id` and `name`, pages that may have one of them are read; in the others, pages
    that have one. So it takes less memory than one row group does. Blocks.

    None: the table has fewer than `min_rows` rows, or there is none, or values share a name.

    Raises:
        LookupError: the table has no checkpoint.
        NewerVersion: only a newer release can read the table.
        OSError: the table is damaged, or the store cannot be read now.
    """
    table = tables.table(checkpoints, change_set, min_rows)
    if table is None:
        return None
    try:
        with translate_store_errors():
            values = _values(table, which)
    except OSError:
        tables.forget(change_set)
        raise
    return None if values is None else StoredValues(table.commit, table.commit_id, values)


def _values(table: OpenTable, which: Sequence[str]) -> dict[str, StoredValue] | None:
    """Values by the id or name that was asked for; None if values share a name."""
    found = _live_values(table, {text for text in which if len(text) == ID_LENGTH})
    names = set(which) - found.keys()
    had_name = {row["id"] for row in table.values(["id"], "name", names)}
    for value in _live_values(table, had_name).values():
        if value.name in names:
            if value.name in found:
                return None
            found[value.name] = value
    return found


def _live_values(table: OpenTable, ids: Collection[str]) -> dict[str, StoredValue]:
    """Rows of the greatest commit by id, without values that it removes."""
    commits: dict[str, int] = {}
    live: dict[str, StoredValue] = {}
    for row in table.values(["commit", "removed", *StoredValue._fields], "id", ids):
        commit, is_removed = row.pop("commit"), row.pop("removed")
        value = _require_value(StoredValue(**row), is_removed=is_removed)
        if commit < commits.get(value.id, 0):
            continue
        commits[value.id] = commit
        live.pop(value.id, None)
        if not is_removed:
            live[value.id] = value
    return live


def _require_value(value: StoredValue, *, is_removed: bool) -> StoredValue:
    """Require that the row can be sound: no digest is compared where a few rows are read.

    Raises:
        StoreDamaged: the row cannot be what was written.
    """
    is_id = len(value.id) == ID_LENGTH and value.id.isascii() and value.id.isalnum()
    if not is_id or not (is_removed or value.status in STATUSES):
        raise StoreDamaged(f"a row of the table has the id {value.id!a} and status {value.status}")
    return value
