"""A Rebaser in this process, so that its Spark session can be shared, and who asks it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from benchmarks.seeding import seed
from benchmarks.trace import Timed, Trace, tracing
from rebaser_client.client import RebaserClient
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.subjects import Subjects
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.runtime.memory import collect_rarely
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.service import composition
from rebaser_server.service.daemon import ValueGraph
from rebaser_server.service.dev_server import NatsAddresses, settings_in_directory
from rebaser_server.settings.settings import Settings
from rebaser_server.telemetry import logs
from rebaser_server.values.graph import Graph
from tests.helpers.deployment import new_change_sets


class Rebaser:
    """One change set, with a trace of what becomes of a batch: of one at a time, whosever."""

    def __init__(
        self, nc: Client, client: RebaserClient, settings: Settings, trace: Trace, slots: int
    ) -> None:
        [self.change_set] = new_change_sets(1)
        self._nc = nc
        self._client = client
        self._settings = settings
        self.trace = trace
        self.slots = slots

    @asynccontextmanager
    async def beside(self, graph: Graph) -> AsyncIterator["Rebaser"]:
        """Another change set, which begins with a checkpoint of `graph`."""
        other = Rebaser(self._nc, self._client, self._settings, self.trace, self.slots)
        await seed(JetStream(self._nc), self._settings, other.change_set, graph)
        async with other.traced():
            yield other

    @asynccontextmanager
    async def traced(self) -> AsyncIterator[None]:
        async with tracing(self._nc, Subjects(), self.change_set, self.trace):
            yield

    async def update(self, updates: Sequence[dict[str, Any]]) -> tuple[int, int, int]:
        """Values affected, recomputed and changed by a batch, once all is committed."""
        self.trace.begin()
        await self._client.enqueue_updates(*self.change_set, updates)
        await self.trace.finished()
        told = self.trace.details
        return told["affected"], told["recomputed"], told["changed"]


@asynccontextmanager
async def running(directory: Path, url: str) -> AsyncIterator[Rebaser]:
    """What `daemon.run` runs, with a clock around its executor. Spark is cold at first."""
    logs.configure("benchmark", level="warning")
    collect_rarely()
    settings = settings_in_directory(Settings(), directory, NatsAddresses(url, ""))
    options = SparkOptions(state_directory=settings.spark.state_directory)
    executor, trace = SparkExecutor(options), Trace()
    application = ValueGraph(settings, Timed(executor, trace), lambda: options.slots, CostModel())
    serving = composition.serve(settings, application, Shutdown())
    try:
        async with asyncio.TaskGroup() as group:
            daemon = group.create_task(serving)
            try:
                async with _asking(settings, trace, options.slots) as rebaser:
                    yield rebaser
            finally:
                daemon.cancel()
    finally:
        await executor.close()


@asynccontextmanager
async def _asking(settings: Settings, trace: Trace, slots: int) -> AsyncIterator[Rebaser]:
    async with connected(ConnectOptions(servers=(str(settings.nats.url),))) as nc:
        js = JetStream(nc)
        await composition.prepare(js, settings)
        async with RebaserClient.on(nc, js) as client:
            rebaser = Rebaser(nc, client, settings, trace, slots)
            async with rebaser.traced():
                yield rebaser
