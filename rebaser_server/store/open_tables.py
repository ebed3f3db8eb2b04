"""Tables that were asked for a few rows lately, kept open: a question costs the pages it reads."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from rebaser_core.ids import ChangeSet
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.row_digest import heads_in
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_files import require_last
from rebaser_server.store.table_schema import checkpoint_record

KEPT: Final = 4
"""Tables kept open. Each takes some megabytes: what Delta's log says of its files, and their
footers, with the bounds of each page."""

_NAME: Final = "rows"
_SETTINGS: Final = {"datafusion.execution.target_partitions": "1"}
"""One row group at a time is in memory."""


class OpenTable:
    """One version of a table. All calls block.

    It reads with DataFusion, which passes over pages by their bounds, as Arrow does not.
    """

    def __init__(self, delta: DeltaTable, log_entry: bytes | None) -> None:
        """`log_entry`: the last one of the table's log; None if another came meanwhile.

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
        """Of that commit; None in a table of an early release."""

    def values(
        self, columns: Sequence[str], column: str, texts: Collection[str]
    ) -> list[dict[str, Any]]:
        """The rows of values that have in this column one of these texts.

        The range is for what has more texts than DataFusion compares with bounds one by one.
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
        # One by one: a row that is found keeps the whole page in memory.
        return [row for batch in batches for row in batch.to_pylist()]


class OpenTables:
    """The tables of those change sets that were asked for last. All calls block, one at a time."""

    def __init__(self) -> None:
        self._kept: dict[ChangeSet, OpenTable] = {}
        """The last one asked for comes last."""

    def table(
        self, checkpoints: Checkpoints, change_set: ChangeSet, min_rows: int
    ) -> OpenTable | None:
        """The newest version of the table.

        None: it has fewer than `min_rows` rows, or there is none.

        Raises:
            LookupError: the table has no checkpoint.
            NewerVersion: only a newer release can read the table.
            OSError: the table is damaged, or the store cannot be read now.
        """
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
        """Open the table anew when it is asked for next."""
        self._kept.pop(change_set, None)


def _is_newest(checkpoints: Checkpoints, change_set: ChangeSet, table: OpenTable) -> bool:
    """Whether the log still ends with the same entry, octet by octet: it names new files."""
    if table.log_entry is None:
        return False
    return checkpoints.last_log_entry(change_set, table.version) == table.log_entry


def _quoted(text: str) -> str:
    """As a literal of SQL, in which nothing but the quote has a meaning of its own."""
    return "'" + text.replace("'", "''") + "'"
