"""Our JetStream layer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.jetstream.peer import STREAM, Peer, Puller, Receive, Taken
from rebaser_core.jetstream import (
    ConnectOptions,
    Consumer,
    ConsumerConfig,
    JetStream,
    OrderedPushConsumer,
    connected,
)


class Ours(Peer):
    name = "ours"

    def __init__(self, js: JetStream) -> None:
        self._js = js

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator[Peer]:
        async with connected(ConnectOptions(servers=(url,))) as nc:
            yield cls(JetStream(nc))

    async def publish(self, subject: str, payload: bytes) -> None:
        await self._js.publish(subject, payload)

    async def say(self, subject: str, payload: bytes) -> None:
        await self._js.connection.publish(subject, payload)

    async def stream_info(self) -> object:
        return await self._js.stream_info(STREAM)

    @asynccontextmanager
    async def ordered(self, subject: str) -> AsyncIterator[Receive]:
        async with OrderedPushConsumer(self._js, STREAM, subject) as reader:

            async def receive() -> bytes:
                return (await anext(reader)).payload

            yield receive

    async def handle_slowly(self, subject: str, pause: Callable[[], Awaitable[Any]]) -> int:
        found = 0
        async with OrderedPushConsumer(self._js, STREAM, subject) as reader:
            while await reader.next(idle_timeout=1) is not None:
                found += 1
                if found == 1:
                    await pause()
        return found

    @asynccontextmanager
    async def pull(self, consumer: str) -> AsyncIterator[Puller]:
        async with await self._js.stream(STREAM).consumer(consumer) as handle:
            yield _Puller(handle)

    async def create_consumer(self, name: str, **config: Any) -> None:
        await self._js.stream(STREAM).create_consumer(ConsumerConfig(durable_name=name, **config))

    def received(self) -> int:
        return int(self._js.nc.stats["in_bytes"])


class _Puller(Puller):
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def fetch(self, count: int, expires: float) -> Sequence[Taken]:
        found = await self._consumer.fetch(max_messages=count, expires=expires)
        return [Taken(delivery.payload, delivery.ack) for delivery in found]

    async def consume(self, count: int) -> None:
        async with self._consumer.messages() as messages:
            for _ in range(count):
                await (await anext(messages)).ack()
