"""What atomic batches bring: a daemon's commits from a backlog, with and without, alternately.

python -m benchmarks.group_commit [--quick]
"""

import argparse
import asyncio
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Final

from benchmarks.broker import DURABILITY
from benchmarks.deployment import MeasuredDaemon
from benchmarks.tables import Table
from rebaser_client.client import RebaserClient
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import (
    ConnectOptions,
    JetStream,
    JetStreamError,
    OrderedPushConsumer,
    StreamConfig,
    connected,
)
from rebaser_core.subjects import Subjects
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.chaos.processes import nats_servers
from tests.helpers.deployment import new_change_sets
from tests.helpers.eventually import eventually

SUBJECTS: Final = Subjects()
ROUNDS: Final = 3
BACKLOG: Final = {1: 2_000, 50: 40}
"""Requests that wait in each of so many change sets."""


@asynccontextmanager
async def provisioned(
    directory: Path, *, cluster: bool, config: str
) -> AsyncIterator[tuple[str, JetStream]]:
    """One server or three with all streams, and a connection to the first."""
    settings = Settings.model_validate({"nats": {"replicas": 3 if cluster else 1}})
    async with (
        nats_servers(directory, cluster=cluster, config=config) as servers,
        connected(ConnectOptions(servers=(servers[0].url,))) as nc,
    ):
        js = JetStream(nc)

        async def is_ready() -> bool:
            try:
                await prepare(js, settings)
            except JetStreamError:
                return False
            return True

        await eventually(is_ready, within=60)
        yield servers[0].url, js


async def allow(js: JetStream, *, batches: bool) -> None:
    """Have the stream of commits take batches, or none, as one of an earlier release."""
    config = await js.stream_config(SUBJECTS.commits_stream)
    await js.update_stream(config | StreamConfig(allow_atomic=batches))


async def commits_per_second(
    directory: Path, url: str, js: JetStream, change_sets: int, each: int, replicas: int
) -> float:
    """From the first commit of a daemon that finds a backlog to the last, by NATS's clock."""
    async with RebaserClient.on(js.nc, js) as client:
        mine = new_change_sets(change_sets)
        for change_set in mine:
            await asyncio.gather(*(client.enqueue_updates(*change_set, []) for _ in range(each)))
        variables = {
            "NATS__URL": url,
            "NATS__REPLICAS": str(replicas),
            "STORE__ROOT": str(directory / "store"),
            "INSTANCE_ID": "measured",
        }
        before = (await js.stream_info(SUBJECTS.commits_stream)).state.last_seq
        daemon = MeasuredDaemon("measured", directory, variables)
        try:
            times = await settled(js, mine, each, before)
            daemon.send(signal.SIGTERM)
            await daemon.ended()
        finally:
            daemon.kill()
    return (len(times) - 1) / (times[-1] - times[0])


async def settled(
    js: JetStream, change_sets: list[ChangeSet], each: int, before: int
) -> list[float]:
    """When NATS stored the commits that settle the requests, in order."""
    times: list[float] = []
    async with OrderedPushConsumer(js, SUBJECTS.commits_stream, opt_start_seq=before + 1) as reader:
        async for delivery in reader:
            if b"settled" in delivery.payload:
                times.append(delivery.timestamp.timestamp())
            if len(times) == len(change_sets) * each:
                return times
    return times


async def measure(directory: Path, rounds: int) -> Table:
    table = Table(
        "Commits a second from a backlog",
        ["NATS", "synced", "change sets", "one by one", "in batches", "ratio"],
    )
    for cluster, (synced, config) in product((False, True), DURABILITY.items()):
        here = directory / f"{cluster}-{synced}"
        async with provisioned(here, cluster=cluster, config=config) as (url, js):
            for change_sets, each in BACKLOG.items():
                rates: dict[bool, list[float]] = {False: [], True: []}
                for _, batches in product(range(rounds), (False, True)):
                    await allow(js, batches=batches)
                    found = await commits_per_second(
                        here, url, js, change_sets, each, 3 if cluster else 1
                    )
                    rates[batches].append(found)
                    say(f"{here.name} {change_sets} {batches} {rates[batches][-1]:.0f}/s")
                single, together = (statistics.median(rates[kind]) for kind in (False, True))
                servers = "three, three replicas" if cluster else "one"
                table.rows.append(
                    [servers, synced, change_sets, single, together, together / single]
                )
    return table


def say(step: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {step}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_commit")
    parser.add_argument("--quick", action="store_true", help="one round of each")
    rounds = 1 if parser.parse_args().quick else ROUNDS
    with tempfile.TemporaryDirectory(prefix="rebaser-bench-", ignore_cleanup_errors=True) as name:
        print(asyncio.run(measure(Path(name), rounds)).text())


if __name__ == "__main__":
    main()
