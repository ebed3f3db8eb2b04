"""The value graph as the application that Rebaser's core drives."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final, Never

from rebaser_core.commits import RequestOutcome, SettledRequest, code_reason
from rebaser_core.ids import ChangeSet, WorkspaceId
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import EnqueueUpdatesRequestV1
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV1
from rebaser_core.requests import ensure_task, publish_request
from rebaser_core.streams import Streams
from rebaser_core.table_schemas import NotATable
from rebaser_core.table_values import PinnedTable, upload_of
from rebaser_core.updates import PutFunc
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import Batch
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.compute.functions.sql import SqlRefused
from rebaser_server.compute.tables import SQL, require_sound
from rebaser_server.graph_application.branches import BranchRunner
from rebaser_server.graph_application.code import outdated, renewal_id, renewed
from rebaser_server.graph_application.commands import admit_difference, execute
from rebaser_server.graph_application.dvu import DvuPlanner, DvuServices
from rebaser_server.graph_application.publisher import Publisher
from rebaser_server.graph_application.state_machine import GraphStateMachine, TableMaintenance
from rebaser_server.graph_application.tables import TableHoldings
from rebaser_server.processor.application import Changes
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.request_queue import StoredRequests
from rebaser_server.runtime.tasks import background, compute_in_turn
from rebaser_server.store.publications import Publications
from rebaser_server.store.sources import Sources
from rebaser_server.tables import TableFiles
from rebaser_server.values.rebase import functions_in, tables_in

_PATIENCE: Final = 60.0
"""Seconds that a request waits; less than NATS remembers an id."""
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


class GraphApplication(GraphStateMachine):
    """An `Application`: batches are rebased onto a graph of values, dependents computed."""

    def __init__(
        self,
        streams: Streams,
        maintenance: TableMaintenance,
        dvu: DvuServices,
        look_every: float,
        publications: Publications | None = None,
        sources: Sources | None = None,
        sql_workspaces: Collection[WorkspaceId] | None = None,
    ) -> None:
        """Make the application; branches read head's log every `look_every` seconds.

        Args:
            streams: of the deployment.
            maintenance: of the tables of checkpoints.
            dvu: what updates of dependent values need.
            look_every: seconds.
            publications: where the tables of heads are published (default: nowhere).
            sources: the tables of others that clients may name (default: none).
            sql_workspaces: those whose requests may put SQL (default: all).
        """
        super().__init__(maintenance.checkpoints, maintenance)
        self._compactions = maintenance
        self._streams = streams
        self._dvu = dvu
        self.holdings = TableHoldings(dvu.batches.files)
        self._sources = sources or Sources("")
        self._copying = asyncio.Semaphore(_COPIES)
        self._look_every = look_every
        self._sql_workspaces = sql_workspaces
        self._publisher: Publisher | None = None
        if publications is not None:
            files = dvu.batches.files
            self._publisher = Publisher(publications, streams, files, self._open_loader, look_every)

    def _open_loader(self, change_set: ChangeSet) -> StateLoader:
        log_of = CommitLog(self._streams, change_set)
        return StateLoader(change_set, log_of, self._dvu.batches, self)

    async def run(self) -> Never:
        """Compact checkpoints, publish the tables of heads, send events; until cancelled."""
        async with AsyncExitStack() as stack:
            for part in (self._publisher, self._dvu.lineage):
                if part is not None:
                    await stack.enter_async_context(background(part.run()))
            await self._compactions.run()

    def on_commit(self, loader: StateLoader) -> None:
        """Publish the tables of a head soon."""
        if self._publisher is not None:
            self._publisher.schedule(loader)

    async def execute(
        self, ownership: Ownership, message: ChangeSetRequestV1, settled: SettledRequest
    ) -> tuple[SettledRequest, Changes]:
        memo = self._dvu.memo.of(str(message.workspace_id))
        return await execute(ownership, message, settled, memo)

    async def admit(
        self, ownership: Ownership, request: Delivery, message: EnqueueUpdatesRequestV1
    ) -> RequestOutcome | str:
        return await admit_difference(ownership, request, message)

    async def adopt(self, change_set: ChangeSet, batch: Batch) -> str | None:
        """Judge the batch's SQL, and make what it names as a table one of the workspace."""
        queries = [each for each in functions_in(batch.updates) if each.runtime == SQL]
        if queries:
            owner = change_set.workspace_id
            if self._sql_workspaces is not None and owner not in self._sql_workspaces:
                return f"function {queries[0].name!r} is SQL, which {_NOT_HERE}"
            rejection = await compute_in_turn(str(owner), _refusal, queries[:_MAX_JUDGED])
            if rejection is not None:
                return rejection
        values, workspace = [*tables_in(batch.updates)], str(change_set.workspace_id)
        uploads = {digest for value in values if (digest := upload_of(value))}
        for digest in sorted(uploads):
            rejection = await self._dvu.batches.adopt_upload(workspace, digest)
            if rejection is not None:
                return rejection
        found = {table.key: table for value in values if (table := PinnedTable.of(value))}
        tables = TableFiles(self._dvu.batches.files)
        for key, table in found.items():
            if await asyncio.to_thread(tables.renew, workspace, key):
                continue
            try:
                async with self._copying:
                    await asyncio.to_thread(self._sources.copy, table, workspace, tables)
            except NotATable as error:
                return f"no table: {error}"
        return None

    async def outdated_codes(self, codes: Collection[str]) -> Collection[str]:
        return await asyncio.to_thread(lambda: [code for code in codes if outdated(code)])

    async def renew(self, change_set: ChangeSet, code: str, stored: float) -> None:
        """Ask for it as a client would, unless requests wait for long: that may be one of them."""
        first = await StoredRequests(self._streams, change_set).lowest()
        if first is not None and (datetime.now(UTC) - first.time).total_seconds() > _PATIENCE:
            return
        due = renewed(code, outdated(code))
        request = ChangeSetRequestV1(
            id=renewal_id(change_set, code, stored),
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
            action="recompute",
            values=[],
            by=code_reason(due),
        )
        headers, payload = ChangeSetRequest.encode(request)
        await publish_request(self._streams, change_set, headers, payload)
        await ensure_task(self._streams, change_set)

    def companion(self, ownership: Ownership, checkpointer: Checkpointer) -> BranchRunner:
        outcomes = OutcomeLookup(self._streams, self)
        return BranchRunner(self._streams, ownership, outcomes, checkpointer, self._look_every)

    def planner(self, change_set: ChangeSet) -> DvuPlanner:
        return DvuPlanner(self._dvu, change_set)
