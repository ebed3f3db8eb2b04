"""How this JetStream layer compares with nats-py's own consumers: alternately, in one run.

python -m benchmarks.jetstream [--quick]
"""

import argparse
import asyncio
import contextlib
import logging
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy
from nats.js.api import ConsumerConfig as TheirConfig

from benchmarks.sizes import FULL, QUICK, Sizes
from benchmarks.tables import Cell, Table
from rebaser_core.jetstream import (
    ConnectOptions,
    ConsumerConfig,
    JetStream,
    OrderedPushConsumer,
    StreamConfig,
    connected,
)
from tests.helpers.nats_process import NatsServer, running

STREAM: Final = StreamConfig(name="S", subjects=["s.>"])
BODY: Final = bytes(200)
STALL: Final = 10.0  # seconds

Say = Callable[[str], None]


async def fill(js: JetStream, number: int, body: bytes = BODY) -> None:
    await js.delete_stream("S")
    await js.create_stream(STREAM)
    for _ in range(number - 1):
        await js.connection.publish("s.a", body)
    await js.publish("s.a", body, timeout=60)


def rate(number: int, started: float) -> float:
    return number / (time.perf_counter() - started)


async def ordered_ours(nc: Client, number: int) -> float:
    async with OrderedPushConsumer(JetStream(nc), "S", "s.a") as reader:
        started = time.perf_counter()
        for _ in range(number):
            await reader.next()
        return rate(number, started)


async def ordered_theirs(nc: Client, number: int) -> float:
    subscription = await nc.jetstream().subscribe("s.a", ordered_consumer=True)
    started = time.perf_counter()
    for _ in range(number):
        await subscription.next_msg(timeout=10)
    found = rate(number, started)
    await subscription.unsubscribe()
    return found


@contextlib.asynccontextmanager
async def durable(nc: Client) -> AsyncIterator[str]:
    js = JetStream(nc)
    config = ConsumerConfig(durable_name="d", ack_policy="explicit", max_ack_pending=-1)
    await js.ensure_consumer("S", config)
    yield "d"
    await js.delete_consumer("S", "d")


async def consumed_ours(nc: Client, number: int) -> float:
    async with durable(nc) as name:
        consumer = await JetStream(nc).stream("S").consumer(name)
        async with consumer.messages() as messages:
            started = time.perf_counter()
            for _ in range(number):
                await (await anext(messages)).ack()
            return rate(number, started)


async def consumed_theirs(nc: Client, number: int) -> float:
    async with durable(nc) as name:
        config = TheirConfig(ack_policy=AckPolicy.EXPLICIT)
        pull = await nc.jetstream().pull_subscribe("s.a", name, "S", config=config)
        started, found = time.perf_counter(), 0
        while found < number:
            for message in await pull.fetch(min(1000, number - found), timeout=10):
                await message.ack()
                found += 1
        result = rate(number, started)
        await pull.unsubscribe()
        return result


async def published_ours(nc: Client, number: int) -> float:
    js = JetStream(nc)
    started = time.perf_counter()
    for _ in range(number):
        await js.publish("s.a", BODY)
    return rate(number, started)


async def published_theirs(nc: Client, number: int) -> float:
    js = nc.jetstream()
    started = time.perf_counter()
    for _ in range(number):
        await js.publish("s.a", BODY)
    return rate(number, started)


async def latency_ours(nc: Client, number: int) -> float:
    async with OrderedPushConsumer(js := JetStream(nc), "S", "s.l", deliver_policy="new") as reader:
        return await latency(lambda: js.connection.publish("s.l", BODY), reader.next, number)


async def latency_theirs(nc: Client, number: int) -> float:
    subscription = await nc.jetstream().subscribe("s.l", ordered_consumer=True)
    with contextlib.suppress(NatsTimeout):
        while True:
            await subscription.next_msg(timeout=0.2)
    found = await latency(lambda: nc.publish("s.l", BODY), subscription.next_msg, number)
    await subscription.unsubscribe()
    return found


async def latency(
    publish: Callable[[], Awaitable[object]], receive: Callable[[], Awaitable[object]], number: int
) -> float:
    """Return the median milliseconds from publishing to receiving."""
    found = []
    for _ in range(number):
        started = time.perf_counter()
        await publish()
        await receive()
        found.append(1000 * (time.perf_counter() - started))
    return statistics.median(found)


async def recovery_ours(nc: Client, server: NatsServer) -> float:
    js = JetStream(nc)
    async with OrderedPushConsumer(js, "S", "s.r", deliver_policy="new") as reader:
        await js.publish("s.r")
        await reader.next()
        return await recovery(server, reader.next)


async def recovery_theirs(nc: Client, server: NatsServer) -> float:
    subscription = await nc.jetstream().subscribe("s.r", ordered_consumer=True)
    with contextlib.suppress(NatsTimeout):
        while True:
            await subscription.next_msg(timeout=0.2)

    async def receive() -> object:
        return await subscription.next_msg(timeout=60)

    found = await recovery(server, receive)
    await subscription.unsubscribe()
    return found


