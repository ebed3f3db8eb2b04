"""Seats that are given in turns: who wants many does not keep others waiting."""

import asyncio
from collections import deque
from contextlib import suppress


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
