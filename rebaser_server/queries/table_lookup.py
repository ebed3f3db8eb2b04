"""Look a few values of a large change set up in its table, where that says what they are now."""

import asyncio
from collections.abc import Callable, Sequence

from rebaser_core.commits import CommitV1
from rebaser_core.errors import NewerVersion
from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import HistoryInconsistent, NeedsNewerVersion
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.queries.value_rows import ValuesFound, row_of_stored, within
from rebaser_server.store.stored_values import OpenTables, StoredValues, find_values


class TableLookup:
    """Answers as of the last commit, or not at all: then the change set has to be loaded."""

    def __init__(self, open_loader: Callable[[ChangeSet], StateLoader], min_rows: int) -> None:
        """`min_rows`: of tables that are worth it."""
        self._open_loader = open_loader
        self._min_rows = min_rows
        self._tables = OpenTables()
        self._turn = asyncio.Lock()
        """One question at a time: each takes memory, and open tables are not shared by threads."""

    async def find(
        self, change_set: ChangeSet, which: Sequence[str], max_bytes: int
    ) -> ValuesFound | None:
        """The values of these ids or names; None: the table does not say.

        None, too, if log or table cannot be read: the caller loads them, which raises the error.

        Raises:
            TooManyValues: the rows have more than `max_bytes` octets.
        """
        loader = self._open_loader(change_set)
        checkpoints = checkpoints_of(loader)
        try:
            async with self._turn:
                stored = await asyncio.to_thread(
                    find_values, self._tables, checkpoints, change_set, which, self._min_rows
                )
            if stored is None:
                return None
            sequence, last = await loader.log.last()  # afterwards: it is not behind the table then
            if last is None or not await _is_latest(loader, stored, sequence, last):
                return None
        except (HistoryInconsistent, NeedsNewerVersion, NewerVersion, LookupError, OSError):
            return None
        values = {
            stored.values[name].id: stored.values[name] for name in which if name in stored.values
        }
        return ValuesFound(
            sequence,
            last.control.dvu_due,
            list(within(map(row_of_stored, values.values()), max_bytes)),
            [name for name in which if name not in stored.values],
        )


async def _is_latest(
    loader: StateLoader, stored: StoredValues, sequence: int, last: CommitV1
) -> bool:
    """Whether the table is of the log's past (S-6), and no commit since has changed a value."""
    if stored.commit > sequence or last.control.deleted:
        return False
    entry = last if stored.commit == sequence else await loader.log.entry(stored.commit)
    if entry is not None and stored.commit_id not in (None, str(entry.id)):
        return False
    if stored.commit == sequence:
        return True
    async for _, commit in loader.log.entries(stored.commit, sequence):
        if commit.handled is not None and commit.handled.updates is not None:
            return False
    return True
