"""Part `harmful`: a sum is updated, alone and beside functions of another workspace that harm."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from ulid import ULID

from benchmarks.broker import broker
from benchmarks.deployment import client_of, running
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Cell, Table, median
from rebaser_client.client import RebaserClient
from rebaser_client.outcomes import watching
from rebaser_core.activities import ActivityKind
from rebaser_core.ids import ChangeSet
from rebaser_core.streams import Streams
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.deployment import new_change_sets
from tests.helpers.graph_builder import install

CHANGE_SETS, VALUES = 10, 2
"""Change sets of the other workspace, and harmful values of each: all are due again once they are
computed."""
UPDATES: Final = 20
"""Updates of the sum in each turn, one after the other."""
PAUSE: Final = 0.1
"""Seconds between two of them."""
SETTLE: Final = 3.0
"""Seconds for which the others harm before the first one."""
AIM: Final = 3
"""Maximum multiple of the time alone, unless a sum takes less than a second."""
_SETTINGS: Final = {
    "SPARK__MIN_AFFECTED": "1000000000",
    "SPARK__WARM": "false",
    "QUIET_PERIOD": "2",
}
CODE: Final = """\
import os, time

KEPT = []


def slow(value):
    time.sleep(3)
    return value


def huge(value):
    data = [value] * 25_000_000
    return "x" * 500_000 + str(len(data))


def leaking(value):
    KEPT.extend(open(os.devnull) for _ in range(5_000))
    return value


def crashing(value):
    os.abort()
"""
KINDS: Final = {
    "slow": "take 3 s each",
    "huge": "take 200 MB each, and return 500 KB",
    "leaking": "leave 5,000 files open each",
    "crashing": "end their process",
}
_COLUMNS: Final = (
    *("another workspace's values", "alone ms", "beside ms", "ratio"),
    *("worst beside ms", "updates of the others"),
)
_NOTE: Final = """\
One daemon without Spark: the processes beside it compute everything. From the call that sets one
of two values until their sum is committed: medians of {rounds} rounds of {updates}, in turns.
Meanwhile {change_sets} change sets have {values} harmful values each, due again once they are
computed. At most {aim} times as long as alone, or within a second, is the aim. Synced
{durability}."""

Say = Callable[[str], None]


class Times(NamedTuple):
    alone: list[float]
    beside: list[float]
    updates: list[int]
    """Number of harmful values that ended one way or the other."""


async def run(directory: Path, sizes: Sizes, say: Say) -> list[Table]:
    """One daemon; each kind in turn, and alone before it."""
    found = {kind: Times([], [], []) for kind in KINDS}
    functions = directory / "functions"
    functions.mkdir()
    install(functions, "harmful", CODE, {f"harm-{kind}": f"harmful:{kind}" for kind in KINDS})
    with broker(directory / "nats") as server:
        async with client_of(server) as (client, js):
            settings = Settings.model_validate(
                {"nats": {"url": server.url}, "store": {"root": str(directory / "store")}}
            )
            await prepare(js, settings)
            with (
                mock.patch.dict(os.environ, {"PYTHONPATH": str(functions)}),
                running(server.url, directory, **_SETTINGS) as daemon,
            ):
                await daemon.ready()
                streams = Streams(js=js)
                probe = _Probe(client, streams)
                await probe.define()
                await probe.times()
                for number in range(sizes.peer_rounds):
                    for kind, times in found.items():
                        say(f"harmful: round {number + 1} of {sizes.peer_rounds}: {kind}")
                        times.alone.extend(await probe.times())
                        async with _harmed(client, streams, kind) as ends:
                            await asyncio.sleep(SETTLE)
                            times.beside.extend(await probe.times())
                        times.updates.append(ends.total())
        note = _NOTE.format(
            rounds=sizes.peer_rounds, updates=UPDATES, change_sets=CHANGE_SETS, values=VALUES,
            aim=AIM, durability=server.durability,
        )  # fmt: skip
    rows = [_row(KINDS[kind], times) for kind, times in found.items()]
    return [Table("A small sum beside harmful values", _COLUMNS, rows, [note])]


def _row(what: str, times: Times) -> list[Cell]:
    alone, beside = median(times.alone), median(times.beside)
    figures = MILLI * alone, MILLI * beside, beside / alone, MILLI * max(times.beside)
    return [what, *figures, sum(times.updates)]


class _Probe:
    """A sum of two values, alone in its workspace."""

    def __init__(self, client: RebaserClient, streams: Streams) -> None:
        [self._change_set] = new_change_sets(1)
        self._client = client
        self._streams = streams
        self._ids = [str(ULID()) for _ in range(4)]
        self._next = 0

    async def define(self) -> None:
        one, two, total, func = self._ids
        await self._update(
            [
                {"putFunc": {"funcId": func, "name": "f", "runtime": "builtin", "code": "sum"}},
                *(_put(each, 0) for each in (one, two)),
                _computed(total, func, values=[one, two]),
            ]
        )

    async def times(self) -> list[float]:
        """Seconds of some updates."""
        took = []
        for _ in range(UPDATES):
            self._next += 1
            took.append(await self._update([_put(self._ids[0], self._next)]))
            await asyncio.sleep(PAUSE)
        return took

    async def _update(self, updates: Sequence[dict[str, Any]]) -> float:
        """Seconds until what depends on it is committed."""
        async with watching(self._streams, self._change_set) as activities:
            began = time.perf_counter()
            await self._client.enqueue_updates(*self._change_set, updates)
            async for activity in activities:
                if activity.kind is ActivityKind.DVU_FINISHED:
                    break
            return time.perf_counter() - began


@asynccontextmanager
async def _harmed(
    client: RebaserClient, streams: Streams, kind: str
) -> AsyncIterator[Counter[ActivityKind]]:
    """Have such values of another workspace computed all the time; how their updates ended."""
    ends = Counter[ActivityKind]()
    async with asyncio.TaskGroup() as group:
        harming = [
            group.create_task(_harm(client, streams, change_set, kind, ends))
            for change_set in new_change_sets(CHANGE_SETS)
        ]
        yield ends
        for each in harming:
            each.cancel()


async def _harm(
    client: RebaserClient,
    streams: Streams,
    change_set: ChangeSet,
    kind: str,
    ends: Counter[ActivityKind],
) -> None:
    """Set the input of harmful values again and again; cancelled, return once all is quiet."""
    source, func = str(ULID()), str(ULID())
    code = {"funcId": func, "name": kind, "runtime": "python", "code": f"harm-{kind}"}
    values = [_computed(str(ULID()), func, value=source) for _ in range(VALUES)]
    async with watching(streams, change_set) as activities:
        await client.enqueue_updates(*change_set, [{"putFunc": code}, _put(source, 0), *values])
        try:
            async for activity in activities:
                if activity.kind in (ActivityKind.DVU_FINISHED, ActivityKind.DVU_FAILED):
                    ends[activity.kind] += 1
                    await client.enqueue_updates(*change_set, [_put(source, ends.total())])
        except asyncio.CancelledError:
            harmless = {**code, "runtime": "builtin", "code": "identity"}
            await client.enqueue_updates(*change_set, [{"putFunc": harmless}])
            async for activity in activities:
                if activity.kind is ActivityKind.QUIET:
                    return


def _put(value_id: str, value: int) -> dict[str, Any]:
    return {"putValue": {"valueId": value_id, "value": value}}


def _computed(value_id: str, func_id: str, **inputs: Any) -> dict[str, Any]:
    return {"putValue": {"valueId": value_id, "funcId": func_id, "inputs": inputs}}
