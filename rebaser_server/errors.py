"""Errors that end a change set's run before it is idle, and what happens to its task then.

RebaserError
├── DeploymentInconsistent  NATS and store, or the streams, are not of one deployment
├── StoreNotKnown       no setting, no id and no Rebaser tells where the store is
├── OpsNotStarted       the ops endpoint cannot listen where the settings want it
├── MissingBatch        a batch is not where a request or a commit says
├── NotRetained         the past that was asked for is not kept, or not there yet
├── NotABranch          the change set has no head to differ from
├── NotRevertible       the commit changed nothing that could be reverted
├── BackgroundEnded     work beside a body ended before it: a fault of ours; what it served ends
└── RunEnded
    ├── LeaseLost       the task may be another's by now: settle nothing (W15)
    ├── Fenced          another run owns the change set: settle nothing (W15)
    ├── Interrupted     a stop was asked for; everything stored is sound: give the task back
    ├── Preempted       idle, and tasks are waiting: end early
    ├── Resumed         a pause is over: go on
    ├── WorkStopped     NATS would lose or refuse commits: begin nothing until that is mended
    ├── DvuCancelled    the update in hand is not wanted now: it stays due
    ├── GraceExceeded   work in hand took longer than the grace period
    ├── RetryLater      the first request in line could not be handled yet
    │   └── NeedsNewerVersion  only a newer Rebaser can read what is there
    └── HistoryInconsistent    log and checkpoint do not fit together: a person must look

A JetStreamError, too, is AppendRefused: the commit log refused a commit.
"""

from collections.abc import Sequence
from typing import Final

from rebaser_core.errors import NewerVersion, RebaserError
from rebaser_core.jetstream import JetStreamError


class DeploymentInconsistent(RebaserError):
    """NATS and the store, or the streams, are not of one deployment: a person must look.

    Nothing was touched.
    """


class StoreNotKnown(RebaserError):
    """The store is not known: neither settings nor Rebasers name it. It was not read."""


class MissingBatch(RebaserError):
    """The address leads to no batch."""


class NotRetained(RebaserError):
    """The state of that commit cannot be loaded."""


class NotABranch(RebaserError):
    """The change set has no head to differ from."""


class NotRevertible(RebaserError):
    """The commit changed no definition, so it cannot be reverted."""


class BackgroundEnded(RebaserError):
    """A background task that never ends by itself returned, or was cancelled, before its body."""


class OpsNotStarted(RebaserError):
    """The ops endpoint cannot start with these settings; the message says why."""


class RunEnded(RebaserError):
    """The run of a change set ended early."""


class LeaseLost(RunEnded):
    """The lease may be over: no progress report was confirmed for the whole of it."""


class Fenced(RunEnded):
    """The commit log shows another owner. The state that this run holds is worthless."""


class Interrupted(RunEnded):
    """A stop was asked for while nothing was half done."""


class Preempted(RunEnded):
    """The change set is idle, and another one waits for its slot."""


class Resumed(RunEnded):
    """The change set was resumed while its run was draining for a pause."""


class WorkStopped(RunEnded):
    """NATS would lose or refuse new commits; committed ones are not touched."""


class DvuCancelled(RunEnded):
    """An operator cancelled the current dependent values update."""


class GraceExceeded(RunEnded):
    """The run took longer than the grace period; it was cancelled, and its task is redelivered."""


class RetryLater(RunEnded):
    """A request stays at the head of the queue; the task is redelivered after `delay` seconds.

    Without a `delay`, the wait grows with the number of deliveries.
    """

    def __init__(self, reason: str, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class NeedsNewerVersion(RetryLater):
    """A request or a commit is of a newer version; this build changes nothing."""

    def __init__(self, error: NewerVersion) -> None:
        super().__init__(f"left for a newer server: {error}")


class HistoryInconsistent(RunEnded):
    """The commit log has a hole after the last checkpoint, or requests went back in sequence.

    Nothing was touched. The store or the stream was probably restored from a backup.
    """


class LogGone(HistoryInconsistent):
    """The commit log begins anew, or has nothing, though the change set has values.

    NATS dropped it, as where a person changes the stream's retention.
    """

    def __init__(self, change_set: str, commit: int) -> None:
        """`commit`: the one as of which the values are known."""
        super().__init__(
            f"{change_set}: NATS has dropped the log; the values as of commit {commit} are left"
        )


class AppendRefused(JetStreamError):
    """The server refused a commit, though no other run wrote one; those before it are stored.

    The commits after it are not stored.
    """

    def __init__(self, sequences: Sequence[int], error: Exception) -> None:
        """Note the `sequences` of the commits before it, and the error."""
        super().__init__(f"commit not stored: {type(error).__name__}: {error}")
        self.sequences = sequences
        self.reason: Final = error
