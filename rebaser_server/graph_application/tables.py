"""Tables as an extension of the value graph.

SQL is judged before it is applied; uploads and sources become tables of the workspace; tables that
no value names are removed; those of heads are published, and a catalog of data gets events.
See `rebaser_server.tables` for how tables lie in the store.
"""

import asyncio
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Never

from blake3 import blake3

from rebaser_core.ids import ChangeSet, WorkspaceId
from rebaser_core.jetstream import ObjectTooLarge
from rebaser_core.table_schemas import NotATable
from rebaser_core.table_values import TABLE, PinnedTable, TableHandle, upload_of
from rebaser_core.updates import PutFunc
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.garbage_collection import CONDEMNED, Holdings, HoldingsFound
from rebaser_server.compute.functions.sql import SqlRefused
from rebaser_server.compute.run import Executor
from rebaser_server.compute.tables import SQL, TABLE_RUNTIMES, require_sound
from rebaser_server.errors import MissingBatch
from rebaser_server.files import SharedFiles, shared_files
from rebaser_server.graph_application.extension import Extension, OpenLoader
from rebaser_server.graph_application.openlineage import LineageEvents
from rebaser_server.graph_application.publisher import Publisher
from rebaser_server.runtime.tasks import background, compute_in_turn
from rebaser_server.store.sources import Sources
from rebaser_server.tables import TableFiles
from rebaser_server.values.graph import Graph

_KEY: Final = re.compile(rb"[0-9a-f]{64}")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]{64,}")


