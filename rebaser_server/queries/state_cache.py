"""The cache of change sets' states for the next query: the most recently used ones.

Read a change set's state from its log and checkpoint, without owning it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_core.streams import Streams
from rebaser_server.commit_log.batch_store import open_batch_store
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import LoadedState, State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import (
    GraphStateMachine,
    footprint,
    open_checkpoints,
)
from rebaser_server.runtime.tasks import compute_in_turn
from rebaser_server.settings.settings import Settings
from rebaser_server.values.graph import Graph


def open_state_loader(js: JetStream, settings: Settings, change_set: ChangeSet) -> StateLoader:
    """Return a loader of the change set; the store must be the daemons' own."""
    streams = Streams(settings.nats.prefix, js=js)
    return StateLoader(
        change_set,
        CommitLog(streams, change_set),
        open_batch_store(streams, settings),
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


OpenLoader = Callable[[ChangeSet], StateLoader]

MIN_SIZE: Final = 16 * 1024
"""Bytes that a reader takes at the least, whatever it reads."""


@dataclass(slots=True)
class _CacheEntry:
    reader: CachedState
    size: int = MIN_SIZE
    commit: int = -1
    """The one that `size` was measured at."""


class StateCache:
    """The states by change set, as many as fit into `max_bytes`.

    A larger state is loaded for each query and dropped after it; so is the state of a change set
    without commits.
    """

    def __init__(self, open_loader: OpenLoader, max_bytes: int) -> None:
        self._open_loader = open_loader
        self._max_bytes = max_bytes
        self._entries: OrderedDict[ChangeSet, _CacheEntry] = OrderedDict()
        """The most recently used one is the last."""
        self._total = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, change_set: ChangeSet) -> bool:
        return change_set in self._entries

    @property
    def total(self) -> int:
        """Bytes that they take, more or less."""
        return self._total

    @asynccontextmanager
    async def state_of(self, change_set: ChangeSet) -> AsyncIterator[State]:
        """Return the state as of the last commit; the body has it to itself.

        Raises as `CachedState.state`.
        """
        entry = self._entries.get(change_set) or _CacheEntry(
            CachedState(self._open_loader(change_set))
        )
        self._drop(change_set)
        self._add(change_set, entry)
        async with entry.reader.lock:
            try:
                state = await entry.reader.state()
            except BaseException:
                self._drop(change_set, entry)
                raise
            if state.commit and entry.commit != state.commit:
                workspace = str(change_set.workspace_id)
                size = await compute_in_turn(workspace, footprint, state)
                self._resize(change_set, entry, MIN_SIZE + size, state.commit)
            elif not state.commit:
                self._drop(change_set, entry)
            yield state

    def _resize(self, change_set: ChangeSet, entry: _CacheEntry, size: int, commit: int) -> None:
        if self._entries.get(change_set) is not entry:
            return  # other entries evicted it meanwhile
        self._drop(change_set)
        entry.size, entry.commit = size, commit
        self._add(change_set, entry)
        while self._total > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _add(self, change_set: ChangeSet, entry: _CacheEntry) -> None:
        self._entries[change_set] = entry
        self._total += entry.size

    def _drop(self, change_set: ChangeSet, only: _CacheEntry | None = None) -> None:
        entry = self._entries.get(change_set)
        if entry is not None and only in (None, entry):
            del self._entries[change_set]
            self._total -= entry.size
