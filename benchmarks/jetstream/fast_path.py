"""What each part of the fast path brings: our layer with it and without, in turns."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final
from unittest import mock

import nats
from nats.aio.client import Client

from benchmarks.jetstream import measures
from benchmarks.jetstream.ours import Ours
from benchmarks.jetstream.peer import Peer
from benchmarks.sizes import Sizes
from benchmarks.tables import Table
from rebaser_core.jetstream import JetStream
from rebaser_core.jetstream.fast_client import FastClient
from tests.helpers.nats_process import NatsServer, running


class ReadByLoop(Ours):
    """Messages are cut out of what nats-py's loop has read, not of the socket's buffer."""

    name = "read by nats-py's loop"

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator[Peer]:
        with mock.patch.object(FastClient, "_read_loop", vars(Client)["_read_loop"]):
            async with Ours.connect(url) as peer:
                yield peer


class WrittenByTask(Ours):
    """What is published is written by nats-py's task, not at the end of the loop's turn."""

    name = "written by nats-py's task"

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator[Peer]:
        room = "rebaser_core.jetstream.fast_client._socket_has_room"
        with mock.patch(room, return_value=False):
            async with Ours.connect(url) as peer:
                yield peer


class OnNatsPy(Ours):
    """Nothing of it: nats-py's own connection."""

    name = "nats-py's connection"

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator[Peer]:
        nc = await nats.connect(url, max_reconnect_attempts=-1)
        try:
            yield cls(JetStream(nc))
        finally:
            await nc.close()


PARTS: Final[tuple[type[Peer], ...]] = (Ours, ReadByLoop, WrittenByTask, OnNatsPy)


async def processor_time(measure: measures.Measure, number: int, peer: Peer) -> float:
    """Return the microseconds of processor time of this process for each message."""
    before = time.process_time()
    await measure(peer)
    return 1e6 * (time.process_time() - before) / number


async def run(directory: Path, sizes: Sizes, say: measures.Say) -> list[Table]:
    number = 5_000 if sizes.whole_graph else 500
    names = [each.name for each in PARTS]
    table = Table(
        "The fast path, processor time for each message, µs",
        ("measure", *(f"{name} : ours" for name in names[1:]), *names, "each round"),
        notes=("In turns in one run; medians. A ratio above 1 is what the part saves.",),
    )
    rows: Sequence[tuple[str, measures.Measure]] = (
        ("ordered", partial(measures.ordered, number)),
        ("consumed and acked", partial(measures.consumed, number)),
        ("published one by one", partial(measures.published, number)),
        ("published 100 at a time", partial(measures.published_together, number)),
    )
    with running(NatsServer(directory)) as server:
        await measures.fill(server.url, number)
        for what, measure in rows:
            say(what)
            table.rows.append(
                await measures.compare(
                    what,
                    partial(processor_time, measure, number),
                    server.url,
                    sizes.rounds,
                    peers=PARTS,
                    more_is_better=False,
                )
            )
    return [table]
