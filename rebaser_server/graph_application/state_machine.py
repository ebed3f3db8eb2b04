"""The contents of change sets: loaded, measured in memory, and their tables compacted.

Contents are loaded from the place where a branch was forked, and from Delta tables. `footprint`
estimates the memory of a change set's state. `TableMaintenance` compacts tables in the background,
one at a time in each process.
"""

import asyncio
import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final, Never

import structlog

from rebaser_core.commits import CommitV2
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_core.streams import Streams
from rebaser_core.updates import PutValue
from rebaser_server.commit_log.batch_store import open_batch_store
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import (
    Checkpoint,
    CheckpointRef,
    LoadState,
    Snapshot,
    State,
    StateMachine,
)
from rebaser_server.commit_log.state_loader import StateCache, StateLoader
from rebaser_server.errors import HistoryInconsistent, NotRetained
from rebaser_server.graph_application.content import (
    BranchOrigin,
    GraphContent,
    content_of,
    graph_of,
)
from rebaser_server.runtime.containment import contained
from rebaser_server.settings.settings import Settings, StoreSettings
from rebaser_server.store.checkpoints import (
    CheckpointChanges,
    Checkpoints,
    restore_touched,
    take_changes,
)
from rebaser_server.store.compaction import compact
from rebaser_server.values.edits import Edits
from rebaser_server.values.graph import Graph

_ITEM: Final = 100
"""Estimated bytes of an item in a list or a dictionary."""
_REQUEST: Final = 175
"""Bytes of a remembered request."""
_EDIT: Final = 2_000
"""Bytes of a branch's edit in addition to its values: three definitions, of branch, base and
head."""
_LEVELS: Final = 3
"""Levels of objects from a graph to its arrays."""


def footprint(state: State) -> int:
    """Bytes of a state: exact for what is large, arrays and texts, and a guess for the rest."""
    size = _graph(graph_of(state))
    size += _REQUEST * len(state.recent) + _ITEM * len(state.external_batches)
    edits = content_of(state).edits
    if edits is not None:
        size += _EDIT * (len(edits.values) + len(edits.funcs))
        size += sum(map(_value, edits.theirs.values()))
        size += sum(_value(edit.base) for edit in edits.values.values())
    return size


def _graph(graph: Graph) -> int:
    return _of(graph, _LEVELS, {id(graph)})


