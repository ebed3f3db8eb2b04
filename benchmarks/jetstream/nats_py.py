"""nats-py and its own JetStream API."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.aio.client import Client
from nats.js.api import ConsumerConfig

from benchmarks.jetstream.peer import STREAM, Peer, Puller, Receive, Taken

AT_ONCE = 1000
"""Messages that one fetch asks for at most."""


class NatsPy(Peer):
    name = "nats-py"

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._js = nc.jetstream()

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator[Peer]:
        nc = await nats.connect(url, max_reconnect_attempts=-1)
        try:
            yield cls(nc)
        finally:
            await nc.close()

    async def publish(self, subject: str, payload: bytes) -> None:
        await self._js.publish(subject, payload)

    async def say(self, subject: str, payload: bytes) -> None:
        await self._nc.publish(subject, payload)

    async def stream_info(self) -> object:
        return await self._js.stream_info(STREAM)

    @asynccontextmanager
    async def ordered(self, subject: str) -> AsyncIterator[Receive]:
        subscription = await self._js.subscribe(subject, ordered_consumer=True)

        async def receive() -> bytes:
            return (await subscription.next_msg(timeout=60)).data

        try:
            yield receive
        finally:
            await subscription.unsubscribe()

    async def handle_slowly(self, subject: str, pause: Callable[[], Awaitable[Any]]) -> int:
        found = 0

        async def handler(_: object) -> None:
            nonlocal found
            found += 1
            if found == 1:
                await pause()

        subscription = await self._js.subscribe(subject, cb=handler, ordered_consumer=True)
        before = -1
        while found > before or found < 2:
            before = found
            await asyncio.sleep(5)
        await subscription.unsubscribe()
        return found

    @asynccontextmanager
    async def pull(self, consumer: str) -> AsyncIterator[Puller]:
        subscription = await self._js.pull_subscribe_bind(consumer, STREAM)
        try:
            yield _Puller(subscription)
        finally:
            await subscription.unsubscribe()

    async def create_consumer(self, name: str, **config: Any) -> None:
        await self._js.add_consumer(STREAM, ConsumerConfig(durable_name=name, **config))

    def received(self) -> int:
        return int(self._nc.stats["in_bytes"])


class _Puller(Puller):
    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    async def fetch(self, count: int, expires: float) -> Sequence[Taken]:
        found = await self._subscription.fetch(count, timeout=expires)
        return [Taken(message.data, message.ack) for message in found]

    async def consume(self, count: int) -> None:
        while count:
            for message in await self._subscription.fetch(min(AT_ONCE, count), timeout=10):
                await message.ack()
                count -= 1
