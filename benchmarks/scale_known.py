"""Scale, `known`: what a request and a look of the reconciler cost, with few and many known."""

import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ulid import ULID

from benchmarks.broker import Broker, broker
from benchmarks.deployment import running
from benchmarks.processes import Meter, memory
from benchmarks.tables import Cell, Table, median
from rebaser_client.client import RebaserClient
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ConnectOptions, JetStream, OrderedPushConsumer, connected
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.reconciler import Reconciler
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.idle_change_sets import load

MIB = 1024 * 1024

Say = Callable[[str], None]


@dataclass(slots=True)
class World:
    """A server that knows so many change sets, a daemon and a client."""

    server: Broker
    client: RebaserClient
    js: JetStream
    change_sets: list[ChangeSet]
    loaded: list[float]
    """Seconds, MiB of the server's memory, MiB of its files."""
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)


async def run(
    directory: Path, counts: Sequence[int], rounds: int, requests: int, say: Say
) -> list[Table]:
    """The worlds are there at once, and what is compared is done in turns."""
    async with AsyncExitStack() as stack:
        worlds = []
        for count in counts:
            say(f"known: {count} change sets")
            world = await stack.enter_async_context(_world(directory / str(count), count))
            worlds.append(world)
        for number in range(rounds):
            say(f"known: round {number + 1} of {rounds}")
            for world in worlds if number % 2 else reversed(worlds):
                await _requests(world, requests)
                await _reconcile(world)
        return _tables(worlds)


async def _requests(world: World, count: int) -> None:
    """One at a time, each for a change set that nobody has in hand."""
    for change_set in random.sample(world.change_sets, count):
        define = [{"putValue": {"valueId": str(ULID()), "value": 1}}]
        started = time.perf_counter()
        _, reply = await world.client.enqueue_updates_with_reply(*change_set, define)
        stored = time.perf_counter()
        await reply
        world.add("enqueue", stored - started)
        world.add("settled", time.perf_counter() - started)


async def _reconcile(world: World) -> None:
    reconciler = Reconciler(Streams(js=world.js), 60)
    meter = Meter.of(server=world.server.pid, own=os.getpid())
    started = time.perf_counter()
    await reconciler.reconcile()
    world.add("look", time.perf_counter() - started)
    world.add("look cpu", meter.seconds("own"))
    world.add("look server cpu", meter.seconds("server"))
    started = time.perf_counter()
    stream = Subjects().commits_stream
    options: dict[str, Any] = {"deliver_policy": "last_per_subject", "headers_only": True}
    async with OrderedPushConsumer(world.js, stream, **options) as reader:
        while await reader.next(idle_timeout=0) is not None and reader.pending:
            pass
    world.add("all heads", time.perf_counter() - started)


def _tables(worlds: Sequence[World]) -> list[Table]:
    served = Table(
        "A request for a change set that is known and in nobody's hand (ms, medians)",
        ["known", "enqueue", "taken up, applied, replied", "p99"],
    )
    looked = Table(
        "A look of the reconciler (medians)",
        ["known", "ms", "its CPU ms", "nats-server's CPU ms", "reading every head instead, ms"],
    )
    loaded = Table(
        "nats-server with so many known (one line each)",
        ["known", "lines a second", "memory MiB", "files MiB"],
        notes=["Memory is the whole process, right after."],
    )
    for world in worlds:
        found, count = world.figures, len(world.change_sets)
        settled = sorted(found["settled"])
        row: list[Cell] = [count, 1e3 * median(found["enqueue"]), 1e3 * median(settled)]
        served.rows.append([*row, 1e3 * settled[int(0.99 * len(settled))]])
        names = ("look", "look cpu", "look server cpu", "all heads")
        looked.rows.append([count, *(1e3 * median(found[name]) for name in names)])
        seconds, memory_used, files = world.loaded
        loaded.rows.append([count, count / seconds, memory_used, files])
    return [served, looked, loaded]


@asynccontextmanager
async def _world(files: Path, count: int) -> AsyncIterator[World]:
    with broker(files / "nats") as server:
        async with connected(ConnectOptions(servers=(server.url,), name="client")) as nc:
            js = JetStream(nc)
            await prepare(js, Settings())
            started = time.perf_counter()
            change_sets = await load(js, count)
            stored = sum(f.stat().st_size for f in (files / "nats").rglob("*") if f.is_file())
            seconds = time.perf_counter() - started
            loaded = [seconds, memory(server.pid) / MIB, stored / MIB]
            with running(server.url, files, SPARK__WARM="false", QUIET_PERIOD="1") as daemon:
                await daemon.ready(within=120)
                async with RebaserClient.on(nc, js) as client:
                    yield World(server, client, js, change_sets, loaded)
