"""A whole deployment with a lifetime: real NATS, real daemons, a client, a reader of the log."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from rebaser_client.client import RebaserClient
from rebaser_core.commits import CommitV2, RequestOutcome, decode_commit_at
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import (
    ConnectOptions,
    JetStream,
    OrderedPushConsumer,
    connected,
)
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.commit_log.batch_store import open_batch_store
from rebaser_server.commit_log.garbage_collection import GarbageCollector
from rebaser_server.commit_log.log import UNFINISHED
from rebaser_server.commit_log.state_loader import OpenLoader, StateCache, StateLoader
from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import (
    GraphStateMachine,
    open_checkpoints,
    open_state_loader,
)
from rebaser_server.graph_application.tables import TableHoldings
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.queries.query_service import DEFAULT, QueryBounds, QueryService
from rebaser_server.queries.value_queries import ValueQueries
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from rebaser_server.values.graph import Graph
from tests.helpers.eventually import eventually
from tests.helpers.fork_server import Fork, StandardStreams, forkable
from tests.helpers.nats_process import NatsServer

# The product's times scaled down, in seconds; what evaluates is the same code without Spark.
SCALED = {
    "ACK_WAIT": "2",
    "QUIET_PERIOD": "0.6",
    "RECONCILE_INTERVAL": "1",
    "SHUTDOWN_GRACE": "5",
    "SPARK__MIN_AFFECTED": "1000000000",
    "SPARK__WARM": "false",
}


REBASER = (Path(sys.executable).parent / "rebaser",)
"""The command, as it is installed."""


def rebaser_with(constant: str, value: str) -> Sequence[str | Path]:
    """The command with another value of a constant, `MODULE:NAME`."""
    module, _, name = constant.partition(":")
    change = f"import {module}; {module}.{name} = {value}"
    return sys.executable, "-c", f"{change}; from rebaser_server.__main__ import run; run()"


class Daemon:
    """One `rebaser serve`, a process of its own; of another release, if `command` is that."""

    def __init__(
        self,
        name: str,
        directory: Path,
        variables: dict[str, str],
        command: Sequence[str | Path] = REBASER,
        arguments: Sequence[str] = (),
    ) -> None:
        """`arguments`: of `serve`."""
        self.name = name
        self._log = directory / f"{name}.log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
        environment |= {f"REBASER_{k}": v for k, v in variables.items()}
        self.process: Fork | subprocess.Popen[bytes]
        with self._log.open("wb") as log:
            if command is REBASER and forkable(environment):
                streams = StandardStreams(directory, self._log, self._log)
                self.process = Fork("serve", *arguments, environment=environment, streams=streams)
                return
            self.process = subprocess.Popen(
                [*command, "serve", *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=directory,
            )

    def events(self) -> list[dict[str, Any]]:
        whole, _, _ = self._log.read_text().rpartition("\n")  # the last line may be half written
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def said_in_all(self) -> str:
        """Whatever form it took."""
        return self._log.read_text()

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.events() if line["event"] == event]

    async def ready(self, within: float = 120) -> None:
        async def is_ready() -> bool:
            assert self.process.poll() is None, self._log.read_text()
            return bool(self.said("ready"))

        await eventually(is_ready, within=within)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, 60)

    def kill(self) -> None:
        """End it whatever it does, stopped or not."""
        self.process.kill()
        self.process.wait()


class Deployment:
    """Where a test happens. Times are `SCALED` unless a daemon is started with others."""

    def __init__(
        self,
        nats: NatsServer,
        directory: Path,
        nc: Client,
        client: RebaserClient,
        settings: Settings,
    ) -> None:
        self.nats = nats
        self.directory = directory
        self.nc = nc
        self.js = JetStream(nc, timeout=30)  # a busy machine answers late
        self.client = client
        self.settings = settings
        self.daemons: list[Daemon] = []
        self.executor = ChildProcessExecutor()
        """Computes what runs in this process compute."""

    @property
    def streams(self) -> Streams:
        return Streams(self.settings.nats.prefix, js=self.js)

    async def start(
        self, name: str = "", command: Sequence[str | Path] = REBASER, **variables: str
    ) -> Daemon:
        """A daemon that is ready. `variables` are settings, without their prefix."""
        daemon = Daemon(
            name or f"daemon-{len(self.daemons)}",
            self.directory,
            SCALED
            | {
                "NATS__URL": self.nats.url,
                "STORE__ROOT": self.settings.store.root,
                "SPARK__STATE_DIRECTORY": str(self.directory / "spark"),
                "INSTANCE_ID": name or f"daemon-{len(self.daemons)}",
            }
            | ({"NATS__PREFIX": self.streams.prefix} if self.streams.prefix else {})
            | variables,
            command,
        )
        self.daemons.append(daemon)
        await daemon.ready()
        return daemon

    async def start_with_lease(
        self, lease: int = 60, name: str = "", command: Sequence[str | Path] = REBASER, **more: str
    ) -> Daemon:
        """A daemon for which the server keeps tasks for so many seconds unheard.

        With the short lease of the others, a machine that stands still for two seconds has a task
        handed out again, and its update begins anew.
        """
        if not self.daemons:  # it is the first one's to say
            await self.js.delete_consumer(self.streams.tasks_stream, TASKS_CONSUMER)
        return await self.start(name, command, ACK_WAIT=str(lease), **more)

    def answering(
        self, bounds: QueryBounds = DEFAULT, cache: StateCache | None = None
    ) -> "Answering":
        """Answers questions in this process, as a daemon does; keeps all states by default."""
        states = StateCache(1 << 40) if cache is None else cache
        batches = open_batch_store(self.streams, self.settings)

        def open_loader(change_set: ChangeSet) -> StateLoader:
            loader = open_state_loader(self.js, self.settings, change_set, states)
            return replace(loader, batches=batches)

        return Answering(self, open_loader, bounds)

    def archive(self, change_set: ChangeSet) -> StateLoader:
        return open_state_loader(self.js, self.settings, change_set)

    def collector(
        self, grace: float = 0, kind: type[GarbageCollector] = GarbageCollector
    ) -> GarbageCollector:
        """Finds garbage that is older than `grace` seconds."""
        batches = open_batch_store(self.streams, self.settings)
        read = GraphStateMachine(open_checkpoints(self.settings.store)).kept_metadata
        return kind(self.streams, batches, read, TableHoldings(batches.files), grace)

    async def graph(self, change_set: ChangeSet) -> Graph:
        """The change set as store and log say it is."""
        return graph_of(await self.archive(change_set).load())

    async def at_rest(self, within: float = 120) -> None:
        """Return once no request, no task, no consumer and no due work is left (S6).

        A takeover deletes a task a moment before it publishes the next one (F2): if work is due
        without a task, it goes on.
        """

        async def at_rest() -> bool:
            return await self.nothing_left() and not await self._work_is_due()

        await eventually(at_rest, within=within)

    async def nothing_left(self) -> bool:
        """Whether no request, no task and no consumer of a change set is left at this moment."""
        streams = (self.streams.requests_stream, self.streams.tasks_stream)
        states = [(await self.js.stream_info(stream)).state for stream in streams]
        # The other stream's one consumer is the shared one.
        return not any(state.messages for state in states) and not states[0].consumer_count

    async def _work_is_due(self) -> bool:
        stream = self.streams.commits_stream
        for subject in await self.js.stream_subjects(stream):
            last = await self.js.get_message(stream, last_by_subject=subject)
            if last is not None and UNFINISHED in last.headers:
                return True
        return False

    async def dead_letters(self, change_set: ChangeSet) -> list[Any]:
        reader = OrderedPushConsumer(
            self.js,
            self.streams.dead_letters_stream,
            self.streams.dead_letters(change_set),
        )
        async with reader:
            return [message async for message in _all(reader)]


class Answering(ValueQueries):
    """Answers questions about values, and about outcomes."""

    def __init__(
        self, deployment: Deployment, open_loader: OpenLoader, bounds: QueryBounds
    ) -> None:
        super().__init__(open_loader, bounds)
        machine = GraphStateMachine(open_checkpoints(deployment.settings.store))
        outcomes = OutcomeLookup(deployment.streams, machine)
        self.serve = QueryService(deployment.streams, self.kinds(), outcomes, bounds).serve


async def _all(reader: OrderedPushConsumer) -> AsyncIterator[Any]:
    while (delivery := await reader.next(idle_timeout=0)) is not None:
        yield delivery


class Recorder:
    """Every line of every commit log, as it was written: a purge does not reach it."""

    def __init__(self, subjects: Subjects) -> None:
        self._subjects = subjects
        self.lines: dict[ChangeSet, list[CommitV2]] = {}

    async def record(self, reader: OrderedPushConsumer) -> None:
        async for delivery in reader:
            change_set = self._subjects.parse_change_set(delivery.subject)
            line = decode_commit_at(delivery.stream_sequence, delivery.headers, delivery.payload)
            self.lines.setdefault(change_set, []).append(line)

    def settled(self, change_set: ChangeSet) -> list[str]:
        """Ids of the requests settled, DVU results apart, in the order of the log."""
        lines = (line.settled for line in self.lines.get(change_set, []))
        return [
            str(h.id)
            for h in lines
            if h is not None and h.covers is None and h.outcome is not RequestOutcome.STALE
        ]

    def owners(self, change_set: ChangeSet) -> list[str]:
        """Instances that took the change set, one for each time."""
        epochs: dict[int, str] = {}
        for line in self.lines[change_set]:  # the last of an epoch may release it
            epochs.setdefault(line.control.epoch, line.control.owner)
        return [owner.partition("/")[0] for owner in epochs.values()]


@asynccontextmanager
async def recording(deployment: Deployment) -> AsyncIterator[Recorder]:
    recorder = Recorder(deployment.streams)
    reader = OrderedPushConsumer(deployment.js, deployment.streams.commits_stream)
    async with reader:
        task = asyncio.create_task(recorder.record(reader))
        try:
            yield recorder
        finally:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def deployed(
    nats: NatsServer, directory: Path, prefix: str | None = None
) -> AsyncIterator[Deployment]:
    """Streams and a client, no daemon yet; whatever daemons are started are gone afterwards."""
    settings = Settings.model_validate(
        {
            "nats": {"url": nats.url, "prefix": prefix},
            "store": {"root": str(directory / "store")},
            "ack_wait": 2,
        }
    )
    async with AsyncExitStack() as stack:
        nc = await stack.enter_async_context(connected(ConnectOptions(servers=(nats.url,))))
        js = JetStream(nc)
        await prepare(js, settings)
        client = await stack.enter_async_context(RebaserClient.on(nc, js, prefix=prefix))
        deployment = Deployment(nats, directory, nc, client, settings)
        try:
            yield deployment
        finally:
            for daemon in deployment.daemons:
                daemon.kill()
            await deployment.executor.close()


def new_change_sets(count: int) -> Sequence[ChangeSet]:
    workspace = WorkspaceId()
    return [ChangeSet(workspace, ChangeSetId()) for _ in range(count)]
