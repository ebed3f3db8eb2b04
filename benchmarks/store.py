"""Part `store`: commits beside raw publishes, checkpoints, loading, tidying, and space."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.broker import DURABILITY, broker
from benchmarks.sizes import Sizes
from benchmarks.store_case import Case, opened
from benchmarks.store_forks import forks
from benchmarks.tables import MILLI, Table, median, percentile

EVERY: Final = 500
"""Commits from one checkpoint to the next, as production has it."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Both durability modes for what NATS does, one for what it has no part in."""
    commits = _commits()
    for durability in DURABILITY:
        files = directory / durability
        with broker(files / "nats", durability) as server:
            say(f"store: commits, synced {server.durability}")
            async with opened(server.url, files / "store") as case:
                commits.rows.append([server.durability, *await _commit_and_publish(case, sizes)])
    with broker(directory / "nats") as server:
        async with opened(server.url, directory / "store") as case:
            say(f"store: {sizes.store_values:,} values")
            large = await _large(case, sizes)
        async with opened(server.url, directory / "many") as case:
            say(f"store: {sizes.store_commits:,} commits")
            space = await _space(case, sizes, server.durability)
    return [commits, *large, space, *await forks(directory, sizes, say)]


def _commits() -> Table:
    return Table(
        "One commit beside one raw publish of the same bytes, ms",
        [
            *("synced", "commit p50", "p99", "with expectation p50", "p99", "plain p50", "p99"),
            *("commit / with", "commit / plain"),
        ],
        notes=[
            (
                "A commit is `Ownership.write`: encode, publish under compare-and-swap, take over. "
                "Raw is nats-py's `publish` of the same payload and headers to the same stream, "
                "each awaited, with or without the expected sequence. Blocks alternate."
            )
        ],
    )


async def _commit_and_publish(case: Case, sizes: Sizes) -> list[float]:
    times: dict[str, list[float]] = {"commit": [], "with": [], "plain": []}
    raw = await case.raw()
    for _ in range(sizes.rounds):
        for _ in range(sizes.one_by_one // 5):
            times["commit"] += [await case.commit() for _ in range(5)]
            times["with"] += [await raw.publish(expect=True) for _ in range(5)]
            times["plain"] += [await raw.publish(expect=False) for _ in range(5)]
    p50 = {name: median(values) for name, values in times.items()}
    figures = [f(v) * MILLI for v in times.values() for f in (median, lambda v: percentile(v, 99))]
    return [*figures, p50["commit"] / p50["with"], p50["commit"] / p50["plain"]]


async def _large(case: Case, sizes: Sizes) -> list[Table]:
    """A change set of many values: written, loaded, and tidied while commits go on."""
    await case.fill(sizes.store_values)
    started = time.perf_counter()
    await case.owner.checkpoint()
    written = time.perf_counter() - started
    loads = [await case.loading() for _ in range(sizes.rounds)]
    for _ in range(EVERY):
        await case.commit()
    tails = [await case.loading() for _ in range(sizes.rounds)]
    small = await case.checkpointing()
    load = Table(
        "A change set of many values, s",
        [
            *("values", "first checkpoint", "load", f"load and {EVERY} lines"),
            *("next checkpoint", "commits held up for", "MB stored"),
        ],
        [
            [
                *(sizes.store_values, written, median(loads), median(tails)),
                *(small.seconds, small.held, case.stored() / 1e6),
            ]
        ],
        notes=[f"The next checkpoint writes what {EVERY} commits changed."],
    )
    quiet = [await case.commit() for _ in range(sizes.one_by_one)]
    busy = await case.commits_while_tidying()
    tidied = Table(
        "Commits while the table is tidied beside them, ms",
        ["values", "quiet p50", "p99", "tidying p50", "p99", "p50 ratio", "tidying, s"],
        [
            [
                sizes.store_values,
                *(median(quiet) * MILLI, percentile(quiet, 99) * MILLI),
                *(median(busy.commits) * MILLI, percentile(busy.commits, 99) * MILLI),
                *(median(busy.commits) / median(quiet), busy.seconds),
            ]
        ],
        notes=["Tidying rewrites the whole table, in a thread of the process that commits."],
    )
    return [load, tidied]


async def _space(case: Case, sizes: Sizes, durability: str) -> Table:
    """After so many commits to a thousand values, with a checkpoint every 500."""
    table = Table(
        f"Space after commits to 1,000 values, a checkpoint every {EVERY}",
        [
            *("commits", "lines kept", "MB of log", "octets a line", "files", "MB in tables"),
            *("load, s", "commits/s"),
        ],
        notes=[f"Past kept as by default. Synced {durability}."],
    )
    await case.fill(1_000)
    started = time.perf_counter()
    for number in range(1, sizes.store_commits + 1):
        await case.commit()
        if number % EVERY == 0:
            await case.owner.checkpoint()
            await case.tidy()
        if number in (sizes.store_commits // 10, sizes.store_commits):
            taken = time.perf_counter() - started
            lines, octets = await case.log_size()
            table.rows.append(
                [
                    *(number, lines, octets / 1e6, octets // max(lines, 1), case.files()),
                    *(case.stored() / 1e6, await case.loading(), number / taken),
                ]
            )
    await asyncio.sleep(0)
    return table
