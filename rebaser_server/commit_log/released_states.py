"""The states of change sets that this process released, for its next runs of the same ones."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.commit_messages import LogEnd, NumberedEntry
from rebaser_server.commit_log.loaded_state import LoadedState
from rebaser_server.commit_log.state import State

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
