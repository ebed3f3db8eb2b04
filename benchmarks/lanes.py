"""One change set each: how requests are sent to whoever commits them, and when it did."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Sequence
from typing import Any, Protocol

from ulid import ULID

from benchmarks.commits import Commits
from rebaser_client.client import RebaserClient
from rebaser_core.commits import Commit
from rebaser_core.ids import ChangeSet
from rebaser_core.subjects import Subjects

AT_ONCE = 64
"""Requests that a flood has on their way to be stored."""

_OPENING = 2
"""Lines of a log: that of taking the change set up, and the definition of its value."""


class Lane(Protocol):
    commits: Commits
    subject: str
    """Where its commits appear."""

    async def open(self) -> None:
        """Have it taken up, so that what is measured finds everything there."""

    async def send(self) -> None:
        """Return when the request is stored and its task known to exist."""


class RebaserLane:
    """Sets a value that nothing depends on: a request, and no dependent values update after it."""

    def __init__(
        self, client: RebaserClient, commits: Commits, subjects: Subjects, change_set: ChangeSet
    ) -> None:
        self._client = client
        self._change_set = change_set
        self._value_id = str(ULID())
        self._numbers = itertools.count()
        self._sent = 0
        self.commits = commits
        self.subject = subjects.commits(change_set)

    async def open(self) -> None:
        define = [{"putValue": {"valueId": self._value_id, "value": None}}]
        _, reply = await self._client.enqueue_updates_with_reply(*self._change_set, define)
        await reply
        await self.commits.line(self.subject, _OPENING)

    def update(self) -> dict[str, Any]:
        return {"setValue": {"valueId": self._value_id, "value": next(self._numbers)}}

    async def send(self) -> None:
        await self._client.enqueue_updates(*self._change_set, [self.update()])
        self._sent += 1

    def check(self) -> None:
        """Raise unless each request made a line of its own, and nothing else did."""
        found = self.commits.count(self.subject) - _OPENING
        if found != self._sent:
            raise RuntimeError(f"{self._sent} requests made {found} lines in {self.subject}")
        last = self.commits.last[self.subject]
        if Commit.decode(last.headers, last.payload).settled is None:
            raise RuntimeError(f"the last line of {self.subject} settles no request")


async def one_by_one(lanes: Sequence[Lane], count: int) -> list[float]:
    """Seconds from enqueueing to the commit of `count` requests a lane, each after the last."""

    async def follow(lane: Lane) -> list[float]:
        took = []
        for _ in range(count):
            number = lane.commits.count(lane.subject) + 1
            started = time.perf_counter()
            await lane.send()
            took.append(await lane.commits.line(lane.subject, number) - started)
        return took

    return list(itertools.chain(*await asyncio.gather(*map(follow, lanes))))


async def flood(lanes: Sequence[Lane], count: int) -> float:
    """Requests a second from the first enqueued to the last committed, `count` a lane.

    They are enqueued as fast as the client can, `AT_ONCE` at a time over all lanes.
    """
    due = [lane.commits.count(lane.subject) + count for lane in lanes]
    todo = iter([lane for _ in range(count) for lane in lanes])

    async def send() -> None:
        for lane in todo:
            await lane.send()

    started = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    ends = [
        await lane.commits.line(lane.subject, number)
        for lane, number in zip(lanes, due, strict=True)
    ]
    return len(lanes) * count / (max(ends) - started)


async def drain(lane: Lane, count: int, daemon: int) -> float:
    """Requests a second while a backlog of `count` is worked off, by a daemon that was frozen."""
    due = lane.commits.count(lane.subject) + count
    todo = iter(range(count))

    async def send() -> None:
        for _ in todo:
            await lane.send()

    os.kill(daemon, signal.SIGSTOP)
    try:
        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    finally:
        os.kill(daemon, signal.SIGCONT)
    started = time.perf_counter()
    return count / (await lane.commits.line(lane.subject, due) - started)
