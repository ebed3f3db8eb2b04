"""Loads states of change sets, and keeps those that this process released.

All that a change set's state can be loaded from: checkpoint, commit log, and batches.

The states of change sets that this process released, for its next runs of the same ones.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import floor
from typing import Any, Final

from rebaser_core.commits import CommitV1
from rebaser_core.errors import NewerVersion
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.log import OTHER_PAST, CommitLog, LogEnd, NumberedEntry
from rebaser_server.commit_log.state import (
    Checkpoint,
    CheckpointRef,
    LoadedState,
    State,
    StateMachine,
)
from rebaser_server.errors import HistoryInconsistent, MissingBatch, NeedsNewerVersion, NotRetained
from rebaser_server.runtime.failures import StoreDamaged

MIN_SIZE = 16 * 1024
"""Bytes that a state is counted with at the least, also an empty one."""


@dataclass(slots=True)
class _Released:
    loaded: LoadedState
    size: int
    at: float
    """When it was released, by the monotonic clock."""
    is_due: bool
    """Whether a run should write a checkpoint of it, and none was asked for."""


class ReleasedStates:
    """As many states as fit into `max_bytes`, the latest ones.

    A state is true as long as the log ends with the commit that the state ends with: the commit
    that released it (W2c).
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._released: OrderedDict[ChangeSet, _Released] = OrderedDict()
        """The one released last is the last."""
        self._total = 0
        self._lent: dict[ChangeSet, set[asyncio.Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._released)

    @property
    def total(self) -> int:
        """Bytes that they take, more or less."""
        return self._total

    def keep(self, change_set: ChangeSet, loaded: LoadedState) -> None:
        """Keep a state whose size is known; the caller does not touch it any more."""
        self.drop(change_set)
        size = MIN_SIZE + loaded.size
        self._released[change_set] = _Released(
            loaded, size, time.monotonic(), is_due=loaded.settled_requests > 0
        )
        self._total += size
        while self._total > self._max_bytes:
            self.drop(next(iter(self._released)))

    def drop(self, change_set: ChangeSet) -> LoadedState | None:
        """Remove and return the state of the change set, whether or not it is true."""
        released = self._released.pop(change_set, None)
        if released is None:
            return None
        self._total -= released.size
        return released.loaded

    def __contains__(self, change_set: object) -> bool:
        return change_set in self._released

    def take(self, change_set: ChangeSet, end: LogEnd) -> LoadedState | None:
        """Remove the state of the change set; return it if the log ends where it does.

        Readers may have it until `returned`.
        """
        loaded = self.drop(change_set)
        return loaded if loaded is not None and _ends_with(loaded.state, end) else None

    def last_commit(self, change_set: ChangeSet) -> NumberedEntry | None:
        """The commit that released the change set, with which its log may end."""
        released = self._released.get(change_set)
        if released is None or released.loaded.released_by is None:
            return None
        return released.loaded.state.commit, released.loaded.released_by

    def peek(self, change_set: ChangeSet, end: LogEnd) -> State | None:
        """The state of the change set if the log ends where it does.

        It is true until the next await, or for as long as it is lent.
        """
        released = self._released.get(change_set)
        if released is None or not _ends_with(released.loaded.state, end):
            return None
        return released.loaded.state

    def lend(self, change_set: ChangeSet, reading: asyncio.Future[Any]) -> None:
        """Note that the state that `peek` returned is read until `reading` is done."""
        lent = self._lent.setdefault(change_set, set())
        lent.add(reading)

        def give_back(_: object) -> None:
            lent.remove(reading)
            if not lent and self._lent.get(change_set) is lent:
                del self._lent[change_set]

        reading.add_done_callback(give_back)

    async def returned(self, change_set: ChangeSet) -> None:
        """Wait until a state that was taken is not read any more."""
        while lent := self._lent.get(change_set):
            await asyncio.wait(lent)

    def unsaved(self, age: float) -> Iterator[ChangeSet]:
        """Yield the change sets released at least `age` seconds ago that have no checkpoint of it.

        The one released first comes first.
        """
        until = time.monotonic() - age
        for change_set, released in self._released.items():
            if released.at > until:
                return
            if released.is_due:
                yield change_set

    def on_task(self, change_set: ChangeSet) -> None:
        """Note that a run was asked for that writes its checkpoint."""
        if change_set in self._released:
            self._released[change_set].is_due = False


def _ends_with(state: State, end: LogEnd) -> bool:
    return (
        end.entry is not None and state.commit == end.sequence and state.commit_id == end.entry.id
    )


_LOAD_ATTEMPTS: Final = 3
"""At a change set whose log was purged while it was read."""


@dataclass(frozen=True, slots=True)
class StateLoader:
    """All that a change set's state can be restored from."""

    change_set: ChangeSet
    log: CommitLog
    batches: BatchStore
    machine: StateMachine
    released: ReleasedStates = field(default_factory=lambda: ReleasedStates(0))
    """The states that this process released; none by default."""

    async def load(self, at: int | None = None) -> LoadedState:
        """Return the state as of the last commit, or of the last one up to sequence `at`.

        Touches nothing and needs no ownership. The past goes back as far as the log does,
        and costs what the present does.

        Raises:
            NotRetained: the log does not go back to `at`, or has not come so far; or the
                change set was deleted.
            HistoryInconsistent: log and store contradict each other, or belong to different
                deployments.
        """
        begins, last = await self._extent()
        if at is not None and at > last:
            raise NotRetained(f"{self.change_set}: the log ends at commit {last}, before {at}")
        for attempt in range(_LOAD_ATTEMPTS):
            until = last if at is None else at
            if until < begins:
                raise NotRetained(
                    f"{self.change_set}: the past before commit {begins} is not kept any more, "
                    f"and with it commit {until}"
                )
            try:
                return await self.replay_to(until, past=at is not None)
            except HistoryInconsistent as error:
                _, entry = await self.log.last()
                if entry is not None and entry.control.deleted:
                    raise NotRetained(f"{self.change_set} was deleted") from error
                # To a slow reader, a checkpoint and purge by the owner look the same.
                before, (begins, last) = (begins, last), await self._extent()
                if attempt == _LOAD_ATTEMPTS - 1 or before == (begins, last):
                    raise
        raise AssertionError("the last look returns or raises")

    async def load_own(self, before: LogEnd, own: NumberedEntry) -> LoadedState:
        """Return the state as of `own`, the commit of a takeover, which follows `before`.

        If this process released the change set with the commit `before`, it still has the state
        (W2c). Raises as `replay_to`.
        """
        sequence, entry = own
        released = self.released.take(self.change_set, before)
        await self.released.returned(self.change_set)
        if entry.control.deleted:
            return LoadedState(State(self.machine.empty(), entry.control, sequence), 0)
        if released is not None:
            released.state.advance(entry, sequence)
            released.entries += 1
            return released
        known = [own] if before.entry is None else [(before.sequence, before.entry), own]
        return await self.replay_to(sequence, known=known)

    async def _extent(self) -> tuple[int, int]:
        """The earliest commit whose state can be had, and the last."""
        last, _ = await self.log.last()
        if not last:
            await self.log.require_readable()
        return await self.earliest_commit(), last

    async def earliest_commit(self) -> int:
        """The earliest commit whose state can be had: 0, or a checkpoint's."""
        first = await self.log.oldest()
        return 0 if first is None else first.previous

    async def replay_to(
        self, until: int, *, past: bool = False, known: Sequence[NumberedEntry] = ()
    ) -> LoadedState:
        """Return the state as of commit `until`, which is the last one unless `past` is true.

        `known` are the last commits, if the caller has read them already.

        Raises:
            HistoryInconsistent: checkpoint and log contradict each other; nothing was changed.
            NeedsNewerVersion: only a newer release can read the checkpoint.
        """
        loaded, damage = await self._restore_checkpoint(until if past else None)
        if loaded is None:
            first = await self.log.oldest()
            loaded = LoadedState(State(await self.machine.initial(first, self._load_sibling)), 0)
        if loaded.checkpoint > until:
            raise HistoryInconsistent(
                f"{self.change_set}: the checkpoint is of commit {loaded.checkpoint}, but the "
                f"log ends at {until}; was the stream restored from an older backup than the store?"
            )
        try:
            await self._require_same_past(loaded.state, known)
            await self.catch_up(loaded, until, known)
            self.machine.require_sound(loaded.state)
        except HistoryInconsistent as error:
            raise self._damaged(damage, str(error)) if damage else error from None
        loaded.damage = damage
        return loaded

    async def _restore_checkpoint(self, at: int | None) -> tuple[LoadedState | None, str]:
        """Restore the last sound checkpoint, and say why it is not the last, if that is so."""
        try:
            restored = await asyncio.to_thread(self._restore, at)
            if restored is None:
                return None, ""
            checkpoint, kept, state = restored
        except NewerVersion as error:
            raise NeedsNewerVersion(error) from error
        except StoreDamaged as error:
            begins = await self.earliest_commit()
            if not begins:
                return None, str(error)
            raise self._damaged(
                str(error), f"no checkpoint is sound, and the log begins behind commit {begins}"
            ) from error
        except (LookupError, TypeError, ValueError) as error:
            raise HistoryInconsistent(
                f"{self.change_set}: the checkpoint cannot be read: {type(error).__name__}: {error}"
            ) from error
        return LoadedState(state, checkpoint.commit, checkpoints=kept), checkpoint.damage

    def _restore(self, at: int | None) -> tuple[Checkpoint, list[CheckpointRef], State] | None:
        checkpoint = self.machine.load(self.change_set, at)
        if checkpoint is None:
            return None
        kept = CheckpointRef.read_all(checkpoint.metadata)
        return checkpoint, kept, State.from_checkpoint(checkpoint)

    def _damaged(self, damage: str, reason: str) -> HistoryInconsistent:
        return HistoryInconsistent(
            f"{self.change_set}: the store is damaged: {damage}; the log cannot make up for it: "
            f"{reason}; restore the store and NATS from backups of the same time"
        )

    async def _require_same_past(self, state: State, known: Sequence[NumberedEntry]) -> None:
        """Require that a checkpoint's last commit is the log's, unless it was purged (S-6)."""
        if state.commit_id is None:
            return
        entry = dict(known).get(state.commit) or await self.log.entry(state.commit)
        if entry is not None and entry.id != state.commit_id:
            raise HistoryInconsistent(
                f"{self.change_set}: commit {state.commit} is {entry.id} in the log, and "
                f"{state.commit_id} in the checkpoint: {OTHER_PAST}"
            )

    def require_settled(
        self, state: State, sequence: int, request_id: RequestId | None, stored: datetime
    ) -> None:
        """Require that a request at or below the last settled one was settled itself (S-5).

        Its id is remembered, or it was stored no later than the last one that is. Otherwise
        its stream was made anew, and sequences were given twice.

        Args:
            state: the change set's.
            sequence: the request's in its stream.
            request_id: as the request names it; None if it names none.
            stored: when the server stored the request.

        Raises:
            HistoryInconsistent: it was not settled; nothing was changed.
        """
        if request_id in state.recent or state.control.deleted:
            return
        # Both are rounded to milliseconds, from times that were rounded before: one may be off.
        if floor(stored.timestamp() * 1000) > state.recent.last_stored + 1:
            raise HistoryInconsistent(
                f"{self.change_set}: request {sequence} was not handled, although the log says "
                f"that all up to {state.control.last_sequence} were: the stream was made anew, or "
                "is of another past"
            )

    async def _load_sibling(self, change_set_id: ChangeSetId, at: int) -> State:
        return (await self.sibling(change_set_id).load(at)).state

    def sibling(self, change_set_id: ChangeSetId) -> "StateLoader":
        """Return the loader of another change set of the workspace."""
        other = ChangeSet(self.change_set.workspace_id, change_set_id)
        return StateLoader(other, self.log.sibling(other), self.batches, self.machine)

    async def catch_up(
        self, loaded: LoadedState, until: int, known: Sequence[NumberedEntry] = ()
    ) -> None:
        """Replay the commits after `loaded`, up to commit `until`, onto its state."""
        state = loaded.state
        if until < state.commit:
            raise HistoryInconsistent(
                f"{self.change_set}: the log ends at {until}, before commit {state.commit}"
            )
        async for sequence, commit in self._read_entries(state.commit, until, known):
            await self._replay(state, commit)
            state.advance(commit, sequence)
            loaded.entries += 1
            loaded.settled_requests += commit.settled is not None

    async def _read_entries(
        self, after: int, until: int, known: Sequence[NumberedEntry]
    ) -> AsyncIterator[NumberedEntry]:
        """Yield the commits after `after`: from `known` if it has them all, else from the log."""
        behind = [(sequence, entry) for sequence, entry in known if after < sequence <= until]
        if behind and behind[0][1].previous == after:
            for each in behind:
                yield each
        else:
            async for each in self.log.entries(after, until):
                yield each

    async def _replay(self, state: State, commit: CommitV1) -> None:
        settled = commit.settled
        if settled is None or settled.updates is None:
            return
        try:
            batch = await self.batches.fetch(settled.updates, settled.id)
            await state.content.apply(settled.sequence, batch, settled.covers)
        except NewerVersion as error:
            raise NeedsNewerVersion(error) from error
        except MissingBatch as error:
            raise HistoryInconsistent(
                f"{self.change_set}: {error}, which the log refers to"
            ) from error
