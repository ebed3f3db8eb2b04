"""Values that are tables, read from any Rebaser, as of one commit and a part at a time.

`TableDifference` is which rows differ from those of head, or of another commit.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from math import isfinite
from typing import Any, Final, TypeAlias

from rebaser_client.display import html_table, package
from rebaser_client.errors import NoSuchValue, ReadRefused
from rebaser_core.errors import many
from rebaser_core.queries import ColumnTotal, TableDifferenceReplyV1, TableReplyV1, TableSnapshot

Ask: TypeAlias = Callable[..., Awaitable[list[TableReplyV1]]]
"""Function that asks for a table, with fields of a `TableQuery` as its arguments."""
Compare: TypeAlias = Callable[..., Awaitable[list[TableDifferenceReplyV1]]]
"""Function that asks which rows differ, with fields of a `TableDifferenceQuery`."""


class TableValue:
    """A value that is a table, as of one commit; its rows are read when they are asked for.

    Each reading raises `MissingPackage` without pyarrow, `Unreachable` if no Rebaser answers, and
    `ReadRefused` if a column does not exist or the rows are not kept any more.

    Example:
        orders = await shop.table("orders")
        print(orders.rows, await orders.to_arrow())
    """

    def __init__(
        self, ask: Ask, compare: Compare, about: str, commit: int, table: TableSnapshot
    ) -> None:
        """Read with `ask` what `open_table` found."""
        self._ask = ask
        self._compare = compare
        self._about = about
        self.commit: Final = commit
        self.id: Final = table.id
        self.name: Final = table.name
        self.schema: Final = tuple(table.columns)
        """Columns: `name`, `type` in SQL, and whether it is `nullable`."""
        self.rows: Final = table.rows
        """Number of rows."""
        self.size: Final = table.size
        """Bytes of its files."""
        self.files: Final = table.files
        """Number of its files."""

    def __repr__(self) -> str:
        shown = f"{many(self.rows, 'row')}, {many(len(self.schema), 'column')}"
        return f"<TableValue {self._about!r} as of commit {self.commit}: {shown}>"

    def _repr_html_(self) -> str:
        rows = [(each.name, each.type, "" if each.nullable else "not null") for each in self.schema]
        note = f"{many(self.rows, 'row')} as of commit {self.commit}"
        return html_table(("column", "type", ""), rows, note)

    async def scan(
        self, columns: Sequence[str] = (), *, offset: int = 0, limit: int | None = None
    ) -> AsyncIterator[Any]:
        """Yield the rows as `pyarrow.RecordBatch`es, one at least, in an order that stays.

        Args:
            columns: the columns, in their order (default: all).
            offset: number of rows to leave out before the first.
            limit: maximum number of rows (default: all).
        """
        decode = package("rebaser_core.table_schemas", extra="arrow").decode_rows
        end = self.rows if limit is None else min(offset + limit, self.rows)
        while True:
            before = offset
            replies = await self._ask(
                value=self._about,
                at=self.commit,
                columns=[*columns],
                rows=True,
                offset=offset,
                limit=max(0, end - offset),
            )
            for reply in replies[1:]:
                batch = decode(reply.rows or "")
                offset += batch.num_rows
                yield batch
            if offset >= end:
                return
            if offset == before:
                raise ReadRefused(f"{self._about!r} ended behind {many(offset, 'row')}")

    async def head(self, rows: int = 10, columns: Sequence[str] = ()) -> Any:
        """The first rows, as a `pyarrow.Table`."""
        return await self._read(columns, rows)

    async def to_arrow(self, columns: Sequence[str] = ()) -> Any:
        """All rows in memory, as a `pyarrow.Table`."""
        return await self._read(columns, None)

    async def to_pandas(self, columns: Sequence[str] = ()) -> Any:
        """All rows as a `pandas.DataFrame`. Raises `MissingPackage` without pandas.

        Whole numbers in a column with nulls are floats there, which are exact up to 2⁵³.
        """
        package("pandas", extra="pandas")
        return (await self._read(columns, None)).to_pandas()

    async def to_polars(self, columns: Sequence[str] = ()) -> Any:
        """All rows as a `polars.DataFrame`. Raises `MissingPackage` without Polars."""
        polars = package("polars")
        return polars.from_arrow(await self._read(columns, None))

    async def diff(
        self, key: Sequence[str] | str | None = None, *, commit: int | None = None
    ) -> "TableDifference":
        """Rows that differ from those of head or, with `commit`, of that commit.

        Args:
            key: columns that identify a row; none to compare whole rows (default: those
                that the value's function declares).
            commit: a commit of this change set (default: the last one of head).

        Raises:
            ReadRefused: the change set is no branch, and no commit is named; there is no such table
                on the other side, or its past is not kept; a key stands twice; or the tables are
                too large to be compared.
        """
        wanted = None if key is None else [key] if isinstance(key, str) else [*key]
        replies = await self._compare(value=self.id, at=self.commit, since=commit, key=wanted)
        return TableDifference(self.name or self.id, replies)

    async def _read(self, columns: Sequence[str], limit: int | None) -> Any:
        arrow = package("pyarrow", extra="arrow")
        batches = [batch async for batch in self.scan(columns, limit=limit)]
        return arrow.Table.from_batches(batches)


class TableDifference:
    """Rows of a table that differ between two commits: of head and a branch, or of one change set.

    Rows with equal keys and other cells are changed; without a key whole rows are compared, which
    are added or removed as often as they stand on one side more than on the other. Columns that
    both have in one type are compared. Samples are of at most twenty rows each, with all columns.

    Example:
        orders = await winter.table("orders")
        print((await orders.diff("id")).summary())
    """

    def __init__(self, name: str, replies: Sequence[TableDifferenceReplyV1]) -> None:
        """Raises `ReadRefused` if the replies have no tables or no rows."""
        first, last = replies[0], replies[-1]
        if first.before is None or first.after is None or last.rows is None:
            raise ReadRefused("a Rebaser answered without the tables or their rows")
        rows = self._rows = last.rows
        self.name: Final = name
        self.commit: Final = first.commit
        self.since: Final = first.since
        """Commit that it was compared with."""
        self.may_be_stale: Final = first.due
        """Whether an update of computed values was due on a side: it may be of earlier inputs."""
        self.before: Final = first.before
        """The other table: its `columns`, and its number of `rows`."""
        self.after: Final = first.after
        self.key: Final = tuple(rows.key)
        """Columns that identify a row; empty if whole rows were compared."""
        self.compared: Final = tuple(rows.compared)
        """Columns that were compared."""
        self.added: Final = rows.added
        """Number of rows."""
        self.removed: Final = rows.removed
        self.changed: Final = rows.changed
        """Number of rows; None if whole rows were compared."""
        self.totals: Final = tuple(rows.totals)
        """Sum of each numeric column outside the key `before` and `after`, as text; None if there
        is no such column. Empty if the tables are equal."""

    def __bool__(self) -> bool:
        """Say whether rows or columns differ."""
        return bool(self.added or self.removed or self.changed or self.columns())

    def columns(self) -> list[tuple[str, str | None, str | None]]:
        """Columns that differ: name, type before and after; None if there is no such column."""
        old, new = (
            {c.name: c.type if c.nullable else f"{c.type} not null" for c in its.columns}
            for its in (self.before, self.after)
        )
        sides = [(name, old.get(name), new.get(name)) for name in new | old]
        return [(name, before, after) for name, before, after in sides if before != after]

    def added_rows(self) -> Any:
        """The first added rows, as a `pyarrow.RecordBatch`; None if there are none.

        Raises:
            MissingPackage: pyarrow is not installed.
        """
        return _decoded(self._rows.added_rows)

    def removed_rows(self) -> Any:
        """The first removed rows, as `added_rows`."""
        return _decoded(self._rows.removed_rows)

    def changed_rows(self) -> tuple[Any, Any]:
        """The first changed rows as they were and as they are, in one order, as `added_rows`."""
        return _decoded(self._rows.changed_before), _decoded(self._rows.changed_after)

    def summary(self) -> str:
        """One line: `1,204 rows changed, 3 added, 0 removed; sum(total) 10.5M → 10.9M`."""
        if not self:
            return "no row differs"
        counts = [] if self.changed is None else [(self.changed, "changed")]
        counts += [(self.added, "added"), (self.removed, "removed")]
        (number, first), *others = counts
        rest = [f"{count:,} {word}" for count, word in others]
        parts = [", ".join([f"{many(number, 'row')} {first}", *rest])]
        parts += [
            f"column {name} {_column_words(*types)}" for name, *types in self.columns()[:_NAMED]
        ]
        differing = [each for each in self.totals if each.before != each.after]
        parts += [f"sum({each.name}) {_total_words(each)}" for each in differing[:_NAMED]]
        return "; ".join(parts)

    def __repr__(self) -> str:
        return f"<TableDifference of {self.name!r}: {self.summary()}>"

    def _repr_html_(self) -> str:
        rows = [(f"column {name}", before, after) for name, before, after in self.columns()]
        rows += [(f"sum({each.name})", each.before, each.after) for each in self.totals]
        rows += [("rows", f"{self.before.rows:,}", f"{self.after.rows:,}")]
        return html_table(("", "before", "after"), rows, f"{self.name}: {self.summary()}")


_NAMED: Final = 3
"""Maximum number of columns, and of totals, that a summary names."""


def differing_rows(
    difference: TableDifference, shown: Callable[[Any], Any]
) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the first rows by what became of them: `changed`, `added` and `removed`.

    Of each row it has the state before and after, if there are both, with what `shown` makes of
    each cell. Raises `MissingPackage` as `added_rows`.
    """
    rows_of = package("rebaser_core.table_schemas", extra="arrow").rows_of
    sides = {
        "changed": difference.changed_rows(),
        "added": (difference.added_rows(),),
        "removed": (difference.removed_rows(),),
    }
    return {
        word: [
            [{name: shown(cell) for name, cell in state.items()} for state in states]
            for states in zip(*(rows_of(side) for side in its if side is not None), strict=True)
        ]
        for word, its in sides.items()
    }


def _decoded(rows: str | None) -> Any:
    decode = package("rebaser_core.table_schemas", extra="arrow").decode_rows
    return None if rows is None else decode(rows)


def _column_words(before: str | None, after: str | None) -> str:
    if before is None:
        return f"is new: {after}"
    return "is gone" if after is None else f"was {before}, is {after}"


def _total_words(total: ColumnTotal) -> str:
    sides = [total.before or "0", total.after or "0"]
    short = list(map(_short, sides))
    return " → ".join(short if short[0] != short[1] else sides)


def _short(number: str) -> str:
    """A number in three or four digits: `10.5M`."""
    value = float(number)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if isfinite(value) and abs(value) >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}"


async def open_table(ask: Ask, compare: Compare, about: str, at: int | None) -> TableValue:
    """Return the table that the value of that name or id is. See `ChangeSetHandle.table`."""
    reply = (await ask(value=about, at=at))[0]
    if reply.is_missing:
        raise NoSuchValue(reply.error or f"there is no value {about!r}")
    if reply.table is None:
        raise ReadRefused("a Rebaser answered without a table")
    return TableValue(ask, compare, about, reply.commit, reply.table)
