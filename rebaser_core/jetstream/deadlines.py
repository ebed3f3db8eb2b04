"""Deadlines for a body: `asyncio.timeout`, right also on Python 3.11.0 to 3.11.2.

There `asyncio.timeout` raises `CancelledError` in place of `TimeoutError` in a task that was
cancelled before and went on: by a failing `TaskGroup`, or for its cleaning up (cpython gh-102780).
"""

import asyncio
from typing import Self


def within(seconds: float | None) -> "Deadline":
    """Cancel the body after `seconds` (None: never), and raise `TimeoutError` in its place."""
    return Deadline(None if seconds is None else asyncio.get_running_loop().time() + seconds)


def until(when: float | None) -> "Deadline":
    """Cancel the body at `when` on the loop's clock, and raise `TimeoutError` in its place."""
    return Deadline(when)


class Deadline:
    """For one body of one task; a deadline that has passed ends the body at its next wait."""

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
