"""Part `requests`: from enqueueing to the commit, for one change set and for many."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import nats

from benchmarks import processes
from benchmarks.bare import STEPS, Chain, Publisher, Request, WorkerLane, publish_each, worker
from benchmarks.broker import DURABILITY, Traffic, broker
from benchmarks.commits import following
from benchmarks.deployment import CLIENT, DAEMON, Deployment, deployed, provide
from benchmarks.lanes import Lane, drain, flood, one_by_one
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Cell, Table, median, percentile
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery, JetStream
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    InlineBatch,
)
from rebaser_core.subjects import Subjects
from rebaser_core.updates import SetValue
from tests.helpers.deployment import new_change_sets

BARE, WORKER = Subjects("BARE"), Subjects("WORKER")
"""Streams configured as Rebaser's are: of what is only stored, and of what is deleted, too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Chains, workers and publishers, each for as many change sets as the deployment has lanes."""

    chains: list[Chain]
    workers: list[WorkerLane]
    worker_pid: int
    publishers: list[Publisher]
    """Publishers to subjects without readers, which do nothing else."""
    bytes: tuple[int, int]
    """Bytes of a request and of a commit, headers included."""
    js: JetStream

    async def tidy(self) -> None:
        """Drop the requests of `publishers`, which no worker deletes."""
        await self.js.purge(BARE.requests_stream)


@asynccontextmanager
async def limits(deployment: Deployment) -> AsyncIterator[Limits]:
    """Everything that is compared with the lanes of `deployment`, connected and warm."""
    js, count = deployment.watching, len(deployment.lanes)
    for subjects in (BARE, WORKER):
        await provide(js, deployment.broker, subjects)
    lane = deployment.lanes[0]
    request, size = _request(lane.update()), _bytes_of(lane.commits.last[lane.subject])
    async with AsyncExitStack() as stack:
        client, other = [await nats.connect(deployment.broker.url) for _ in range(2)]
        stack.push_async_callback(client.close)
        stack.push_async_callback(other.close)

        def publishers(subjects: Subjects) -> dict[ChangeSet, Publisher]:
            change_sets = new_change_sets(count)
            return {cs: Publisher(client, subjects, cs, request) for cs in change_sets}

        seen = await stack.enter_async_context(following(js, WORKER.commits_stream))
        asked = publishers(WORKER)
        pid = stack.enter_context(worker(deployment.broker.url, WORKER, size, list(asked)))
        workers = [WorkerLane(one, seen, WORKER.commits(cs)) for cs, one in asked.items()]
        chains = [Chain(one, other, BARE, cs, size) for cs, one in publishers(BARE).items()]
        for asking in workers:
            await asking.open()
        for chain in chains:
            await chain.open()
        silent = [*publishers(BARE).values()]
        yield Limits(chains, workers, pid, silent, (_size(*request), size), js)


def _request(update: dict[str, dict[str, object]]) -> Request:
    """Return the request that the client sends to a change set for `update`."""
    [change_set] = new_change_sets(1)
    message = EnqueueUpdatesRequestV1(
        id=RequestId(),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=Inline(
            inline=InlineBatch(updates=[SetValue.from_wire(update["setValue"])])
        ),
    )
    return EnqueueUpdatesRequest.encode(message)


def _bytes_of(line: Delivery) -> int:
    return _size(line.headers, line.payload)


def _size(headers: Mapping[str, str], payload: bytes) -> int:
    return len(payload) + sum(len(name) + len(text) for name, text in headers.items())


_SETTLED = 0.2
"""Seconds after the last commit until what follows from it was sent, too."""


