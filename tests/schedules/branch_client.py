"""Who forks branches of a workspace, edits them and brings them to an end."""

import asyncio
import random
from contextlib import suppress

from rebaser_client import ClientError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, JetStreamError
from tests.chaos.branch_workload import Leading
from tests.chaos.history import History
from tests.schedules.broker import Broker
from tests.schedules.example_batches import Sheet
from tests.schedules.loop import Loop
from tests.schedules.processes import Asker
from tests.schedules.scenario import Act

DEFINED_WITHIN = 60.0
"""Virtual seconds for head to be what branches can be forked from."""


class Lead(Asker):
    """A client that has a workspace, whose head is the first change set."""

    def __init__(
        self,
        loop: Loop,
        broker: Broker,
        name: str,
        acts: list[Act],
        sheets: dict[ChangeSet, Sheet],
        history: History,
        rng: random.Random,
    ) -> None:
        self._acts = acts
        self._leading: Leading | None = None
        super().__init__(loop, broker, name, [], sheets, history, rng)

    @property
    def branches(self) -> list[ChangeSet]:
        return self._leading.branches if self._leading else []

    async def refresh(self, js: JetStream) -> None:
        """Have what head has done by now come to every branch that is open; no need to live."""
        if self._leading is not None:
            await self._leading.refresh(js)

    async def _work(self) -> None:
        head, sheet = next(iter(self._sheets.items()))
        leading = Leading(self._js, self._history, self._random, head, sheet)
        self._leading = leading
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(DEFINED_WITHIN):
                await self._create(leading)
                await leading.define(self._client)
            for act in self._acts:
                await asyncio.sleep(act.pause)
                await self._cued(act.cue)
                with suppress(ClientError, JetStreamError):
                    await leading.do(self._client, act.what, act.branch)

    async def _create(self, leading: Leading) -> None:
        while True:  # the registry is asked once each time
            with suppress(JetStreamError):
                return await leading.create(self._client)
            await asyncio.sleep(1)
