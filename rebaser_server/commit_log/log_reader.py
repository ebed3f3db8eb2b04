"""The commit log of one change set, read (protocol 4.1)."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from rebaser_core.commits import CommitV1
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import (
    JetStream,
    MessageNotFound,
    PendingReply,
    StoredMessage,
    ordered_reader,
)
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.commit_messages import (
    LogEnd,
    NumberedEntry,
    decode_commit,
    log_end,
    trace_headers_of,
)
from rebaser_server.errors import HistoryInconsistent

_MISSING_AFTER: Final = 5.0  # seconds without a commit until the stream's leader is asked for it
OTHER_PAST: Final = "log and store are of different pasts, as after a restore of one of them"


class CommitLogReader:
    """The commits of a change set, as the leader of the stream has them.

    Every method that reads a commit raises `NeedsNewerVersion` if the commit is of a newer
    version than this build's, and `HistoryInconsistent` if no build can read it.
    """

    def __init__(self, js: JetStream, subjects: Subjects, change_set: ChangeSet) -> None:
        self._js = js
        self._subjects = subjects
        self._stream = subjects.commits_stream
        self._subject = subjects.commits(change_set)

    async def last(self) -> tuple[int, CommitV1 | None]:
        """Return the last commit and its sequence, as the leader has it (S-4), or (0, None)."""
        end = await self.end()
        return end.sequence, end.entry

    async def end(self, known: NumberedEntry | None = None) -> LogEnd:
        """Return the last commit with what its headers say, as the leader has it (S-4).

        `known`: a commit that the log may end with. If it does, nothing is decoded.
        """
        message = await self._js.get_message(self._stream, last_by_subject=self._subject)
        return LogEnd() if message is None else log_end(message, known)

    async def ask_end(self) -> PendingReply[dict[str, Any]]:
        """Ask for the last commit, as `end` does, and return before the answer."""
        return await self._js.request_async(
            f"STREAM.MSG.GET.{self._stream}", {"last_by_subj": self._subject}
        )

    async def answered_end(
        self, asked: PendingReply[dict[str, Any]], known: NumberedEntry | None = None
    ) -> LogEnd:
        """Return what `end` would have, had it been called with `ask_end`."""
        try:
            reply = await asked.result(self._js.timeout)
        except MessageNotFound:
            return LogEnd()
        return log_end(StoredMessage.of(reply["message"]), known)

    async def trace_headers(self, sequence: int) -> Mapping[str, str]:
        """Return the headers of a commit that name a trace; none if it was purged."""
        message = await self._js.get_message(self._stream, sequence=sequence)
        return {} if message is None else trace_headers_of(message)

    async def entry(self, sequence: int) -> CommitV1 | None:
        """Return the commit of that sequence, or None if it was purged."""
        message = await self._js.get_message(self._stream, sequence=sequence)
        if message is None or message.subject != self._subject:
            return None
        return decode_commit(message)

    async def require_readable(self) -> None:
        """Raise `HistoryInconsistent` if the log has commits, and its last one cannot be read.

        If the last one's checksum is wrong, NATS answers as if there were none, and stores
        another first commit.
        """
        subjects = await self._js.stream_subjects(self._stream, self._subject)
        if subjects and (await self.last())[1] is None:
            raise HistoryInconsistent(
                f"{self._subject}: the log has commits, but its last one cannot be read: a file of "
                f"{self._stream} is damaged"
            )

    async def oldest(self) -> CommitV1 | None:
        """Return the oldest commit that was not purged: the past begins at its `previous`."""
        message = await self._js.get_message(
            self._stream, sequence=1, next_by_subject=self._subject
        )
        return None if message is None else decode_commit(message)

    async def entries(self, after: int, until: int) -> AsyncIterator[tuple[int, CommitV1]]:
        """Yield the commits after sequence `after` up to and including `until`.

        Raises:
            HistoryInconsistent: the first of them does not follow `after`, or one is missing
                or of another past (S-6), or the log ends before `until`.
            MessagesMissed: the leader has a commit that for 15 s no consumer delivered, as where
                the consumers' server has lost it.
        """
        if until <= after:
            return
        previous = after
        reader = ordered_reader(self._js, self._stream, self._subject, opt_start_seq=after + 1)
        async with reader:
            while previous < until:
                delivery = await reader.next(idle_timeout=_MISSING_AFTER)
                if delivery is None:
                    raise HistoryInconsistent(
                        f"{self._subject}: ends at {previous}, not at {until}"
                    )
                entry = decode_commit(delivery)
                if entry.previous != previous:
                    raise HistoryInconsistent(
                        f"{self._subject}: commit {delivery.stream_sequence} follows commit "
                        f"{entry.previous}, but the state ends at commit {previous}: "
                        + ("commits are missing" if entry.previous > previous else OTHER_PAST)
                    )
                if delivery.stream_sequence > until:
                    return
                previous = delivery.stream_sequence
                yield previous, entry
