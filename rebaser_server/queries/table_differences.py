"""Rows in which two states of a table differ: those of a branch and head, or of two commits.

Each row is a hash of its key and one of its content, keyed by a secret, so memory does not depend
on how wide a row is. Two rows that differ have one hash with a chance of one to 2^64. The rows that
are shown are read back from the files.

Equal are values that SQL takes for equal, and two NaN, two nulls, and maps in any order.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_core.errors import RebaserError, offer
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import deadlines
from rebaser_core.queries import (
    TABLE_DIFFERENCES,
    ColumnTotal,
    RowDifference,
    TableDifferenceQueryV1,
    TableDifferenceReplyV1,
)
from rebaser_core.table_schemas import arrow_schema, columns_of, encode_rows, rows_of
from rebaser_server.commit_log.state_loader import OpenLoader
from rebaser_server.errors import NotABranch
from rebaser_server.queries.table_reads import LocatedTable, NoTable, TableService
from rebaser_server.runtime.tasks import compute_in_turn
from rebaser_server.tables import Manifest, TableFiles, TableMissing
from rebaser_server.values.column_hashes import Hashes, row_hashes

MAX_ROWS: Final = 4_000_000
"""Maximum number of rows of a table that is compared; two such take some 450 MB for a while."""
_SECONDS: Final = 50.0
"""Seconds that a comparison may take, with the wait for those before it; clients wait for 60."""
_SAMPLES: Final = 20
"""Maximum number of rows of a kind that are shown."""
_SAMPLE_BYTES: Final = 256 * 1024
"""Maximum bytes of the rows of a kind, before they are compressed."""
_REMEMBERED: Final = 20
"""Number of comparisons whose result is kept: tables do not change."""
_SECRET: Final = secrets.randbits(64) | 1
"""Key of all hashes: else an edit could be made that a comparison does not show."""

Positions = NDArray[np.int64]


class NotComparable(RebaserError):
    """The rows cannot be compared: the key does not tell them apart, or there are too many."""


class Side(NamedTuple):
    about: str
    workspace: str
    key: str
    manifest: Manifest

    def types(self) -> dict[str, str]:
        return {column.name: column.type for column in columns_of(self.manifest.fields)}

    def rows_at(self, tables: TableFiles, positions: Positions) -> pa.RecordBatch:
        """Return the rows at these positions, in their order, with all columns."""
        names = [field["name"] for field in self.manifest.fields]
        parts = [pa.RecordBatch.from_pylist([], arrow_schema(self.manifest.fields))]
        wanted = np.sort(positions)
        at = int(wanted[0]) if len(wanted) else 0
        batches = tables.batches(self.workspace, self.manifest, names, at)
        while len(wanted) and at <= wanted[-1]:
            batch = next(batches)
            inside = wanted[(wanted >= at) & (wanted < at + batch.num_rows)]
            parts.append(batch.take(pa.array(inside - at)))
            at += batch.num_rows
        rows = pa.Table.from_batches(parts).take(pa.array(np.argsort(np.argsort(positions))))
        return rows.combine_chunks().to_batches()[0] if rows.num_rows else parts[0]


class TableDifferenceService:
    """Compares two tables at a time, so that memory is bounded."""

    def __init__(self, open_loader: OpenLoader, tables: TableService) -> None:
        self._open_loader = open_loader
        self._tables = tables
        self._comparing = asyncio.Lock()
        self._found = OrderedDict[tuple[str, str, str, tuple[str, ...]], RowDifference]()

    async def replies(
        self, query: TableDifferenceQueryV1, _: Mapping[str, str]
    ) -> AsyncGenerator[TableDifferenceReplyV1, None]:
        """Yield the tables, so that the asker goes on to wait, and then the rows that differ.

        Raises:
            NoTable: a side has no such table.
            NotABranch: the table is to be compared with head's, and the change set has none.
            NotComparable: see `compare`; or it took too long.
            NotRetained: a past is not kept so long.
            TableMissing: the rows of a side are not kept any more.
        """
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        after = await self._tables.locate(change_set, query.value, query.at)
        if after is None:
            why = f"there is no value {query.value!r}"
            reply = TABLE_DIFFERENCES.refusal(query.id, why)
            yield reply.model_copy(update={"is_missing": True})
            return
        about, before = await self._before(change_set, after, query.since)
        sides = [await self._tables.describe(change_set, located) for located in (before, after)]
        yield TableDifferenceReplyV1(
            id=query.id,
            commit=after.commit,
            since=before.commit,
            before=sides[0][1],
            after=sides[1][1],
            due=before.due or after.due,
            more=True,
        )
        workspace = str(change_set.workspace_id)
        old = Side(about, workspace, before.key, sides[0][0])
        new = Side(f"commit {after.commit}", workspace, after.key, sides[1][0])
        if query.key is None:  # a declared key that one side lacks would tell nothing apart
            key = await self._tables.declared_key(change_set, after)
            key = key if {*key} <= {*_shared(old, new, ())} else ()
        else:
            key = tuple(dict.fromkeys(query.key))
        found = await self._compare(self._tables.files(change_set), old, new, key)
        yield TableDifferenceReplyV1(
            id=query.id, commit=after.commit, since=before.commit, rows=found
        )

    async def _before(
        self, change_set: ChangeSet, after: LocatedTable, since: int | None
    ) -> tuple[str, LocatedTable]:
        """Return the table to compare with, and what it is called."""
        if since is not None:
            about, other = f"commit {since}", change_set
        else:
            branch = await self._open_loader(change_set).read(lambda state: state.control.branch)
            if branch is None:
                raise NotABranch(
                    f"{change_set} is no branch, or not taken up yet: name a commit to compare with"
                )
            about, other = "head", ChangeSet(change_set.workspace_id, branch.head)
        try:
            before = await self._tables.locate(other, after.id, since)
        except NoTable as error:
            raise NoTable(f"{about} has no such table: {error}") from error
        if before is None:
            raise NoTable(f"{about} has no value {after.name or after.id!r}: all rows are new")
        return about, before

    async def _compare(
        self, tables: TableFiles, before: Side, after: Side, key: tuple[str, ...]
    ) -> RowDifference:
        known = before.workspace, before.key, after.key, key
        try:
            async with deadlines.within(_SECONDS), self._comparing:
                if known not in self._found:
                    self._found[known] = await _run(compare(tables, before, after, key), before)
                    while len(self._found) > _REMEMBERED:
                        self._found.popitem(last=False)
                self._found.move_to_end(known)
                return self._found[known]
        except TimeoutError as error:
            raise NotComparable(
                f"comparing {before.manifest.rows:,} with {after.manifest.rows:,} rows, and the "
                f"comparisons before it, took more than {_SECONDS:.0f} s: ask again later, or "
                "compare tables with fewer rows or columns"
            ) from error


async def _run(steps: Generator[None, None, RowDifference], side: Side) -> RowDifference:
    """Take the steps, each in a thread; others of the workspace compute between them."""

    def step() -> RowDifference | None:
        try:
            next(steps)
        except StopIteration as end:
            found: RowDifference = end.value
            return found
        return None

    try:
        while True:
            found = await compute_in_turn(side.workspace, step)
            if found is not None:
                return found
    finally:
        await compute_in_turn(side.workspace, steps.close)


def compare(
    tables: TableFiles, before: Side, after: Side, key: Sequence[str]
) -> Generator[None, None, RowDifference]:
    """Return which rows differ, after many short steps. Blocks.

    Columns that both have in one type are compared. Without a key whole rows are: each has been
    added or removed, as often as it stands on one side more than on the other.

    Raises:
        NotComparable: a column of the key is not in both in one type, or a key stands twice; or
            there are too many rows.
        TableMissing: the rows are not kept any more.
    """
    shared = _shared(before, after, key)
    if (before.manifest.content, before.types()) == (after.manifest.content, after.types()):
        return RowDifference(key=[*key], compared=shared, changed=0 if key else None)
    old = yield from _read(tables, before, shared, key)
    new = yield from _read(tables, after, shared, key)
    if key:
        _require_distinct(tables, before, old.keys, key)
        yield
        _require_distinct(tables, after, new.keys, key)
        yield
    added = _surplus(new.keys, old.keys)
    yield
    removed = _surplus(old.keys, new.keys)
    yield
    nothing = np.empty(0, np.int64)
    changed = _changed(old, new) if key else (nothing, nothing)
    samples: dict[str, str | None] = {}
    for wanted in (
        {"added_rows": (after, added)},
        {"removed_rows": (before, removed)},
        {"changed_before": (before, changed[0]), "changed_after": (after, changed[1])},
    ):
        yield
        samples |= _samples(tables, wanted)
    return RowDifference(
        key=[*key],
        compared=shared,
        added=len(added),
        removed=len(removed),
        changed=len(changed[0]) if key else None,
        totals=[
            ColumnTotal(name=name, before=old.totals.get(name), after=new.totals.get(name))
            for name in {**new.totals, **old.totals}
        ],
        **samples,
    )


def _shared(before: Side, after: Side, key: Sequence[str]) -> list[str]:
    """Return the columns that are compared. Raises `NotComparable`."""
    former, types = before.types(), after.types()
    shared = [name for name, kind in types.items() if former.get(name) == kind]
    for name in key:
        if name in shared:
            continue
        if name in former and name in types:
            raise NotComparable(
                f"column {name!r} was {former[name]} and is {types[name]}, and a key has one type "
                "in both: name other columns, or none to compare whole rows"
            )
        where = "one" if name in former or name in types else "none"
        raise NotComparable(
            f"a key is in both tables, and column {name!r} is in {where} of them"
            f"{offer(name, shared)}"
        )
    for side in (before, after):
        if side.manifest.rows > MAX_ROWS:
            raise NotComparable(
                f"{side.about} has {side.manifest.rows:,} rows, and at most {MAX_ROWS:,} are "
                "compared: have a query compare them, or one that selects a part"
            )
    return shared


def _samples(
    tables: TableFiles, wanted: Mapping[str, tuple[Side, Positions]]
) -> dict[str, str | None]:
    """Return the first rows at positions of a side: as many of each as are not too large."""
    found = {
        name: side.rows_at(tables, positions[:_SAMPLES])
        for name, (side, positions) in wanted.items()
    }
    count = min((rows.num_rows for rows in found.values()), default=0)
    while count and max(rows.slice(0, count).nbytes for rows in found.values()) > _SAMPLE_BYTES:
        count -= 1
    return {name: encode_rows(rows.slice(0, count)) for name, rows in found.items() if count}


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one side, in the order of its files."""

    keys: Hashes
    """Hashes of the keys; those of whole rows if there is no key."""
    rows: Hashes
    totals: dict[str, str]


