"""Part `trips`: how many round trips a request waits for, shown with a network that is slow."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.broker import broker
from benchmarks.deployment import Deployment, deployed
from benchmarks.lanes import RebaserLane, drain, flood
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Cell, Table, median


@asynccontextmanager
async def delayed(url: str, seconds: float) -> AsyncIterator[str]:
    """The URL at which the server at `url` is `seconds` away; a round trip takes twice that."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        far_reader, far_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(
            _carry(reader, far_writer, seconds), _carry(far_reader, writer, seconds)
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.wait(filter(None, serving), timeout=1)  # both ends hung up before


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
) -> None:
    """Bandwidth is not limited: what comes meanwhile is on its way, too."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            loop.call_later(seconds, writer.write, data)
    loop.call_later(seconds, writer.close)


DELAYS = (0.005, 0.025)
"""Seconds one way: for the longer one what is computed on the way hardly counts."""

_NOTE = """\
Client and daemon are each so far away from the server, one way; who follows the log is not. The
last two rows are the time from one commit to the next: while requests wait, all of them stored
before, and while the client sends them."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    rows: list[Sequence[Cell]] = []
    for delay in DELAYS:
        say(f"trips: one change set behind {delay * MILLI:g} ms")
        files = directory / f"{delay * MILLI:g}"
        with broker(files / "nats") as server:
            async with (
                delayed(server.url, delay) as url,
                deployed(files, server, 1, url) as deployment,
            ):
                found = await _found(deployment, sizes.trips, delay)
        for what, took in found.items():
            rows.append([delay * MILLI, what, took * MILLI, took / (2 * delay)])
    columns = ["delay ms", "until", "ms", "round trips"]
    return [Table("Round trips of one change set", columns, rows, [_NOTE])]


async def _found(deployment: Deployment, count: int, delay: float) -> dict[str, float]:
    [lane] = deployment.lanes
    calls, commits = await _one_by_one(lane, count, 8 * delay)
    backlog = await drain(lane, 10 * count, deployment.daemon_pid)
    sent = await flood([lane], 10 * count)
    return {
        "`enqueue_updates` returns": median(calls),
        "the commit is in the log": median(commits),
        "the next of many that wait is, too": 1 / backlog,
        "the next of many that are sent is": 1 / sent,
    }


async def _one_by_one(
    lane: RebaserLane, count: int, pause: float
) -> tuple[list[float], list[float]]:
    """Seconds until the call returned and until the commit was seen, each time from the call."""
    calls, commits = [], []
    for _ in range(count):
        number = lane.commits.count(lane.subject) + 1
        started = time.perf_counter()
        await lane.send()
        calls.append(time.perf_counter() - started)
        commits.append(await lane.commits.line(lane.subject, number) - started)
        await asyncio.sleep(pause)  # whatever follows from it is over
    return calls, commits
