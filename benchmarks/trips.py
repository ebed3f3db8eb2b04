"""Part `trips`: how many round trips a request waits for, shown with a network that is slow."""

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.broker import broker
from benchmarks.delay import delayed
from benchmarks.deployment import deployed
from benchmarks.lanes import RebaserLane, flood
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Cell, Table, median

DELAY = 0.025
"""Seconds one way: so long that what is computed on the way hardly counts."""

_NOTE = """\
Client and daemon are each {delay:g} ms away from the server, a round trip is {trip:g} ms; who
follows the log is not. The last row is the time from one commit to the next while requests wait."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    say("trips: one change set behind a slow network")
    with broker(directory / "nats") as server:
        async with (
            delayed(server.url, DELAY) as url,
            deployed(directory, server, 1, url) as deployment,
        ):
            [lane] = deployment.lanes
            calls, commits = await _one_by_one(lane, sizes.trips)
            await flood([lane], 2 * sizes.trips)
            last = lane.commits.times[lane.subject][-sizes.trips :]
    found = {
        "`enqueue_updates` returns": median(calls),
        "the commit is in the log": median(commits),
        "the next of many that wait is, too": median([b - a for a, b in pairwise(last)]),
    }
    note = _NOTE.format(delay=DELAY * MILLI, trip=2 * DELAY * MILLI)
    rows: list[Sequence[Cell]] = [
        [what, took * MILLI, took / (2 * DELAY)] for what, took in found.items()
    ]
    return [Table("Round trips of one change set", ["until", "ms", "round trips"], rows, [note])]


async def _one_by_one(lane: RebaserLane, count: int) -> tuple[list[float], list[float]]:
    """Seconds until the call returned and until the commit was seen, each time from the call."""
    calls, commits = [], []
    for _ in range(count):
        number = lane.commits.count(lane.subject) + 1
        started = time.perf_counter()
        await lane.send()
        calls.append(time.perf_counter() - started)
        commits.append(await lane.commits.line(lane.subject, number) - started)
        await asyncio.sleep(8 * DELAY)  # whatever follows from it is over
    return calls, commits
