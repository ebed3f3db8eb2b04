"""What the commit log asks of an application: contents to replay commits on, and checkpoints."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from rebaser_core.commits import CommitV1
from rebaser_core.ids import ChangeSet, ChangeSetId
from rebaser_server.commit_log.content import Checkpoint, Content
from rebaser_server.commit_log.state import State

LoadState = Callable[[ChangeSetId, int], Awaitable[State]]
"""Loads another change set of the workspace as of a commit. Raises `NotRetained`."""


class Snapshot(Protocol):
    """What a checkpoint writes: taken from a state at one moment, written later."""

    @property
    def commit(self) -> int: ...

    def __len__(self) -> int:
        """Rows that it writes."""


class StateMachine(Protocol):
    """Makes contents, and keeps checkpoints of them in the shared store.

    The calls about checkpoints block; the core makes them in threads.
    """

    def empty(self) -> Content:
        """Of a change set without commits."""

    async def initial(self, first: CommitV1 | None, load: LoadState) -> Content:
        """The content before the first commit; of a branch what it was forked from.

        Args:
            first: the oldest commit that the log has; None for none.
            load: reads the change set that a branch was forked from.
        """
        del first, load
        return self.empty()

    def require_sound(self, state: State) -> None:
        """Raise `HistoryInconsistent` if a loaded state lacks what its commits rely on."""

    def load(self, change_set: ChangeSet, at: int | None = None) -> Checkpoint | None:
        """The last checkpoint, or the last at or before commit `at`; None if there is none.

        Raises:
            StoreDamaged: it is not what was written.
            OSError: the store cannot be read now.
        """

    def metadata(self, change_set: ChangeSet) -> dict[str, Any] | None:
        """The metadata of the last checkpoint alone. Raises as `load`."""

    def is_checkpoint_due(self, state: State) -> bool:
        """Whether so much has changed since the last checkpoint that loading would take long."""
        del state
        return False

    def footprint(self, state: State) -> int:
        """Bytes of memory that the state takes, more or less."""
        del state
        return 0

    def take(self, state: State, metadata: dict[str, Any], *, whole: bool) -> Snapshot:
        """What changed since the last call, or everything."""

    def save(self, change_set: ChangeSet, snapshot: Snapshot) -> None:
        """Write a snapshot whole or not at all, once however often it is called.

        Raises:
            OSError: the store failed. It may hold the snapshot or not.
        """

    def put_back(self, state: State, snapshot: Snapshot) -> None:
        """Have the next snapshot hold what this one, which was not written, holds."""

    def on_purge(self, change_set: ChangeSet, commit: int) -> None:
        """The log was purged: checkpoints before that of `commit` are not needed any more."""
