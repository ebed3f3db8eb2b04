"""One run's right to write a change set's log, and the state that it writes (W2, W7)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from rebaser_core.commits import CommitV1, ControlState, SettledRequest
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import JetStreamError
from rebaser_core.jetstream.deadlines import within
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import Archive, Restored
from rebaser_server.errors import HistoryBroken, LeftForNewer, Overtaken, Unwritten
from rebaser_server.processor.pending_dvu import Owed
from rebaser_server.processor.request_spans import Traces

_LEAVE_TIMEOUT: Final = 2.0  # seconds


async def _empty() -> ControlState:
    return ControlState()


class Ownership:
    """The owner of a change set: it alone can append to the log, until another takes over.

    The request loop and the DVU of a run share it; whoever reads the state and then
    writes holds `lock` meanwhile. What it says is true until a write is refused (W4); once
    a write raises, the state is worthless.
    """

    def __init__(self, archive: Archive, restored: Restored) -> None:
        self.archive = archive
        self.state = restored.state
        self.checkpointed = restored.checkpoint
        """Line of the last checkpoint; 0 for none."""
        self.lines = restored.lines
        """Lines since then."""
        self.handled = restored.handled
        """Requests settled since then."""
        self.kept = restored.kept
        self.lock = asyncio.Lock()
        self.traces = Traces(archive.change_set)
        self.owed = Owed()
        self.wishes: set[str] = set()
        """What requests asked of the run itself since it looked."""
        self._staged: list[CommitV1] = []
        self._settling: set[RequestId] = set()
        """By the staged lines."""
        self.spoiled = False
        """See `spoil`."""
        self.former = ""
        """The owner before, if it never released the change set."""

    @classmethod
    async def take(
        cls, archive: Archive, instance: str, first: Callable[[], Awaitable[ControlState]] = _empty
    ) -> "Ownership":
        """Become the owner: from now on every earlier owner's writes fail (W2).

        `first` is asked for the head of a change set that has no line yet.
        """
        while True:
            previous, last, mark = await archive.log.last_marked()
            head = await first() if last is None else last.head
            own_id = RequestId()
            mine = head.model_copy(
                update={"epoch": head.epoch + 1, "owner": f"{instance}/{own_id}"}
            )
            try:
                line = CommitV1(id=own_id, previous=previous, head=mine)
                [sequence] = await archive.log.append([line], {own_id: mark})
            except Overtaken:
                continue
            try:
                if mine.deleted:
                    restored = Restored(State(head=mine, commit=sequence), 0)
                else:
                    known = (
                        [(sequence, line)] if last is None else [(previous, last), (sequence, line)]
                    )
                    restored = await archive.restore(sequence, known=known)
                own = cls(archive, restored)
            except HistoryBroken:
                # A successor's checkpoint and purge look the same to who was slow to read.
                await _confirm(archive, mine.epoch)
                raise
            except Exception:
                released = mine.model_copy(update={"owner": ""})
                await _leave(archive, CommitV1(id=RequestId(), previous=sequence, head=released))
                raise
            own.former = head.owner
            if own.traces.on:
                own.owed.inherit(mark)
            return own

    @property
    def head(self) -> ControlState:
        """The head as it is once everything staged is written."""
        return self._staged[-1].head if self._staged else self.state.head

    def has_staged(self, request_id: RequestId) -> bool:
        """Whether a staged line settles that request."""
        return request_id in self._settling

    def stage(self, handled: SettledRequest | None = None, **changes: Any) -> None:
        """Put a line with `changes` to the head behind those to be written together."""
        head = self.head.model_copy(update=changes)
        previous = self.state.commit + len(self._staged)  # if nobody else writes meanwhile
        if handled is not None:
            self._settling.add(handled.id)
        self._staged.append(CommitV1(id=RequestId(), previous=previous, head=head, handled=handled))

    async def flush(self) -> None:
        """Append the staged lines, in order.

        Raises:
            Overtaken: another run owns the change set by now. The first so many of the
                lines may have been written; the state is worthless.
            Unwritten: a line was refused. Those before it are written and in the state,
                whose graph has more in it than that: see `spoil`.
        """
        lines, self._staged = self._staged, []
        self._settling.clear()
        if not lines:
            return
        marks = self.owed.marks(lines, self.traces.of) if self.traces.on else {}
        with self.traces.committing(lines):
            try:
                sequences = await self.archive.log.append(lines, marks)
            except Unwritten as error:
                self.spoil()
                self._advance(lines, error.sequences)
                raise
        self._advance(lines, sequences)

    def _advance(self, lines: Sequence[CommitV1], sequences: Sequence[int]) -> None:
        for line, sequence in zip(lines, sequences, strict=False):  # those that were written
            self.owed.add(line, self.traces.of)
            self.state.advance(line, sequence)
            self.lines += 1
            self.handled += line.handled is not None

    def spoil(self) -> None:
        """Say that the graph holds what the log does not: no checkpoint may be made of it.

        The caller holds `lock`. The run has to end, but may still write what changes the
        head alone.
        """
        self.spoiled = True

    async def write(self, handled: SettledRequest | None = None, **changes: Any) -> int:
        """Append what is staged and one more line, at once; its sequence. Raises as `flush`."""
        self.stage(handled, **changes)
        await self.flush()
        return self.state.commit

    async def release(self) -> None:
        """Write that nobody owns the change set; being able to shows that we did (W10).

        An owner that the log still names when another takes over did not end well.

        Raises:
            Overtaken: another run owns the change set by now.
        """
        async with self.lock:
            await self.write(owner="")

    async def confirm(self) -> None:
        """Raise `Overtaken` if the log shows another owner (W10b)."""
        await _confirm(self.archive, self.state.head.epoch)


async def _leave(archive: Archive, line: CommitV1) -> None:
    """An orderly end, as far as that can be had: nobody died (W14)."""
    with suppress(Overtaken, JetStreamError, TimeoutError):
        async with within(_LEAVE_TIMEOUT):
            await archive.log.append([line])


async def _confirm(archive: Archive, epoch: int) -> None:
    try:
        _, last = await archive.log.last()
    except LeftForNewer as error:  # none of our lines is
        raise Overtaken(f"{archive.change_set} has a new owner: {error}") from error
    if last is not None and last.head.epoch != epoch:
        raise Overtaken(f"{archive.change_set} has a new owner")
