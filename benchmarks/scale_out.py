"""Scale, `out`: several daemons behind one consumer share the work; one comes, one goes."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from nats.aio.msg import Msg
from ulid import ULID

from benchmarks.broker import DURABILITY, Broker, broker
from benchmarks.deployment import MeasuredDaemon
from benchmarks.processes import Meter
from benchmarks.scale_active import new_change_sets
from benchmarks.tables import Cell, Table, median
from rebaser_client.client import RebaserClient
from rebaser_core.activities import Activity, ActivityKind
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.subjects import Subjects
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.eventually import eventually

REQUESTS = 5
"""For each change set."""
AT_ONCE = 32
SLOTS = 500
"""Of each daemon: with fewer than change sets these would have to make room for each other."""

_SHARED = """\
{change_sets} change sets, {requests} requests each, 32 of them at any time, each awaited; shares
are of the change sets taken, in percent of an even share. The daemons have the machine's cores
together, and a slot for every change set each."""
_MOVED = """\
From `ready` of the new one until it takes the first change set, with requests for new ones going
on; from SIGTERM of one with change sets in hand until another has taken each of them."""

Say = Callable[[str], None]


class Takings:
    """Who took which change set, and when, as activities tell."""

    def __init__(self) -> None:
        self.by: Counter[str] = Counter()
        self.first: dict[str, float] = {}
        self.last: dict[ChangeSet, tuple[str, float]] = {}

    def clear(self) -> None:
        self.by.clear()
        self.first.clear()

    def add(self, change_set: ChangeSet, instance: str) -> None:
        name, now = instance.partition("/")[0], time.perf_counter()
        self.by[name] += 1
        self.first.setdefault(name, now)
        self.last[change_set] = name, now


async def run(
    directory: Path, counts: Sequence[int], rounds: int, change_sets: int, say: Say
) -> list[Table]:
    shared = Table(
        "The same work for some daemons",
        [
            *("synced", "daemons", "requests a second", "fewest taken by one", "most"),
            *("daemons' CPU ms a request", "nats-server's"),
        ],
        notes=[_SHARED.format(change_sets=change_sets, requests=REQUESTS)],
    )
    moved = Table(
        "One daemon more, one fewer (s, median and longest)",
        ["synced", "until the new one took work", "longest", "until handed over", "longest "],
        notes=[_MOVED],
    )
    for durability in DURABILITY:
        with broker(directory / durability / "nats", durability) as server:
            async with _bench(server, directory / durability) as bench:
                for number in range(rounds):
                    say(f"out: synced {server.durability}, round {number + 1} of {rounds}")
                    for count in counts if number % 2 else reversed(counts):
                        await bench.share(count, change_sets)
                for _ in range(rounds):
                    await bench.come_and_go()
                shared.rows.extend([server.durability, *row] for row in bench.rows(counts))
                come, go = bench.figures["come"], bench.figures["go"]
                moved.rows.append([server.durability, median(come), max(come), median(go), max(go)])
    return [shared, moved]


class Bench:
    """One server, one client; daemons come and go."""

    def __init__(
        self,
        server: Broker,
        files: Path,
        client: RebaserClient,
        js: JetStream,
        takings: Takings,
    ) -> None:
        self._server = server
        self._files = files
        self._client = client
        self._js = js
        self._takings = takings
        self.figures: dict[str, list[float]] = {}
        self._started = 0

    def _add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)

    async def share(self, daemons: int, change_sets: int) -> None:
        """All of the work by so many daemons."""
        async with self._running(daemons) as running:
            await self._work(new_change_sets(20 * daemons), 1)  # each is warm then
            self._takings.clear()
            pids = {daemon.name: daemon.process.pid for daemon in running}
            meter = Meter.of(**pids, server=self._server.pid)
            started = time.perf_counter()
            await self._work(new_change_sets(change_sets), REQUESTS)
            done = change_sets * REQUESTS
            taken = [self._takings.by[name] / change_sets * daemons * 100 for name in pids]
            self._add(f"{daemons} rate", done / (time.perf_counter() - started))
            self._add(f"{daemons} fewest", min(taken))
            self._add(f"{daemons} most", max(taken))
            self._add(f"{daemons} cpu", 1e3 * sum(map(meter.seconds, pids)) / done)
            self._add(f"{daemons} server", 1e3 * meter.seconds("server") / done)

    def rows(self, counts: Sequence[int]) -> list[list[Cell]]:
        names = ("rate", "fewest", "most", "cpu", "server")
        return [
            [count, *(median(self.figures[f"{count} {name}"]) for name in names)]
            for count in counts
        ]

    async def come_and_go(self) -> None:
        """A second daemon comes while there is work; then the first one goes, with work in hand."""
        async with self._running(1) as [first]:
            self._takings.clear()
            flow = asyncio.create_task(self._flow())
            try:
                async with self._running(1) as [second]:
                    ready = time.perf_counter()
                    await eventually(lambda: second.name in self._takings.first)
                    self._add("come", self._takings.first[second.name] - ready)
                    flow.cancel()
                    await asyncio.wait([flow])
                    last = self._takings.last.items()
                    held = {c for c, (name, _) in last if name == first.name}
                    left = time.perf_counter()
                    first.send(signal.SIGTERM)
                    await eventually(
                        lambda: all(self._takings.last[c][0] != first.name for c in held), within=60
                    )
                    self._add("go", max(self._takings.last[c][1] for c in held) - left)
            finally:
                flow.cancel()
        self._takings.last.clear()

    async def _flow(self) -> None:
        """Up to 200 change sets, one after the other."""
        for change_set in new_change_sets(200):
            await self._work([change_set], 1)
            await asyncio.sleep(0.02)
        await asyncio.Event().wait()

    async def _work(self, change_sets: Sequence[ChangeSet], requests: int) -> None:
        """Return when all of it is applied."""
        todo = iter([change_set for _ in range(requests) for change_set in change_sets])

        async def send() -> None:
            for change_set in todo:
                define = [{"putValue": {"valueId": str(ULID()), "value": 1}}]
                _, reply = await self._client.enqueue_updates_with_reply(*change_set, define)
                await reply

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))

    @asynccontextmanager
    async def _running(self, count: int) -> AsyncIterator[list[MeasuredDaemon]]:
        daemons: list[MeasuredDaemon] = []
        try:
            for _ in range(count):
                self._started += 1
                name = f"d{self._started}"
                variables = {
                    "NATS__URL": self._server.url,
                    "STORE__ROOT": str(self._files / "store"),
                    "SPARK__STATE_DIRECTORY": str(self._files / "spark"),
                    "SPARK__WARM": "false",
                    "CONCURRENCY": str(SLOTS),
                    "INSTANCE_ID": name,
                    "NATS__CONNECT_TIMEOUT": "60",
                }
                daemons.append(MeasuredDaemon(name, self._files, variables))
                await daemons[-1].ready(within=120)
            yield daemons
        finally:
            for daemon in daemons:
                daemon.kill()
            await self._js.purge(Subjects().tasks_stream)  # or the next ones would take them over


@asynccontextmanager
async def _bench(server: Broker, files: Path) -> AsyncIterator[Bench]:
    takings, subjects = Takings(), Subjects()

    async def told(message: Msg) -> None:
        activity = Activity.decode(message.headers or {}, message.data)
        if activity.kind is ActivityKind.TAKEN:
            takings.add(subjects.parse_change_set(message.subject), activity.details["instance"])

    async with AsyncExitStack() as stack:
        options = ConnectOptions(servers=(server.url,), name="client")
        nc = await stack.enter_async_context(connected(options))
        js = JetStream(nc)
        await prepare(js, Settings())
        await nc.subscribe(subjects.join("rebaser.activities.>"), cb=told)
        client = await stack.enter_async_context(RebaserClient.on(nc, js))
        yield Bench(server, files, client, js, takings)
