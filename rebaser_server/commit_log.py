"""The commit log of one change set: append under compare-and-swap, read, purge (protocol 4.1)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from rebaser_core.commits import Commit, CommitV1
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, OrderedConsumer, Unreachable, WrongLastSequence
from rebaser_core.subjects import Subjects
from rebaser_core.versioned import MESSAGE_ID
from rebaser_server.errors import HistoryBroken, Overtaken

DVU_DUE: Final = "X-DVU-DUE"
"""Header of a line after which a dependent values update is due: the reconciler reads no more."""

_RETRY_DELAY: Final = 0.2  # seconds between tries of an append whose outcome is unknown


class CommitLog:
    """The fence and the truth: of two runs that believe they own a change set, one can append."""

    def __init__(self, js: JetStream, subjects: Subjects, change_set: ChangeSet) -> None:
        self._js = js
        self._stream = subjects.commits_stream
        self._subject = subjects.commits(change_set)

    async def last(self) -> tuple[int, CommitV1 | None]:
        """The last line and its sequence, from the stream's leader; (0, None) if there is none."""
        message = await self._js.get_message(self._stream, last_by_subject=self._subject)
        if message is None:
            return 0, None
        return message.sequence, Commit.decode(message.headers, message.payload)

    async def line(self, sequence: int) -> CommitV1 | None:
        """The line of that sequence, or None if it was purged."""
        message = await self._js.get_message(self._stream, sequence=sequence)
        if message is None or message.subject != self._subject:
            return None
        return Commit.decode(message.headers, message.payload)

    async def append(self, commit: CommitV1) -> int:
        """Write `commit` after `commit.previous`; its sequence.

        Where the server's answer is lost it is asked again until it gives one, for as
        long as the caller lets it. Cancelled, the line may be there or not.

        Raises:
            Overtaken: another line came first, and this one is not in the log.
        """
        headers, payload = Commit.encode(commit)
        headers.pop(MESSAGE_ID)
        if commit.head.dvu_due:
            headers[DVU_DUE] = "1"
        while True:
            try:
                ack = await self._js.publish(
                    self._subject,
                    payload,
                    headers=headers,
                    message_id=str(commit.id),
                    expected_last_subject_sequence=commit.previous,
                )
            except WrongLastSequence:
                return await self._own_line(commit)
            except Unreachable:
                await asyncio.sleep(_RETRY_DELAY)
            else:
                return ack.sequence

    async def _own_line(self, commit: CommitV1) -> int:
        """A retried line is refused as out of sequence, not as a duplicate: look who wrote it."""
        while True:
            try:
                sequence, last = await self.last()
            except Unreachable:
                await asyncio.sleep(_RETRY_DELAY)
                continue
            if last is None or last.id != commit.id:
                raise Overtaken(f"{self._subject}: line {sequence} is not ours")
            return sequence

    async def lines(self, after: int, until: int) -> AsyncIterator[tuple[int, CommitV1]]:
        """The lines behind sequence `after` up to and including `until`, which is one of them.

        Raises:
            HistoryBroken: the first of them does not follow `after`, or one is missing.
        """
        if until <= after:
            return
        previous = after
        reader = OrderedConsumer(self._js, self._stream, self._subject, start_sequence=after + 1)
        async with reader:
            while previous < until:
                delivery = await reader.next()
                if delivery is None:
                    raise HistoryBroken(f"{self._subject}: ends at {previous}, not at {until}")
                commit = Commit.decode(delivery.headers, delivery.payload)
                if commit.previous > previous:
                    raise HistoryBroken(
                        f"{self._subject}: line {delivery.stream_sequence} follows "
                        f"{commit.previous}, but what is known ends at {previous}"
                    )
                previous = delivery.stream_sequence
                yield previous, commit

    async def purge(self, up_to: int) -> None:
        """Remove the lines up to `up_to`, which a checkpoint holds. Never the last line.

        A subject without lines would start at 0 again, and a stale writer that expects
        0 would win.
        """
        sequence, _ = await self.last()
        below = min(up_to + 1, sequence)
        await self._js.purge(self._stream, subject=self._subject, below_sequence=below)