def _of(thing: Any, levels: int, seen: set[int]) -> int:
    """Bytes of an array, of texts, or of all parts of an object of ours."""
    if isinstance(thing, memoryview):
        return 0  # a view of an array that is counted
    if isinstance(thing, array):
        return thing.itemsize * len(thing)
    if isinstance(thing, dict | list | set):
        return sys.getsizeof(thing) + _ITEM * len(thing)
    nbytes = getattr(thing, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    if not levels or not type(thing).__module__.startswith(Graph.__module__.rpartition(".")[0]):
        return 0
    parts = [part for part in _parts(thing) if id(part) not in seen]
    seen.update(map(id, parts))
    return sum(_of(part, levels - 1, seen) for part in parts)


def _parts(thing: Any) -> Iterable[Any]:
    yield from getattr(thing, "__dict__", {}).values()
    for kind in type(thing).__mro__:
        for name in getattr(kind, "__slots__", ()):
            yield getattr(thing, name, None)


def _value(put: PutValue | None) -> int:
    """Bytes of the content in a definition, if it is text; else a guess."""
    value = None if put is None else put.value
    return sys.getsizeof(value) if isinstance(value, str | list | dict) else 0


log: Final = structlog.get_logger()


class TableMaintenance:
    """The queue of change sets whose table may need compaction. It needs no ownership of them.

    A table that is still queued when the process ends is scheduled again by the next checkpoint.
    """

    def __init__(self, checkpoints: Checkpoints, keep_replaced: float) -> None:
        """Compact tables; replaced files stay `keep_replaced` seconds for readers that use them."""
        self.checkpoints = checkpoints
        self._keep_replaced = keep_replaced
        self._scheduled: OrderedDict[ChangeSet, int] = OrderedDict()
        self._wakeup = asyncio.Event()

    def schedule(self, change_set: ChangeSet, start: int) -> None:
        """Queue the table for compaction, which may drop states before commit `start`."""
        self._scheduled[change_set] = start
        self._wakeup.set()

    async def run(self) -> Never:
        """Compact the queued tables until cancelled; log each failure of the store."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._scheduled:
                change_set, start = self._scheduled.popitem(last=False)
                with contained("table", change_set=change_set):
                    await self._compact(change_set, start)

    async def _compact(self, change_set: ChangeSet, start: int) -> None:
        try:
            done = await asyncio.to_thread(
                compact, self.checkpoints, change_set, start, self._keep_replaced
            )
        except OSError as error:
            log.warning("table compaction failed", change_set=str(change_set), error=str(error))
        else:
            if done:
                log.info("table compacted", change_set=str(change_set), what=done)


MIN_CHANGED_VALUES: Final = 50_000
"""Number of changed values after which a checkpoint is due, if they are also `_CHANGED_PART` of
all: to replay a value from the log takes some fifty times as long as to load it."""

_CHANGED_PART: Final = 16
"""Reciprocal of the part of all values that has to be changed."""


class GraphStateMachine(StateMachine):
    def __init__(
        self, checkpoints: Checkpoints, maintenance: TableMaintenance | None = None
    ) -> None:
        """Load from tables, which `maintenance` compacts behind checkpoints, if it is given."""
        self.checkpoints = checkpoints
        self._maintenance = maintenance

    def empty(self) -> GraphContent:
        return GraphContent()

    async def initial(self, first: CommitV2 | None, load: LoadState) -> GraphContent:
        if first is None or first.previous or first.control.branch is None:
            return GraphContent()
        branch = first.control.branch
        base = branch.base
        try:
            parent = await load(base.change_set_id, base.commit)
        except NotRetained as error:
            return GraphContent(edits=Edits(), origin=BranchOrigin(0, str(error)))
        closing = parent.control.closing
        if closing is not None and closing.reason is not None:  # the parent lost its own base
            return GraphContent(edits=Edits(), origin=BranchOrigin(0, closing.reason))
        content, cursor = content_of(parent), parent.commit
        if base.change_set_id != branch.head:  # a branch's branch has its edits and its cursor
            cursor = content.cursor(parent.control)
        code = parent.code or (content.origin.code if content.origin else "")
        origin = BranchOrigin(cursor, code=code)
        return GraphContent(content.graph, content.edits or Edits(), origin)

    def require_sound(self, state: State) -> None:
        """Raise `HistoryInconsistent` if a branch has commits and its base is lost."""
        control, origin = state.control, content_of(state).origin
        lost = origin and origin.lost
        if lost and control.branch and control.branch.cursor is not None and not control.closing:
            raise HistoryInconsistent(f"a branch without a checkpoint has lost its base: {lost}")

    def load(self, change_set: ChangeSet, at: int | None = None) -> Checkpoint | None:
        loaded = self.checkpoints.load(change_set, at)
        if loaded is None:
            return None
        content = GraphContent.from_checkpoint(loaded.graph, loaded.metadata)
        return Checkpoint(loaded.commit, loaded.metadata, content, loaded.damage)

    def metadata(self, change_set: ChangeSet) -> dict[str, Any] | None:
        return self.checkpoints.metadata(change_set)

    def kept_metadata(self, change_set: ChangeSet, since: int) -> list[bytes]:
        heads = self.checkpoints.heads(change_set)
        return [head.metadata for head in heads if head.commit >= since]

    def is_checkpoint_due(self, state: State) -> bool:
        graph = graph_of(state)
        return len(graph.touched) >= max(MIN_CHANGED_VALUES, len(graph.values) // _CHANGED_PART)

    def footprint(self, state: State) -> int:
        return footprint(state)

    def take(self, state: State, metadata: dict[str, Any], *, whole: bool) -> CheckpointChanges:
        metadata = {**content_of(state).metadata(state.control), **metadata}
        before = CheckpointRef.read_all(metadata)[:-1]
        base = before[-1].commit if before and not whole else 0
        return take_changes(graph_of(state), state.commit, metadata, whole=whole, base=base)

    def save(self, change_set: ChangeSet, snapshot: Snapshot) -> None:
        self.checkpoints.save(change_set, _changes(snapshot))

    def put_back(self, state: State, snapshot: Snapshot) -> None:
        restore_touched(graph_of(state), _changes(snapshot))

    async def on_purge(self, change_set: ChangeSet, commit: int) -> None:
        if self._maintenance is not None:
            self._maintenance.schedule(change_set, commit)


def open_state_loader(
    js: JetStream, settings: Settings, change_set: ChangeSet, cache: StateCache | None = None
) -> StateLoader:
    """Return a loader of the change set; the store must be the daemons' own.

    `cache` keeps states that were read (default: none is kept).
    """
    streams = Streams(settings.nats.prefix, js=js)
    return StateLoader(
        change_set,
        CommitLog(streams, change_set),
        open_batch_store(streams, settings),
        GraphStateMachine(open_checkpoints(settings.store)),
        StateCache() if cache is None else cache,
    )


def open_checkpoints(store: StoreSettings) -> Checkpoints:
    return Checkpoints(store.root, store.options)


def checkpoints_of(loader: StateLoader) -> Checkpoints:
    if not isinstance(loader.machine, GraphStateMachine):
        raise TypeError(f"{type(loader.machine).__name__} keeps no tables of graphs")
    return loader.machine.checkpoints


def _changes(snapshot: Snapshot) -> CheckpointChanges:
    if not isinstance(snapshot, CheckpointChanges):
        raise TypeError(f"{type(snapshot).__name__} is no snapshot of a graph")
    return snapshot
