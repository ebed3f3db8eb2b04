"""Part `loads`: what a value costs that comes in a large batch, in each stage and in all.

Every figure stands beside that of the same batches with one odd update more, which are read and
applied update by update, and of the same values in tables of Arrow.
"""

import asyncio
import gc
import time
from base64 import b64decode
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from benchmarks import processes
from benchmarks.blocks import BLOCK, put_blocks
from benchmarks.broker import Broker, broker
from benchmarks.deployment import running
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table, median
from rebaser_client.client import RebaserClient
from rebaser_client.requests import Updates, encode_batch, validate
from rebaser_client.tables import as_table, read_updates
from rebaser_core.codecs import CBOR
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.messages import SuccessStatusV3, UpdatesBatch
from rebaser_core.streams import Streams
from rebaser_core.table_updates import read_stream, with_rows
from rebaser_core.updates import AnyUpdate, BatchLimits, read_update
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.compute.plan import plan
from rebaser_server.runtime.memory import collect_rarely
from rebaser_server.store.checkpoints import Checkpoints, take_changes
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.deployment import new_change_sets
from tests.helpers.eventually import eventually


class _Table(NamedTuple):
    functions: Sequence[AnyUpdate]
    rows: pa.Table


Batch = list[dict[str, Any]] | _Table
Batches = list[Batch]

_BATCH: Final = 1_000
"""Blocks of one batch."""
_AHEAD: Final = 2
"""Requests on their way while the next is being made."""
_MICRO: Final = 1e6
_ODD: Final = {"removeValue": {"valueId": "7" + "Z" * 25}}
"""Of a value that is not there: no column holds it, and the batch gets a correction."""
_KINDS: Final = "odd", "regular", "table"
_CHANGE_SET: Final = ChangeSet(WorkspaceId.from_int(1), ChangeSetId.from_int(2))

_STAGES: Final = """\
{count:,} values in blocks of eleven, ten of them computed from two others and all with a name, in
batches of {batch:,}; one process, medians of {rounds} rounds in turns. An odd batch has one update
more, which needs a correction: so it is read and applied update by update. A table is the same
values as a `pyarrow.Table`. Ratio: odd batches to tables."""
_WHOLE: Final = """\
The same batches through `rebaser_client`, a daemon and a nats-server, each a process of its own.
Committed: when the last reply is here; processor time is that until all is computed, without
Spark's. Synced {durability}."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Stages in this process, then the whole way."""
    blocks = sizes.large_put // BLOCK // 10
    tables = [await asyncio.to_thread(_stages, directory, blocks, sizes.rounds, say)]
    return [*tables, await _whole_way(directory, blocks, sizes.rounds, say)]


def _stages(directory: Path, blocks: int, rounds: int, say: Callable[[str], None]) -> Table:
    batches = _all(blocks)
    times: dict[str, dict[str, list[float]]] = {kind: {} for kind in _KINDS}
    for number in range(rounds):
        for kind in _KINDS:
            say(f"loads: stages, round {number + 1}, {kind}")
            checkpoints = Checkpoints(str(directory / f"{kind}{number}"))
            for stage, seconds in _one_load(batches[kind], checkpoints).items():
                each = seconds / blocks / BLOCK * _MICRO
                times[kind].setdefault(stage, []).append(each)
    rows: list[Sequence[Cell]] = []
    for stage in times["odd"]:
        each = [median(times[kind][stage]) for kind in _KINDS]
        rows.append([stage, *each, each[0] / each[-1]])
    each = [sum(median(stage) for stage in times[kind].values()) for kind in _KINDS]
    rows.append(["all", *each, each[0] / each[-1]])
    columns = ["stage", "odd batches", "regular batches", "tables", "ratio"]
    note = _STAGES.format(count=blocks * BLOCK, batch=_BATCH * BLOCK, rounds=rounds)
    return Table("A load, by stage (µs of processor time a value)", columns, rows, [note])


class _Clock:
    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._last = time.process_time()

    def end(self, stage: str) -> None:
        now = time.process_time()
        self.stages[stage] = self.stages.get(stage, 0.0) + now - self._last
        self._last = now


