"""The commit log of one change set: append under compare-and-swap, purge (protocol 4.1)."""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from rebaser_core.commits import CommitV1
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import (
    ApiError,
    BatchMessage,
    JetStream,
    JetStreamError,
    NatsUnreachable,
    Unsendable,
    WrongLastSequence,
)
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.commit_messages import ExtraHeaders, publish_options
from rebaser_server.commit_log.group_commit import MAX_COMMITS, GroupCommit
from rebaser_server.commit_log.log_reader import CommitLogReader
from rebaser_server.errors import AppendRefused, Fenced, HistoryInconsistent, NeedsNewerVersion

log: Final = structlog.get_logger()

_NO_EXTRA_HEADERS: Final[ExtraHeaders] = {}
_RETRY_DELAY: Final = 0.2  # seconds between tries of an append whose outcome is unknown


class CommitLog(CommitLogReader):
    """The fence and the truth: of two runs that believe they own a change set, one can append."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        change_set: ChangeSet,
        group_commit: GroupCommit | None = None,
    ) -> None:
        super().__init__(js, subjects, change_set)
        self._group_commit = group_commit or GroupCommit(js, subjects.commits_stream)
        self._may_pipeline = True
        """Whether a commit may be sent before the one before it is confirmed, as far as known."""
        self._undisturbed = 0
        """Number of our last commits with no other change set's commit between them."""

    def sibling(self, change_set: ChangeSet) -> "CommitLog":
        """Return the log of another change set."""
        return CommitLog(self._js, self._subjects, change_set, self._group_commit)

    @property
    def max_batch_bytes(self) -> int:
        """Octets that an inline batch may take in a commit: half of the commit."""
        return self._js.message_limits.max_payload_for(self._subject) // 2

    def append_limit(self, waiting: int) -> int:
        """How many commits one `append` may usefully write while `waiting` requests wait."""
        return MAX_COMMITS if self._is_worth_a_batch(waiting) else self.pipeline_depth

    def _is_worth_a_batch(self, count: int) -> bool:
        return count >= self._group_commit.min_size > self.pipeline_depth

    @property
    def pipeline_depth(self) -> int:
        """How many commits may usefully be sent ahead of their receipts at this moment.

        It grows while no other run writes to the stream, and is 1 after another one wrote. It
        stays 1 where the stream has replicas: there the server refuses a commit while the
        replicas agree on the one before it.
        """
        if self._group_commit.replicated or not self._may_pipeline:
            return 1
        return min(1 + self._undisturbed // 4, MAX_COMMITS)

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
        if not self._group_commit.is_known:
            await self._group_commit.refresh()
        last = entries[0].previous + len(entries)  # if no other run writes
        if self._is_worth_a_batch(len(entries)):
            sequences = await self._append_batch(entries, extra_headers)
        elif len(entries) > 1 and not self._group_commit.replicated:
            sequences = await self._append_pipelined(entries, extra_headers)
        else:
            sequences = []
        if not sequences:
            sequences = await self._append_sequentially(entries, extra_headers)
            if sequences[-1] == last and len(entries) > 1:  # refused, though no other run wrote
                self._may_pipeline = False
        self._undisturbed = self._undisturbed + len(entries) if sequences[-1] == last else 0
        return sequences

    async def _append_batch(
        self, entries: Sequence[CommitV1], extra_headers: ExtraHeaders
    ) -> list[int]:
        """Append all of them or none; return nothing if they may not be in.

        The server compares only what the first one expects. It stores the others right behind.
        """
        try:
            ack = await self._js.publish_batch(
                [
                    BatchMessage(self._subject, **publish_options(entry, extra_headers))
                    for entry in entries
                ],
                expected_last_subject_sequence=entries[0].previous,
            )
        except (NatsUnreachable, WrongLastSequence, Unsendable, MessageError):
            return []
        except ApiError:
            self._group_commit.on_refused()
            return []
        return [*range(ack.sequence - len(entries) + 1, ack.sequence + 1)]

    async def _append_pipelined(
        self, entries: Sequence[CommitV1], extra_headers: ExtraHeaders
    ) -> list[int]:
        """Send each without waiting for the receipt of the one before; nothing: not all are in.

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
        first = entries[0].previous + 1
        return [*range(first, first + len(entries))] if complete else []

    async def _append_sequentially(
        self, entries: Sequence[CommitV1], extra_headers: ExtraHeaders
    ) -> list[int]:
        """Append those that the log lacks, each after the one before it has its sequence."""
        last, sequences = entries[0].previous, list[int]()
        is_reported = False
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
            except NatsUnreachable as error:
                if not is_reported:  # a NATS whose disk was full never answers, and says nothing
                    log.warning("commit not confirmed", reason=str(error))
                is_reported = True
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

    async def purge(self, up_to: int) -> None:
        """Remove the commits up to `up_to`, which a checkpoint holds. Never the last commit.

        A subject without commits would start at 0 again, and a stale writer that expects
        0 would win.
        """
        sequence, _ = await self.last()
        below = min(up_to + 1, sequence)
        await self._js.purge(self._stream, subject=self._subject, below_sequence=below)
