"""Rates, latencies, recovery and what a handler that stands still holds: in turns, medians."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.jetstream.peer import STREAM, Peer
from benchmarks.jetstream.peers import PEERS
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table
from rebaser_core.jetstream import ConnectOptions, JetStream, StreamConfig, connected
from tests.helpers.nats_process import NatsServer, running

BODY: Final = bytes(200)
AT_ONCE: Final = 100
"""Publishes on their way at a time."""
STALL: Final = 10.0  # seconds

Say = Callable[[str], None]
Measure = Callable[[Peer], Awaitable[float]]


async def fill(url: str, number: int, body: bytes = BODY) -> None:
    """Have `STREAM` anew, with so many messages."""
    async with connected(ConnectOptions(servers=(url,))) as nc:
        js = JetStream(nc)
        await js.delete_stream(STREAM)
        await js.create_stream(StreamConfig(name=STREAM, subjects=["s.>"]))
        for _ in range(number - 1):
            await nc.publish("s.a", body)
        await js.publish("s.a", body, timeout=60)


def rate(number: int, started: float) -> float:
    return number / (time.perf_counter() - started)


async def ordered(number: int, peer: Peer) -> float:
    async with peer.ordered("s.a") as receive:
        started = time.perf_counter()
        for _ in range(number):
            await receive()
        return rate(number, started)


async def consumed(number: int, peer: Peer) -> float:
    name = f"d{time.monotonic_ns()}"
    await peer.create_consumer(name, max_ack_pending=-1)
    async with peer.pull(name) as puller:
        started = time.perf_counter()
        await puller.consume(number)
        return rate(number, started)


async def published(number: int, peer: Peer) -> float:
    started = time.perf_counter()
    for _ in range(number):
        await peer.publish("s.b", BODY)
    return rate(number, started)


async def published_together(number: int, peer: Peer) -> float:
    started = time.perf_counter()
    for _ in range(number // AT_ONCE):
        await asyncio.gather(*(peer.publish("s.b", BODY) for _ in range(AT_ONCE)))
    return rate(number // AT_ONCE * AT_ONCE, started)


async def requested(number: int, peer: Peer) -> float:
    """Return the median milliseconds of a question about the stream."""
    return await latency(peer.stream_info, number)


async def delivered(number: int, peer: Peer) -> float:
    """Return the median milliseconds from publishing to receiving."""
    subject = f"s.l.{time.monotonic_ns()}"
    async with peer.ordered(subject) as receive:

        async def there_and_back() -> None:
            await peer.say(subject, BODY)
            await receive()

        await there_and_back()
        return await latency(there_and_back, number)


async def latency(call: Callable[[], Awaitable[object]], number: int) -> float:
    found = []
    for _ in range(number):
        started = time.perf_counter()
        await call()
        found.append(1000 * (time.perf_counter() - started))
    return statistics.median(found)


async def recovered(server: NatsServer, peer: Peer) -> float:
    """Return the seconds from the server being back until a message stored then is received.

    Another connection stores it, so that nothing but the reader is measured.
    """
    subject = f"s.r.{time.monotonic_ns()}"
    async with peer.ordered(subject) as receive:
        await peer.say(subject, b"before")
        await receive()
        receiving = asyncio.ensure_future(receive())
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.start)
        back = time.perf_counter()
        async with connected(ConnectOptions(servers=(server.url,))) as other:
            await JetStream(other).publish(subject, b"after")
        await receiving
        return time.perf_counter() - back


async def compare(
    what: str,
    measure: Measure,
    url: str,
    rounds: int,
    *,
    peers: Sequence[type[Peer]] = PEERS,
    more_is_better: bool = True,
) -> list[Cell]:
    """Return a row: the ratio of our median to that of each other, then all medians; in turns."""
    found: list[list[float]] = [[] for _ in peers]
    for turn in range(rounds):
        for place in range(len(peers)):
            side = (place + turn) % len(peers)  # none is always the first
            async with peers[side].connect(url) as peer:
                found[side].append(await measure(peer))
    ours, *others = map(statistics.median, found)
    ratios = [ours / other if more_is_better else other / ours for other in others]
    every = " ".join(
        "/".join(f"{figure:,.3g}" for figure in each) for each in zip(*found, strict=True)
    )
    return [what, *ratios, ours, *others, every]


async def rates(server: NatsServer, number: int, rounds: int, say: Say) -> Table:
    """Return a table of all that more than one peer does."""
    names = [each.name for each in PEERS]
    table = Table(
        "JetStream clients",
        ("measure", *(f"ours : {name}" for name in names[1:]), *names, "each round"),
        notes=("In turns in one run; medians. A ratio above 1 is in our favour.",),
    )
    await fill(server.url, number)
    few = number // 10
    measures: Sequence[tuple[str, Measure, bool]] = (
        ("ordered, messages/s", partial(ordered, number), True),
        ("consumed and acked, messages/s", partial(consumed, number), True),
        ("published one by one, messages/s", partial(published, few), True),
        (f"published {AT_ONCE} at a time, messages/s", partial(published_together, few), True),
        ("a question about the stream, median, ms", partial(requested, 500), False),
        ("from publishing to reading, median, ms", partial(delivered, 500), False),
        ("server back after a kill → message read, s", partial(recovered, server), False),
    )
    for what, measure, more_is_better in measures:
        say(what)
        turns = max(1, rounds // 3) if "kill" in what else rounds
        row = await compare(what, measure, server.url, turns, more_is_better=more_is_better)
        table.rows.append(row)
    return table


async def stalled(url: str, megabytes: int, say: Say) -> Table:
    """Return what each holds while its handler stands still, and what it loses."""
    number = megabytes * 100
    table = Table(
        f"A handler that stands still for {STALL:.0f} s before {number:,} messages, {megabytes} MB",
        ("client", "MB held in the client", "messages lost"),
    )
    await fill(url, number, bytes(10_000))
    for each in PEERS:
        say(f"{table.title}: {each.name}")
        async with each.connect(url) as peer:
            held: list[float] = []

            async def pause(peer: Peer = peer, held: list[float] = held) -> None:
                await asyncio.sleep(STALL)
                held.append(peer.received() / 1e6)

            found = await peer.handle_slowly("s.a", pause)
            table.rows.append([each.name, held[0], number - found])
    return table


async def run(directory: Path, sizes: Sizes, say: Say) -> list[Table]:
    number, megabytes = (20_000, 400) if sizes.whole_graph else (2_000, 20)
    with running(NatsServer(directory)) as server:
        return [
            await rates(server, number, sizes.rounds, say),
            await stalled(server.url, megabytes, say),
        ]