def _read(
    tables: TableFiles, side: Side, shared: Sequence[str], key: Sequence[str]
) -> Generator[None, None, _Rows]:
    totals = {
        field.name: _Total()
        for field in arrow_schema(side.manifest.fields)
        if field.name not in key and any(test(field.type) for test in _NUMERIC)
    }
    names = list(dict.fromkeys([*shared, *totals])) or [side.manifest.fields[0]["name"]]
    count = side.manifest.rows
    rows = np.empty(count, np.uint64)
    keys = np.empty(count, np.uint64) if key else rows
    at = 0
    for batch in tables.batches(side.workspace, side.manifest, names):
        end = at + batch.num_rows
        if end > count:
            break
        rows[at:end] = (
            row_hashes([batch.column(name) for name in shared], end - at, _SECRET)
            if shared
            # Without a common column no two rows are equal.
            else np.frombuffer(secrets.token_bytes(8 * (end - at)), np.uint64)
        )
        if key:
            keys[at:end] = row_hashes([batch.column(name) for name in key], end - at, _SECRET)
        for name, total in totals.items():
            total.add(batch.column(name))
        at = end
        yield
    if at != count:
        raise TableMissing(f"the files of table {side.key[:12]} have other rows than they had")
    return _Rows(keys, rows, {name: str(total) for name, total in totals.items()})


