"""The least that a Rebaser could be: a process that answers each request with one commit.

Plain nats-py: a push consumer for each change set, a publish under compare-and-swap for
each message, the message deleted without waiting for the answer. It decodes nothing,
has no state and holds no task. `python -m benchmarks.bare_worker URL PREFIX SIZE CHANGE_SET…`
"""

import asyncio
import json
import sys

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.bare import new_only
from rebaser_core.subjects import Subjects


class Worker:
    """Commits to one subject whatever comes on another."""

    def __init__(self, nc: Client, subjects: Subjects, change_set: list[str], size: int) -> None:
        self._nc = nc
        self._js = nc.jetstream()
        self._stream = subjects.requests_stream
        self._requests = subjects.join("rebaser", "requests", *change_set)
        self._commits = subjects.join("rebaser", "commits", *change_set)
        self._commit = bytes(size)
        self._last = 0

    async def start(self) -> None:
        await self._js.subscribe(
            self._requests, stream=self._stream, config=new_only(), cb=self._handle
        )

    async def _handle(self, request: Msg) -> None:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self._last)}
        ack = await self._js.publish(self._commits, self._commit, headers=headers)
        self._last = ack.seq
        body = {"seq": request.metadata.sequence.stream, "no_erase": True}
        # An answer that nobody awaits.
        await self._nc.publish(
            f"$JS.API.STREAM.MSG.DELETE.{self._stream}",
            json.dumps(body).encode(),
            reply="bare.deleted",
        )


async def work(url: str, prefix: str, size: int, change_sets: list[str]) -> None:
    nc = await nats.connect(url)
    for change_set in change_sets:
        await Worker(nc, Subjects(prefix), change_set.split("."), size).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
