"""Part `large`: ten million values, a million of them recomputed, and the memory of all.

What takes part is what a user has: a nats-server, and a daemon with production's settings and its
Spark, each a process of its own. The client is in this one.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.blocks import BLOCK, put_blocks, seed, set_source
from benchmarks.blocks import blocks as made
from benchmarks.broker import Broker, broker
from benchmarks.deployment import running
from benchmarks.processes import Peaks, children_of, seconds
from benchmarks.sizes import Sizes
from benchmarks.tables import Table
from rebaser_client.client import RebaserClient
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.messages import SuccessStatusV3
from rebaser_core.streams import Streams
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from rebaser_server.store.checkpoints import Checkpoints
from tests.helpers.deployment import new_change_sets
from tests.helpers.eventually import eventually

_BATCH: Final = 10_000
"""Blocks of one request."""
_AHEAD: Final = 2
"""Requests on their way while the next is being made."""

_NOTE: Final = """\
Blocks of eleven: a source, and ten values that depend on it. All but those that are put begin as
a checkpoint; these come in batches of {batch:,}, all through `rebaser_client`. A step ends when
all that it leaves to be recomputed is committed. Memory is what processes have to themselves and
their share of what they share (PSS), at its most in each step; *in all* is daemon, Spark (JVM and
Python) and nats-server at one moment, without the client. Synced {durability}."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """One change set, that a second daemon takes over from the first."""
    columns = [
        *("step", "values", "s", "µs each", "client CPU s", "daemon CPU s", "Spark CPU s"),
        *(f"{name} MiB" for name in ("daemon", "Spark", "nats-server", "in all", "client")),
    ]
    table = Table("A large change set", columns)
    with broker(directory / "nats") as server:
        options = ConnectOptions(servers=(server.url,), name="client")
        async with connected(options) as nc, RebaserClient.on(nc, JetStream(nc)) as client:
            large = _Large(directory, server, JetStream(nc), client, table, say)
            await large.measure(sizes.large // BLOCK, sizes.large_put // BLOCK)
        note = _NOTE.format(batch=_BATCH * BLOCK, durability=server.durability)
    return [Table(table.title, columns, table.rows, [note])]


class _Large:
    """Each step is a row of the table."""

    def __init__(
        self,
        directory: Path,
        server: Broker,
        js: JetStream,
        client: RebaserClient,
        table: Table,
        say: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._server = server
        self._client = client
        self._table = table
        self._say = say
        [self._change_set] = new_change_sets(1)
        self._js = js
        self._log = CommitLog(Streams(js=js), self._change_set)
        self._checkpoints = Checkpoints(str(directory / "store"))

    async def measure(self, blocks: int, put: int) -> None:
        """`blocks` in all, of which the last `put` come in by requests, the others lie there."""
        many = blocks // 9 + 1
        ten = BLOCK - 1
        await self._seed(blocks - put, blocks)
        with running(self._server.url, self._directory) as daemon:
            await daemon.ready()
            pid = daemon.process.pid
            await self._step(pid, "load, set a source", ten, self._set(blocks, [0]))
            put_them = self._put(blocks - put, blocks)
            await self._step(pid, "put values, in batches", put * BLOCK, put_them)
            await self._step(pid, "set a source", ten, self._set(blocks, [1]))
            await self._step(pid, "set a ninth of all", many * ten, self._set(blocks, range(many)))
            await self._step(pid, "save it", many * ten, self._save())
            await self._step(pid, "set a source", ten, self._set(blocks, [2]))
        with running(self._server.url, self._directory) as daemon:
            await daemon.ready()
            pid = daemon.process.pid
            await self._step(pid, "load, set a source", ten, self._set(blocks, [3]))
            await self._step(pid, "set a source", ten, self._set(blocks, [4]))

    async def _seed(self, blocks: int, in_all: int) -> None:
        self._say("large: seed")
        store = {"root": str(self._directory / "store")}
        settings = Settings.model_validate({"nats": {"url": self._server.url}, "store": store})
        await prepare(self._js, settings)
        graph = await asyncio.to_thread(made, blocks * BLOCK, in_all * BLOCK)
        await seed(self._js, settings, self._change_set, graph)

    async def _step(self, pid: int, name: str, values: int, work: Awaitable[None]) -> None:
        self._say(f"large: {name}")
        peaks, before, began = Peaks(pid, self._server.pid), _processor(pid), time.perf_counter()
        with peaks:
            await work
        seconds = time.perf_counter() - began
        used = [after - b for after, b in zip(_processor(pid), before, strict=True)]
        memory = [octets / 2**20 for octets in peaks.most()]
        self._table.rows.append([name, values, seconds, seconds / values * 1e6, *used, *memory])

    async def _put(self, first: int, blocks: int) -> None:
        replies = deque[Awaitable[Any]]()
        for start in range(first, blocks, _BATCH):
            stop = min(start + _BATCH, blocks)
            updates = await asyncio.to_thread(put_blocks, start, stop, blocks)
            replies.append(await self._enqueue(updates))
            if len(replies) > _AHEAD:
                await replies.popleft()
        for reply in replies:
            await reply
        await self._recomputed()

    async def _set(self, blocks: int, sources: Sequence[int]) -> None:
        value = time.monotonic_ns() // 1000  # another each time
        await (await self._enqueue([set_source(n, blocks, value) for n in sources]))
        await self._recomputed()

    async def _save(self) -> None:
        commit = await self._client.change_set(*self._change_set).checkpoint()

        async def saved() -> bool:
            last = await asyncio.to_thread(self._checkpoints.last_commit, self._change_set)
            return last >= commit

        await eventually(saved, within=600)

    async def _enqueue(self, updates: Sequence[dict[str, Any]]) -> Awaitable[Any]:
        _, reply = await self._client.enqueue_updates_with_reply(*self._change_set, updates)
        return asyncio.ensure_future(_applied(reply))

    async def _recomputed(self) -> None:
        async def recomputed() -> bool:
            _, last = await self._log.last()
            return last is not None and not last.control.dvu_due

        await eventually(recomputed, within=600)


async def _applied(reply: Awaitable[Any]) -> None:
    status = (await reply).status
    if not isinstance(status, SuccessStatusV3) or status.success.corrections:
        raise RuntimeError(f"not as sent: {status}"[:300])


def _processor(pid: int) -> list[float]:
    """Seconds of client, daemon, and Spark so far."""
    spark = sum(seconds(child, children=True) or 0.0 for child in children_of(pid))
    return [time.process_time(), seconds(pid) or 0.0, spark]
