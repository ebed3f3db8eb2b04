"""Values that are tables, read from any Rebaser, as of one commit and a part at a time."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib import import_module
from typing import Any, Final, TypeAlias

from rebaser_client.display import html_table, package
from rebaser_client.errors import MissingPackage, NoSuchValue, ReadRefused
from rebaser_core.errors import many
from rebaser_core.queries import TableReplyV1, TableSnapshot

Ask: TypeAlias = Callable[..., Awaitable[list[TableReplyV1]]]
"""Function that asks for a table, with fields of a `TableQuery` as its arguments."""


class TableValue:
    """A value that is a table, as of one commit; its rows are read when they are asked for.

    Each reading raises `MissingPackage` without pyarrow, `Unreachable` if no Rebaser answers, and
    `ReadRefused` if a column does not exist or the rows are not kept any more.
    """

    def __init__(self, ask: Ask, about: str, commit: int, table: TableSnapshot) -> None:
        """Read with `ask` what `open_table` found."""
        self._ask = ask
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
        """All rows as a `pandas.DataFrame`. Raises `MissingPackage` without pandas."""
        package("pandas", extra="pandas")
        return (await self._read(columns, None)).to_pandas()

    async def to_polars(self, columns: Sequence[str] = ()) -> Any:
        """All rows as a `polars.DataFrame`. Raises `MissingPackage` without Polars."""
        try:
            polars = import_module("polars")
        except ModuleNotFoundError as error:
            raise MissingPackage(f"{error.name} is not installed: pip install polars") from error
        return polars.from_arrow(await self._read(columns, None))

    async def _read(self, columns: Sequence[str], limit: int | None) -> Any:
        arrow = package("pyarrow", extra="arrow")
        batches = [batch async for batch in self.scan(columns, limit=limit)]
        return arrow.Table.from_batches(batches)


async def open_table(ask: Ask, about: str, at: int | None) -> TableValue:
    """Return the table that the value of that name or id is. See `ChangeSetHandle.table`."""
    reply = (await ask(value=about, at=at))[0]
    if reply.is_missing:
        raise NoSuchValue(reply.error or f"there is no value {about!r}")
    if reply.table is None:
        raise ReadRefused("a Rebaser answered without a table")
    return TableValue(ask, about, reply.commit, reply.table)
