"""A daemon and all that it takes to send it what no client would."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from nats.aio.client import Client

from rebaser_client.client import RebaserClient
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ConnectOptions, JetStream, Unsendable, connected
from rebaser_core.subjects import Subjects
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.chaos.checker import judge
from tests.chaos.fuzz import fuzzed
from tests.chaos.history import Event, History, Kind
from tests.chaos.poison_requests import poison
from tests.chaos.processes import Seat, nats_servers, seats
from tests.chaos.recorder import Recorder, recording
from tests.chaos.workload import Values
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer

SUBJECTS = Subjects()
STUCK_AFTER = 60.0
"""Seconds in which not one request is settled. How long many of them take depends on the machine:
a limit on that failed a run that was slow and sound."""

BACKLOG = 300
"""Requests that wait at most. Lines are purged some 500 after they were written: a recorder that
is slower than the daemon would miss them."""

_SETTINGS = {
    "MAX_ATTEMPTS": "1",
    # Nothing but a message is to end a run here. A daemon that a busy machine leaves without a
    # turn loses a short lease, and what it was at is buried after two of those.
    "ACK_WAIT": "60",
}


class Bench:
    """One daemon that gives up at the first failure, and what it takes to send it anything."""

    def __init__(
        self, nats: NatsServer, nc: Client, seat: Seat, history: History, recorder: Recorder
    ) -> None:
        self.nats = nats
        self.nc = nc
        self.js = JetStream(nc)
        self.seat = seat
        self.history = history
        self.recorder = recorder

    async def put(
        self, change_set: ChangeSet, headers: dict[str, str], payload: bytes
    ) -> int | None:
        """Store it as it is; its sequence, or None if no client could have sent it."""
        try:
            ack = await self.js.publish(SUBJECTS.requests(change_set), payload, headers=headers)
        except Unsendable:
            return None
        return ack.sequence

    async def put_damaged(
        self, rng: random.Random, change_set: ChangeSet, values: Values, count: int
    ) -> list[int | None]:
        """Store so many that are damaged at random, or as `poison` has it; their sequences."""
        sequences: list[int | None] = []
        settled = self._settled
        for number in range(count):
            if number % BACKLOG == BACKLOG - 1:
                await self._until_settled(settled + number - BACKLOG - sequences.count(None))
            bad = poison(rng, change_set)
            message = fuzzed(rng, change_set, values)
            if rng.random() < 0.2:
                message = bad.headers, bad.payload
            sequences.append(await self.put(change_set, *message))
        return sequences

    async def still_answers(self, change_set: ChangeSet, values: Values) -> bool:
        """Whether a sound request behind all others is applied.

        Raises:
            AssertionError: all stands still.
        """
        async with RebaserClient.on(self.nc, self.js) as client:
            batch = values.define(random.Random(0))
            _, reply = await client.enqueue_updates_with_reply(*change_set, batch)
            waiting = asyncio.ensure_future(reply)
            try:
                await self._until(waiting.done)
            finally:
                waiting.cancel()
        await self._until(self.recorder.caught_up)
        return hasattr(waiting.result().status, "success")

    @property
    def _settled(self) -> int:
        return sum("settled" in event.data["commit"] for event in self.history.of(Kind.COMMIT))

    async def _until_settled(self, count: int) -> None:
        await self._until(lambda: self._settled >= count)

    async def _until(self, holds: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
        """Return once it holds, however long that takes, as long as requests are settled."""
        while True:
            settled = self._settled
            try:
                await eventually(holds, within=STUCK_AFTER)
            except AssertionError:
                if self._settled == settled:
                    raise
            else:
                return

    def outcomes(self) -> dict[int, str]:
        """What became of each request, by sequence."""
        lines = (event.data["commit"].get("settled") for event in self.history.of(Kind.COMMIT))
        return {line["sequence"]: line["outcome"] for line in lines if line is not None}

    def complaints(self) -> list[object]:
        ended: list[Event] = [e for e in self.history.of(Kind.DAEMON) if e.data["what"] == "exited"]
        found = [v for v in judge(self.history) if v.rule in ("S2", "S3", "S4", "RECORD")]
        return [*ended, *found, *self.seat.unforeseen()]


@asynccontextmanager
async def benched(directory: Path) -> AsyncIterator[Bench]:
    history = History()
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(nats_servers(directory, cluster=False))
        nc = await stack.enter_async_context(connected(ConnectOptions(servers=(servers[0].url,))))
        settings = {"ack_wait": _SETTINGS["ACK_WAIT"]}
        await prepare(JetStream(nc), Settings.model_validate(settings))
        recorder = await stack.enter_async_context(recording(nc, SUBJECTS, history))
        [seat] = await stack.enter_async_context(seats(1, directory, history, servers))
        seat.start(_SETTINGS)
        assert seat.daemon is not None
        await seat.daemon.ready()
        yield Bench(servers[0], nc, seat, history, recorder)
