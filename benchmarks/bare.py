"""The limits of the request path: the same messages, published with plain nats-py."""

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError

from benchmarks.commits import Commits
from rebaser_core.ids import ChangeSet
from rebaser_core.subjects import Subjects

STEPS = ("request", "task", "delivery", "commit")
"""Of a chain, in their order."""

Request = tuple[Mapping[str, str], bytes]
"""Headers and payload of what Rebaser's client sends."""

_ids = itertools.count()


def new_only() -> ConsumerConfig:
    """A configuration for one subscription: nats-py writes into it."""
    return ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW)


class Publisher:
    """Publishes a client's two messages for one change set, each awaited."""

    def __init__(
        self, nc: Client, subjects: Subjects, change_set: ChangeSet, request: Request
    ) -> None:
        self._js = nc.jetstream()
        self._requests, self._task = subjects.requests(change_set), subjects.task(change_set)
        self._headers, self._payload = request

    async def request(self) -> None:
        headers = {**self._headers, "Nats-Msg-Id": f"bare-{next(_ids)}"}
        await self._js.publish(self._requests, self._payload, headers=headers)

    async def task(self) -> None:
        with suppress(APIError):  # there is one: refused, which takes as long
            await self._js.publish(self._task)

    async def send(self) -> None:
        await self.request()
        await self.task()


class Chain:
    """The round trips that a request must contain, one after another in one process."""

    def __init__(
        self,
        publisher: Publisher,
        worker: Client,
        subjects: Subjects,
        change_set: ChangeSet,
        size: int,
    ) -> None:
        """`size`: bytes of a commit."""
        self._publisher = publisher
        self._js = worker.jetstream()
        self._requests, self._stream = subjects.requests(change_set), subjects.requests_stream
        self._commits, self._commit = subjects.commits(change_set), bytes(size)
        self._delivered = asyncio.Event()
        self._last = 0
        self.steps: list[list[float]] = []
        """Seconds of each of `STEPS`, a list for each time."""

    async def open(self) -> None:
        async def deliver(_: Msg) -> None:
            self._delivered.set()

        await self._js.subscribe(self._requests, stream=self._stream, config=new_only(), cb=deliver)
        await self._publisher.task()

    async def repeat(self, count: int) -> list[float]:
        """Go through all four `count` times; what they take together each time."""
        return [await self._once() for _ in range(count)]

    async def _once(self) -> float:
        times = [time.perf_counter()]
        self._delivered.clear()
        await self._publisher.request()
        times.append(time.perf_counter())
        await self._publisher.task()
        times.append(time.perf_counter())
        await self._delivered.wait()
        times.append(time.perf_counter())
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self._last)}
        ack = await self._js.publish(self._commits, self._commit, headers=headers)
        times.append(time.perf_counter())
        self._last = ack.seq
        self.steps.append([after - before for before, after in itertools.pairwise(times)])
        return times[-1] - times[0]


class WorkerLane:
    """One change set of `bare_worker`, asked as a client asks a Rebaser."""

    def __init__(self, publisher: Publisher, commits: Commits, subject: str) -> None:
        self._publisher = publisher
        self.commits = commits
        self.subject = subject

    async def open(self) -> None:
        await self.send()
        await self.commits.line(self.subject, 1)

    async def send(self) -> None:
        await self._publisher.send()


@contextmanager
def worker(
    url: str, subjects: Subjects, size: int, change_sets: Sequence[ChangeSet]
) -> Iterator[int]:
    """Run a `bare_worker` whose commits have `size` bytes; its process id."""
    names = [".".join(map(str, change_set)) for change_set in change_sets]
    arguments = [url, str(subjects.prefix), str(size), *names]
    command = [sys.executable, "-m", "benchmarks.bare_worker", *arguments]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise RuntimeError("the bare worker did not start")
            yield process.pid
        finally:
            process.kill()


async def publish_each(publishers: Sequence[Publisher], count: int) -> float:
    """Requests a second, each publisher's awaited one by one, all publishers at once."""

    async def publish(publisher: Publisher) -> None:
        for _ in range(count):
            await publisher.request()

    started = time.perf_counter()
    await asyncio.gather(*map(publish, publishers))
    return len(publishers) * count / (time.perf_counter() - started)
