"""Part `parquet`: a file of a million values, and one of ten million, from disk to plan."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import processes
from benchmarks.blocks import BLOCK, PUT_FUNC, table_of_blocks
from benchmarks.broker import Broker, broker
from benchmarks.deployment import running
from benchmarks.processes import peak
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table, median
from rebaser_client.client import RebaserClient
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from tests.helpers.deployment import new_change_sets

_ROWS: Final = 20_000 * BLOCK
"""Of one batch: its 40 MB are on their way while the next ones are read."""
_AHEAD: Final = 2
"""Batches on their way while the next is being made."""

_COLUMNS: Final = (
    *("values", "committed: s", "planned: s"),
    *(f"{name}: µs a value" for name in ("client", "daemon", "nats-server")),
    *(f"{name} MiB" for name in ("client", "daemon", "nats-server")),
)
_NOTE: Final = """\
Blocks of eleven, ten of them computed from two others and all with a name, read from a Parquet
file and sent by `enqueue_table` in batches of {rows:,}; medians of {rounds} rounds, of the largest
one. Planned: when an update of all that the last batch left begins. Processor time is that until
then, without Spark's. Memory: the most that a process had at one moment. Synced {durability}."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Each round loads another change set."""
    rows: list[Sequence[Cell]] = []
    durability = ""
    for count, rounds in ((sizes.values, sizes.peer_rounds), (sizes.large, 1)):
        file = directory / f"{count}.parquet"
        await asyncio.to_thread(_write, file, count // BLOCK)
        measured = []
        for number in range(rounds):
            say(f"parquet: {count:,} values, round {number + 1}")
            place = directory / f"{count} {number}"
            with broker(place / "nats") as server:
                durability = server.durability
                measured.append(await _one_load(place, server, file))
        rows.append([count, *(median(each) for each in zip(*measured, strict=True))])
    note = _NOTE.format(rows=_ROWS, rounds=sizes.peer_rounds, durability=durability)
    return [Table("A Parquet file, from disk to plan", _COLUMNS, rows, [note])]


def _write(file: Path, blocks: int) -> None:
    """In as many row groups as batches."""
    step = _ROWS // BLOCK
    starts = range(0, blocks, step)
    first = table_of_blocks(0, 1, blocks)
    with pq.ParquetWriter(file, first.schema) as writer:
        for start in starts:
            writer.write_table(table_of_blocks(start, min(start + step, blocks), blocks))


async def _one_load(directory: Path, server: Broker, file: Path) -> list[float]:
    with running(server.url, directory) as daemon:
        await daemon.ready()
        options = ConnectOptions(servers=(server.url,), name="client")
        async with connected(options) as nc, RebaserClient.on(nc, JetStream(nc)) as client:
            load = _Load(client, server.pid, daemon.process.pid)
            await load.warm_up()
            return await load.measure(file)


class _Load:
    def __init__(self, client: RebaserClient, server: int, daemon: int) -> None:
        self._client = client
        self._server = server
        self._daemon = daemon

    async def warm_up(self) -> None:
        """What is done once in a process."""
        [change_set] = new_change_sets(1)
        table = table_of_blocks(0, 100, 100)
        await self._client.change_set(*change_set).enqueue_table(
            table, functions=[PUT_FUNC], wait="computed"
        )

    async def measure(self, file: Path) -> list[float]:
        """As `_COLUMNS`, without the first."""
        [change_set] = new_change_sets(1)
        count, used, began = 0, self._used(), time.perf_counter()
        sent = deque[asyncio.Task[Any]]()
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(_ROWS):
                functions = [] if count else [PUT_FUNC]  # once: each time all is computed anew
                count += batch.num_rows
                sent.append(asyncio.create_task(self._send(change_set, batch, functions)))
                if len(sent) > _AHEAD:
                    await sent.popleft()
        last = [await task for task in sent][-1]
        committed = time.perf_counter() - began
        async for step in self._client.change_set(*change_set).progress(last.commit):
            if step.total is not None:
                break
        planned, costs = time.perf_counter() - began, self._used()
        each = [(now - then) / count * 1e6 for now, then in zip(costs, used, strict=True)]
        pids = os.getpid(), self._daemon, self._server
        return [committed, planned, *each, *(peak(pid) / 2**20 for pid in pids)]

    async def _send(
        self, change_set: ChangeSet, batch: pa.RecordBatch, functions: list[dict[str, Any]]
    ) -> Any:
        table = pa.Table.from_batches([batch])
        return await self._client.change_set(*change_set).enqueue_table(table, functions=functions)

    def _used(self) -> list[float]:
        """Seconds of client, daemon and server so far."""
        others = [processes.seconds(pid) or 0.0 for pid in (self._daemon, self._server)]
        return [time.process_time(), *others]
