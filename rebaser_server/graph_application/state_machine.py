"""Contents of change sets, loaded from where a branch was forked and from Delta tables."""

from typing import Any, Final

from rebaser_core.commits import CommitV1
from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.state import Checkpoint, CheckpointRef, LoadState, Snapshot, State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import HistoryInconsistent, NotRetained
from rebaser_server.graph_application.content import (
    BranchOrigin,
    GraphContent,
    content_of,
    graph_of,
)
from rebaser_server.graph_application.memory_footprint import footprint
from rebaser_server.graph_application.table_maintenance import TableMaintenance
from rebaser_server.settings.settings import StoreSettings
from rebaser_server.store.checkpoints import (
    CheckpointChanges,
    Checkpoints,
    restore_touched,
    take_changes,
)
from rebaser_server.values.edits import Edits

MIN_CHANGED_VALUES: Final = 50_000
"""A checkpoint is due after so many values changed, if they are also `CHANGED_PART` of all: to
replay a value from the log takes some fifty times as long as to load it."""

CHANGED_PART: Final = 16
"""The part of all values that has to be changed: one sixteenth."""


class GraphStateMachine:
    """A `StateMachine` whose contents are `GraphContent`."""

    def __init__(
        self, checkpoints: Checkpoints, maintenance: TableMaintenance | None = None
    ) -> None:
        """`maintenance`: compacts tables behind checkpoints (default: nothing does)."""
        self.checkpoints = checkpoints
        self._maintenance = maintenance

    def empty(self) -> GraphContent:
        return GraphContent()

    async def initial(self, first: CommitV1 | None, load: LoadState) -> GraphContent:
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
        return GraphContent(content.graph, content.edits or Edits(), BranchOrigin(cursor))

    def require_sound(self, state: State) -> None:
        """Raise `HistoryInconsistent` if a branch has commits of its own and its base is lost."""
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

    def is_checkpoint_due(self, state: State) -> bool:
        graph = graph_of(state)
        return len(graph.touched) >= max(MIN_CHANGED_VALUES, len(graph.values) // CHANGED_PART)

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

    def on_purge(self, change_set: ChangeSet, commit: int) -> None:
        if self._maintenance is not None:
            self._maintenance.schedule(change_set, commit)


def open_checkpoints(store: StoreSettings) -> Checkpoints:
    """Return the tables of the store, as the settings say; makes no request."""
    return Checkpoints(store.root, store.options)


def checkpoints_of(loader: StateLoader) -> Checkpoints:
    """The tables that a loader of this application reads."""
    if not isinstance(loader.machine, GraphStateMachine):
        raise TypeError(f"{type(loader.machine).__name__} keeps no tables of graphs")
    return loader.machine.checkpoints


def _changes(snapshot: Snapshot) -> CheckpointChanges:
    if not isinstance(snapshot, CheckpointChanges):
        raise TypeError(f"{type(snapshot).__name__} is no snapshot of a graph")
    return snapshot
