"""Read the commit log of a change set, as far back as it is kept."""

from collections import Counter, deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from rebaser_core.commits import (
    Commit,
    CommitV1,
    ControlState,
    RequestOutcome,
    SettledRequest,
)
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery, JetStream, ordered_reader
from rebaser_core.messages import Correction, Inline, UpdatesAddress
from rebaser_core.records import utc_text
from rebaser_core.subjects import Subjects

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A settled request, and its commit."""

    commit: int
    """Sequence of the commit, for `rebaser values --at` and `rebaser revert`."""
    time: datetime
    """When the commit was stored, by the server's clock."""
    request: RequestId
    outcome: RequestOutcome
    author: str | None
    """The author, as the client named it."""
    by: str
    """The Rebaser that settled it."""
    computed: bool
    """Whether it holds the results of a dependent values update."""
    recomputes: bool
    """Whether values have to be recomputed after it."""
    updates: dict[str, int] | None
    """How many of each kind were performed; None if the batch lies beside the log."""
    corrections: tuple[Correction, ...]
    message: str | None
    """Why it is dead or refused."""
    merged: int | None
    """Where a branch takes head's changes over: the last commit of head's log that it has then."""
    standing: str | None
    """Where it closes the change set: applying, applied, abandoned or deleted."""

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for programs."""
        return {
            "commit": self.commit,
            "time": utc_text(self.time),
            "request": str(self.request),
            "outcome": self.outcome.value,
            "author": self.author,
            "by": self.by,
            "computed": self.computed,
            "recomputes": self.recomputes,
            "updates": self.updates,
            "corrections": [correction.to_wire() for correction in self.corrections],
            "message": self.message,
            "merged": self.merged,
            "standing": self.standing,
        }


async def read_log(
    js: JetStream, subjects: Subjects, change_set: ChangeSet, *, after: int = 0, limit: int | None
) -> list[LogEntry]:
    """Return the last `limit` requests settled after commit `after`, or all, oldest first.

    As of a moment after the call. Commits that settle no request (a change of owner, a
    claim) are left out.
    """
    entries: deque[LogEntry] = deque(maxlen=limit)
    reader = ordered_reader(
        js, subjects.commits_stream, subjects.commits(change_set), opt_start_seq=max(after, 1)
    )
    before: ControlState | None = None
    async with reader:
        while (delivery := await reader.next(idle_timeout=0)) is not None:
            commit = Commit.decode(delivery.headers, delivery.payload)
            if commit.handled is not None and delivery.stream_sequence > after:
                entries.append(_log_entry(delivery, commit, commit.handled, before))
            before = commit.control
    return list(entries)


def _log_entry(
    delivery: Delivery, commit: CommitV1, handled: SettledRequest, before: ControlState | None
) -> LogEntry:
    """`before`: the control record that it replaces; None where that is not kept."""
    known = before or commit.control
    return LogEntry(
        commit=delivery.stream_sequence,
        time=delivery.timestamp,
        request=handled.id,
        outcome=handled.outcome,
        author=handled.author,
        by=commit.control.owner.partition("/")[0],
        computed=handled.covers is not None,
        recomputes=commit.control.dirty_sequence == handled.sequence,
        updates=_counts(handled.updates),
        corrections=handled.corrections,
        message=handled.message,
        merged=_new(_cursor(commit.control), _cursor(known)),
        standing=_new(_standing(commit.control), _standing(known)),
    )


def _new(now: T | None, before: T | None) -> T | None:
    return None if now == before else now


def _cursor(control: ControlState) -> int | None:
    return None if control.branch is None else control.branch.cursor


def _standing(control: ControlState) -> str | None:
    return None if control.closing is None else control.closing.standing


def _counts(batch: UpdatesAddress | None) -> dict[str, int] | None:
    if batch is None:
        return {}
    if isinstance(batch, Inline):
        return dict(Counter(update.KIND for update in batch.inline.updates))
    return None