class Comparison:
    """With so many change sets at once: figures by name, one for each round."""

    def __init__(self, deployment: Deployment, bounds: Limits, lanes: int, sizes: Sizes) -> None:
        self._broker = deployment.broker
        self._daemon = deployment.daemon_pid
        self._lanes = deployment.lanes[:lanes]
        self._chains = bounds.chains[:lanes]
        self._workers = bounds.workers[:lanes]
        self._worker = bounds.worker_pid
        self._publishers = bounds.publishers[:lanes]
        self._tidy = bounds.tidy
        self._latency_each = sizes.one_by_one // lanes
        self._flood_each = sizes.flood // lanes
        self._figures: dict[str, list[float]] = defaultdict(list)

    async def run(self, rounds: int) -> None:
        steps = [
            self._latency,
            self._chain_latency,
            self._worker_latency,
            self._rate,
            self._publish_rate,
            self._worker_rate,
        ]
        if len(self._lanes) == 1:
            steps.append(self._drain_rate)
        for _ in range(rounds):
            for step in steps:
                await step()
            steps.reverse()  # so that no step always comes after the same one
            await self._tidy()

    def __getitem__(self, name: str) -> float:
        """The median over the rounds."""
        return median(self._figures[name])

    def get(self, name: str) -> float | None:
        return self[name] if self._figures[name] else None

    async def _latency(self) -> None:
        before = await self._traffic()
        self._note("rebaser", await one_by_one(self._lanes, self._latency_each))
        requests = len(self._lanes) * self._latency_each
        for (name, old), new in zip(before.items(), (await self._traffic()).values(), strict=True):
            self._figures[f"{name} sent"].append((new.to_server - old.to_server) / requests)
            self._figures[f"{name} got"].append((new.from_server - old.from_server) / requests)

    async def _traffic(self) -> dict[str, Traffic]:
        await asyncio.sleep(_SETTLED)
        return {name: self._broker.traffic(name) for name in (CLIENT, DAEMON)}

    async def _chain_latency(self) -> None:
        each = self._latency_each
        took = await asyncio.gather(*(chain.repeat(each) for chain in self._chains))
        self._note("chain", list(itertools.chain(*took)))
        steps = [step for chain in self._chains for step in chain.steps[-each:]]
        for name, seconds in zip(STEPS, zip(*steps, strict=True), strict=True):
            self._figures[name].append(median(seconds) * MILLI)

    async def _worker_latency(self) -> None:
        self._note("worker", await one_by_one(self._workers, self._latency_each))

    def _note(self, who: str, seconds: list[float]) -> None:
        self._figures[f"{who} p50"].append(percentile(seconds, 50) * MILLI)
        self._figures[f"{who} p99"].append(percentile(seconds, 99) * MILLI)

    async def _rate(self) -> None:
        pids = {"daemon": [self._daemon], "nats-server": self._broker.pids}
        await self._flood("rebaser", self._lanes, pids)

    async def _drain_rate(self) -> None:
        before = processes.seconds(self._daemon)
        self._figures["drain rate"].append(
            await drain(self._lanes[0], self._flood_each, self._daemon)
        )
        if before is not None:
            more = (processes.seconds(self._daemon) or before) - before
            self._figures["drain cpu"].append(more / self._flood_each * MILLI)

    async def _publish_rate(self) -> None:
        self._figures["publish rate"].append(await publish_each(self._publishers, self._flood_each))

    async def _worker_rate(self) -> None:
        await self._flood("worker", self._workers, {"worker": [self._worker]})

    async def _flood(self, who: str, lanes: Sequence[Lane], pids: dict[str, list[int]]) -> None:
        before = {name: _seconds(of) for name, of in pids.items()}
        own = time.process_time()
        self._figures[f"{who} rate"].append(await flood(lanes, self._flood_each))
        requests = len(lanes) * self._flood_each
        self._figures[f"{who} client cpu"].append((time.process_time() - own) / requests * MILLI)
        for name, used in before.items():
            if used is not None:
                more = (_seconds(pids[name]) or used) - used
                self._figures[f"{name} cpu"].append(more / requests * MILLI)


