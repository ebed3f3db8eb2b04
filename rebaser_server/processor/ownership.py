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
from rebaser_server.commit_log.state_loader import LoadedState, StateLoader
from rebaser_server.errors import AppendRefused, Fenced, HistoryInconsistent, NeedsNewerVersion
from rebaser_server.processor.pending_dvu import PendingDvu
from rebaser_server.processor.request_spans import RequestSpans

_LEAVE_TIMEOUT: Final = 2.0  # seconds


async def _empty_control() -> ControlState:
    return ControlState()


class Ownership:
    """The owner of a change set: it alone can append to the log, until another takes over.

    The request loop and the DVU of a run share it; whoever reads the state and then
    writes holds `lock` meanwhile. What it says is true until a write is refused (W4); once
    a write raises, the state is worthless.
    """

    def __init__(self, loader: StateLoader, loaded: LoadedState) -> None:
        self.loader = loader
        self.state = loaded.state
        self.checkpoint_commit = loaded.checkpoint
        """Line of the last checkpoint; 0 for none."""
        self.entries_since_checkpoint = loaded.entries
        """Lines since then."""
        self.requests_since_checkpoint = loaded.settled_requests
        """Requests settled since then."""
        self.checkpoints = loaded.checkpoints
        self.lock = asyncio.Lock()
        self.spans = RequestSpans(loader.change_set)
        self.pending_dvu = PendingDvu()
        self.followups: set[str] = set()
        """What requests asked of the run itself since it looked."""
        self._staged: list[CommitV1] = []
        self._staged_requests: set[RequestId] = set()
        """By the staged lines."""
        self.spoiled = False
        """See `spoil`."""
        self.unreleased_owner = ""
        """The owner before, if it never released the change set."""

    @classmethod
    async def acquire(
        cls,
        loader: StateLoader,
        instance: str,
        initial_control: Callable[[], Awaitable[ControlState]] = _empty_control,
    ) -> "Ownership":
        """Become the owner: from now on every earlier owner's writes fail (W2).

        `first` is asked for the head of a change set that has no line yet.
        """
        while True:
            previous, last, headers = await loader.log.last_with_headers()
            control = await initial_control() if last is None else last.control
            own_id = RequestId()
            own_control = control.model_copy(
                update={"epoch": control.epoch + 1, "owner": f"{instance}/{own_id}"}
            )
            try:
                entry = CommitV1(id=own_id, previous=previous, control=own_control)
                [sequence] = await loader.log.append([entry], {own_id: headers})
            except Fenced:
                continue
            try:
                if own_control.deleted:
                    loaded = LoadedState(State(control=own_control, commit=sequence), 0)
                else:
                    known = (
                        [(sequence, entry)]
                        if last is None
                        else [(previous, last), (sequence, entry)]
                    )
                    loaded = await loader.replay_to(sequence, known=known)
                ownership = cls(loader, loaded)
            except HistoryInconsistent:
                # A successor's checkpoint and purge look the same to who was slow to read.
                await _require_epoch(loader, own_control.epoch)
                raise
            except Exception:
                released = own_control.model_copy(update={"owner": ""})
                await _release_if_possible(
                    loader, CommitV1(id=RequestId(), previous=sequence, control=released)
                )
                raise
            ownership.unreleased_owner = control.owner
            if ownership.spans.on:
                ownership.pending_dvu.restore(headers)
            return ownership

    @property
    def control(self) -> ControlState:
        """The head as it is once everything staged is written."""
        return self._staged[-1].control if self._staged else self.state.control

    def has_staged(self, request_id: RequestId) -> bool:
        """Whether a staged line settles that request."""
        return request_id in self._staged_requests

    def stage(self, handled: SettledRequest | None = None, **changes: Any) -> None:
        """Put a line with `changes` to the head behind those to be written together."""
        control = self.control.model_copy(update=changes)
        previous = self.state.commit + len(self._staged)  # if nobody else writes meanwhile
        if handled is not None:
            self._staged_requests.add(handled.id)
        self._staged.append(
            CommitV1(id=RequestId(), previous=previous, control=control, handled=handled)
        )

    async def flush(self) -> None:
        """Append the staged lines, in order.

        Raises:
            Overtaken: another run owns the change set by now. The first so many of the
                lines may have been written; the state is worthless.
            Unwritten: a line was refused. Those before it are written and in the state,
                whose graph has more in it than that: see `spoil`.
        """
        entries, self._staged = self._staged, []
        self._staged_requests.clear()
        if not entries:
            return
        extra_headers = (
            self.pending_dvu.headers(entries, self.spans.context) if self.spans.on else {}
        )
        with self.spans.commit_spans(entries):
            try:
                sequences = await self.loader.log.append(entries, extra_headers)
            except AppendRefused as error:
                self.spoil()
                self._advance(entries, error.sequences)
                raise
        self._advance(entries, sequences)

    def _advance(self, entries: Sequence[CommitV1], sequences: Sequence[int]) -> None:
        for entry, sequence in zip(entries, sequences, strict=False):  # those that were written
            self.pending_dvu.record(entry, self.spans.context)
            self.state.advance(entry, sequence)
            self.entries_since_checkpoint += 1
            self.requests_since_checkpoint += entry.handled is not None

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
        await _require_epoch(self.loader, self.state.control.epoch)


async def _release_if_possible(loader: StateLoader, entry: CommitV1) -> None:
    """An orderly end, as far as that can be had: nobody died (W14)."""
    with suppress(Fenced, JetStreamError, TimeoutError):
        async with within(_LEAVE_TIMEOUT):
            await loader.log.append([entry])


async def _require_epoch(loader: StateLoader, epoch: int) -> None:
    try:
        _, last = await loader.log.last()
    except NeedsNewerVersion as error:  # none of our lines is
        raise Fenced(f"{loader.change_set} has a new owner: {error}") from error
    if last is not None and last.control.epoch != epoch:
        raise Fenced(f"{loader.change_set} has a new owner")
