"""A state of a change set with what was read for it."""

from dataclasses import dataclass, field

from rebaser_core.commits import CommitV1
from rebaser_server.commit_log.retention import CheckpointRef
from rebaser_server.commit_log.state import State


@dataclass(slots=True)
class LoadedState:
    """A state, and how much of the log went into it."""

    state: State
    checkpoint: int
    """Commit of the checkpoint that it started from; 0 for none."""
    entries: int = 0
    """Commits that were replayed after the checkpoint."""
    settled_requests: int = 0
    """Those of them that settle a request."""
    checkpoints: list[CheckpointRef] = field(default_factory=list)
    """Checkpoints that the past can be restored from, oldest first, the last one included."""
    size: int = 0
    """Bytes of memory as last measured, more or less; 0: not measured."""
    unmeasured: int = 0
    """Requests settled since then."""
    released_by: CommitV1 | None = None
    """The commit that the state ends with, where a run of this process released it."""
    damage: str = ""
    """Why a later checkpoint could not be read; empty if there is none. The log made up for it."""
