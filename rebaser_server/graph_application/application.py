"""The value graph as the application that Rebaser's core drives."""

from typing import Never

from rebaser_core.commits import RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import EnqueueUpdatesRequestV1
from rebaser_core.records import ChangeSetRequestV1
from rebaser_core.streams import Streams
from rebaser_server.graph_application.branches import BranchRunner
from rebaser_server.graph_application.commands import admit_difference, execute
from rebaser_server.graph_application.dvu import DvuPlanner, DvuServices
from rebaser_server.graph_application.state_machine import GraphStateMachine, TableMaintenance
from rebaser_server.processor.application import Changes
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.processor.ownership import Ownership


class GraphApplication(GraphStateMachine):
    """An `Application`: batches are rebased onto a graph of values, dependents computed."""

    def __init__(
        self,
        streams: Streams,
        maintenance: TableMaintenance,
        dvu: DvuServices,
        look_every: float,
    ) -> None:
        """Make the application; branches read head's log every `look_every` seconds."""
        super().__init__(maintenance.checkpoints, maintenance)
        self._compactions = maintenance
        self._streams = streams
        self._dvu = dvu
        self._look_every = look_every

    async def run(self) -> Never:
        """Compact tables, until cancelled."""
        await self._compactions.run()

    async def execute(
        self, ownership: Ownership, message: ChangeSetRequestV1, settled: SettledRequest
    ) -> tuple[SettledRequest, Changes]:
        memo = self._dvu.memo.of(str(message.workspace_id))
        return await execute(ownership, message, settled, memo)

    async def admit(
        self, ownership: Ownership, request: Delivery, message: EnqueueUpdatesRequestV1
    ) -> RequestOutcome | str:
        return await admit_difference(ownership, request, message)

    def companion(self, ownership: Ownership, checkpointer: Checkpointer) -> BranchRunner:
        outcomes = OutcomeLookup(self._streams, self)
        return BranchRunner(self._streams, ownership, outcomes, checkpointer, self._look_every)

    def planner(self, change_set: ChangeSet) -> DvuPlanner:
        return DvuPlanner(self._dvu, change_set)
