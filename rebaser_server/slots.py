"""So many change sets at once; a quiet one gives its slot up early when tasks are waiting."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Never

import structlog

from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.errors import SlotWanted
from rebaser_server.lifetimes import Wish

log: Final = structlog.get_logger()

LOOK_EVERY: Final = 0.5
"""Seconds between two looks whether tasks wait, while no slot is free."""

SHORTEST_IDLE: Final = 0.5
"""Seconds that a change set is left its slot after its last request, whoever waits."""


class Turn(Wish):
    """A change set's stay in a slot."""

    def __init__(self) -> None:
        super().__init__(SlotWanted)
        self._clock = asyncio.get_running_loop().time
        self._idle_since: float | None = None

    @property
    def idle(self) -> float:
        """For how many seconds it has had nothing to do."""
        return 0.0 if self._idle_since is None else self._clock() - self._idle_since

    @asynccontextmanager
    async def waiting(self, *, has_work: bool) -> AsyncIterator[None]:
        """Wait for a request in the body; ended by `SlotWanted` unless there is other work."""
        self.clear()
        self._idle_since = None if has_work else self._clock()
        try:
            async with self.interrupts():
                yield
        finally:
            self._idle_since = None


class Slots:
    """The slots of a process and who has them."""

    def __init__(self, js: JetStream, tasks_stream: str, count: int) -> None:
        self._js = js
        self._stream = tasks_stream
        self._count = count
        self._turns: set[Turn] = set()
        self._freed = asyncio.Event()

    @property
    def busy(self) -> int:
        return len(self._turns)

    @property
    def free(self) -> int:
        return self._count - len(self._turns)

    async def one_free(self) -> None:
        """Return once a slot is free."""
        while not self.free:
            self._freed.clear()
            await self._freed.wait()

    def take(self) -> Turn:
        turn = Turn()
        self._turns.add(turn)
        return turn

    def give_back(self, turn: Turn) -> None:
        self._turns.discard(turn)
        self._freed.set()

    async def make_room(self) -> Never:
        """Whenever all are taken and tasks wait, ask for those of the longest idle change sets."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self.free:
                continue
            try:
                info = await self._js.consumer_info(self._stream, TASKS_CONSUMER)
            except JetStreamError as error:
                log.warning("waiting tasks not counted", error=str(error))
                continue
            idle = sorted(self._turns, key=lambda turn: turn.idle, reverse=True)
            for turn in idle[: info["num_pending"]]:
                if turn.idle >= SHORTEST_IDLE:
                    turn.ask()
