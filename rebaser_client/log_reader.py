"""Read the commit log of a change set, as far back as it is kept."""

from collections import Counter, deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rebaser_core.commits import Commit, CommitV1, RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery, JetStream, ordered_reader
from rebaser_core.messages import Correction, Inline, UpdatesAddress
from rebaser_core.records.registry_records import utc_text
from rebaser_core.subjects import Subjects


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
        js, subjects.commits_stream, subjects.commits(change_set), opt_start_seq=after + 1
    )
    async with reader:
        while (delivery := await reader.next(idle_timeout=0)) is not None:
            commit = Commit.decode(delivery.headers, delivery.payload)
            if commit.handled is not None:
                entries.append(_log_entry(delivery, commit, commit.handled))
    return list(entries)


def _log_entry(delivery: Delivery, commit: CommitV1, handled: SettledRequest) -> LogEntry:
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
    )


def _counts(batch: UpdatesAddress | None) -> dict[str, int] | None:
    if batch is None:
        return {}
    if isinstance(batch, Inline):
        return dict(Counter(update.KIND for update in batch.inline.updates))
    return None
