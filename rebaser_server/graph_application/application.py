"""The value graph as the application that Rebaser's core drives.

Batches of updates, as requests bring them, are read, judged and rebased here (W7).
"""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from functools import partial
from typing import Final, Never

from rebaser_core.calls import CallRequest
from rebaser_core.commits import RequestOutcome, SettledRequest, code_reason
from rebaser_core.errors import NewerVersion
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    UpdatesAddress,
)
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV1
from rebaser_core.requests import INLINE_BYTES, ensure_task, publish_request
from rebaser_core.streams import Streams
from rebaser_core.updates import BatchLimits
from rebaser_core.versioning import MESSAGE_TYPE, header
from rebaser_server.commit_log.batch_store import OversizedBatch
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import SMALL_BATCH, Batch
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.graph_application.branches import BranchRunner
from rebaser_server.graph_application.code import outdated, renewal_id, renewed
from rebaser_server.graph_application.commands import admit_difference, execute
from rebaser_server.graph_application.dvu import DvuPlanner, DvuServices
from rebaser_server.graph_application.state_machine import GraphStateMachine, TableMaintenance
from rebaser_server.processor.application import (
    Applied,
    Changes,
    RequestMessage,
    Unprocessable,
)
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.dead_letters import closed_reason, reject
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.request_queue import StoredRequests
from rebaser_server.runtime.tasks import background
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import functions_in, references_in

_PATIENCE: Final = 60.0
"""Seconds that a request waits; less than NATS remembers an id."""


class GraphApplication(GraphStateMachine):
    """An `Application`: batches are rebased onto a graph of values, dependents computed."""

    def __init__(
        self,
        streams: Streams,
        maintenance: TableMaintenance,
        dvu: DvuServices,
        look_every: float,
        limits: BatchLimits,
    ) -> None:
        """Make the application; branches read head's log every `look_every` seconds."""
        super().__init__(maintenance.checkpoints, maintenance)
        self._compactions = maintenance
        self._streams = streams
        self._dvu = dvu
        self._extension = dvu.extension
        self.holdings = dvu.extension.holdings
        self._look_every = look_every
        self._limits = limits

    def _open_loader(self, change_set: ChangeSet) -> StateLoader:
        log_of = CommitLog(self._streams, change_set)
        return StateLoader(change_set, log_of, self._dvu.batches, self)

    async def prepare(self) -> None:
        """Do nothing."""

    async def run(self) -> Never:
        """Compact checkpoints, and what the extension does; until cancelled."""
        async with background(self._extension.run(self._open_loader)):
            await self._compactions.run()

    def on_commit(self, loader: StateLoader) -> None:
        if self._extension.on_commit is not None:
            self._extension.on_commit(loader)

    def on_begin(self, ownership: Ownership) -> None:
        """Do nothing."""

    async def execute(
        self, ownership: Ownership, message: ChangeSetRequestV1, settled: SettledRequest
    ) -> tuple[SettledRequest, Changes]:
        memo = self._dvu.memo.of(str(message.workspace_id))

        def forget(graph: Graph, value_ids: list[str]) -> None:
            if memo is not None:
                memo.forget(value_ids)
            self._extension.forget(ownership.loader.change_set, graph, value_ids)

        return await execute(ownership, message, settled, forget)

    def read(self, request: Delivery) -> RequestMessage:
        if header(request.headers, MESSAGE_TYPE) == CallRequest.name:
            raise NewerVersion("a call of a handler waits for a worker of its service")
        return EnqueueUpdatesRequest.decode(request.headers, request.payload)

    def is_batchable(self, message: RequestMessage) -> bool:
        request = _of_updates(message)
        address = request.updates_address
        return (
            isinstance(address, Inline)
            and request.from_change_set_id is None
            and address.inline.computed is None
            and len(address.inline.updates) < SMALL_BATCH
        )

    async def apply(
        self, ownership: Ownership, request: Delivery, message: RequestMessage
    ) -> Applied:
        message = _of_updates(message)
        end = partial(SettledRequest, id=message.id, sequence=request.stream_sequence)
        if message.from_change_set_id is not None:
            admission = await admit_difference(ownership, request, message)
            # Of these, an earlier commit may refer to the batch, so it stays.
            if not isinstance(admission, RequestOutcome):
                return Applied(reject(end(outcome=RequestOutcome.REFUSED), admission))
            if admission is not RequestOutcome.APPLIED:
                return Applied(end(outcome=admission))
        batches = ownership.loader.batches
        unused: UpdatesAddress | None = message.updates_address
        batch = await self._read(ownership, message)
        if batch is None:
            return Applied(end(outcome=RequestOutcome.STALE), unused=unused)
        if not isinstance(batch, Batch):
            return Applied(reject(end(outcome=RequestOutcome.REFUSED), batch), unused=unused)
        applied = await ownership.state.content.apply(request.stream_sequence, batch)
        # S-7: the batch is in the store before the commit that names it is written. Else a power
        # cut could leave a commit without its batch.
        address = message.updates_address
        inline = isinstance(address, Inline) and len(request.payload) > INLINE_BYTES
        as_sent = not applied.corrections and len(applied.updates) == len(batch.updates)
        if inline or not as_sent:  # a commit has room for small ones alone
            address = await batches.put(message.id, applied.updates)
        else:
            address = await batches.adopt(address, batch)
        settled = end(
            outcome=RequestOutcome.APPLIED,
            updates=address,
            corrections=await batches.put_corrections(message.id, applied.corrections),
        )
        return Applied(
            settled,
            is_edit=True,
            is_dirty=applied.dirty,
            unused=None if settled.updates is unused else unused,
        )

    async def _read(
        self, ownership: Ownership, message: EnqueueUpdatesRequestV1
    ) -> Batch | str | None:
        """Return the batch; or the reason to refuse it; or None: requests may not bring results."""
        try:
            batch = await ownership.loader.batches.fetch(
                message.updates_address, message.id, from_client=True
            )
        except OversizedBatch as error:
            return f"the batch is too large: {error}"
        if batch.computed is not None:  # D5: of an older Rebaser, whose update is due, or forged
            return None
        if batch.head_side is not None:
            raise Unprocessable("only a branch's own log says what head has under it")
        if batch.results is not None:
            raise Unprocessable("only an update's own result lies in files")
        rejection = closed_reason(ownership.state)
        rejection = rejection or self._limits.violation(batch.updates, len(batch.updates))
        return rejection or await self._adopt(ownership.loader.change_set, batch) or batch

    async def _adopt(self, change_set: ChangeSet, batch: Batch) -> str | None:
        """Take into the store what the batch refers to; return the reason to refuse it, or None."""
        runtimes = self._extension.runtimes
        functions = [each for each in functions_in(batch.updates) if each.runtime in runtimes]
        references = [*references_in(batch.updates)]
        if not functions and not references:
            return None
        return await self._extension.adopt(change_set, functions, references)

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


def _of_updates(message: RequestMessage) -> EnqueueUpdatesRequestV1:
    if not isinstance(message, EnqueueUpdatesRequestV1):
        raise TypeError(f"{type(message).__name__} is no batch of updates")
    return message