def _surplus(mine: Hashes, others: Hashes) -> Positions:
    """Return the positions of my rows that stand oftener than those of others, the last of each."""
    order = np.argsort(mine, kind="stable")
    ordered, other = mine[order], np.sort(others)
    rank = np.arange(len(ordered))
    rank -= np.searchsorted(ordered, ordered)
    theirs = np.searchsorted(other, ordered, "right")
    theirs -= np.searchsorted(other, ordered)
    return np.sort(order[rank >= theirs])


def _changed(old: _Rows, new: _Rows) -> tuple[Positions, Positions]:
    """Return the positions of rows whose key is in both and whose content differs."""
    _, positions, new_positions = np.intersect1d(
        old.keys, new.keys, assume_unique=True, return_indices=True
    )
    differs = old.rows[positions] != new.rows[new_positions]
    in_order = np.argsort(new_positions[differs])
    return positions[differs][in_order], new_positions[differs][in_order]


def _require_distinct(tables: TableFiles, side: Side, keys: Hashes, key: Sequence[str]) -> None:
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if not len(again):
        return
    first = order[again].min()
    [row] = rows_of(side.rows_at(tables, np.array([first])))
    times = int((keys == keys[first]).sum())
    which = ", ".join(f"{name} = {row[name]!s:.100}" for name in key)
    raise NotComparable(
        f"the key ({', '.join(key)}) does not tell the rows of {side.about} apart: {times:,} have "
        f"{which}; name more columns as the key, or none to compare whole rows"
    )


_NUMERIC: Final = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal


_EXACT_DIGITS: Final = 76


class _Total:
    """The sum of a column: exact, except of floating-point numbers."""

    def __init__(self) -> None:
        self._sum: Decimal | float = Decimal(0)

    def add(self, column: pa.Array) -> None:
        if pa.types.is_floating(column.type):
            self._sum = float(self._sum) + pc.sum(column, min_count=0).as_py()
            return
        scale = column.type.scale if pa.types.is_decimal(column.type) else 0
        part = pc.sum(column.cast(pa.decimal256(_EXACT_DIGITS, scale)), min_count=0).as_py()
        with localcontext(prec=_EXACT_DIGITS):
            self._sum += part

    def __str__(self) -> str:
        return format(self._sum, "f") if isinstance(self._sum, Decimal) else repr(self._sum)
