"""Part `beside`: small requests, and questions, to a change set whose every value is recomputed."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from ulid import ULID

from benchmarks.blocks import FUNC, blocks, seed
from benchmarks.broker import broker
from benchmarks.deployment import client_of, running
from benchmarks.processes import proportional
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Cell, Table, median
from rebaser_client.client import RebaserClient
from rebaser_client.outcomes import watching
from rebaser_core.activities import ActivityKind
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_core.streams import Streams
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.deployment import new_change_sets

EVERY: Final = 0.05
"""Seconds between two requests, and between two questions, whether or not those before are done."""
REST: Final = 5.0
"""Seconds before each update."""
READS: Final = 50
_READS: Final = ("who answers", "first ms", "median ms of 49 more", "worst ms", "more memory MiB")
_CODES: Final = ("max", "sum")
_NOTE: Final = """\
One change set of {values:,} values in blocks of eleven; its one function is replaced, which
recomputes all but the sources. Meanwhile a client sends a request every 50 ms that sets a value on
which nothing depends; beside another update it asks for that value every 50 ms. From the call to
the reply, by when it was sent. Synced {durability}."""

Say = Callable[[str], None]
Times = dict[str, list[float]]


async def run(directory: Path, sizes: Sizes, say: Say) -> list[Table]:
    """One daemon with production's settings."""
    count = sizes.values * 11 // 10
    reads = Table("One value is read", _READS)
    with broker(directory / "nats") as server:
        async with client_of(server) as (client, js):
            [change_set] = new_change_sets(1)
            store = {"root": str(directory / "store")}
            settings = Settings.model_validate({"nats": {"url": server.url}, "store": store})
            await prepare(js, settings)
            say("beside: seed")
            await seed(js, settings, change_set, await asyncio.to_thread(blocks, count))
            with running(server.url, directory) as daemon:
                await daemon.ready()
                beside = _Beside(client, js, change_set)
                await beside.warm_up()
                for number in range(sizes.rounds):
                    say(f"beside: round {number + 1} of {sizes.rounds}")
                    await beside.measure(number)
                say("beside: one value, of its owner")
                reads.rows.append(await beside.read("its owner", daemon.process.pid))
            with running(server.url, directory) as daemon:
                await daemon.ready()
                for what in ("a Rebaser that never saw it", "the same one, again"):
                    say(f"beside: one value, of {what}")
                    reads.rows.append(await beside.read(what, daemon.process.pid))
        durability = server.durability
    columns = ["what", "sent", "number", "median ms", "p99 ms", "worst ms"]
    rows = [*_rows("request", beside.requests), *_rows("question", beside.questions)]
    note = _NOTE.format(values=count, durability=durability)
    return [Table("Beside a large update", columns, rows, [note]), reads]


def _rows(what: str, found: Times) -> list[list[Cell]]:
    return [
        [what, phase, len(took), *(MILLI * each for each in (median(took), _p99(took), max(took)))]
        for phase, took in found.items()
    ]


def _p99(took: Sequence[float]) -> float:
    return sorted(took)[len(took) * 99 // 100]


class _Beside:
    """Seconds of each request and question, by what the daemon did when it was sent."""

    def __init__(self, client: RebaserClient, js: JetStream, change_set: ChangeSet) -> None:
        self._client = client
        self._js = js
        self._change_set = change_set
        self._reader = client.change_set(*change_set)
        self._value = str(ULID())
        self.requests: Times = {}
        self.questions: Times = {}
        self._phase = ""

    async def warm_up(self) -> None:
        """The state is loaded, and Spark started."""
        await self._send([{"putValue": {"valueId": self._value, "value": 0}}])
        await self._recompute(1)
        await self._question()
        self.questions.clear()

    async def measure(self, number: int) -> None:
        """What one update is to requests, and then another one to questions."""
        for turn, do in enumerate((self._request, self._question)):
            self._phase = "before"
            async with self._repeated(do):
                await asyncio.sleep(REST)
                await self._recompute(2 * number + turn)
                self._phase = "afterwards"
                await asyncio.sleep(REST)

    async def read(self, what: str, pid: int) -> list[Cell]:
        """The first of some reads, those after it, and what they leave in the daemon's memory."""
        before, took = proportional(pid, inner=False), []
        for _ in range(READS):
            began = time.perf_counter()
            await self._reader.values(self._value)
            took.append(time.perf_counter() - began)
        more = (proportional(pid, inner=False) - before) / 2**20
        return [what, MILLI * took[0], MILLI * median(took[1:]), MILLI * max(took[1:]), more]

    async def _recompute(self, number: int) -> None:
        code = _CODES[number % len(_CODES)]
        func = {"funcId": FUNC, "name": "func", "runtime": "builtin", "code": code}
        async with watching(Streams(js=self._js), self._change_set) as activities:
            await self._send([{"putFunc": func}])
            self._phase = "planned"
            async for activity in activities:
                if activity.kind is ActivityKind.DVU_STARTED:
                    self._phase = "computed and committed"
                if activity.kind is ActivityKind.DVU_FAILED:
                    raise RuntimeError(f"the update failed: {activity.details}")
                if activity.kind is ActivityKind.DVU_FINISHED:
                    return

    async def _send(self, updates: Sequence[dict[str, Any]]) -> None:
        _, reply = await self._client.enqueue_updates_with_reply(*self._change_set, updates)
        await reply

    async def _request(self) -> None:
        phase, began = self._phase, time.perf_counter()
        await self._send([{"setValue": {"valueId": self._value, "value": time.monotonic_ns()}}])
        self.requests.setdefault(phase, []).append(time.perf_counter() - began)

    async def _question(self) -> None:
        phase, began = self._phase, time.perf_counter()
        await self._reader.values(self._value)
        self.questions.setdefault(phase, []).append(time.perf_counter() - began)

    @asynccontextmanager
    async def _repeated(self, do: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Call `do` all the time, and await all calls in the end."""
        async with asyncio.TaskGroup() as calls:

            async def call() -> None:
                while True:
                    calls.create_task(do())
                    await asyncio.sleep(EVERY)

            calling = calls.create_task(call())
            yield
            calling.cancel()
