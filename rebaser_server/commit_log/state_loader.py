"""Loads states of change sets, and keeps those that runs or readers used last.

`StateLoader` restores a state from checkpoint, commit log and batches. `StateCache` holds the
states of a process: those of its runs, those that they released, and those that were read.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from math import floor
from typing import Final, Literal, Protocol, TypeVar

from rebaser_core.commits import CommitV2
from rebaser_core.errors import NewerVersion
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.log import OTHER_PAST, CommitLog, LogEnd, NumberedEntry
from rebaser_server.commit_log.state import State, StateMachine
from rebaser_server.errors import (
    HistoryInconsistent,
    LogGone,
    MissingBatch,
    NeedsNewerVersion,
    NotRetained,
)
from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.runtime.tasks import compute_in_turn, unlocked_after

T = TypeVar("T")

Lasts = Literal["an instant", "a moment", "long"]
"""Duration of a look at a state: a millisecond or so, which needs no thread; no longer than
requests may be held up; or longer."""

MIN_SIZE: Final = 16 * 1024
"""Minimum number of bytes that a state, also an empty one, counts for."""


class OwnedState(Protocol):
    @property
    def state(self) -> State: ...

    @property
    def lock(self) -> asyncio.Lock: ...

    def includes(self, end: LogEnd) -> bool:
        """Whether the log has all that the state holds, and the state includes the commit `end`."""


class _Displaced(Exception):
    """A run began with the state, or ended, while a reader waited for it."""


@dataclass(slots=True, eq=False)
class _KeptState:
    """A state that no run has. A reader brings it up to date under its lock, and looks at it."""

    state: State | None = None
    """State; None until it is loaded, and while it may be half up to date."""
    size: int = MIN_SIZE
    released_by: CommitV2 | None = None
    """Commit by which a run released it unchanged since; None if a reader has updated it."""
    released_at: float = 0.0
    """Time of the release by the monotonic clock."""
    is_due: bool = False
    """Whether a run should write a checkpoint of it, and was not asked to yet."""
    is_taken: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class StateCache:
    """The states that a process holds of change sets, at most one useful state of each.

    The cache holds the states of its runs and, of others, the last used that fit into `max_bytes`:
    a larger one is loaded for each reader and dropped after it. A state that a run released is for
    the next run of this process, if the log still ends with the commit that released it (W2c);
    until then readers may look at it, as they do at the state of a run, and change nothing.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self._max_bytes = max_bytes
        self._owned: dict[ChangeSet, OwnedState] = {}
        self._kept: OrderedDict[ChangeSet, _KeptState] = OrderedDict()
        """Kept states, the one used last at the end."""
        self._total = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, change_set: object) -> bool:
        return change_set in self._owned or change_set in self._kept

    @property
    def total(self) -> int:
        """Estimated bytes of the states that no run has."""
        return self._total

    @contextmanager
    def owned(self, change_set: ChangeSet, run: OwnedState) -> Iterator[None]:
        """Let readers have the run's state while the body lasts.

        If this process has two runs of it, the later one has displaced the other.
        """
        self._owned[change_set] = run
        try:
            yield
        finally:
            if self._owned.get(change_set) is run:
                del self._owned[change_set]

    def keep(self, change_set: ChangeSet, state: State, size: int, released_by: CommitV2) -> None:
        """Keep a state that a run released by that commit; the caller does not touch it any more.

        `size`: bytes of memory, as of `State.size`.
        """
        self._drop(change_set)
        self._kept[change_set] = kept = _KeptState(
            state, 0, released_by, time.monotonic(), is_due=state.unsaved.requests > 0
        )
        self._resize(change_set, kept, size)

    async def take(self, change_set: ChangeSet, end: LogEnd) -> State | None:
        """Remove the state that a run released, once no reader looks at it any more.

        The state is returned if it is as of the log's last commit.
        """
        kept = self._kept.get(change_set)
        if kept is None or kept.released_by is None:
            return None
        released_by = kept.released_by.id
        self._drop(change_set)
        # Before the wait: readers that stand in line for the lock behind this call must not look at
        # a state that the run changes.
        kept.is_taken = True
        async with kept.lock:
            state = kept.state
        # A state that a reader brought up to date does not know its later checkpoints.
        if state is None or state.commit_id != released_by or not _ends_with(state, end):
            return None
        return state

    def last_commit(self, change_set: ChangeSet) -> NumberedEntry | None:
        """The commit that released the change set, with which its log may end."""
        kept = self._kept.get(change_set)
        if kept is None or kept.state is None or kept.released_by is None:
            return None
        return kept.state.commit, kept.released_by

    def unsaved(self, age: float) -> Iterator[ChangeSet]:
        """Yield the change sets released at least `age` seconds ago that have no checkpoint of it.

        The least lately used comes first.
        """
        until = time.monotonic() - age
        for change_set, kept in self._kept.items():
            if kept.is_due and kept.released_at <= until:
                yield change_set

    def on_task(self, change_set: ChangeSet) -> None:
        """Note that a run was requested that writes its checkpoint."""
        if change_set in self._kept:
            self._kept[change_set].is_due = False

    async def read(
        self, loader: "StateLoader", look: Callable[[State], T], lasts: Lasts = "long"
    ) -> T:
        """Return what `look`, which changes nothing, returns of the state as of the last commit.

        The state does not change meanwhile: requests and other readers wait, also if the caller is
        cancelled, until `look` has ended. Requests do not wait for a long look, unless they begin a
        run: it gets another state than the run has.

        Raises:
            HistoryInconsistent: log and store contradict each other, or belong to different
                deployments.
        """
        change_set, end = loader.change_set, None
        while True:
            if change_set in self:
                # After the query came: so the state of a run that was fenced off before is no use.
                end = await loader.log.end(self.last_commit(change_set))
            run = self._owned.get(change_set)
            if run is not None and end is not None and lasts != "long":
                with suppress(_Displaced):
                    return await self._read_owned(change_set, run, end, look, lasts)
            with suppress(_Displaced):
                return await self._read_kept(loader, end, look, lasts)

    async def _read_owned(
        self,
        change_set: ChangeSet,
        run: OwnedState,
        end: LogEnd,
        look: Callable[[State], T],
        lasts: Lasts,
    ) -> T:
        await run.lock.acquire()  # without a body, in which a reader's error would spoil it
        with ExitStack() as stack:
            stack.callback(run.lock.release)
            # Looked at once the lock is held: the run may have ended, or been overtaken, during the
            # wait.
            if self._owned.get(change_set) is not run or not run.includes(end):
                raise _Displaced
            if lasts == "an instant":
                return look(run.state)
            # From here on the thread's end releases the lock, also if the reader is cancelled
            # before that: else the run would change the state under the thread.
            stack.pop_all()
        return await unlocked_after(run.lock, asyncio.to_thread(look, run.state))

    async def _read_kept(
        self,
        loader: "StateLoader",
        end: LogEnd | None,
        look: Callable[[State], T],
        lasts: Lasts,
    ) -> T:
        change_set = loader.change_set
        kept = self._kept.get(change_set)
        if kept is None:
            kept = self._kept[change_set] = _KeptState()
            self._total += kept.size
        self._kept.move_to_end(change_set)
        await kept.lock.acquire()
        with ExitStack() as stack:
            stack.callback(kept.lock.release)
            if kept.is_taken:
                raise _Displaced
            state = kept.state
            is_known = state is not None and end is not None and _ends_with(state, end)
            if state is None or not is_known:
                state = await self._update(kept, loader, end)
            if is_known and lasts == "an instant":
                return look(state)
            stack.pop_all()
        # The next run waits for the state that a run left, so its readers do not wait for others.
        compute = asyncio.to_thread
        if kept.released_by is None:
            compute = partial(compute_in_turn, str(change_set.workspace_id))

        async def measure_and_look() -> T:
            if not is_known:
                self._resize(change_set, kept, await compute(state.size, loader.machine))
            return await compute(look, state)

        return await unlocked_after(kept.lock, measure_and_look())

    async def _update(self, kept: _KeptState, loader: "StateLoader", end: LogEnd | None) -> State:
        """Bring the state up to date, at the cost of the commits since the last reader."""
        state, kept.state = kept.state, None  # cancelled or failed, it is worthless
        kept.released_by, kept.is_due = None, False
        try:
            if state is not None and end is not None:
                state = await loader.follow(state, end)
            kept.state = state or await loader.load()
        except BaseException:
            self._drop(loader.change_set, kept)
            raise
        return kept.state

    def _resize(self, change_set: ChangeSet, kept: _KeptState, size: int) -> None:
        """Count it with that size; drop states beyond the limit, and one without commits."""
        if self._kept.get(change_set) is not kept:
            return  # others displaced it meanwhile
        self._total += MIN_SIZE + size - kept.size
        kept.size = MIN_SIZE + size
        if kept.state is None or not kept.state.commit:
            self._drop(change_set)
        while self._total > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, change_set: ChangeSet, only: _KeptState | None = None) -> _KeptState | None:
        kept = self._kept.get(change_set)
        if kept is None or only not in (None, kept):
            return None
        self._total -= kept.size
        return self._kept.pop(change_set)


