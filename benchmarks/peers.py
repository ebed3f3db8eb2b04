"""Part `peers`: the same work on other systems, in turns: 50 keys, 40 messages each, in order.

Each is asked by one client process, as fast as that can with so many on their way, and worked
off by one worker process whose handler does nothing; a Rebaser's sets a value. Messages are
durable before the client is told so. The clock runs from the first to the last one handled.
"""

import asyncio
import json
import random
import socket
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Protocol

import nats

from benchmarks import processes
from benchmarks.broker import DURABILITY, Broker, broker
from benchmarks.deployment import Deployment, deployed, lead
from benchmarks.handler_worker import NAME, PREFIX
from benchmarks.lanes import AT_ONCE, flood
from benchmarks.locked_worker import application
from benchmarks.peer_worker import PeerWorker, ours, working
from benchmarks.postgres import SYNCED, installed, postgres
from benchmarks.pull_worker import DURABLE
from benchmarks.restate import SYNCED as FSYNC
from benchmarks.restate import WORKER, Restate, restate
from benchmarks.restate import installed as restate_installed
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Cell, Table, median
from rebaser_client import connect

KEYS = 50
EACH = 40
_PAYLOAD = 200  # bytes; Rebaser's requests have about as many


Send = Callable[[int, int], Awaitable[object]]
"""Sends a message, given its key and its number."""


class Peer(Protocol):
    """A system under test, warm."""

    pids: list[int]
    """Its processes but for this one."""

    async def run(self) -> float:
        """Do the work once; messages a second."""


class Rebaser:
    def __init__(self, deployment: Deployment) -> None:
        self._lanes = deployment.lanes
        self.pids = [deployment.daemon_pid, *deployment.broker.pids]

    async def run(self) -> float:
        return await flood(self._lanes, EACH)


class Queue:
    """Another system, and the process that handles what is sent."""

    def __init__(self, send: Send, worker: PeerWorker, *servers: int) -> None:
        self._send = send
        self._worker = worker
        self.pids = [worker.pid, *servers]

    async def run(self) -> float:
        return await _timed(self._send, self._worker)


async def _timed(send: Send, worker: PeerWorker) -> float:
    todo = iter([(key, number) for number in range(EACH) for key in range(KEYS)])

    async def some() -> None:
        for key, number in todo:
            await send(key, number)

    started = time.perf_counter()
    done = asyncio.create_task(worker.said(b"done"))
    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    await done
    return KEYS * EACH / (time.perf_counter() - started)


@asynccontextmanager
async def _pull_worker(server: Broker) -> AsyncIterator[Queue]:
    """nats-py alone, without order per key."""
    nc = await nats.connect(server.url)
    try:
        js = nc.jetstream()
        await js.add_stream(
            name="BENCH",
            subjects=["bench.*"],
            retention="workqueue",
            num_replicas=server.servers,
        )
        config = {"durable_name": DURABLE, "ack_policy": "explicit", "max_ack_pending": -1}
        body = json.dumps({"stream_name": "BENCH", "config": config}).encode()
        await nc.request(f"$JS.API.CONSUMER.DURABLE.CREATE.BENCH.{DURABLE}", body)

        async def send(key: int, _: int) -> None:
            await js.publish(f"bench.{key}", bytes(_PAYLOAD))

        with working(*ours("pull_worker"), server.url, "BENCH", KEYS * EACH) as worker:
            await worker.said(b"ready")
            yield Queue(send, worker, *server.pids)
    finally:
        await nc.close()


@asynccontextmanager
async def _handlers(server: Broker) -> AsyncIterator[Queue]:
    """Rebaser's queue with a handler that does nothing."""
    with working(*ours("handler_worker"), server.url, KEYS * EACH, server.servers) as worker:
        await worker.said(b"ready")
        async with connect(server.url, prefix=PREFIX) as client:
            keys = [client.service(NAME).key(f"key {number}") for number in range(KEYS)]

            async def send(key: int, _: int) -> None:
                await keys[key].send("nothing", "x" * _PAYLOAD)

            yield Queue(send, worker, *server.pids)


@asynccontextmanager
async def _locked(directory: Path, durability: str) -> AsyncIterator[Queue | None]:
    """procrastinate: a lock for each key."""
    programs = installed()
    if programs is None:
        yield None
        return
    with postgres(programs, directory, durability) as (where, pid):
        app = application(where, 20)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            with working(*ours("locked_worker"), where, KEYS, KEYS * EACH) as worker:
                await worker.said(b"ready")

                async def defer(key: int, number: int) -> None:
                    job = app.configure_task("nothing", lock=f"key {key}")
                    await job.defer_async(number=number)

                yield Queue(defer, worker, pid)


