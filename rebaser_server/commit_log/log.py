"""The commit log of one change set: append under compare-and-swap, read, purge (protocol 4.1)."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from rebaser_core.commits import CommitV1
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import (
    ApiError,
    JetStream,
    JetStreamError,
    NatsUnreachable,
    Unsendable,
    WrongLastSequence,
    ordered_reader,
)
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.commit_messages import (
    UNSAVED,
    ExtraHeaders,
    LogEnd,
    decode_commit,
    publish_options,
    trace_headers_of,
)
from rebaser_server.errors import AppendRefused, Fenced, HistoryInconsistent, NeedsNewerVersion

MAX_PIPELINE_DEPTH: Final = 64
"""Commits that are sent and not yet confirmed by the stream."""

OTHER_PAST: Final = "log and store are of different pasts, as after a restore of one of them"

_NO_EXTRA_HEADERS: Final[ExtraHeaders] = {}
_RETRY_DELAY: Final = 0.2  # seconds between tries of an append whose outcome is unknown


class CommitLog:
    """The fence and the truth: of two runs that believe they own a change set, one can append.

    Every method that reads a commit raises `NeedsNewerVersion` if the commit is of a newer
    version than this build's, and `HistoryInconsistent` if no build can read it.
    """

    def __init__(self, js: JetStream, subjects: Subjects, change_set: ChangeSet) -> None:
        self._js = js
        self._subjects = subjects
        self._stream = subjects.commits_stream
        self._subject = subjects.commits(change_set)
        self._may_pipeline = True
        """Whether a commit may be sent before the one before it is confirmed, as far as known."""
        self._undisturbed = 0
        """Number of our last commits with no other change set's commit between them."""

    def sibling(self, change_set: ChangeSet) -> "CommitLog":
        """Return the log of another change set."""
        return CommitLog(self._js, self._subjects, change_set)

    async def last(self) -> tuple[int, CommitV1 | None]:
        """Return the last commit and its sequence, as the leader has it (S-4), or (0, None)."""
        end = await self.end()
        return end.sequence, end.entry

    async def end(self) -> LogEnd:
        """Return the last commit with what its headers say, as the leader has it (S-4)."""
        message = await self._js.get_message(self._stream, last_by_subject=self._subject)
        if message is None:
            return LogEnd()
        unsaved = UNSAVED in message.headers
        return LogEnd(message.sequence, decode_commit(message), trace_headers_of(message), unsaved)

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

    @property
    def max_batch_bytes(self) -> int:
        """Octets that an inline batch may take in a commit: half of the commit."""
        return self._js.message_limits.max_payload_for(self._subject) // 2

    @property
    def pipeline_depth(self) -> int:
        """How many commits one `append` may usefully write at this moment.

        It grows while no other run writes to the stream, and is 1 after another one wrote. It
        stays 1 where the stream has replicas: there the server refuses a commit while the
        replicas agree on the one before it.
        """
        return min(1 + self._undisturbed // 4, MAX_PIPELINE_DEPTH) if self._may_pipeline else 1

    async def append(
        self, entries: Sequence[CommitV1], extra_headers: ExtraHeaders = _NO_EXTRA_HEADERS
    ) -> list[int]:
        """Append the commits `entries` after `entries[0].previous`; return their sequences.

        If the server's answer is lost, the append is repeated until the server answers or
        the caller cancels. After a cancellation the log has the first few of them, or none.

        Raises:
            Fenced: another run's commit came first, perhaps after the first few of ours;
                the others are not in the log.
            AppendRefused: the server refused one of them.
        """
        first, last = entries[0].previous + 1, entries[0].previous + len(entries)
        if len(entries) > 1 and await self._append_pipelined(entries, extra_headers):
            sequences = [*range(first, last + 1)]
        else:
            sequences = await self._append_sequentially(entries, extra_headers)
            if sequences[-1] == last and len(entries) > 1:  # refused, though no other run wrote
                self._may_pipeline = False
        self._undisturbed = self._undisturbed + len(entries) if sequences[-1] == last else 0
        return sequences

    async def _append_pipelined(
        self, entries: Sequence[CommitV1], extra_headers: ExtraHeaders
    ) -> bool:
        """Send each without waiting for the receipt of the one before; return whether all are in.

        Each but the first is stored only if the stream's last message is the one before
        it, known by its id, and has the expected sequence. So the log gets the first few of
        `entries`, without a gap, even if another run writes.
        """
        end = asyncio.get_running_loop().time() + self._js.timeout
        before, receipts = None, []
        complete = True
        for entry in entries:
            try:
                receipt = await self._js.publish_async(
                    self._subject,
                    **publish_options(entry, extra_headers),
                    expected_last_subject_sequence=entry.previous,
                    expected_last_message_id=before,
                )
            except (Unsendable, MessageError):
                complete = False
                break
            receipts.append(receipt)
            before = str(entry.id)
        for receipt in receipts:
            try:
                await receipt.result(max(0, end - asyncio.get_running_loop().time()))
            except (ApiError, NatsUnreachable):
                complete = False
        return complete

    async def _append_sequentially(
        self, entries: Sequence[CommitV1], extra_headers: ExtraHeaders
    ) -> list[int]:
        """Append those that the log lacks, each after the one before it has its sequence."""
        last, sequences = entries[0].previous, list[int]()
        while missing := entries[len(sequences) :]:
            entry = missing[0]
            if entry.previous != last:
                entry = entry.model_copy(update={"previous": last})
            try:
                ack = await self._js.publish(
                    self._subject,
                    **publish_options(entry, extra_headers),
                    expected_last_subject_sequence=last,
                )
            except WrongLastSequence:
                sequences += await self._recover_sequences(missing)
            except NatsUnreachable:
                await asyncio.sleep(_RETRY_DELAY)
                continue
            except (JetStreamError, MessageError) as error:
                raise AppendRefused(sequences, error) from error
            else:
                sequences.append(ack.sequence)
            last = sequences[-1]
        return sequences

    async def _recover_sequences(self, entries: Sequence[CommitV1]) -> list[int]:
        """Return the sequences of those of `entries` that the log has; they are its last commits.

        The server refuses a commit that the log has as out of sequence, not as a duplicate.
        """
        while True:
            try:
                sequence, last = await self.last()
            except NatsUnreachable:
                await asyncio.sleep(_RETRY_DELAY)
                continue
            except (NeedsNewerVersion, HistoryInconsistent) as error:
                raise Fenced(f"{self._subject}: by another writer: {error}") from error
            ids = [entry.id for entry in entries]
            if last is None or last.id not in ids:
                raise Fenced(f"{self._subject}: commit {sequence} is another owner's")
            return [*range(sequence - ids.index(last.id), sequence + 1)]

    async def entries(self, after: int, until: int) -> AsyncIterator[tuple[int, CommitV1]]:
        """Yield the commits after sequence `after` up to and including `until`.

        Raises:
            HistoryInconsistent: the first of them does not follow `after`, or one is missing
                or of another past (S-6), or the log ends before `until`.
        """
        if until <= after:
            return
        previous = after
        reader = ordered_reader(self._js, self._stream, self._subject, start_sequence=after + 1)
        async with reader:
            while previous < until:
                delivery = await reader.next()
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

    async def purge(self, up_to: int) -> None:
        """Remove the commits up to `up_to`, which a checkpoint holds. Never the last commit.

        A subject without commits would start at 0 again, and a stale writer that expects
        0 would win.
        """
        sequence, _ = await self.last()
        below = min(up_to + 1, sequence)
        await self._js.purge(self._stream, subject=self._subject, below_sequence=below)