def _one_load(batches: Batches, checkpoints: Checkpoints) -> dict[str, float]:
    """Seconds of each stage."""
    graph, limits, clock, clients = Graph(), BatchLimits(), _Clock(), gc.get_threshold()
    for sequence, updates in enumerate(batches, 1):
        valid = validate(_read(updates))
        limits.violation(valid, len(valid))
        clock.end("client: check")
        payload = encode_batch(RequestId(), valid, CBOR)
        clock.end("client: encode")
        collect_rarely()
        received = with_rows(UpdatesBatch.decode_stored(payload, from_client=True)).updates
        clock.end("daemon: decode")
        limits.violation(received, len(received))
        clock.end("daemon: limits")
        rebase(graph, sequence, received)
        clock.end("daemon: rebase")
        gc.set_threshold(*clients)
    changes = take_changes(graph, len(batches), {}, whole=True)
    clock.end("daemon: rows of a checkpoint")
    checkpoints.save(_CHANGE_SET, changes)
    clock.end("daemon: write it")
    plan(graph, 2)
    clock.end("daemon: plan")
    return clock.stages


def _all(blocks: int) -> dict[str, Batches]:
    starts = range(0, blocks, _BATCH)
    regular = [put_blocks(start, min(start + _BATCH, blocks), blocks) for start in starts]
    tables = [_table(list(map(read_update, batch))) for batch in regular]
    return {"regular": regular, "odd": [[*batch, _ODD] for batch in regular], "table": tables}


def _table(updates: Sequence[AnyUpdate]) -> _Table:
    made = as_table(updates)
    if made is None:
        raise ValueError("no table can say these updates")
    return _Table(made.before, pa.Table.from_batches([read_stream(b64decode(made.encode()))]))


def _count(batch: Batch) -> int:
    return batch.rows.num_rows if isinstance(batch, _Table) else len(batch)


def _read(batch: Batch) -> Updates:
    return read_updates(batch.rows, batch.functions) if isinstance(batch, _Table) else batch


async def _whole_way(
    directory: Path, blocks: int, rounds: int, say: Callable[[str], None]
) -> Table:
    columns = [
        *("batches", "values", "committed: values a s", "computed: s"),
        *(f"{name}: µs a value" for name in ("client", "daemon", "nats-server")),
    ]
    batches = await asyncio.to_thread(_all, blocks)
    figures: dict[str, list[list[float]]] = {kind: [] for kind in _KINDS}
    with broker(directory / "nats") as server, running(server.url, directory) as daemon:
        await daemon.ready()
        options = ConnectOptions(servers=(server.url,), name="client")
        async with connected(options) as nc, RebaserClient.on(nc, JetStream(nc)) as client:
            load = _Load(client, JetStream(nc), daemon.process.pid, server)
            await load.measure(batches["regular"][:1])  # Spark starts
            for number in range(rounds):
                for kind in _KINDS:
                    say(f"loads: the whole way, round {number + 1}, {kind}")
                    figures[kind].append(await load.measure(batches[kind]))
        note = _WHOLE.format(durability=server.durability)
    rows: list[Sequence[Cell]] = []
    for kind, measured in figures.items():
        rate, computed, *used = (median(each) for each in zip(*measured, strict=True))
        rows.append([kind, blocks * BLOCK, rate, computed, *used])
    return Table("A load, the whole way", columns, rows, [note])


class _Load:
    def __init__(self, client: RebaserClient, js: JetStream, daemon: int, server: Broker) -> None:
        self._client = client
        self._js = js
        self._daemon = daemon
        self._server = server

    async def measure(self, batches: Batches) -> list[float]:
        """Values committed a second, seconds until computed, and microseconds a value of each."""
        [change_set] = new_change_sets(1)
        count = sum(map(_count, batches))
        used, began = self._used(), time.perf_counter()
        replies = deque[Awaitable[Any]]()
        for batch in batches:
            updates = await asyncio.to_thread(_read, batch)
            _, reply = await self._client.enqueue_updates_with_reply(*change_set, updates)
            replies.append(asyncio.ensure_future(_applied(reply)))
            if len(replies) > _AHEAD:
                await replies.popleft()
        for pending in replies:
            await pending
        committed = time.perf_counter() - began
        await self._computed(change_set)
        computed = time.perf_counter() - began
        each = [(now - then) / count * _MICRO for now, then in zip(self._used(), used, strict=True)]
        return [count / committed, computed, *each]

    async def _computed(self, change_set: ChangeSet) -> None:
        log = CommitLog(Streams(js=self._js), change_set)

        async def computed() -> bool:
            _, last = await log.last()
            return last is not None and not last.control.dvu_due

        await eventually(computed, within=600)

    def _used(self) -> list[float]:
        """Seconds of client, daemon and server so far."""
        others = [processes.seconds(pid) or 0.0 for pid in (self._daemon, self._server.pid)]
        return [time.process_time(), *others]


async def _applied(reply: Awaitable[Any]) -> None:
    status = (await reply).status
    if not isinstance(status, SuccessStatusV3):
        raise TypeError(f"not applied: {status}"[:300])
