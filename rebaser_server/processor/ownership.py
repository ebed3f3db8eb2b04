"""One run's right to write a change set's log, and the state that it writes (W2, W7).

Ownership is acquired by one commit, which takes the change set from every earlier owner (W2).
`FormerOwners` tells whether that one died or lost its lease: only deaths are counted (L1, D6).
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

import structlog

from rebaser_core.commits import NO_REQUEST, CallEffect, CommitV2, ControlState, SettledRequest
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStreamError
from rebaser_core.jetstream.deadlines import within
from rebaser_server.commit_log.log import UNSAVED, LogEnd
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import AppendRefused, Fenced, HistoryInconsistent, NeedsNewerVersion
from rebaser_server.processor.request_traces import PendingDvu, RequestSpans
from rebaser_server.runtime.tasks import WatchedLock


async def require_epoch(loader: StateLoader, epoch: int) -> tuple[int, CommitV2 | None]:
    """Return the last commit and its sequence; raise `Fenced` if its epoch is another one."""
    try:
        sequence, last = await loader.log.last()
    except NeedsNewerVersion as error:  # our own commits never do
        raise Fenced(f"{loader.change_set} has a new owner: {error}") from error
    if last is not None and last.control.epoch != epoch:
        raise Fenced(f"{loader.change_set} has a new owner")
    return sequence, last


_LEAVE_TIMEOUT: Final = 2.0  # seconds


class CommittedEntry(NamedTuple):
    """A commit of this run that the log holds and the state includes."""

    sequence: int
    entry: CommitV2
    action: str | None
    """Action on the change set as a whole that it carries out, if any."""
    request: SettledRequest | None
    """The request that it settles, if any."""

    @classmethod
    def of(cls, entry: CommitV2, sequence: int, action: str | None) -> Self:
        """Return the entry of a commit that the log holds as `sequence`."""
        settled = entry.settled
        is_of_request = settled is not None and settled.sequence != NO_REQUEST
        return cls(sequence, entry, action, settled if is_of_request else None)


_CommitObserver = Callable[[CommittedEntry], None]
"""Observer of commits. It is called under the lock, so it notes the commit, and others act
later."""

Settle = Callable[[], Coroutine[Any, Any, None]]


class Ownership:
    """The ownership of a change set: its holder alone can append to the log, until a takeover.

    The request loop and the DVU of a run share it; a task that reads the state and then writes
    holds `lock` meanwhile. The state matches the log until a write fails (W4). After a failed
    write, discard it.
    """

    def __init__(self, loader: StateLoader, state: State, takeover: CommitV2) -> None:
        self.loader = loader
        self.state = state
        self.lock = WatchedLock()
        self.spans = RequestSpans(loader.change_set)
        self.pending_dvu = PendingDvu()
        self.on_commit: _CommitObserver | None = None
        """Called with each commit of the run, in the order of the log."""
        self.settle: Settle | None = None
        """Commits and answers the requests before the one that is applied, which may take long;
        nothing of that one is in the content yet, and its task alone does anything meanwhile."""
        self._last_entry = takeover
        """The last commit of this run."""
        self._staged: list[CommitV2] = []
        self._staged_actions: dict[RequestId, str] = {}
        """The actions that staged commits carry out, by the commits' ids."""
        self._staged_requests: set[RequestId] = set()
        """Ids of the requests that the staged commits settle."""
        self.spoiled = False
        """Whether the content may hold what the log does not, see `spoil`."""
        self.is_for_another = False
        """Whether a request is best answered by another process: the run ends once it is idle, and
        waits for no quiet period."""
        self.unreleased_owner = ""
        """The previous owner, if it never released the change set."""

    @property
    def control(self) -> ControlState:
        """The control record as it will be once all staged commits are written."""
        return self._staged[-1].control if self._staged else self.state.control

    @property
    def code(self) -> str:
        """The code that values were computed with, once everything staged is written."""
        return (self._staged and self._staged[-1].code) or self.state.code

    def has_staged(self, request_id: RequestId) -> bool:
        return request_id in self._staged_requests

    def stage(
        self,
        settled: SettledRequest | None = None,
        *,
        stored: float | None = None,
        digest: str = "",
        is_edit: bool = False,
        action: str | None = None,
        code: str | None = None,
        call: CallEffect | None = None,
        **changes: Any,
    ) -> None:
        """Stage a commit with `changes` to the control record; `flush` writes all staged ones.

        Args:
            settled: the request that it settles.
            stored: time at which NATS stored that request, in seconds since 1970.
            digest: the request's, see `request_digest`.
            is_edit: whether it applies a batch of updates.
            action: the action on the change set as a whole that the request asks for.
            code: that values were computed with from then on; None: the same as before.
            call: the effect of a call.
            **changes: new values of fields of the control record.
        """
        control = self.control.model_copy(update=changes)
        previous = self.state.commit + len(self._staged)  # if no other run writes meanwhile
        if settled is not None:
            self._staged_requests.add(settled.id)
        # W7: the time comes from NATS, not from this clock. So a run that takes over forgets each
        # id at the same request as this one.
        own_id = RequestId() if stored is None else RequestId.from_timestamp(stored)
        entry = CommitV2(id=own_id, previous=previous, control=control, settled=settled, call=call)
        if not is_edit:
            entry.without_edit(self._staged[-1] if self._staged else self._last_entry)
        # The reconciler asks for new values where a commit names outdated code; a closed change set
        # would refuse that each time.
        if control.closing is None:
            entry.with_code(self.code if code is None else code)
        self._staged.append(entry.with_digest(digest))
        if action is not None:
            self._staged_actions[own_id] = action

    async def flush(self) -> None:
        """Append the staged commits, in order, and call `on_commit` with each.

        Raises:
            Fenced: another run owns the change set. The first few of the commits may have
                been written; the state is worthless.
            AppendRefused: the server refused a commit. Those before it are written, in the
                state, and observed; the content includes also those that are not written: see
                `spoil`.
        """
        # Emptied before the append: else the release of a run that failed (W14) would append once
        # more what was refused or cut off.
        entries, self._staged = self._staged, []
        actions, self._staged_actions = self._staged_actions, {}
        self._staged_requests.clear()
        if not entries:
            return
        extra_headers = (
            self.pending_dvu.headers(entries, self.spans.context) if self.spans.on else {}
        )
        if self._leaves_unsaved(entries[-1].control):
            last = entries[-1].id
            extra_headers = {**extra_headers, last: {**extra_headers.get(last, {}), UNSAVED: "1"}}
        with self.spans.commit_spans(entries):
            try:
                sequences = await self.loader.log.append(entries, extra_headers)
            except AppendRefused as error:
                self.spoil()
                self._advance(entries, error.sequences, actions)
                raise
            except BaseException:  # fenced, or cancelled: the log may hold some of them
                self.spoil()
                raise
        self._advance(entries, sequences, actions)

    def _leaves_unsaved(self, control: ControlState) -> bool:
        """Whether a commit with that record ends a run that no checkpoint covers (W10d)."""
        machine = self.loader.machine
        return not (control.owner or control.deleted) and machine.is_worth_saving(self.state)

    def _advance(
        self,
        entries: Sequence[CommitV2],
        sequences: Sequence[int],
        actions: Mapping[RequestId, str],
    ) -> None:
        for entry, sequence in zip(entries, sequences, strict=False):  # those that were written
            # One commit at a time, and its observer last: the observer reads the state as of that
            # commit.
            self.pending_dvu.record(entry, self.spans.context)
            self.state.advance(entry, sequence)
            self._last_entry = entry
            action = actions.get(entry.id) if actions else None
            if self.on_commit is not None:
                self.on_commit(CommittedEntry.of(entry, sequence, action))

    def spoil(self) -> None:
        """Record that the content may hold what the log does not: no checkpoint is made of it.

        The caller holds `lock`. The run has to end, but may still write commits that change
        the control record alone.
        """
        self.spoiled = True

    async def write(self, settled: SettledRequest | None = None, **changes: Any) -> int:
        """Append the staged commits and one more; return its sequence. Raises as `flush`."""
        self.stage(settled, **changes)
        await self.flush()
        return self.state.commit

    async def release(self) -> None:
        """Commit that the change set has no owner; success shows that this run owned it (W10).

        If the log still names an owner when another takes over, that owner did not end well.

        Raises:
            Fenced: another run owns the change set.
        """
        async with self.lock:
            await self.write(owner="")

    def includes(self, end: LogEnd) -> bool:
        state = self.state
        if self.spoiled or self.lock.failed or end.entry is None:
            return False
        # The run may have committed since `end` was read.
        return state.commit > end.sequence or (
            state.commit == end.sequence and state.commit_id == end.entry.id
        )

    def keep_state(self) -> None:
        """Leave the state to the next run in this process, after `release`, if it is sound (W2c).

        The run does not touch it any more.
        """
        if self.spoiled or self.lock.failed or self.state.control.deleted:
            return
        loader, size = self.loader, self.state.size(self.loader.machine)
        loader.cache.keep(loader.change_set, self.state, size, self._last_entry)

    async def leave(self) -> None:
        """Release the change set after the run failed, if that is possible (W14).

        Raises:
            Fenced: another run owns the change set, and the task with it (W15).
        """
        with suppress(JetStreamError, TimeoutError):
            async with within(_LEAVE_TIMEOUT):
                try:
                    await self.release()
                except Fenced:  # also if a write that was cut off is in the log
                    await self._release_behind_own()

    async def _release_behind_own(self) -> None:
        """Release behind the last commit of the log, which may be one that was cut off.

        Raises:
            Fenced: the last commit is another run's.
        """
        sequence, last = await require_epoch(self.loader, self.state.control.epoch)
        # Without an owner, the last commit is this run's release, whose answer was cut off.
        if last is not None and last.control.owner:
            released = last.control.model_copy(update={"owner": ""})
            entry = CommitV2(id=RequestId(), previous=sequence, control=released)
            await self.loader.log.append([entry.with_code(last.code).without_edit(last)])

    async def confirm(self) -> None:
        """Raise `Fenced` if the log shows another owner (W10b)."""
        await require_epoch(self.loader, self.state.control.epoch)


