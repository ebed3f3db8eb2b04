"""The commit log of one change set: read, append under compare-and-swap, purge (protocol 4.1).

Commits are messages of their stream, with headers that can be read without decoding them.
`GroupCommit` says when several commits are appended as one atomic batch (W7, ADR-50).
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog

from rebaser_core.commits import Commit, CommitV2, decode_commit_at
from rebaser_core.errors import MessageError, NewerVersion
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import (
    ApiError,
    BatchMessage,
    Delivery,
    JetStreamError,
    MessageNotFound,
    NatsUnreachable,
    PendingReply,
    StoredMessage,
    Unsendable,
    WrongLastSequence,
    ordered_reader,
)
from rebaser_core.streams import Streams
from rebaser_core.versioning import CODE, EDITED, MESSAGE_ID, REQUEST_DIGEST, announced_id
from rebaser_server.errors import (
    AppendRefused,
    Fenced,
    HistoryInconsistent,
    LogGone,
    NeedsNewerVersion,
)

UNFINISHED: Final = "X-DVU-DUE"
"""Header of a commit after which a dependent values update is due, or a branch is being applied to
head: the reconciler reads this header alone."""

_TRACE_HEADERS: Final = frozenset(("traceparent", "tracestate"))
"""Headers of such a commit if traces are on: the trace that the due update belongs to."""

UNSAVED: Final = "X-UNSAVED"
"""Header of a commit that releases a change set although requests were settled since its last
checkpoint: the run made room for another. Its table is written by a later run."""

NumberedEntry = tuple[int, CommitV2]
"""A commit, with its sequence before it."""

ExtraHeaders = Mapping[RequestId, Mapping[str, str]]
"""Additional headers of commits, by the commits' ids."""


async def unfinished_subjects(streams: Streams, subject: str = ">") -> list[str]:
    """Return the subjects of logs, of all or below `subject`, whose last commit is unfinished."""
    heads = ordered_reader(
        streams.js,
        streams.commits_stream,
        subject,
        deliver_policy="last_per_subject",
        headers_only=True,
    )
    found = []
    async with heads:
        while (entry := await heads.next(idle_timeout=0)) is not None:
            if UNFINISHED in entry.headers:
                found.append(entry.subject)
    return found


class LogEnd(NamedTuple):
    sequence: int = 0
    entry: CommitV2 | None = None
    """The last commit; None if the log has none."""
    trace: Mapping[str, str] = {}
    """Headers of it that name the trace of the due update."""
    unsaved: bool = False
    """Whether the commit has the header `UNSAVED`."""


def log_end(message: StoredMessage, known: NumberedEntry | None) -> LogEnd:
    """Return what the last message of a log says; decode it unless it is the commit `known`.

    Ids are new (`CommitV2`), so a message with that sequence and id is that commit.
    """
    if (
        known is not None
        and known[0] == message.sequence
        and announced_id(message.headers) == str(known[1].id)
    ):
        entry = known[1]
    else:
        entry = _decode_commit(message)
    return LogEnd(message.sequence, entry, _trace_headers_of(message), UNSAVED in message.headers)


def _decode_commit(message: StoredMessage | Delivery) -> CommitV2:
    try:
        return decode_commit_at(_sequence_of(message), message.headers, message.payload)
    except NewerVersion as error:
        raise NeedsNewerVersion(error) from error
    except MessageError as error:
        where = f"{message.subject}: commit {_sequence_of(message)}"
        raise HistoryInconsistent(f"{where} cannot be read: {error}") from error


def _sequence_of(message: StoredMessage | Delivery) -> int:
    return message.stream_sequence if isinstance(message, Delivery) else message.sequence


def publish_options(entry: CommitV2, extra_headers: ExtraHeaders) -> dict[str, Any]:
    """Return the arguments that publish the commit."""
    headers, payload = Commit.encode(entry)
    if extra_headers:
        headers |= extra_headers.get(entry.id, {})
    if entry.request_digest:
        headers[REQUEST_DIGEST] = entry.request_digest
    if entry.code:
        headers[CODE] = entry.code
    if entry.edited:
        headers[EDITED] = entry.edited
    if entry.control.unfinished:
        headers[UNFINISHED] = "1"
    return {"payload": payload, "message_id": headers.pop(MESSAGE_ID), "headers": headers}


