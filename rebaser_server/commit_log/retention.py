"""How much of a change set's past is kept: the log goes back to the checkpoint chosen here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from rebaser_server.settings.settings import HistorySettings

CHECKPOINTS_KEY: Final = "checkpoints"
"""Key under which a checkpoint's metadata lists the checkpoints before it."""


class CheckpointRef(NamedTuple):
    """A kept checkpoint: every state between it and the next one can be loaded from it."""

    commit: int
    time: float
    """When it was written: seconds since 1970."""
    entries: int
    """Number of commits between the checkpoint before it and this one."""

    @classmethod
    def read_all(cls, small: dict[str, Any]) -> list[Self]:
        """Read the checkpoints that a checkpoint's metadata lists: oldest first, itself last."""
        return [cls(*what) for what in small.get(CHECKPOINTS_KEY, ())]


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of the past is kept. The checkpoint before the last is always kept."""

    seconds: float
    """How long the past is kept, unless it exceeds one of these two:"""
    entries: int
    """number of commits,"""
    batches: int
    """number of commits whose batch is too large to be inline."""

    @classmethod
    def of(cls, history: HistorySettings) -> Self:
        """Build it from the settings."""
        return cls(history.retention.total_seconds(), history.max_commits, history.max_batches)

    def purge_point(self, kept: Sequence[CheckpointRef], batches: Sequence[int], now: float) -> int:
        """Return the commit at which the past may begin; 0 for the very first.

        `kept` is oldest first; `batches` are the commits whose batch is not inline. The
        checkpoint before the last is the latest there can be: a store that loses its last
        write, for want of an fsync, must still meet a log that goes back far enough.
        """
        latest = len(kept) - 2
        old = [index for index in range(latest + 1) if kept[index].time <= now - self.seconds]
        first = max(old, default=-1)
        while first < latest and self._is_long(kept, first, batches):
            first += 1
        return kept[first].commit if first >= 0 else 0

    def _is_long(self, kept: Sequence[CheckpointRef], first: int, batches: Sequence[int]) -> bool:
        commit = kept[first].commit if first >= 0 else 0
        lines = sum(checkpoint.entries for checkpoint in kept[first + 1 :])
        return lines > self.entries or sum(entry > commit for entry in batches) > self.batches