_RELEASE_TIMEOUT: Final = 2.0  # seconds


async def _empty_control() -> ControlState:
    return ControlState()


async def acquire_ownership(
    loader: StateLoader,
    instance: str,
    initial_control: Callable[[], Awaitable[ControlState]] = _empty_control,
    end: LogEnd | None = None,
) -> Ownership:
    """Become the owner, after which every earlier owner's writes fail (W2).

    Args:
        loader: of the change set.
        instance: the process that owns it from then on.
        initial_control: returns the control record of a change set without commits.
        end: the log's last commit, if the caller has read it.
    """
    while True:
        end = end or await loader.log.end()
        previous, last, trace, _ = end
        # Before the commit: a log with a damaged end answers as an empty one, and would take a
        # second first commit.
        if last is None:
            await loader.log.require_readable()
        control = await initial_control() if last is None else last.control
        own_id = RequestId()
        # W2: another epoch at each takeover. By it an earlier owner learns that it is fenced off
        # (W10b), and a run tells its own last commit from another run's (W14).
        own_control = control.model_copy(
            update={"epoch": control.epoch + 1, "owner": f"{instance}/{own_id}"}
        )
        try:
            entry = CommitV2(id=own_id, previous=previous, control=own_control)
            entry.with_code("" if last is None else last.code).without_edit(last)
            # W2: committed before the state is loaded: from then on no earlier owner adds to the
            # log. The trace goes along, since the next owner reads it from the last commit alone.
            [sequence] = await loader.log.append([entry], {own_id: trace})
        except Fenced:
            end = None
            continue
        try:
            ownership = Ownership(loader, await loader.load_own(end, (sequence, entry)), entry)
        except HistoryInconsistent:
            # A slow reader cannot tell this from a checkpoint and purge by a successor.
            await require_epoch(loader, own_control.epoch)
            raise
        except Exception:
            released = own_control.model_copy(update={"owner": ""})
            release = CommitV2(id=RequestId(), previous=sequence, control=released)
            await _release_if_possible(loader, release.without_edit(entry))
            raise
        ownership.unreleased_owner = control.owner
        if ownership.spans.on:
            ownership.pending_dvu.restore(trace)
        return ownership