def _trace_headers_of(message: StoredMessage) -> Mapping[str, str]:
    """Return the headers of a commit that name a trace."""
    return {name: message.headers[name] for name in _TRACE_HEADERS & message.headers.keys()}


_MISSING_AFTER: Final = 5.0  # seconds without a commit until the stream's leader is asked for it
OTHER_PAST: Final = "log and store are of different pasts, as after a restore of one of them"


class CommitLogReader:
    """The commits of a change set, as the leader of the stream has them.

    Every method that reads a commit raises `NeedsNewerVersion` if the commit is of a newer
    version than this build's, and `HistoryInconsistent` if no build can read it.
    """

    def __init__(self, streams: Streams, change_set: ChangeSet) -> None:
        self._js = streams.js
        self._streams = streams
        self._stream = streams.commits_stream
        self._subject = streams.commits(change_set)

    async def last(self) -> tuple[int, CommitV2 | None]:
        """Return the last commit and its sequence, as the leader has it (S-4), or (0, None)."""
        end = await self.end()
        return end.sequence, end.entry

    async def end(self, known: NumberedEntry | None = None) -> LogEnd:
        """Return the last commit with what its headers say, as the leader has it (S-4).

        If the log ends with the commit `known`, nothing is decoded.
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
        """Return the answer to `ask_end`, as `end` would have returned it then."""
        try:
            reply = await asked.result(self._js.timeout)
        except MessageNotFound:
            return LogEnd()
        return log_end(StoredMessage.of(reply["message"]), known)

    async def trace_headers(self, sequence: int) -> Mapping[str, str]:
        message = await self._js.get_message(self._stream, sequence=sequence)
        return {} if message is None else _trace_headers_of(message)

    async def entry(self, sequence: int) -> CommitV2 | None:
        """Return the commit of that sequence, or None if it was purged."""
        message = await self._js.get_message(self._stream, sequence=sequence)
        if message is None or message.subject != self._subject:
            return None
        return _decode_commit(message)

    async def require_readable(self) -> None:
        """Raise `HistoryInconsistent` if the log has commits, and its last one cannot be read.

        If the last commit's checksum is wrong, NATS answers as if there were none, and stores
        another first commit.
        """
        subjects = await self._js.stream_subjects(self._stream, self._subject)
        if subjects and (await self.last())[1] is None:
            raise HistoryInconsistent(
                f"{self._subject}: the log has commits, but its last one cannot be read: a file of "
                f"{self._stream} is damaged"
            )

    async def oldest(self) -> CommitV2 | None:
        """Return the oldest commit that was not purged: the past begins at its `previous`."""
        message = await self._js.get_message(
            self._stream, sequence=1, next_by_subject=self._subject
        )
        return None if message is None else _decode_commit(message)

    async def entries(self, after: int, until: int) -> AsyncIterator[tuple[int, CommitV2]]:
        """Yield the commits after sequence `after` up to and including `until`.

        Raises:
            LogGone: the log begins anew behind `after`.
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
                entry = _decode_commit(delivery)
                if previous and not entry.previous:
                    raise LogGone(self._subject, previous)
                if entry.previous != previous:
                    raise HistoryInconsistent(
                        f"{self._subject}: commit {delivery.stream_sequence} follows commit "
                        f"{entry.previous}, but the state ends at commit {previous}: "
                        + ("commits are missing" if entry.previous > previous else OTHER_PAST)
                    )
                # `until` may be the sequence of another change set's commit: they share one stream.
                if delivery.stream_sequence > until:
                    return
                previous = delivery.stream_sequence
                yield previous, entry


MAX_COMMITS: Final = 64
"""Maximum number of commits that are appended together."""

_ON_REPLICAS: Final = 2
"""Number of commits from which a batch is faster than one after the other, if a quorum confirms."""

ON_ONE_SERVER: Final = 32
"""Number of commits from which a batch pays on one server, which keeps a file for each batch while
it comes in; pipelining up to this number is faster."""

NEVER: Final = MAX_COMMITS + 1

_ASK_AGAIN_AFTER: Final = 10.0  # seconds after a batch was refused, which may be for the moment


