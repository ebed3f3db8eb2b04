"""All that a change set's state can be restored from: checkpoint, log, batches, and its base."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rebaser_core.commits import CommitV1
from rebaser_core.ids import ChangeSet, ChangeSetId
from rebaser_server.commit_log.apply_batch import performed
from rebaser_server.commit_log.batch_store import Batches, MissingBatch
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.retention import Kept
from rebaser_server.commit_log.state import Origin, State
from rebaser_server.errors import HistoryBroken, NotRetained
from rebaser_server.store.checkpoints import Checkpoints, StoreDamaged
from rebaser_server.values.rebase.edits import Edits

Line = tuple[int, CommitV1]
"""With its sequence."""

_LOOKS: Final = 3
"""At a change set whose log was purged while it was read."""


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
    kept: list[Kept] = field(default_factory=list)
    """Checkpoints that the past can be restored from, oldest first, the last one included."""

    def require_base(self) -> None:
        """Raise `HistoryBroken` if a branch has lines of its own on a base that is lost."""
        head, lost = self.state.head, self.state.origin and self.state.origin.lost
        if lost and head.branch and head.branch.cursor is not None and head.closing is None:
            raise HistoryBroken(f"a branch without a checkpoint has lost its base: {lost}")


@dataclass(frozen=True, slots=True)
class Archive:
    """All that a change set's state can be restored from."""

    change_set: ChangeSet
    log: CommitLog
    batches: Batches
    checkpoints: Checkpoints

    async def restored(self, at: int | None = None) -> Restored:
        """The state as of the last line, or of the last line at or before sequence `at`.

        Touches nothing and needs no ownership. The past goes back as far as the log does,
        and costs what the present does.

        Raises:
            NotRetained: the log does not go back to `at`, or has not come so far; or the
                change set was deleted.
            HistoryBroken: log and store do not fit together, or are not of one deployment.
        """
        begins, last = await self._extent()
        if at is not None and at > last:
            raise NotRetained(f"{self.change_set}: the log ends at commit {last}, before {at}")
        for attempt in range(_LOOKS):
            until = last if at is None else at
            if until < begins:
                raise NotRetained(
                    f"{self.change_set}: the past before commit {begins} is not kept any more, "
                    f"and with it commit {until}"
                )
            try:
                return await self.restore(until, past=at is not None)
            except HistoryBroken as error:
                _, line = await self.log.last()
                if line is not None and line.head.deleted:
                    raise NotRetained(f"{self.change_set} was deleted") from error
                # Its owner's checkpoint and purge look the same to who was slow to read.
                before, (begins, last) = (begins, last), await self._extent()
                if attempt == _LOOKS - 1 or before == (begins, last):
                    raise
        raise AssertionError("the last look returns or raises")

    async def _extent(self) -> tuple[int, int]:
        """The earliest commit whose state can be had, and the last."""
        last, _ = await self.log.last()
        return await self.begins(), last

    async def begins(self) -> int:
        """The earliest commit whose state can be had: 0, or a checkpoint's."""
        first = await self.log.first()
        return 0 if first is None else first.previous

    async def restore(
        self, until: int, *, past: bool = False, known: Sequence[Line] = ()
    ) -> Restored:
        """The state as of line `until`, which is the last unless it is of the `past`.

        `known` are the last lines, as far as the caller has them.

        Raises:
            HistoryBroken: checkpoint and log do not fit together; nothing was changed.
        """
        at = until if past else None
        try:
            checkpoint = await asyncio.to_thread(self.checkpoints.load, self.change_set, at)
        except StoreDamaged as error:
            raise HistoryBroken(f"{self.change_set}: the store is damaged: {error}") from error
        if checkpoint is None:
            restored = await self._beginning()
        else:
            state = State.restored(checkpoint.graph, checkpoint.commit, checkpoint.metadata)
            kept = Kept.all_in(checkpoint.metadata)
            restored = Restored(state, checkpoint.commit, kept=kept)
        if restored.checkpoint > until:
            raise HistoryBroken(
                f"{self.change_set}: the checkpoint is of commit {restored.checkpoint}, but the "
                f"log ends at {until}; was the stream restored from an older backup than the store?"
            )
        await self.catch_up(restored, until, known)
        restored.require_base()
        return restored

    async def _beginning(self) -> Restored:
        """The state before the first line: empty, or of a branch what it was forked from."""
        first = await self.log.first()
        if first is None or first.previous or first.head.branch is None:
            return Restored(State(), 0)
        branch = first.head.branch
        base = branch.base
        try:
            parent = await self.of(base.change_set_id).restored(base.commit)
        except NotRetained as error:
            return Restored(State(edits=Edits(), origin=Origin(0, str(error))), 0)
        closing = parent.state.head.closing
        if closing is not None and closing.reason is not None:  # it lost its own, and is empty
            return Restored(State(edits=Edits(), origin=Origin(0, closing.reason)), 0)
        cursor = base.commit
        if base.change_set_id != branch.head:  # a branch of a branch has its edits, and its place
            cursor = parent.state.cursor
        edits = parent.state.edits or Edits()
        return Restored(State(parent.state.graph, edits=edits, origin=Origin(cursor)), 0)

    def of(self, change_set_id: ChangeSetId) -> "Archive":
        """The archive of another change set of the workspace."""
        other = ChangeSet(self.change_set.workspace_id, change_set_id)
        return Archive(other, self.log.of(other), self.batches, self.checkpoints)

    async def catch_up(self, restored: Restored, until: int, known: Sequence[Line] = ()) -> None:
        """Take over what the log says behind `restored`, up to line `until`."""
        state = restored.state
        async for sequence, commit in self._lines(state.commit, until, known):
            await self._replay(state, commit)
            state.advance(commit, sequence)
            restored.lines += 1
            restored.handled += commit.handled is not None

    async def _lines(self, after: int, until: int, known: Sequence[Line]) -> AsyncIterator[Line]:
        """As `CommitLog.lines`, which need not be asked if the checkpoint is of just before."""
        behind = [(sequence, line) for sequence, line in known if after < sequence <= until]
        if behind and behind[0][1].previous <= after:
            for each in behind:
                yield each
        else:
            async for each in self.log.lines(after, until):
                yield each

    async def _replay(self, state: State, commit: CommitV1) -> None:
        handled = commit.handled
        if handled is None or handled.updates is None:
            return
        try:
            batch = await self.batches.fetch(handled.updates, handled.id)
            await performed(state, handled.sequence, batch, handled.covers)
        except MissingBatch as error:
            raise HistoryBroken(f"{self.change_set}: {error}, which the log refers to") from error