def _base64_of(text: bytes, place: int) -> bytes:
    """Return what base64 always has of a text that begins at a place of three bytes."""
    encoded = b64encode(bytes(place) + text)
    return encoded[-(-8 * place // 6) : 8 * (place + len(text)) // 6]


_SIGNS_OF_TABLES: Final = (
    TABLE.encode(),
    *(_base64_of(f'"{TABLE}"'.encode(), place) for place in range(3)),
)
"""Bytes of which a batch or result that names a table has one; see `table_updates` for base64."""


_COPIES: Final = 2
"""Number of sources that are copied at a time: each takes a thread for minutes."""
_MAX_JUDGED: Final = 1_000
"""Number of queries of a batch that are judged before it is applied, some milliseconds each."""
_NOT_HERE: Final = (
    "no request to this workspace may put: have an operator name the workspace in "
    "REBASER_FUNCTIONS__SQL_WORKSPACES, or use an installed function"
)


def _refusal(queries: Sequence[PutFunc]) -> str | None:
    for each in queries:
        try:
            require_sound(each.code)
        except SqlRefused as error:
            return f"function {each.name!r} cannot be run: {error}"
    return None


class TableHoldings(Holdings):
    """Tables as the collector of garbage sees them."""

    def __init__(self, files: SharedFiles) -> None:
        self._tables = TableFiles(files)

    def find(self, before: float) -> HoldingsFound:
        tables = list(self._tables.stored())
        # A part is named by manifests alone, and goes once none has it any more.
        parts = self._tables.parts_in(tables)
        old = [
            table
            for table in tables
            if table.written is not None and table.written < before and table.key not in parts
        ]

        def garbage(named: Collection[str]) -> dict[str, list[Any]]:
            unnamed = [table for table in old if table.key not in named]
            return {
                CONDEMNED: [table for table in unnamed if table.condemned is None],
                "tables": [
                    *(table for table in unnamed if table.condemned and table.condemned < before),
                    *(table for table in tables if not table.written and not table.attempts),
                ],
                "attempts": [
                    each for table in tables for each in self._tables.abandoned(table, before)
                ],
            }

        return HoldingsFound({t.key for t in tables if t.written is not None}, old, garbage)

    @staticmethod
    def keys_in(payload: bytes) -> set[str]:
        if not any(sign in payload for sign in _SIGNS_OF_TABLES):
            return set()
        keys = _KEY.findall(payload)
        for encoded in _BASE64.findall(payload):
            for place in range(4):  # the byte before may be one of base64's, too
                text = encoded[place:]
                keys += _KEY.findall(b64decode(text[: len(text) // 4 * 4]))
        return {key.decode() for key in keys}

    def remove(self, garbage: Mapping[str, Sequence[Any]]) -> None:
        for table in garbage.get(CONDEMNED, ()):
            self._tables.condemn(table.workspace, table.key)
        for table in garbage.get("tables", ()):
            self._tables.remove(table)
        for attempt in garbage.get("attempts", ()):
            self._tables.discard(attempt)


class Tables(Extension):
    runtimes = TABLE_RUNTIMES

    def __init__(
        self,
        batches: BatchStore,
        executor: Executor | None,
        sources: Sources,
        sql_workspaces: Collection[WorkspaceId] | None = None,
        publisher: Publisher | None = None,
        lineage: LineageEvents | None = None,
    ) -> None:
        """Make the extension; requests of `sql_workspaces` alone may put SQL (default: of all)."""
        self.executor = executor
        self._batches = batches
        self._tables = TableFiles(shared_files(batches.files))
        self.holdings = TableHoldings(shared_files(batches.files))
        self._sources = sources
        self._copying = asyncio.Semaphore(_COPIES)
        self._sql_workspaces = sql_workspaces
        self._publisher = publisher
        self._lineage = lineage
        if publisher is not None:
            self.on_commit = publisher.schedule
        if lineage is not None:
            self.on_plan, self.on_results = lineage.plan, lineage.record

    async def adopt(
        self, change_set: ChangeSet, functions: Sequence[PutFunc], references: Sequence[Any]
    ) -> str | None:
        """Judge SQL, and make what the values name as a table one of the workspace."""
        workspace = str(change_set.workspace_id)
        if queries := [each for each in functions if each.runtime == SQL]:
            owner = change_set.workspace_id
            if self._sql_workspaces is not None and owner not in self._sql_workspaces:
                return f"function {queries[0].name!r} is SQL, which {_NOT_HERE}"
            rejection = await compute_in_turn(workspace, _refusal, queries[:_MAX_JUDGED])
            if rejection is not None:
                return rejection
        uploads = {digest for value in references if (digest := upload_of(value))}
        for digest in sorted(uploads):
            rejection = await self._adopt_upload(workspace, digest)
            if rejection is not None:
                return rejection
        found = {table.key: table for value in references if (table := PinnedTable.of(value))}
        for key, table in found.items():
            if await asyncio.to_thread(self._tables.renew, workspace, key):
                continue
            try:
                async with self._copying:
                    await asyncio.to_thread(self._sources.copy, table, workspace, self._tables)
            except NotATable as error:
                return f"no table: {error}"
        return None

    async def _adopt_upload(self, workspace: str, digest: str) -> str | None:
        """Make a file that was uploaded to the workspace a table of it; return what hinders it.

        Idempotent: a table that is there stays, also if it was condemned.
        """
        if await asyncio.to_thread(self._tables.renew, workspace, digest):
            return None
        try:
            payload = await self._batches.upload(workspace, digest)
            if await asyncio.to_thread(lambda: blake3(payload).hexdigest()) != digest:
                raise NotATable("its bytes are not those that its name says")
            async with self._batches.large:
                await asyncio.to_thread(self._tables.adopt, workspace, digest, payload)
        except MissingBatch:
            return f"the file {digest[:12]}… of a table was not uploaded, or not whole"
        except (NotATable, ObjectTooLarge) as error:
            return f"the file {digest[:12]}… cannot be a table: {error}"
        return None

    def forget(self, change_set: ChangeSet, graph: Graph, value_ids: Collection[str]) -> None:
        for value in map(graph.values.__getitem__, value_ids):
            func = graph.funcs.get(value.func_id or "")
            of_tables = func is not None and func.runtime in TABLE_RUNTIMES
            handle = TableHandle.of(value.value) if of_tables else None
            if handle is not None:
                self._tables.condemn(str(change_set.workspace_id), handle.key)

    async def run(self, open_loader: OpenLoader) -> Never:
        """Publish the tables of heads, send events; until cancelled."""
        async with AsyncExitStack() as stack:
            if self._publisher is not None:
                await stack.enter_async_context(background(self._publisher.run(open_loader)))
            if self._lineage is not None:
                await stack.enter_async_context(background(self._lineage.run()))
            await super().run(open_loader)
