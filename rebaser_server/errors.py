"""Why work on a change set ended before it was quiet, and what becomes of its task then.

RebaserError
├── OpsNotStarted       the ops endpoint cannot listen where it was told to
├── NotRetained         the past that was asked for is not kept any more, or not there yet
├── BackgroundEnded     work beside a body ended before it: a fault of ours; what it served ends
└── WorkEnded
    ├── LeaseLost       the task may be another's by now: settle nothing (W15)
    ├── Overtaken       another run owns the change set: settle nothing (W15)
    ├── Interrupted     told to stop; everything stored is sound: give the task back
    ├── SlotWanted      idle, and tasks are waiting: be quiet early
    ├── Resumed         not paused any more: go on
    ├── Cancelled       the update in hand is not wanted now: it stays due
    ├── RetryLater      the first request in line could not be handled yet
    │   └── LeftForNewer  only a newer Rebaser can read what is there
    └── HistoryBroken   log and checkpoint do not fit together: a person must look

JetStreamError
└── Unwritten           a line of the commit log was refused
"""

from collections.abc import Sequence
from typing import Final

from rebaser_core.errors import NewerVersion, RebaserError
from rebaser_core.jetstream import JetStreamError

NEWER_DELAY: Final = 30.0  # seconds until what only a newer Rebaser reads is offered again


class NotRetained(RebaserError):
    """There is no state of that commit to be had."""


class BackgroundEnded(RebaserError):
    """Work that never ends by itself returned, or was cancelled, while a body relied on it."""


class OpsNotStarted(RebaserError):
    """The ops endpoint cannot be had as the settings want it; the message says why."""


class RunEnded(RebaserError):
    """Work on a change set ended early."""


class LeaseLost(RunEnded):
    """No sign of life was confirmed for the whole of the lease."""


class Fenced(RunEnded):
    """The commit log shows another owner. Whatever this run still holds is worthless."""


class Interrupted(RunEnded):
    """A stop was asked for at a moment when nothing was half done."""


class Preempted(RunEnded):
    """The change set is idle and another one waits for its slot."""


class Resumed(RunEnded):
    """The change set was resumed while a run was winding up."""


class DvuCancelled(RunEnded):
    """An operator stopped the dependent values update in hand."""


class GraceExceeded(RunEnded):
    """Work in hand took longer than the grace period; it was dropped and is redelivered."""


class RetryLater(RunEnded):
    """A request stays first in line; its task comes again after `delay` seconds.

    Without a `delay` ever later, the more often it was delivered.
    """

    def __init__(self, reason: str, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class NeedsNewerVersion(RetryLater):
    """A request or a line of the log is of a newer version; this build leaves all as it is."""

    def __init__(self, error: NewerVersion) -> None:
        super().__init__(f"left for a newer server: {error}", NEWER_DELAY)


class HistoryInconsistent(RunEnded):
    """The commit log has a hole after the last checkpoint, or requests went back in sequence.

    Nothing was touched. The store or the stream was probably restored from a backup.
    """


class AppendRefused(JetStreamError):
    """A line was not stored, for another reason than another's line; those before it were.

    Why is the `__cause__`. None of the lines behind it is stored either.
    """

    def __init__(self, sequences: Sequence[int], error: Exception) -> None:
        """`sequences`: of the lines before it."""
        super().__init__(f"line not stored: {type(error).__name__}: {error}")
        self.sequences = sequences