def _ends_with(state: State, end: LogEnd) -> bool:
    return (
        end.entry is not None and state.commit == end.sequence and state.commit_id == end.entry.id
    )


@dataclass(frozen=True, slots=True)
class StateLoader:
    change_set: ChangeSet
    log: CommitLog
    batches: BatchStore
    machine: StateMachine
    cache: StateCache = field(default_factory=StateCache)
    """States that this process holds; by default it keeps none."""

    async def load(self, at: int | None = None) -> State:
        """Return the state as of the last commit, or of the last one up to sequence `at`.

        Nothing is touched and no ownership is needed. The past goes back as far as the log does,
        and costs as much as the present.

        Raises:
            NotRetained: the log does not go back to `at`, or has not come so far; or the
                change set was deleted.
            HistoryInconsistent: log and store contradict each other, or belong to different
                deployments.
        """
        return await self.from_earliest(at, partial(self._load, at))

    async def from_earliest(self, at: int | None, look: Callable[[int], Awaitable[T]]) -> T:
        """Return what `look` returns, which gets the earliest commit whose state can be loaded.

        All that reads a span of the log does it in `look`. It begins anew for as long as commits
        are purged meanwhile: a slow reader cannot tell a checkpoint and purge by the owner from
        damage. This ends at the latest when the state as of `at`, if given, is not kept any more.

        Raises:
            NotRetained: that state is not kept, or the change set was deleted; or as `look`.
            HistoryInconsistent, MissingBatch: as `look`, although nothing was purged.
        """
        begins = await self.earliest_commit()
        while True:
            if at is not None and at < begins:
                raise NotRetained(
                    f"{self.change_set}: the past before commit {begins} is not kept any more, "
                    f"and with it the state as of commit {at}"
                )
            try:
                return await look(begins)
            except (NotRetained, HistoryInconsistent, MissingBatch) as error:
                _, entry = await self.log.last()
                if entry is not None and entry.control.deleted:
                    raise NotRetained(f"{self.change_set} was deleted") from error
                before, begins = begins, await self.earliest_commit()
                if before == begins:
                    raise

    async def _load(self, at: int | None, _begins: int) -> State:
        state = await self._restore_checkpoint(at)
        # Afterwards: so it is not before the checkpoint, unless NATS was restored.
        last, _ = await self.log.last()
        if not last:
            await self.log.require_readable()
        if at is not None and at > last:
            raise NotRetained(f"{self.change_set}: the log ends at commit {last}, before {at}")
        return await self._replay_onto(state, last if at is None else at)

    async def load_own(self, before: LogEnd, own: NumberedEntry) -> State:
        """Return the state as of `own`, the commit of a takeover, which follows `before`.

        If this process released the change set with the commit `before`, it still has the state
        (W2c). Raises as `_restore_checkpoint` and `_replay_onto`.
        """
        sequence, entry = own
        released = await self.cache.take(self.change_set, before)
        if entry.control.deleted:
            return State(self.machine.empty(), entry.control, sequence)
        if released is not None:
            released.advance(entry, sequence)
            return released
        # A run writes its checkpoint right before the commit that releases: so these two commits
        # are mostly all that is behind it, and the log is not read.
        known = [own] if before.entry is None else [(before.sequence, before.entry), own]
        return await self._replay_onto(await self._restore_checkpoint(None), sequence, known)

    async def read(self, look: Callable[[State], T], lasts: Lasts = "long") -> T:
        """Return what `look` returns of the state as of the last commit; see `StateCache.read`."""
        return await self.cache.read(self, look, lasts)

    async def earliest_commit(self) -> int:
        """Return the earliest commit whose state can be loaded: 0, or a checkpoint's."""
        first = await self.log.oldest()
        return 0 if first is None else first.previous

    async def _replay_onto(
        self, state: State, until: int, known: Sequence[NumberedEntry] = ()
    ) -> State:
        """Return a checkpoint's state after the commits up to `until`.

        `known` are the last commits, if the caller has read them already.

        Raises:
            HistoryInconsistent: checkpoint and log contradict each other; nothing was changed.
        """
        if state.checkpoint_commit and not until:
            raise LogGone(str(self.change_set), state.checkpoint_commit)
        if state.checkpoint_commit > until:
            raise HistoryInconsistent(
                f"{self.change_set}: the checkpoint is of commit {state.checkpoint_commit}, but "
                f"the log ends at {until}; was the stream restored from an older backup than the "
                "store?"
            )
        try:
            await self._require_same_past(state, known)
            await self.catch_up(state, until, known)
            self.machine.require_sound(state)
        except HistoryInconsistent as error:
            raise self._damaged(state.damage, str(error)) if state.damage else error from None
        return state

    async def _restore_checkpoint(self, at: int | None) -> State:
        """Restore the last sound checkpoint; without one, the state before the first commit.

        Raises:
            HistoryInconsistent: no checkpoint can be read, and the log cannot make up for it.
            NeedsNewerVersion: only a newer release can read the checkpoint.
        """
        damage = ""
        try:
            if (state := await asyncio.to_thread(self._restore, at)) is not None:
                return state
        except NewerVersion as error:
            raise NeedsNewerVersion(error) from error
        except StoreDamaged as error:
            damage = str(error)
            if begins := await self.earliest_commit():
                reason = f"no checkpoint is sound, and the log begins behind commit {begins}"
                raise self._damaged(damage, reason) from error
        except (LookupError, TypeError, ValueError) as error:
            raise HistoryInconsistent(
                f"{self.change_set}: the checkpoint cannot be read: {type(error).__name__}: {error}"
            ) from error
        first = await self.log.oldest()
        return State(await self.machine.initial(first, self._load_sibling), damage=damage)

    def _restore(self, at: int | None) -> State | None:
        checkpoint = self.machine.load(self.change_set, at)
        return None if checkpoint is None else State.from_checkpoint(checkpoint)

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

        A settled request's id is remembered, or the request was stored no later than the last one
        that is. Otherwise its stream was made anew, and sequences were given twice.

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
        return await self.sibling(change_set_id).load(at)

    def sibling(self, change_set_id: ChangeSetId) -> "StateLoader":
        other = ChangeSet(self.change_set.workspace_id, change_set_id)
        return StateLoader(other, self.log.sibling(other), self.batches, self.machine)

    async def catch_up(self, state: State, until: int, known: Sequence[NumberedEntry] = ()) -> None:
        """Replay the commits after those that `state` holds, up to commit `until`, onto it."""
        if until < state.commit:
            raise HistoryInconsistent(
                f"{self.change_set}: the log ends at {until}, before commit {state.commit}"
            )
        async for sequence, commit in self._read_entries(state.commit, until, known):
            await self._replay(state, commit)
            state.advance(commit, sequence)

    async def follow(self, state: State, end: LogEnd) -> State | None:
        """Replay the commits since onto `state`; return None if it is of no use any more.

        `end` was the log's last commit a moment ago.
        """
        if end.sequence <= state.commit:  # another reader was faster, or NATS was restored
            end = await self.log.end()
            if _ends_with(state, end):
                return state
        if end.sequence <= state.commit:
            return None
        try:
            await self.catch_up(state, end.sequence)
        except HistoryInconsistent:  # purged since the last look
            return None
        return state

    async def _read_entries(
        self, after: int, until: int, known: Sequence[NumberedEntry]
    ) -> AsyncIterator[NumberedEntry]:
        """Yield the commits after `after`: from `known` if it has them all, else from the log."""
        behind = [(sequence, entry) for sequence, entry in known if after < sequence <= until]
        # S-6: only if they follow the state; else the log shows what is missing or of another past.
        if behind and behind[0][1].previous == after:
            for each in behind:
                yield each
        else:
            async for each in self.log.entries(after, until):
                yield each

    async def _replay(self, state: State, commit: CommitV2) -> None:
        settled = commit.settled
        if settled is None:
            return
        try:
            if commit.call is not None:
                state.content.take_over(settled, commit.call)
            elif settled.updates is not None:
                batch = await self.batches.fetch(settled.updates, settled.id)
                await state.content.apply(settled.sequence, batch, settled.covers)
        except NewerVersion as error:
            raise NeedsNewerVersion(error) from error
        except MissingBatch as error:
            raise HistoryInconsistent(
                f"{self.change_set}: {error}, which the log refers to"
            ) from error


OpenLoader = Callable[[ChangeSet], StateLoader]
