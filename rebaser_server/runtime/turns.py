"""Seats that are given in turns, and threads of which each owner has one at a time.

Who wants many does not keep others waiting.
"""

import asyncio
from asyncio import AbstractEventLoop, Lock
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from rebaser_server.runtime.concurrency import drop_error

T = TypeVar("T")
P = ParamSpec("P")

_lines: Final = WeakKeyDictionary[AbstractEventLoop, WeakValueDictionary[str, Lock]]()
"""The lock of each owner for whom a thread computes, or who waits for one."""


async def compute_in_turn(
    owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call the function in a thread, after those that the owner's earlier calls wait for.

    Threads that compute share the interpreter with the event loop: with each of them, it waits
    longer whenever it wakes. So one who asks for much gets one of them, however much it is.
    Cancelled, the owner's next call waits until the function has returned all the same.
    """
    lines = _lines.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    line = lines.get(owner)
    if line is None:
        line = lines[owner] = Lock()
    await line.acquire()
    try:
        call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    except BaseException:
        line.release()
        raise
    call.add_done_callback(lambda _: line.release())
    call.add_done_callback(drop_error)
    return await asyncio.shield(call)


class Turns:
    """A semaphore that serves the owners who wait in a circle, one seat each.

    An owner who waits for many seats gets one, and then stands behind all others who wait.
    """

    def __init__(self, seats: int) -> None:
        self._free = seats
        """0 while an owner waits."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By owner, the next first; each waits for one seat at least."""

    @property
    def is_wanted(self) -> bool:
        """Whether an owner waits for a seat."""
        return bool(self._waiting)

    def take_free(self) -> bool:
        """Take a seat if one is free."""
        is_free = self._free > 0
        self._free -= is_free
        return is_free

    async def take(self, owner: str) -> None:
        """Take a seat once it is the owner's turn. Cancelled, it takes none."""
        if self.take_free():
            return
        seat = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(seat)
        try:
            await seat
        except asyncio.CancelledError:
            if seat.cancelled():
                self._leave(owner, seat)
            else:
                self.give()
            raise

    def give(self) -> None:
        """Give a seat back, or one more, to the next owner who waits."""
        while self._waiting:
            owner = next(iter(self._waiting))
            seats = self._waiting.pop(owner)
            seat = seats.popleft()
            if seats:
                self._waiting[owner] = seats
            if not seat.cancelled():
                seat.set_result(None)
                return
        self._free += 1

    def _leave(self, owner: str, seat: asyncio.Future[None]) -> None:
        seats = self._waiting.get(owner, deque())
        with suppress(ValueError):
            seats.remove(seat)
        if not seats:
            self._waiting.pop(owner, None)
