"""Read a change set's state from its log and checkpoint, without owning it."""

import asyncio

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.batch_store import open_batch_store
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import LoadedState, State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import GraphStateMachine, open_checkpoints
from rebaser_server.settings.settings import Settings
from rebaser_server.values.graph import Graph


def open_state_loader(js: JetStream, settings: Settings, change_set: ChangeSet) -> StateLoader:
    """Return a loader of the change set; the store must be the daemons' own."""
    subjects = Subjects(settings.nats.prefix)
    return StateLoader(
        change_set,
        CommitLog(js, subjects, change_set),
        open_batch_store(js, subjects, settings),
        GraphStateMachine(open_checkpoints(settings.store)),
    )


class CachedState:
    """The state of one change set; each read costs what was committed since the last one."""

    def __init__(self, loader: StateLoader) -> None:
        self._archive = loader
        self._loaded: LoadedState | None = None
        self.lock = asyncio.Lock()
        """Tasks that share the state hold it from before a read until they are done with it."""

    async def graph(self) -> Graph:
        """The values as of the last line that the log has now."""
        return graph_of(await self.state())

    async def state(self) -> State:
        """Return the state as of the last commit; the next read changes it.

        Raises:
            HistoryInconsistent: log and store contradict each other, or belong to different
                deployments.
        """
        loaded, self._loaded = self._loaded, None  # cancelled or failed, it is worthless
        if loaded is not None:
            loaded = await self._catch_up(loaded)
        self._loaded = loaded or await self._archive.load()
        return self._loaded.state

    async def _catch_up(self, loaded: LoadedState) -> LoadedState | None:
        """Replay what was committed since onto `loaded`; None if it is of no use any more."""
        until, last = await self._archive.log.last()
        if until == loaded.state.commit and (
            last is not None and last.id != loaded.state.commit_id
        ):
            return None  # NATS was restored since the last look
        try:
            await self._archive.catch_up(loaded, until)
        except HistoryInconsistent:  # purged since the last look
            return None
        return loaded
