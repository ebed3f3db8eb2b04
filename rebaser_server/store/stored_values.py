"""A few values out of a table, without its graph: for large change sets that are not in memory."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from rebaser_core.ids import ID_LENGTH, ChangeSet
from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.open_tables import OpenTable, OpenTables
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.values.columns import STATUSES


class StoredValue(NamedTuple):
    """A value as its row has it."""

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
    """Values as of a checkpoint."""

    commit: int
    commit_id: str | None
    """Of that commit; None in a table of an early release."""
    values: dict[str, StoredValue]
    """By the id or name that was asked for."""


def find_values(
    tables: OpenTables,
    checkpoints: Checkpoints,
    change_set: ChangeSet,
    which: Sequence[str],
    min_rows: int,
) -> StoredValues | None:
    """The values of these ids or names as of the last checkpoint; what there is not is left out.

    Reads of the columns `id` and `name` those pages that may have one, and of the others those
    where one is. So it takes less memory than one row group does. Blocks.

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
    """By the id or name that was asked for; None if values share a name."""
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
    """By id the row of the greatest commit, unless that says that the value is removed."""
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
    """Require that the row can be one: no digest is compared where a few are read.

    Raises:
        StoreDamaged: it was written otherwise.
    """
    is_id = len(value.id) == ID_LENGTH and value.id.isascii() and value.id.isalnum()
    if not is_id or not (is_removed or value.status in STATUSES):
        raise StoreDamaged(f"a row of the table has the id {value.id!a} and status {value.status}")
    return value
