"""The states that this process holds, for readers: those of its runs, and those that they left."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.log import LogEnd
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import ReleasedStates
from rebaser_server.processor.ownership.ownership import Ownership
from rebaser_server.runtime.tasks import drop_error

T = TypeVar("T")


class HeldStates:
    """A reader takes from a state what it needs, and nothing changes the state meanwhile."""

    def __init__(self, released: ReleasedStates) -> None:
        self._released = released
        self._owned: dict[ChangeSet, Ownership] = {}

    def __contains__(self, change_set: object) -> bool:
        return change_set in self._owned or change_set in self._released

    @contextmanager
    def owned(self, ownership: Ownership) -> Iterator[None]:
        """Let readers have the state while the body runs, and the caller still owns it after.

        Of two runs of this process, the later one has displaced the other.
        """
        change_set = ownership.loader.change_set
        self._owned[change_set] = ownership
        try:
            yield
        finally:
            if self._owned.get(change_set) is ownership:
                del self._owned[change_set]

    async def read(
        self, change_set: ChangeSet, end: LogEnd, look: Callable[[State], T], *, is_quick: bool
    ) -> T | None:
        """What `look` finds in a state that includes the commit `end`; None: none is held.

        Args:
            change_set: whose state.
            end: the last commit, as the log's leader had it after the question came. So a state
                of a run that was fenced off before that is not looked at.
            look: returns soon, since requests wait for it.
            is_quick: whether it is over within a millisecond or so, and needs no thread. If not,
                and the caller is cancelled, requests wait until `look` has ended all the same.
        """
        ownership, looking = self._owned.get(change_set), None
        if ownership is None:
            state = self._released.peek(change_set, end)
            if state is None or is_quick:
                return None if state is None else look(state)
            looking = asyncio.ensure_future(asyncio.to_thread(look, state))
            looking.add_done_callback(drop_error)
            self._released.lend(change_set, looking)
            return await asyncio.shield(looking)
        lock = ownership.lock
        await lock.acquire()  # not as a body of it: a reader's error spoils nothing
        try:
            if self._owned.get(change_set) is not ownership or not _includes(ownership, end):
                return None
            if is_quick:
                return look(ownership.state)
            looking = asyncio.ensure_future(asyncio.to_thread(look, ownership.state))
            looking.add_done_callback(lambda _: lock.release())  # also if cancelled
            looking.add_done_callback(drop_error)
            return await asyncio.shield(looking)
        finally:
            if looking is None:
                lock.release()


def _includes(ownership: Ownership, end: LogEnd) -> bool:
    """Whether all that the state holds is in the log, and the commit `end` is in the state."""
    state = ownership.state
    if ownership.spoiled or ownership.lock.failed or end.entry is None:
        return False
    return state.commit > end.sequence or (
        state.commit == end.sequence and state.commit_id == end.entry.id
    )
