"""What each client does where the documents (ADR-13, 15, 17 and 37) or the server say what."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.jetstream.measures import fill
from benchmarks.jetstream.peer import STREAM, Peer, Puller
from benchmarks.jetstream.peers import PEERS
from benchmarks.tables import Table
from rebaser_core.jetstream import ConnectOptions, ConsumerConfig, JetStream, connected
from tests.helpers.nats_process import NatsServer, running

LIMIT: Final = 20.0
"""Seconds after which a client is taken to have fallen silent."""
LONG: Final = 3.0
"""Seconds of a fetch that is to be ended before."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A server with an empty stream, and a client under observation."""

    server: NatsServer
    js: JetStream
    peer: Peer

    async def consumer(self, name: str = "c", **config: Any) -> str:
        """Create a pull consumer, not by the client under observation."""
        wanted = ConsumerConfig(durable_name=name, ack_policy="explicit", **config)
        await self.js.create_consumer(STREAM, wanted)
        return name

    async def send(self, *frames: bytes) -> None:
        """Have the server read octets that no client would send."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(
            b'CONNECT {"verbose":false,"headers":true}\r\n' + b"".join(frames) + b"PING\r\n"
        )
        while await reader.readline() not in (b"PONG\r\n", b""):
            pass
        writer.close()


Point = Callable[[Stage], Awaitable[str]]


async def ack_policy(stage: Stage) -> str:
    await stage.peer.create_consumer("own")
    return str((await stage.js.consumer_info(STREAM, "own")).config.ack_policy)


async def another_configuration(stage: Stage) -> str:
    await stage.peer.create_consumer("own", max_ack_pending=10)
    with suppress(Exception):
        await stage.peer.create_consumer("own", max_ack_pending=20)
    found = (await stage.js.consumer_info(STREAM, "own")).config.max_ack_pending
    return "stays as it is" if found == 10 else "is overwritten"


async def batch_that_fills(stage: Stage) -> str:
    await _publish(stage, 3)
    async with stage.peer.pull(await stage.consumer()) as puller:
        fetching = asyncio.ensure_future(puller.fetch(5, LONG))
        await asyncio.sleep(0.3)
        await _publish(stage, 2)
        return f"{len(await fetching)} of 5"


async def batch_without_messages(stage: Stage) -> str:
    async with stage.peer.pull(await stage.consumer()) as puller:
        return f"{len(await puller.fetch(5, 0.5))} messages"


async def consumer_that_goes(stage: Stage) -> str:
    async with stage.peer.pull(await stage.consumer()) as puller:
        fetching = asyncio.ensure_future(puller.fetch(5, LONG))
        await asyncio.sleep(0.3)
        await stage.js.delete_consumer(STREAM, "c")
        done, _ = await asyncio.wait([fetching], timeout=LONG / 2)
        at = "at once" if done else "when it expires"
        try:
            return f"{len(await fetching)} messages, {at}"
        except Exception as error:  # noqa: BLE001 - which one is what is asked for
            return f"{type(error).__name__}, {at}"


async def refused_batch(stage: Stage) -> str:
    await _publish(stage, 3)
    async with stage.peer.pull(await stage.consumer(max_batch=2)) as puller:
        return f"{len(await puller.fetch(5, 0.5))} messages"


async def cancelled_fetch(stage: Stage) -> str:
    async with stage.peer.pull(await stage.consumer()) as puller:
        fetching = asyncio.ensure_future(puller.fetch(5, LONG))
        await asyncio.sleep(0.3)
        await _publish(stage, 1)
        await asyncio.sleep(0.3)
        fetching.cancel()
        await asyncio.wait([fetching])
        return "comes again at once" if await _fetched(puller) else "waits for its ack wait"


async def _fetched(puller: Puller) -> int:
    with suppress(Exception):
        return len(await puller.fetch(1, 1.0))
    return 0


async def second_ack(stage: Stage) -> str:
    await _publish(stage, 1)
    async with stage.peer.pull(await stage.consumer()) as puller:
        [taken] = await puller.fetch(1, LONG)
        await taken.ack()
        await taken.ack()
    return "is ignored"


async def ordered_consumer_that_goes(stage: Stage) -> str:
    async with stage.peer.ordered("s.a") as receive:
        await _publish(stage, 1)
        await receive()
        for name in await _consumers(stage):
            await stage.js.delete_consumer(STREAM, name)
        await _publish(stage, 1)
        await receive()
    return "goes on"


async def ordered_consumer_that_is_left(stage: Stage) -> str:
    async with stage.peer.ordered("s.a") as receive:
        await _publish(stage, 1)
        await receive()
    await asyncio.sleep(1)
    return "stays at the server" if await _consumers(stage) else "is deleted"


async def subject_with_a_tab(stage: Stage) -> str:
    return await _read_behind(stage, b"PUB s.a\x0bb 1\r\n1\r\n")


async def header_that_is_no_text(stage: Stage) -> str:
    return await _read_behind(stage, b"HPUB s.a 23 24\r\nNATS/1.0\r\nName: \xff\xfe.\r\n\r\n1\r\n")


async def _read_behind(stage: Stage, frame: bytes) -> str:
    """Send the frame, whose payload is 1, and a sound message; say what is read."""
    async with stage.peer.ordered("s.>") as receive:
        await stage.send(frame, b"PUB s.a 1\r\n2\r\n")
        found = [await receive()]
        if found == [b"1"]:
            found.append(await receive())
    return "is read" if found == [b"1", b"2"] else f"reads {b' '.join(found).decode()!r} instead"


async def oversized_message(stage: Stage) -> str:
    try:
        await stage.peer.publish("s.a", bytes(2_000_000))
    except Exception as error:  # noqa: BLE001 - which one is what is asked for
        refused = type(error).__name__
    await stage.peer.publish("s.a", b"1")
    return f"{refused}; goes on"


async def _consumers(stage: Stage) -> Sequence[str]:
    found = await stage.js.request(f"CONSUMER.NAMES.{STREAM}")
    return [str(name) for name in found["consumers"] or ()]


async def _publish(stage: Stage, count: int) -> None:
    for _ in range(count):
        await stage.js.publish("s.a", b"1")


POINTS: Final[Sequence[tuple[str, Point]]] = (
    ("the ack policy of a created consumer", ack_policy),
    ("creating a consumer that is there with another configuration", another_configuration),
    ("a fetch of 5 while 3 are there and 2 come", batch_that_fills),
    ("a fetch that brings nothing", batch_without_messages),
    ("a fetch whose consumer is deleted meanwhile", consumer_that_goes),
    ("a fetch of more than the consumer allows (409)", refused_batch),
    ("a message that had come to a cancelled fetch", cancelled_fetch),
    ("a second ack", second_ack),
    ("an ordered consumer that the server loses", ordered_consumer_that_goes),
    ("an ordered consumer that is left", ordered_consumer_that_is_left),
    ("a subject with 0x0B", subject_with_a_tab),
    ("a header that is no UTF-8", header_that_is_no_text),
    ("a message larger than the server takes", oversized_message),
)


async def run(directory: Path, say: Callable[[str], None]) -> list[Table]:
    """Return one table: what each client did at each point."""
    table = Table("What the clients do", ("point", *(each.name for each in PEERS)))
    with running(NatsServer(directory)) as server:
        for title, point in POINTS:
            say(title)
            table.rows.append([title, *[await observe(server, each, point) for each in PEERS]])
    return [table]


async def observe(server: NatsServer, kind: Any, point: Point) -> str:
    """Return what a client does, on a connection of its own."""
    await fill(server.url, 1)
    async with connected(ConnectOptions(servers=(server.url,))) as nc:
        js = JetStream(nc)
        await js.purge(STREAM)
        try:
            async with asyncio.timeout(LIMIT), kind.connect(server.url) as peer:
                return await point(Stage(server, js, peer))
        except TimeoutError as error:
            return f"nothing in {LIMIT:.0f} s" if not str(error) else type(error).__name__
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            return type(error).__name__
