"""What the core asks of an application: what requests do, and the background job they leave.

The core knows requests, commits and one background job at a time, the dependent values update
(DVU). What a batch of updates does to a change set, what the job computes, and what a checkpoint
holds, is the application's: see `graph_application` for Rebaser's own.
"""

import asyncio
from typing import Any, Never, Protocol

from rebaser_core.commits import SettledRequest
from rebaser_core.ids import ChangeSet
from rebaser_core.registry_records import ChangeSetRequestV2
from rebaser_server.commit_log.state_machine import StateMachine
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.companion import Companion
from rebaser_server.processor.job import JobPlanner
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.rejection import reject

Changes = dict[str, Any]
"""New values of fields of the control record."""


class Application(StateMachine, Protocol):
    """What the updates of a change set mean."""

    async def execute(
        self, ownership: Ownership, message: ChangeSetRequestV2, handled: SettledRequest
    ) -> tuple[SettledRequest, Changes]:
        """Carry out an action on the change set as a whole that is not the core's own.

        The caller holds the lock, and has refused what a closed change set does not take.
        Returns `handled` with what was done, or with why it was refused, and what that changes
        in the control record. The content is changed as a replay will change it.
        """
        del ownership
        return reject(handled, f"there is no action {message.action!r}"), {}

    async def run(self) -> Never:
        """Work beside all change sets of the process, until cancelled."""
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    def companion(self, ownership: Ownership, checkpointer: Checkpointer) -> Companion:
        """What goes on beside the requests of one run."""
        del ownership, checkpointer
        return Companion()

    def planner(self, change_set: ChangeSet) -> JobPlanner:
        """Plans the background jobs of one run; not called if no batch leaves work to them."""
        raise NotImplementedError(f"no job of {change_set}")
