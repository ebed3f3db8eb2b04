"""Values that are tables, as of one commit: what they have, and their rows in parts.

Rows are read from the files of the table, which never change. An answer has a part of them, and the
asker asks for those behind it as of the same commit.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa

from rebaser_core.errors import RebaserError, offer
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.queries import TableQueryV1, TableReplyV1, TableSnapshot, ValuesQueryV2
from rebaser_core.table_schemas import arrow_schema, columns_of, encode_rows
from rebaser_core.table_values import table_key
from rebaser_server.commit_log.state_loader import OpenLoader
from rebaser_server.compute.functions.sql import SqlRefused
from rebaser_server.compute.tables import SQL, read_definition
from rebaser_server.files import shared_files
from rebaser_server.queries.values import FunctionRow, ValueRow, ValueService
from rebaser_server.runtime.tasks import compute_in_turn
from rebaser_server.tables import Manifest, TableFiles, TableMissing
from rebaser_server.values.canonical_json import loads

_PART_BYTES: Final = 512 * 1024
"""Approximate bytes of the rows in one message of a reply, before they are compressed."""
_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the rows in one answer, as they are sent, after which it ends."""
_REMEMBERED: Final = 1_000
"""Number of values, as of a commit, of which the table is known without a look at the state."""


class NoTable(RebaserError):
    """The value is no table, or has no result."""


class LocatedTable(NamedTuple):
    commit: int
    id: str
    name: str | None
    key: str
    func_id: str | None
    due: bool
    """Whether an update of computed values was due or running."""


class TableService:
    """Answers from the state that this process holds, as `ValueService`, and the store."""

    def __init__(self, open_loader: OpenLoader, values: ValueService) -> None:
        self._open_loader = open_loader
        self._values = values
        self._tables: TableFiles | None = None
        self._located = OrderedDict[tuple[ChangeSet, int, str], LocatedTable]()
        """Tables by change set, commit and the value's name: what a commit has does not change."""

    async def replies(
        self, query: TableQueryV1, _: Mapping[str, str]
    ) -> AsyncGenerator[TableReplyV1, None]:
        """Yield the answer in one reply or more; no reply holds much more than one large row."""
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        located = await self.locate(change_set, query.value, query.at)
        if located is None:
            why = f"there is no value {query.value!r}"
            yield TableReplyV1(id=query.id, commit=0, error=why, is_missing=True)
            return
        workspace, tables = str(query.workspace_id), self.files(change_set)
        manifest, table = await self.describe(change_set, located)
        columns = table.columns
        wanted = list(dict.fromkeys(query.columns)) or [column.name for column in columns]
        for name in wanted:
            if all(column.name != name for column in columns):
                known = [column.name for column in columns]
                raise NoTable(f"{query.value!r} has no column {name!r}{offer(name, known)}")
        yield TableReplyV1(
            id=query.id,
            commit=located.commit,
            table=table,
            more=query.rows,
        )
        if not query.rows:
            return
        parts = _parts(tables, workspace, located.key, manifest, wanted, query)
        try:
            more = True
            while more:
                rows, more = await compute_in_turn(workspace, next, parts)
                yield TableReplyV1(id=query.id, commit=located.commit, rows=rows, more=more)
        finally:
            await compute_in_turn(workspace, parts.close)

    def files(self, change_set: ChangeSet) -> TableFiles:
        """Return the tables of all questions, so that each file is compared once for all."""
        files = shared_files(self._open_loader(change_set).batches.files)
        if self._tables is None or self._tables.files is not files:
            self._tables = TableFiles(files)
        return self._tables

    async def describe(
        self, change_set: ChangeSet, located: LocatedTable
    ) -> tuple[Manifest, TableSnapshot]:
        workspace, tables = str(change_set.workspace_id), self.files(change_set)
        manifest = await compute_in_turn(workspace, tables.get, workspace, located.key)
        return manifest, TableSnapshot(
            id=located.id,
            name=located.name,
            columns=columns_of(manifest.fields),
            rows=manifest.rows,
            size=manifest.size,
            files=len(manifest.files),
        )

    async def locate(
        self, change_set: ChangeSet, value: str, at: int | None
    ) -> LocatedTable | None:
        """Return the table that the value of that name or id is; None if there is no such value.

        Raises:
            NoTable: the value is no table, or has no result.
            NotRetained: the past is not kept so long.
        """
        if at is not None and (change_set, at, value) in self._located:
            return self._located[change_set, at, value]
        found = await self._values.find(
            ValuesQueryV2(id=RequestId(), **change_set._asdict(), which=[value], at=at)
        )
        if found.missing:
            return None
        [row] = found.rows
        assert isinstance(row, ValueRow)  # noqa: S101 - no function was asked for
        if row.status != "ok":
            why = f": {row.message}" if row.message else ""
            raise NoTable(f"{value!r} has no result ({row.status}){why}")
        key = table_key(loads(row.text))
        if key is None:
            raise NoTable(f"{value!r} is no table: `values` reads what it is")
        located = LocatedTable(found.commit, row.id, row.name, key, row.func_id, bool(found.due))
        self._located[change_set, found.commit, value] = located
        while len(self._located) > _REMEMBERED:
            self._located.popitem(last=False)
        return located

    async def declared_key(self, change_set: ChangeSet, located: LocatedTable) -> tuple[str, ...]:
        if located.func_id is None:
            return ()
        found = await self._values.find(
            ValuesQueryV2(
                id=RequestId(),
                **change_set._asdict(),
                which=[located.func_id],
                functions=True,
                at=located.commit,
            )
        )
        for row in found.rows:
            if isinstance(row, FunctionRow) and row.function.runtime == SQL:
                with suppress(SqlRefused):
                    return read_definition(row.function.code).key
        return ()


def _parts(
    tables: TableFiles,
    workspace: str,
    key: str,
    manifest: Manifest,
    columns: Sequence[str],
    query: TableQueryV1,
) -> Generator[tuple[str, bool], None, None]:
    """Yield rows as a reply has them, and whether more follow: once at least. Blocks."""
    at, sent = query.offset, 0
    end = manifest.rows if query.limit is None else min(at + query.limit, manifest.rows)
    if at >= end:
        by_name = {field["name"]: field for field in manifest.fields}
        schema = arrow_schema([by_name[name] for name in columns])
        yield encode_rows(pa.RecordBatch.from_pylist([], schema)), False
        return
    for batch in tables.batches(workspace, manifest, columns, at):
        rows = max(1, _PART_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, min(batch.num_rows, end - at), rows):
            part = batch.slice(start, min(rows, end - at))
            encoded = encode_rows(part)
            at, sent = at + part.num_rows, sent + len(encoded)
            more = at < end and sent < _ANSWER_BYTES
            yield encoded, more
            if not more:
                return
    raise TableMissing(f"the files of table {key[:12]} have fewer rows than they had: {at:,}")