async def recovery(server: NatsServer, receive: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds from the server being back until a message stored then is received.

    Another connection stores it, so that nothing but the reader is measured.
    """
    receiving = asyncio.ensure_future(receive())
    await asyncio.sleep(0.2)
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(server.start)
    back = time.perf_counter()
    async with connected(ConnectOptions(servers=(server.url,))) as other:
        await JetStream(other).publish("s.r")
    await receiving
    return time.perf_counter() - back


async def stalled(url: str, megabytes: int, *, ours: bool) -> tuple[float, int]:
    """Return the megabytes that a handler which stands still had to hold, and how many it lost."""
    number = megabytes * 100
    async with connected(ConnectOptions(servers=(url,))) as nc:
        await fill(JetStream(nc), number, bytes(10_000))
    async with connected(ConnectOptions(servers=(url,))) as nc:
        if ours:
            async with OrderedPushConsumer(JetStream(nc), "S", "s.a") as reader:
                await reader.next()
                held, found = await held_by(nc), 1
                while await reader.next(idle_timeout=1) is not None:
                    found += 1
                return held, number - found
        found, standing = 0, asyncio.Event()

        async def handler(_: object) -> None:
            nonlocal found
            found += 1
            await standing.wait()

        subscription = await nc.jetstream().subscribe("s.a", cb=handler, ordered_consumer=True)
        held = await held_by(nc)
        standing.set()
        before = -1
        while found > before:
            before = found
            await asyncio.sleep(STALL / 2)
        await subscription.unsubscribe()
        return held, number - found


async def held_by(nc: Client) -> float:
    """Stand still; return the megabytes that have been received and not been handed out."""
    for _ in range(50):
        await asyncio.sleep(STALL / 50)
    return float(nc.stats["in_bytes"]) / 1e6


async def compare(
    what: str,
    ours: Callable[[], Awaitable[float]],
    theirs: Callable[[], Awaitable[float]],
    rounds: int,
    *,
    more_is_better: bool = True,
) -> list[Cell]:
    """Return a row: both medians, their ratio, and that of this process's CPU time."""
    found: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, measure in enumerate((ours, theirs)):
            started = time.process_time()
            found[side].append(await measure())
            cpu[side].append(time.process_time() - started)
    mine, other = map(statistics.median, found)
    ratio = mine / other if more_is_better else other / mine
    burnt = statistics.median(cpu[1]) / statistics.median(cpu[0])
    rounds_ = " ".join(f"{a:,.3g}/{b:,.3g}" for a, b in zip(*found, strict=True))
    return [what, mine, other, ratio, burnt, rounds_]


async def compared(server: NatsServer, number: int, rounds: int, say: Say) -> Table:
    table = Table(
        "JetStream layer and nats-py",
        ("measure", "ours", "nats-py", "ratio", "CPU ratio", "each round"),
        notes=("Alternately in one run; medians. A ratio above 1 is in our favour.",),
    )
    async with connected(ConnectOptions(servers=(server.url,))) as nc:
        await fill(JetStream(nc), number)
        for what, ours, theirs, count in (
            ("ordered, messages/s", ordered_ours, ordered_theirs, number),
            ("consumed and acked, messages/s", consumed_ours, consumed_theirs, number),
            ("published one by one, messages/s", published_ours, published_theirs, number // 10),
        ):
            say(what)
            row = await compare(what, partial(ours, nc, count), partial(theirs, nc, count), rounds)
            table.rows.append(row)
        await fill(JetStream(nc), 1)
        for what, ours, theirs, by in (
            ("latency, median, ms", latency_ours, latency_theirs, 500),
            ("recovery after a kill, s", recovery_ours, recovery_theirs, server),
        ):
            say(what)
            mine, other = partial(ours, nc, by), partial(theirs, nc, by)
            fewer = max(1, rounds // 3) if by is server else rounds
            table.rows.append(await compare(what, mine, other, fewer, more_is_better=False))
    return table


async def run(directory: Path, sizes: Sizes, say: Say) -> list[Table]:
    """Return two tables: rates, latency, recovery; and what a stalled handler holds."""
    number, megabytes = (20_000, 400) if sizes.whole_graph else (2_000, 20)
    with running(NatsServer(directory)) as server:
        rates = await compared(server, number, sizes.rounds, say)
        held = Table(
            f"A handler that stands still before {megabytes} MB",
            ("reader", "MB held in the client", "messages lost"),
        )
        for ours in (True, False):
            say(held.title)
            held.rows.append(
                ["ours" if ours else "nats-py", *await stalled(server.url, megabytes, ours=ours)]
            )
    return [rates, held]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    given = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory:
        tables = run(Path(directory), QUICK if given.quick else FULL, lambda _: None)
        for table in asyncio.run(tables):
            print(f"\n{table.text()}", flush=True)


if __name__ == "__main__":
    main()
