"""How much of a change set's past is kept: the log goes back to the checkpoint chosen here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from rebaser_server.settings.settings import HistorySettings

CHECKPOINTS_KEY: Final = "checkpoints"
"""Where a checkpoint tells of those before it, in what goes with its graph."""


class CheckpointRef(NamedTuple):
    """A checkpoint that states between it and the next can be restored from."""

    commit: int
    time: float
    """When it was written, in seconds since 1970."""
    entries: int
    """Of the log, between the checkpoint before it and this one."""

    @classmethod
    def read_all(cls, small: dict[str, Any]) -> list[Self]:
        """Those that a checkpoint tells of, oldest first, itself the last."""
        return [cls(*what) for what in small.get(CHECKPOINTS_KEY, ())]


@dataclass(frozen=True, slots=True)
class Retention:
    """What may be kept of the past. The checkpoint before the last is kept in any case."""

    seconds: float
    """The past that is to be kept, unless it is longer than this:"""
    entries: int
    """of the log,"""
    batches: int
    """and of those the ones whose batch is too large for a line."""

    @classmethod
    def of(cls, history: HistorySettings) -> Self:
        """As the settings have it."""
        return cls(history.retention.total_seconds(), history.max_commits, history.max_batches)

    def purge_point(self, kept: Sequence[CheckpointRef], batches: Sequence[int], now: float) -> int:
        """The commit at which the past may begin; 0 for the very first.

        `kept` is oldest first; `batches` are the lines that have a batch elsewhere. The
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
