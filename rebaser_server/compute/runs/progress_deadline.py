"""A time limit for work that may take as long as it likes, but has to get on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from rebaser_core.jetstream import deadlines
from rebaser_server.compute.errors import Stalled


class ProgressDeadline:
    """Begins anew with each progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds: Final = seconds
        self._highest = 0
        self._current: deadlines.Deadline | None = None

    @asynccontextmanager
    async def limiting(self) -> AsyncIterator[None]:
        """Cancel the body once there was no progress for so long. Raises `Stalled`."""
        try:
            async with deadlines.within(self._seconds) as self._current:
                yield
        except TimeoutError:
            raise Stalled(
                f"deadline exceeded: no value was computed for {self._seconds:g} s"
            ) from None
        finally:
            self._current = None

    def record(self, done: int, _in_all: int) -> None:
        """As `OnProgress`: so many values are done."""
        if done > self._highest:
            self._highest = done
            self.extend()

    def extend(self) -> None:
        """Begin anew: there was progress of another kind."""
        if self._current is not None:
            self._current.reschedule(asyncio.get_running_loop().time() + self._seconds)
