"""Ten values recomputed in change sets of a thousand to ten million, end to end."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.blocks import BLOCK, blocks
from benchmarks.broker import broker
from benchmarks.embedded import Rebaser, running
from benchmarks.sizes import Sizes
from benchmarks.spark import empty_job
from benchmarks.tables import MILLI, Cell, Table, median

_WARM_UP: Final = 3
"""Rounds that are not counted."""

_NOTE: Final = """\
Blocks of eleven: a source is set, and ten values that depend on it are recomputed. From the call
of `enqueue_updates` until what they came to is committed. All in one process and one Spark
session, in turns with a `mapInArrow` job of one row. Synced {durability}."""


async def sizes_of(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> Table:
    """One change set of each size, all of them loaded; each round sets a source in each."""
    table = Table(
        "Ten values recomputed, by the size of the change set (ms)",
        [
            *("values", "Rebaser p50", "fastest", "slowest", "empty job", "its fastest"),
            *("ratio", "of the fastest", "ratio to the smallest", "all but Spark"),
        ],
    )
    with broker(directory / "nats") as nats:
        async with running(directory, nats.url) as first, AsyncExitStack() as stack:
            cases = []
            for count in sizes.graphs:
                say(f"dvu: {count:,} values")
                graph = blocks(count)
                sources = [graph.id_at(place) for place in _some_sources(count)]
                rebaser = await stack.enter_async_context(first.beside(graph))
                del graph
                cases.append(_Case(rebaser, count, sources))
            for number in range(_WARM_UP + 2 * sizes.dvu_rounds):
                for case in cases if number % 2 else reversed(cases):
                    await case.round(counted=number >= _WARM_UP)
            table.rows.extend(case.row(cases[0]) for case in cases)
            return Table(
                table.title, table.columns, table.rows, [_NOTE.format(durability=nats.durability)]
            )


class _Case:
    def __init__(self, rebaser: Rebaser, count: int, sources: list[str]) -> None:
        self._rebaser = rebaser
        self._count = count
        self._sources = sources
        self._rounds = 0
        self._took: list[float] = []
        self._spark: list[float] = []
        self._empty: list[float] = []

    async def round(self, *, counted: bool) -> None:
        self._rounds += 1
        told = await self._rebaser.update([self._change()])
        empty = await asyncio.to_thread(empty_job)
        if told != (BLOCK - 1,) * 3:
            raise RuntimeError(f"{self._count} values: {told}")
        if counted:
            self._took.append(self._rebaser.trace.seconds * MILLI)
            self._spark.append(self._rebaser.trace.phase("Spark") * MILLI)
            self._empty.append(empty * MILLI)

    def _change(self) -> dict[str, Any]:
        source = self._sources[self._rounds % len(self._sources)]
        return {"setValue": {"valueId": source, "value": 1_000_000 + self._rounds}}

    def row(self, smallest: "_Case") -> list[Cell]:
        took, empty = median(self._took), median(self._empty)
        beside = [whole - spark for whole, spark in zip(self._took, self._spark, strict=True)]
        return [
            *(self._count, took, min(self._took), max(self._took), empty, min(self._empty)),
            *(took / empty, min(self._took) / min(self._empty)),
            *(took / median(smallest._took), median(beside)),  # noqa: SLF001 - of its own kind
        ]


def _some_sources(count: int) -> list[int]:
    """Fifty, from everywhere."""
    whole = count // BLOCK
    return [number * 7919 % whole * BLOCK for number in range(50)]
