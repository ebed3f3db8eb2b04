"""Part `peers`: the same work on other systems, in turns: 50 keys, 40 messages each, in order.

Each is asked by one client process, as fast as that can with so many on their way, and worked
off by one worker process whose handler does nothing; a Rebaser's sets a value. Messages are
durable before the client is told so. The clock runs from the first to the last one handled.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Protocol

import nats

from benchmarks import cpu
from benchmarks.broker import DURABILITY, Broker, broker
from benchmarks.deployment import Deployment, deployed
from benchmarks.lanes import AT_ONCE, flood
from benchmarks.locked_worker import application
from benchmarks.postgres import SYNCED, installed, postgres
from benchmarks.pull_worker import DURABLE
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Cell, Table, median

KEYS = 50
EACH = 40
_PAYLOAD = 200  # bytes; Rebaser's requests have about as many


class Peer(Protocol):
    """A system under test, warm."""

    pids: list[int]
    """Its processes but for this one."""

    async def run(self) -> float:
        """Do the work once; messages a second."""


class Rebaser:
    def __init__(self, deployment: Deployment) -> None:
        self._lanes = deployment.lanes
        self.pids = [deployment.daemon_pid, deployment.broker.pid]

    async def run(self) -> float:
        return await flood(self._lanes, EACH)


class PullWorker:
    """nats-py alone, without order per key."""

    def __init__(self, nc: nats.NATS, worker: "Worker", server: Broker) -> None:
        self._js = nc.jetstream()
        self._worker = worker
        self.pids = [worker.pid, server.pid]

    async def run(self) -> float:
        async def send(key: int, _: int) -> None:
            await self._js.publish(f"bench.{key}", bytes(_PAYLOAD))

        return await _timed(send, self._worker)


class Locked:
    """procrastinate: a lock for each key."""

    def __init__(self, defer: Callable[[int, int], Awaitable[object]], worker: "Worker") -> None:
        self._defer = defer
        self._worker = worker
        self.pids = [worker.pid]

    async def run(self) -> float:
        async def send(key: int, number: int) -> None:
            await self._defer(key, number)

        return await _timed(send, self._worker)


class Worker:
    """A worker process that says so when it has handled all messages of a run."""

    def __init__(self, process: subprocess.Popen[bytes], out: IO[bytes]) -> None:
        self._out = out
        self.pid = process.pid

    async def said(self, word: bytes) -> None:
        line = await asyncio.to_thread(self._out.readline)
        if line != word + b"\n":
            raise RuntimeError(f"the worker said {line!r}, not {word!r}")


@contextmanager
def _worker(module: str, *arguments: object) -> Iterator[Worker]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is not None:
                yield Worker(process, process.stdout)
        finally:
            process.kill()


async def _timed(send: Callable[[int, int], Awaitable[None]], worker: Worker) -> float:
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
async def _pull_worker(server: Broker) -> AsyncIterator[PullWorker]:
    nc = await nats.connect(server.url)
    try:
        js = nc.jetstream()
        await js.add_stream(name="BENCH", subjects=["bench.*"], retention="workqueue")
        config = {"durable_name": DURABLE, "ack_policy": "explicit", "max_ack_pending": -1}
        body = json.dumps({"stream_name": "BENCH", "config": config}).encode()
        await nc.request(f"$JS.API.CONSUMER.DURABLE.CREATE.BENCH.{DURABLE}", body)
        with _worker("pull_worker", server.url, "BENCH", KEYS * EACH) as worker:
            await worker.said(b"ready")
            yield PullWorker(nc, worker, server)
    finally:
        await nc.close()


@asynccontextmanager
async def _locked(directory: Path, durability: str) -> AsyncIterator[Locked | None]:
    programs = installed()
    if programs is None:
        yield None
        return
    with postgres(programs, directory, durability) as (where, pid):
        app = application(where, 20)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            with _worker("locked_worker", where, KEYS, KEYS * EACH) as worker:
                await worker.said(b"ready")

                async def defer(key: int, number: int) -> None:
                    job = app.configure_task("nothing", lock=f"key {key}")
                    await job.defer_async(number=number)

                peer = Locked(defer, worker)
                peer.pids.append(pid)
                yield peer


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Both durability modes, each on servers of its own."""
    rows: list[list[Cell]] = []
    for durability in DURABILITY:
        files = directory / durability.replace(" ", "-")
        async with AsyncExitStack() as stack:
            server = stack.enter_context(broker(files / "nats", durability))
            say(f"peers: synced {server.durability}")
            deployment = await stack.enter_async_context(deployed(files, server, KEYS, server.url))
            peers: dict[str, Peer] = {"Rebaser": Rebaser(deployment)}
            peers["pull worker"] = await stack.enter_async_context(_pull_worker(server))
            locked = await stack.enter_async_context(_locked(files / "postgres", durability))
            if locked is not None:
                peers["procrastinate"] = locked
            found = await _measured(peers, sizes.peer_rounds)
            rows += _rows(server.durability, SYNCED[durability], found)
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
    return sum(cpu.seconds(pid, children=True) or 0.0 for pid in pids)


def _rows(synced: str, commit: str, found: dict[str, tuple[float, float]]) -> list[list[Cell]]:
    rate, used = found["Rebaser"]
    modes = defaultdict(lambda: synced, procrastinate=f"synchronous_commit {commit}")
    return [
        [modes[name], name, its_rate, rate / its_rate, its_used * MILLI, used / its_used]
        for name, (its_rate, its_used) in found.items()
    ]


_TITLE = f"The same work on other systems: {KEYS} keys, {EACH} messages each"
_COLUMNS = [
    *("synced", "system", "messages/s", "Rebaser's to it"),
    *("CPU ms a message", "Rebaser's to it "),
]
_NOTE = """\
Processor time is that of client, worker and server together. The pull worker is nats-py's and
keeps no order per key; procrastinate keeps it with a lock for each key, on PostgreSQL, which
without `synchronous_commit` writes what it acknowledged within a second."""