@asynccontextmanager
async def _restate(
    found: Restate | None, directory: Path, durability: str
) -> AsyncIterator[Queue | None]:
    """A virtual object for each key."""
    if found is None:
        yield None
        return
    with (
        restate(found, directory, durability) as server,
        socket.create_server(("127.0.0.1", 0)) as served,
        working(
            *(found.python, "-P", WORKER, served.fileno(), KEYS * EACH), fds=[served.fileno()]
        ) as worker,
    ):
        await server.register(served.getsockname()[1])
        async with server.ingress(AT_ONCE) as session:

            async def send(key: int, _: int) -> None:
                where = f"http://restate/Keyed/{key}/nothing/send"
                async with session.post(where, data=bytes(_PAYLOAD)) as answer:
                    answer.raise_for_status()
                    await answer.read()

            yield Queue(send, worker, server.pid)


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Both durability modes, each on servers of its own; on three NATS servers without others."""
    rows: list[list[Cell]] = []
    say("peers: install Restate")
    found = await asyncio.to_thread(restate_installed)
    for durability, cluster in product(DURABILITY, (False, True)):
        files = directory / f"{durability} {'cluster' if cluster else 'alone'}".replace(" ", "-")
        async with AsyncExitStack() as stack:
            server = stack.enter_context(broker(files / "nats", durability, cluster=cluster))
            say(f"peers: synced {server.durability}, servers: {server.servers}")
            deployment = await stack.enter_async_context(deployed(files, server, KEYS, server.url))
            peers: dict[str, Peer] = {"Rebaser": Rebaser(deployment)}
            peers["handlers"] = await stack.enter_async_context(_handlers(server))
            peers["pull worker"] = await stack.enter_async_context(_pull_worker(server))
            await lead(deployment.watching, server)
            others = (
                {}
                if cluster
                else {
                    "procrastinate": _locked(files / "postgres", durability),
                    "Restate": _restate(found, files / "restate", durability),
                }
            )
            for name, other in others.items():
                peer = await stack.enter_async_context(other)
                if peer is not None:
                    peers[name] = peer
            synced = dict.fromkeys(peers, server.durability) | {
                "procrastinate": f"synchronous_commit {SYNCED[durability]}",
                "Restate": f"WAL fsync {FSYNC[durability]}",
            }
            measured = await _measured(peers, sizes.peer_rounds)
            rows += _rows(measured, synced, server.servers)
    return [Table(_TITLE, _COLUMNS, list(rows), [_NOTE])]


async def _measured(peers: dict[str, Peer], rounds: int) -> dict[str, tuple[float, float]]:
    """By name messages a second and seconds of processor time a message."""
    rates, used = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for number in range(rounds + 1):
        for name in random.sample(sorted(peers), len(peers)):
            peer = peers[name]
            before, own = _seconds(peer.pids), time.process_time()
            rate = await peer.run()
            await asyncio.sleep(0.5)  # what follows belongs to it, too
            if number:  # the first warms up
                rates[name].append(rate)
                spent = _seconds(peer.pids) - before + time.process_time() - own
                used[name].append(spent / (KEYS * EACH))
    return {name: (median(rates[name]), median(used[name])) for name in peers}


def _seconds(pids: list[int]) -> float:
    return sum(processes.seconds(pid, children=True) or 0.0 for pid in pids)


def _rows(
    found: dict[str, tuple[float, float]], synced: Mapping[str, str], servers: int
) -> list[list[Cell]]:
    rate, used = found["Rebaser"]
    return [
        [synced[name], servers, name, its_rate, rate / its_rate, its_used * MILLI, used / its_used]
        for name, (its_rate, its_used) in found.items()
    ]


_TITLE = f"The same work on other systems: {KEYS} keys, {EACH} messages each"
_COLUMNS = [
    *("synced", "servers", "system", "messages/s", "Rebaser's to it"),
    *("CPU ms a message", "Rebaser's to it "),
]
_NOTE = """\
Processor time is that of client, worker and server together. Rebaser sets a value of a graph;
*handlers* is its queue with a handler that returns nothing, its state unchanged. The pull worker
is nats-py's and keeps no order per key; procrastinate keeps it with a lock for each key, on
PostgreSQL, which without `synchronous_commit` writes what it acknowledged within a second. Restate
keeps it with a virtual object for each key, on one node with its defaults, asked over HTTP by
aiohttp; its worker is its Python SDK on hypercorn. With WAL fsync on, its default, it answers once
its log is on the disk; with `log-server.rocksdb-disable-wal-fsync` the system writes the log when
it likes. What could not be installed is left out. With three NATS servers all streams have three
replicas."""
