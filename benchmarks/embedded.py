"""A Rebaser in this process, so that its Spark session can be shared, and who asks it."""

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.trace import Timed, Trace, tracing
from rebaser_client.client import RebaserClient
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.subjects import Subjects
from rebaser_server import logs, server
from rebaser_server.dvu.executor import SparkExecutor
from rebaser_server.dvu.options import SparkOptions
from rebaser_server.lifetimes import Shutdown
from rebaser_server.settings import Settings
from rebaser_server.up import embedded
from tests.integration.deployment import new_change_sets

_COLLECT_EVERY = (100_000, 20, 20)
"""As `daemon.run` has it."""


class Rebaser:
    """One change set, with a trace of what becomes of a batch."""

    def __init__(self, client: RebaserClient, trace: Trace, slots: int) -> None:
        [self.change_set] = new_change_sets(1)
        self._client = client
        self.trace = trace
        self.slots = slots

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
    logs.configure("benchmark", only_warnings=True)
    gc.set_threshold(*_COLLECT_EVERY)
    settings = embedded(Settings(), directory, url)
    options = SparkOptions(state_directory=settings.spark.state)
    executor, trace = SparkExecutor(options), Trace()
    serving = server.serve(settings, Timed(executor, trace), Shutdown(), slots=options.slots)
    try:
        async with asyncio.TaskGroup() as group:
            daemon = group.create_task(serving)
            try:
                async with _asking(url, trace, options.slots) as rebaser:
                    yield rebaser
            finally:
                daemon.cancel()
    finally:
        await executor.close()


@asynccontextmanager
async def _asking(url: str, trace: Trace, slots: int) -> AsyncIterator[Rebaser]:
    subjects = Subjects()
    async with connected(ConnectOptions(servers=(url,))) as nc:
        js = JetStream(nc)
        await server.prepare(js, Settings())
        async with RebaserClient.on(nc, js) as client:
            rebaser = Rebaser(client, trace, slots)
            async with tracing(nc, subjects, rebaser.change_set, trace):
                yield rebaser
