"""When lines of commit logs were seen by somebody who follows them, as a client would."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rebaser_core.jetstream import Delivery, JetStream, OrderedPushConsumer


class Commits:
    """Arrivals of all lines since the watch began. Lines are not decoded: that is not free."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        """Subject → `time.perf_counter()` at each line's arrival."""
        self.last: dict[str, Delivery] = {}
        self._came: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def follow(self, reader: OrderedPushConsumer) -> None:
        async for delivery in reader:
            subject = delivery.subject
            self.times[subject].append(time.perf_counter())
            self.last[subject] = delivery
            self._came[subject].set()

    def count(self, subject: str) -> int:
        return len(self.times[subject])

    async def line(self, subject: str, number: int) -> float:
        """When the `number`-th line came, counted from 1 and from the start of the watch."""
        times, came = self.times[subject], self._came[subject]
        while len(times) < number:
            came.clear()
            await came.wait()
        return times[number - 1]


@asynccontextmanager
async def following(js: JetStream, stream: str) -> AsyncIterator[Commits]:
    """Follow all logs of a stream for as long as the body runs."""
    commits = Commits()
    async with OrderedPushConsumer(js, stream) as reader:
        task = asyncio.create_task(commits.follow(reader))
        try:
            yield commits
        finally:
            task.cancel()
            await asyncio.wait([task])