class GroupCommit:
    """The way in which the stream takes several commits. All logs of a process share one."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._min_size = NEVER
        self._known_until = 0.0
        self.replicated = False
        """Whether a quorum confirms each commit, as far as known."""

    @property
    def min_size(self) -> int:
        """Number of commits from which a batch pays; `NEVER` is more than are ever appended."""
        return self._min_size

    @property
    def is_known(self) -> bool:
        """Whether `refresh` would change nothing until a batch is refused."""
        return self._known_until == math.inf

    async def refresh(self) -> None:
        """Learn the way from the stream's configuration, unless it is known."""
        if asyncio.get_running_loop().time() < self._known_until:
            return
        try:
            config = await self._streams.js.stream_config(self._streams.commits_stream)
        except JetStreamError:
            return  # the append that follows says so, or is well
        self.replicated = (config.num_replicas or 1) > 1
        batches = _ON_REPLICAS if self.replicated else ON_ONE_SERVER
        self._min_size = batches if config.allow_atomic else NEVER
        self._known_until = math.inf

    def on_refused(self) -> None:
        self._min_size, self._known_until = (
            NEVER,
            asyncio.get_running_loop().time() + _ASK_AGAIN_AFTER,
        )


log: Final = structlog.get_logger()

_NO_EXTRA_HEADERS: Final[ExtraHeaders] = {}
_RETRY_DELAY: Final = 0.2  # seconds between tries of an append whose outcome is unknown


class CommitLog(CommitLogReader):
    """The fence and the truth: of two runs that believe they own a change set, one can append."""

    def __init__(
        self,
        streams: Streams,
        change_set: ChangeSet,
        group_commit: GroupCommit | None = None,
    ) -> None:
        super().__init__(streams, change_set)
        self._group_commit = group_commit or GroupCommit(streams)
        self._may_pipeline = True
        """Whether a commit may be sent before the one before it is confirmed, as far as known."""
        self._undisturbed = 0
        """Number of our last commits with no other change set's commit between them."""

    def sibling(self, change_set: ChangeSet) -> "CommitLog":
        return CommitLog(self._streams, change_set, self._group_commit)

    @property
    def max_batch_bytes(self) -> int:
        """Bytes that an inline batch may take in a commit: half of the commit."""
        return self._js.message_limits.max_payload_for(self._subject) // 2

    def append_limit(self, waiting: int) -> int:
        """Number of commits that one `append` may usefully write while `waiting` requests wait."""
        return MAX_COMMITS if self._is_worth_a_batch(waiting) else self.pipeline_depth

    def _is_worth_a_batch(self, count: int) -> bool:
        return count >= self._group_commit.min_size > self.pipeline_depth

    @property
    def pipeline_depth(self) -> int:
        """Number of commits that may usefully be sent ahead of their receipts at this moment.

        It grows while no other run writes to the stream, and is 1 after another one wrote. It stays
        1 if the stream has replicas: then the server refuses a commit while the replicas agree on
        the one before it.
        """
        if self._group_commit.replicated or not self._may_pipeline:
            return 1
        return min(1 + self._undisturbed // 4, MAX_COMMITS)

    async def append(
        self, entries: Sequence[CommitV2], extra_headers: ExtraHeaders = _NO_EXTRA_HEADERS
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
            # W7: some may be in the log without a receipt; they are recognised there by their ids.
            sequences = await self._append_sequentially(entries, extra_headers)
            if sequences[-1] == last and len(entries) > 1:  # refused, though no other run wrote
                self._may_pipeline = False
        self._undisturbed = self._undisturbed + len(entries) if sequences[-1] == last else 0
        return sequences

    async def _append_batch(
        self, entries: Sequence[CommitV2], extra_headers: ExtraHeaders
    ) -> list[int]:
        """Append all commits or none; return nothing if they may not be in.

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
        self, entries: Sequence[CommitV2], extra_headers: ExtraHeaders
    ) -> list[int]:
        """Send commits without waiting for receipts; return nothing if not all are stored.

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
                # The commits before this one are on their way: their receipts are still awaited.
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
        self, entries: Sequence[CommitV2], extra_headers: ExtraHeaders
    ) -> list[int]:
        """Append the commits that the log lacks, each once the one before it has its sequence."""
        last, sequences = entries[0].previous, list[int]()
        is_reported = False
        while missing := entries[len(sequences) :]:
            entry = missing[0]
            # W7: if another change set's commits came in between, the staged number is wrong, and
            # readers would find a hole.
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
                # The commit may be in the log or still on its way there. Until an answer tells, the
                # run can neither go on behind this commit nor without it.
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

    async def _recover_sequences(self, entries: Sequence[CommitV2]) -> list[int]:
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
                # This build reads its own commits, so the last one is another run's.
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
