"""One run's right to write a change set's log, and the state that it writes (W2, W7)."""

import asyncio
from dataclasses import dataclass
from typing import Any

from rebaser_core.commits import CommitV1, Handled, Head, Outcome
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_server.batches import Batches, MissingBatch
from rebaser_server.commit_log import CommitLog
from rebaser_server.errors import HistoryBroken, Overtaken
from rebaser_server.rebase import rebase
from rebaser_server.state import State
from rebaser_server.store.checkpoints import Checkpoints


@dataclass(slots=True)
class Restored:
    """A state, and how much of the log went into it."""

    state: State
    checkpoint: int
    """Line of the checkpoint that it started from; 0 for none."""
    lines: int = 0
    """Lines behind the checkpoint."""
    handled: int = 0
    """Those of them that settle a request."""


@dataclass(frozen=True, slots=True)
class Archive:
    """All that a change set's state can be restored from."""

    change_set: ChangeSet
    log: CommitLog
    batches: Batches
    checkpoints: Checkpoints

    async def restore(self, until: int) -> Restored:
        """The state as of line `until`.

        Raises:
            HistoryBroken: checkpoint and log do not fit together; nothing was changed.
        """
        checkpoint = await asyncio.to_thread(self.checkpoints.load, self.change_set)
        if checkpoint is None:
            restored = Restored(State(), 0)
        else:
            state = State.restored(checkpoint.graph, checkpoint.commit, checkpoint.small)
            restored = Restored(state, checkpoint.commit)
        if restored.checkpoint > until:
            raise HistoryBroken(
                f"{self.change_set}: the checkpoint is of commit {restored.checkpoint}, but the "
                f"log ends at {until}; was the stream restored from an older backup than the store?"
            )
        await self.catch_up(restored, until)
        return restored

    async def catch_up(self, restored: Restored, until: int) -> None:
        """Take over what the log says behind `restored`, up to line `until`."""
        state = restored.state
        async for sequence, commit in self.log.lines(state.commit, until):
            await self._replay(state, commit)
            state.advance(commit, sequence)
            restored.lines += 1
            restored.handled += commit.handled is not None

    async def _replay(self, state: State, commit: CommitV1) -> None:
        handled = commit.handled
        if handled is None or handled.outcome is not Outcome.APPLIED or handled.updates is None:
            return
        try:
            updates = (await self.batches.fetch(handled.updates, handled.id)).updates
        except MissingBatch as error:
            raise HistoryBroken(f"{self.change_set}: {error}, which the log refers to") from error
        await asyncio.to_thread(rebase, state.graph, handled.sequence, updates, handled.covers)


class Ownership:
    """The owner of a change set: it alone can append to the log, until another takes over.

    The request loop and the DVU of a run share it; whoever reads the state and then
    writes holds `lock` meanwhile. Once a write raises, the state is worthless.
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
        self.lock = asyncio.Lock()
        self.former = ""
        """The owner before, if it never released the change set."""

    @classmethod
    async def take(cls, archive: Archive, instance: str) -> "Ownership":
        """Become the owner: from now on every earlier owner's writes fail (W2)."""
        while True:
            previous, last = await archive.log.last()
            head = Head() if last is None else last.head
            own_id = RequestId()
            mine = head.model_copy(
                update={"epoch": head.epoch + 1, "owner": f"{instance}/{own_id}"}
            )
            try:
                line = CommitV1(id=own_id, previous=previous, head=mine)
                sequence = await archive.log.append(line)
            except Overtaken:
                continue
            try:
                own = cls(archive, await archive.restore(sequence))
            except HistoryBroken:
                # A successor's checkpoint and purge look the same to who was slow to read.
                await _confirm(archive, mine.epoch)
                raise
            own.former = head.owner
            return own

    async def write(self, handled: Handled | None = None, **changes: Any) -> int:
        """Append one line with `changes` to the head; its sequence.

        Raises:
            Overtaken: another run owns the change set by now. Nothing was written.
        """
        head = self.state.head.model_copy(update=changes)
        line = CommitV1(id=RequestId(), previous=self.state.commit, head=head, handled=handled)
        sequence = await self.archive.log.append(line)
        self.state.advance(line, sequence)
        self.lines += 1
        self.handled += handled is not None
        return sequence

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


async def _confirm(archive: Archive, epoch: int) -> None:
    _, last = await archive.log.last()
    if last is not None and last.head.epoch != epoch:
        raise Overtaken(f"{archive.change_set} has a new owner")
