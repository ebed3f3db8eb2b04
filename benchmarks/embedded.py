"""A Rebaser in this process, so that its Spark session can be shared, and who asks it."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from benchmarks.blocks import seed
from rebaser_client.client import RebaserClient
from rebaser_client.outcomes import ActivityFeed, watching
from rebaser_core.activities import ActivityKind, ActivityV1
from rebaser_core.commits import Commit
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ConnectOptions, JetStream, OrderedPushConsumer, connected
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.results import StoredResult, UnitResult
from rebaser_server.compute.run import Executor, Run
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.runtime.memory import collect_rarely
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.service import composition
from rebaser_server.service.daemon import ValueGraph
from rebaser_server.service.dev_server import NatsAddresses, settings_in_directory
from rebaser_server.settings.settings import FunctionSettings, Settings
from rebaser_server.telemetry import logs
from rebaser_server.values.graph import Graph
from tests.helpers.deployment import new_change_sets

MARKS = {
    "enqueued": "",
    "request committed": "request",
    "claimed": "claim",
    "run began": "plan",
    "run ended": "Spark",
    "result committed": "result",
    "finished": "tell",
}
"""Moment → the phase that ends with it."""
PHASES = tuple(MARKS.values())[1:]


class Trace:
    """The moments of the update that goes on. One at a time."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._finished = asyncio.Event()
        self.details: dict[str, Any] = {}
        """Details that the daemon gave at the end of the update."""

    def begin(self) -> None:
        self._times.clear()
        self._finished.clear()
        self.mark("enqueued")

    def mark(self, moment: str) -> None:
        self._times.setdefault(moment, time.perf_counter())

    async def finished(self) -> None:
        await self._finished.wait()

    @property
    def seconds(self) -> float:
        return self._times["finished"] - self._times["enqueued"]

    def phases(self) -> list[float]:
        """Seconds of each of `PHASES`."""
        times = [self._times[moment] for moment in MARKS]
        return [after - before for before, after in itertools.pairwise(times)]

    def phase(self, name: str) -> float:
        return self.phases()[PHASES.index(name)]

    async def follow_log(self, reader: OrderedPushConsumer) -> None:
        async for delivery in reader:
            came = time.perf_counter()
            line = Commit.decode(delivery.headers, delivery.payload)
            if line.settled is None and line.control.claim is not None:
                self._times.setdefault("claimed", came)
            elif line.settled is not None:
                is_result = line.settled.covers is not None
                self._times.setdefault(
                    "result committed" if is_result else "request committed", came
                )

    async def follow_activities(self, activities: ActivityFeed) -> None:
        async for activity in activities:
            self._hear(activity)

    def _hear(self, activity: ActivityV1) -> None:
        if activity.kind is ActivityKind.DVU_FAILED:
            raise RuntimeError(f"the update failed: {activity.details}")
        if activity.kind is ActivityKind.DVU_FINISHED:
            self.mark("finished")
            self.details = activity.details
            self._finished.set()


class Timed:
    """An `Executor` that marks when another one works."""

    def __init__(self, executor: Executor, trace: Trace) -> None:
        self._executor = executor
        self._trace = trace

    async def run(
        self, units: Sequence[WorkUnit], run: Run = Run()
    ) -> list[UnitResult | StoredResult]:
        self._trace.mark("run began")
        outcomes = await self._executor.run(units, run)
        self._trace.mark("run ended")
        return outcomes


@asynccontextmanager
async def tracing(
    nc: Client, subjects: Subjects, change_set: ChangeSet, trace: Trace
) -> AsyncIterator[None]:
    """Follow the change set for as long as the body runs; an error of the trace ends the body."""
    streams = Streams(subjects.prefix, js=JetStream(nc))
    log = OrderedPushConsumer(streams.js, streams.commits_stream, streams.commits(change_set))
    async with (
        log,
        watching(streams, change_set) as activities,
        asyncio.TaskGroup() as group,
    ):
        following = [
            group.create_task(trace.follow_log(log)),
            group.create_task(trace.follow_activities(activities)),
        ]
        yield
        for task in following:
            task.cancel()


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
    functions = FunctionSettings(memo_bytes=0)  # each round computes what the one before did
    settings = settings_in_directory(
        Settings(functions=functions), directory, NatsAddresses(url, "")
    )
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
