"""Who pauses change sets for a while, or everything, and may die before resuming them."""

import asyncio
import random
from collections.abc import Collection
from contextlib import suppress

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.records import PauseScope
from rebaser_core.streams import Streams
from rebaser_server.cluster.pauses import PauseStore
from tests.chaos.history import History
from tests.schedules.broker import Broker
from tests.schedules.example_batches import Sheet
from tests.schedules.loop import Loop
from tests.schedules.processes import Asker
from tests.schedules.scenario import Pausing

_REPEATED_AFTER = 1.0
"""Seconds until a person repeats a command that failed."""


class Operator(Asker):
    """A client that pauses and resumes as its list has it."""

    def __init__(
        self,
        loop: Loop,
        broker: Broker,
        name: str,
        pausings: Collection[Pausing],
        sheets: dict[ChangeSet, Sheet],
        history: History,
        rng: random.Random,
    ) -> None:
        self._pausings = pausings
        super().__init__(loop, broker, name, [], sheets, history, rng)

    async def _work(self) -> None:
        book = PauseStore(Streams(js=self._js))
        for pausing in self._pausings:
            await asyncio.sleep(pausing.pause)
            await self._cued(pausing.cue)
            scope = PauseScope(*list(self._sheets)[pausing.change_set][: pausing.breadth])
            with suppress(JetStreamError):
                await book.pause(scope)
                await asyncio.sleep(pausing.seconds)
                await _resume_until_confirmed(book, scope)


async def _resume_until_confirmed(book: PauseStore, scope: PauseScope) -> None:
    """As a person does whose command ends with an error: the pause may be gone, and no task made.

    Otherwise the reconcilers make it (P5), which most schedules are without.
    """
    while True:
        with suppress(JetStreamError):
            await book.resume(scope)
            return
        await asyncio.sleep(_REPEATED_AFTER)


async def resume(js: JetStream) -> None:
    """Resume whatever is paused by now, as somebody does who looks for it."""
    book = PauseStore(Streams(js=js))
    for scope in await book.all():
        await book.resume(scope)
