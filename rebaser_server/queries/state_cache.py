"""Change sets that are kept in memory for the next question: those asked for last."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import Archive
from rebaser_server.queries.cached_state import Reader
from rebaser_server.queries.memory_footprint import footprint

ArchiveOf = Callable[[ChangeSet], Archive]

LEAST: Final = 16 * 1024
"""Bytes that a reader takes at the least, whatever it reads."""


@dataclass(slots=True)
class _Kept:
    reader: Reader
    size: int = LEAST
    commit: int = -1
    """The one that `size` was measured at."""


class KeptReaders:
    """Readers by change set, as many as have room in `most` bytes.

    What is larger than that by itself is loaded for each question and dropped after it; so is
    a change set that nothing was committed to.
    """

    def __init__(self, archive_of: ArchiveOf, most: int) -> None:
        self._archive_of = archive_of
        self._most = most
        self._kept: OrderedDict[ChangeSet, _Kept] = OrderedDict()
        """Asked last comes last."""
        self._total = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def total(self) -> int:
        """Bytes that they take, more or less."""
        return self._total

    @asynccontextmanager
    async def state_of(self, change_set: ChangeSet) -> AsyncIterator[State]:
        """The change set as of the last line that the log has now; the body has it to itself.

        Raises:
            As `Reader.state`.
        """
        kept = self._kept.get(change_set) or _Kept(Reader(self._archive_of(change_set)))
        self._drop(change_set)
        self._keep(change_set, kept)
        async with kept.reader.lock:
            try:
                state = await kept.reader.state()
            except BaseException:
                self._drop(change_set, kept)
                raise
            self._measure(change_set, kept, state)
            yield state

    def _measure(self, change_set: ChangeSet, kept: _Kept, state: State) -> None:
        if self._kept.get(change_set) is not kept:
            return  # others were asked for meanwhile
        self._drop(change_set)
        if not state.commit:
            return
        if kept.commit != state.commit:
            kept.size, kept.commit = LEAST + footprint(state), state.commit
        self._keep(change_set, kept)
        while self._total > self._most:
            self._drop(next(iter(self._kept)))

    def _keep(self, change_set: ChangeSet, kept: _Kept) -> None:
        self._kept[change_set] = kept
        self._total += kept.size

    def _drop(self, change_set: ChangeSet, only: _Kept | None = None) -> None:
        kept = self._kept.get(change_set)
        if kept is not None and only in (None, kept):
            del self._kept[change_set]
            self._total -= kept.size