async def _release_if_possible(loader: StateLoader, entry: CommitV2) -> None:
    """End in order if that is possible, so that the next owner counts no death (W14)."""
    with suppress(Fenced, JetStreamError, TimeoutError):
        async with within(_RELEASE_TIMEOUT):
            await loader.log.append([entry])


log: Final = structlog.get_logger()

LOST_LEASES_PER_DEATH: Final = 10
"""Number of lost leases of a change set, without a release between them, of which the last one
counts as a death: a fault that stops a process's reports for a whole lease each time is as bad as
one that kills it, but a busy machine, too, costs a lease now and then."""


class FormerOwners:
    """Owners that had not released what this process took over, and their lost leases."""

    def __init__(self, is_gone: Callable[[str], Awaitable[bool]]) -> None:
        """Begin without owners; `is_gone` returns whether the process of an instance has ended."""
        self._is_gone = is_gone
        self._lost_leases: Counter[ChangeSet] = Counter()

    async def counts_as_death(self, change_set: ChangeSet, owner: str) -> bool:
        """Whether the unreleased `owner` counts as one that died at its work.

        The owner counts if its process is gone, or if too many leases were lost in a row.
        """
        if await self._is_gone(owner.rpartition("/")[0]):
            return True
        self._lost_leases[change_set] += 1
        lost_leases = self._lost_leases[change_set]
        log.warning("owner lost its lease", former=owner, lost_leases=lost_leases)
        if lost_leases < LOST_LEASES_PER_DEATH:
            return False
        self.forget(change_set)
        return True

    def forget(self, change_set: ChangeSet) -> None:
        """Forget the lost leases of a change set that this process has released."""
        self._lost_leases.pop(change_set, None)