def _seconds(pids: Sequence[int]) -> float | None:
    """Processor time of all of them; None if that of one is not to be seen."""
    each = [processes.seconds(pid) for pid in pids]
    return None if None in each else sum(filter(None, each))


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Both durability modes, on one server and on three, each with a daemon of its own."""
    tables: list[Table] = []
    for durability, cluster in product(DURABILITY, (False, True)):
        files = directory / f"{durability} {'cluster' if cluster else 'alone'}"
        with broker(files / "nats", durability, cluster=cluster) as server:
            say(f"requests: synced {server.durability}, servers: {server.servers}")
            async with (
                deployed(files, server, sizes.change_sets, server.url) as deployment,
                limits(deployment) as bounds,
            ):
                tables = tables or _tables(sizes, *bounds.bytes)
                for lanes in (1, sizes.change_sets):
                    say(f"requests: {lanes} change sets")
                    compared = Comparison(deployment, bounds, lanes, sizes)
                    await compared.run(sizes.cluster_rounds if cluster else sizes.rounds)
                    for table, row in zip(tables, _rows(compared), strict=True):
                        table.rows.append([server.durability, server.servers, lanes, *row])
                for lane in deployment.lanes:
                    lane.check()
    return tables


def _rows(found: Comparison) -> list[list[Cell]]:
    p50 = found["rebaser p50"]
    rate, backlog = found["rebaser rate"], found.get("drain rate")
    latency: list[Cell] = [
        *(p50, found["rebaser p99"]),
        *(found["chain p50"], found["chain p99"], p50 / found["chain p50"]),
        *(found["worker p50"], found["worker p99"], p50 / found["worker p50"]),
    ]
    rates: list[Cell] = [
        *(rate, found["publish rate"], rate / found["publish rate"]),
        *(found["worker rate"], rate / found["worker rate"]),
        *(backlog, None if backlog is None else backlog / found["publish rate"]),
    ]
    processors: list[Cell] = [
        found.get(f"{name} cpu")
        for name in ("rebaser client", "daemon", "nats-server", "worker client", "worker")
    ]
    processors.append(found.get("drain cpu"))
    steps: list[Cell] = [found[step] for step in STEPS]
    traffic: list[Cell] = [
        found[f"{name} {way}"] for name in (CLIENT, DAEMON) for way in ("sent", "got")
    ]
    return [latency, steps, rates, processors, traffic]


_LATENCY = """\
From the call of `enqueue_updates` to the line of the commit log, as a follower of the log (our
ordered consumer, in the client's process) gets it. Limits: request, task that is refused,
delivery and commit, one after another, with nats-py in one process; and a process that commits
whatever comes, asked with nats-py and seen by the same follower.
A request has {request} bytes, a commit {commit}, with headers."""
_SERVERS = """\
Three servers share the machine, and all streams have three replicas, those of the limits, too.
All connect to the first server, which leads all streams. Medians of {alone} rounds with one server,
of {cluster} with three."""
_RATE = """\
From the first call to the last line of the log. Limits: as many publishes of the same request,
those of a change set one by one; and the process as above. From a backlog: the daemon was frozen
until all requests were stored; the clock runs from then to the last line of the log."""
_PROCESSORS = """\
The client's includes what follows the log, nats-server's is that of all servers. Another process's
comes in steps of 10 ms in all."""
_STEPS = """\
Several change sets at once wait for each other, since one process makes all of these."""
_TRAFFIC = """\
While the requests of the first table were made; that is, with progress reports and all."""


def _tables(sizes: Sizes, request_bytes: int, commit_bytes: int) -> list[Table]:
    which = ("synced", "servers", "change sets")
    servers = _SERVERS.format(alone=sizes.rounds, cluster=sizes.cluster_rounds)
    return [
        Table(
            "Enqueue to commit, each request after the commit of the one before it (ms)",
            [
                *which,
                *("Rebaser p50", "p99"),
                *("round trips p50", "their p99", "ratio"),
                *("bare worker p50", "its p99", "ratio to it"),
            ],
            notes=[_LATENCY.format(request=request_bytes, commit=commit_bytes), servers],
        ),
        Table(
            "The round trips of the limit (median ms)",
            [*which, *STEPS],
            notes=[_STEPS],
        ),
        Table(
            "Requests a second, enqueued as fast as the client can",
            [
                *which,
                *("Rebaser", "awaited publishes", "ratio"),
                *("bare worker", "ratio to it"),
                *("from a backlog", "its ratio"),
            ],
            notes=[_RATE],
        ),
        Table(
            "Processor time a request while they were flooded (ms)",
            [
                *(*which, "client", "daemon", "nats-server"),
                *("nats-py for a client", "bare worker", "daemon, from a backlog"),
            ],
            notes=[_PROCESSORS],
        ),
        Table(
            "Messages a request, as the server counted them",
            [*which, "client sent", "client got", "daemon sent", "daemon got"],
            notes=[_TRAFFIC],
        ),
    ]
