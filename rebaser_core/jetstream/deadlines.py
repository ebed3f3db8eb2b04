"""Deadlines for a body: `asyncio.timeout`, right also on Python 3.11.0 to 3.11.2.

There `asyncio.timeout` raises `CancelledError` in place of `TimeoutError` in a task that was
cancelled before and went on: by a failing `TaskGroup`, or for its cleaning up (cpython gh-102780).

`Backoff` is the wait before the next attempt: ever longer, up to a limit.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, Self


def within(seconds: float | None) -> "Deadline":
    """Cancel the body after `seconds` (None: never), and raise `TimeoutError` in its place."""
    return Deadline(None if seconds is None else asyncio.get_running_loop().time() + seconds)


def until(when: float | None) -> "Deadline":
    """Cancel the body at `when` on the loop's clock, and raise `TimeoutError` in its place."""
    return Deadline(when)


class Deadline:
    """A deadline for one body of one task; once passed, it ends the body at its next wait."""

    __slots__ = ("_cancelled", "_ended", "_task", "_timer", "_when")

    def __init__(self, when: float | None) -> None:
        self._when = when
        self._ended = False
        self._timer: asyncio.Handle | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can have a deadline")
        self._task, self._cancelled = task, task.cancelling()
        self.reschedule(self._when)
        return self

    def reschedule(self, when: float | None) -> None:
        """Move the deadline, while it has not passed."""
        self._disarm()
        loop = asyncio.get_running_loop()
        if when is not None and not self._ended:
            is_past = when <= loop.time()
            self._timer = loop.call_soon(self._end) if is_past else loop.call_at(when, self._end)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._ended = True
        self._timer = None
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self._disarm()
        if not self._ended:
            return
        cancelled_by_others = self._task.uncancel() > self._cancelled
        if isinstance(error, asyncio.CancelledError) and not cancelled_by_others:
            raise TimeoutError from error


_MOST_DOUBLINGS: Final = 64  # a larger number would overflow a float some day


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds that double from the first to the longest; attempts count from 1."""

    first: float
    longest: float

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt."""
        doublings = min(max(0, attempt - 1), _MOST_DOUBLINGS)
        return min(self.first * 2.0**doublings, self.longest)

    def jittered(self, attempt: int) -> float:
        """Return the delay less up to half of it, at random: many do not try at the same moment."""
        return self.delay(attempt) * random.uniform(0.5, 1.0)

    def __iter__(self) -> Iterator[float]:
        """Yield the delays after the first attempt, the second and so on, without end."""
        return map(self.delay, count(1))
