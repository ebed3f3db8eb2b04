"""nats-jetstream on nats-core, the newer client; it is there on Python 3.13 and newer alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.jetstream.peer import STREAM, Peer, Puller, Receive, Taken

AT_ONCE = 500
"""Messages in its buffer, as many as in ours."""


class NatsJetStream(Peer):
    name = "nats-jetstream"

    def __init__(self, nc: Any) -> None:
        self._nc = nc
        self._js = import_module("nats.jetstream").new(nc)

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator[Peer]:
        connect = import_module("nats.client").connect
        async with await connect(url, reconnect_max_attempts=0) as nc:  # without an end
            yield cls(nc)

    async def publish(self, subject: str, payload: bytes) -> None:
        await self._js.publish(subject, payload)

    async def say(self, subject: str, payload: bytes) -> None:
        await self._nc.publish(subject, payload)

    async def stream_info(self) -> object:
        return await self._js.get_stream_info(STREAM)

    @asynccontextmanager
    async def ordered(self, subject: str) -> AsyncIterator[Receive]:
        consumer = await self._js.ordered_consumer(STREAM, filter_subjects=[subject])
        messages = await consumer.messages(max_messages=AT_ONCE, heartbeat=5)

        async def receive() -> bytes:
            return bytes((await anext(messages)).data)

        try:
            yield receive
        finally:
            await messages.stop()
            await consumer.close()

    async def handle_slowly(self, subject: str, pause: Callable[[], Awaitable[Any]]) -> int:
        found = 0
        async with self.ordered(subject) as receive:
            try:
                while True:
                    await asyncio.wait_for(receive(), 60 if not found else 5)
                    found += 1
                    if found == 1:
                        await pause()
            except TimeoutError:
                return found

    @asynccontextmanager
    async def pull(self, consumer: str) -> AsyncIterator[Puller]:
        yield _Puller(await self._js.get_consumer(STREAM, consumer))

    async def create_consumer(self, name: str, **config: Any) -> None:
        await self._js.create_consumer(STREAM, name, durable_name=name, **config)

    def received(self) -> int:
        return int(self._nc.stats().in_bytes)


class _Puller(Puller):
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    async def fetch(self, count: int, expires: float) -> Sequence[Taken]:
        batch = await self._consumer.fetch(max_messages=count, max_wait=expires)
        found = [Taken(message.data, message.ack) async for message in batch]
        if batch.error is not None:
            raise batch.error
        return found

    async def consume(self, count: int) -> None:
        messages = await self._consumer.messages(max_messages=AT_ONCE, heartbeat=5)
        for _ in range(count):
            await (await anext(messages)).ack()
        await messages.stop()
