"""An owner of a change set without a daemon: it commits batches and writes checkpoints at will."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import TypeAdapter

from rebaser_core.commits import RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.updates import AnyUpdate, UpdateList
from rebaser_server.commit_log.state import Retention
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.graph_application.content import graph_of
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.ownership import Ownership, acquire_ownership
from rebaser_server.values.rebase import rebase
from tests.helpers.deployment import Deployment

EVERYTHING = Retention(seconds=1e9, entries=10**9, batches=10**9)
NOTHING = Retention(seconds=0, entries=0, batches=0)

_UPDATES: TypeAdapter[list[AnyUpdate]] = TypeAdapter(UpdateList)


def read_updates(updates: Sequence[Any]) -> list[AnyUpdate]:
    return _UPDATES.validate_python(list(updates))


class Owner:
    """Requests are numbered from 1; what they leave to recompute is left."""

    def __init__(self, own: Ownership, retention: Retention) -> None:
        self.own = own
        self.archive = own.loader
        self.checkpointing = Checkpointer(own, 10**9, retention)

    @classmethod
    async def of(
        cls, deployment: Deployment, change_set: ChangeSet, retention: Retention = EVERYTHING
    ) -> "Owner":
        return cls(await acquire_ownership(deployment.archive(change_set), "owner"), retention)

    @classmethod
    async def over(cls, archive: StateLoader, retention: Retention = EVERYTHING) -> "Owner":
        return cls(await acquire_ownership(archive, "owner"), retention)

    async def commit(self, updates: Sequence[Any]) -> int:
        """Have a batch committed; its line."""
        return await (await self.prepared(read_updates(updates)))()

    async def prepared(self, updates: Sequence[AnyUpdate]) -> Callable[[], Awaitable[int]]:
        """Apply a batch to the state, which then waits for its commit; what commits it."""
        state = self.own.state
        sequence = state.control.last_sequence + 1
        done = rebase(graph_of(state), sequence, updates)
        request = RequestId()
        settled = SettledRequest(
            id=request,
            sequence=sequence,
            outcome=RequestOutcome.APPLIED,
            updates=await self.archive.batches.put(request, done.updates),
            corrections=tuple(done.corrections),
        )
        dirty = {"dirty_sequence": sequence} if done.dirty else {}
        return lambda: self.own.write(settled, last_sequence=sequence, **dirty)

    async def checkpoint(self) -> int:
        """Write one, and purge as the retention has it; its commit."""
        await self.checkpointing.write()
        return self.own.state.checkpoint_commit
