"""Part `dvu`: from setting one value until everything that depends on it is recomputed."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks import debian
from benchmarks.blocks import BLOCK, blocks
from benchmarks.broker import broker
from benchmarks.debian import InProcess
from benchmarks.embedded import PHASES, Rebaser, running
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Cell, Table, median
from debian_demo.graph import Packages, load_packages


def empty_job() -> float:
    """Seconds of a `mapInArrow` over one row that it hands back. The session must exist."""
    spark = SparkSession.builder.getOrCreate()
    table = pa.table({"row": pa.array([b""], pa.binary())})

    # Within the function: what is sent to the workers must not need this package.
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    started = time.perf_counter()
    spark.createDataFrame(table).mapInArrow(same, "row binary").toArrow()
    return time.perf_counter() - started


WARM_UP = 2
"""Rounds that are not counted: the JVM compiles what runs often."""


def set_pending(value_id: str, is_pending: bool) -> dict[str, Any]:  # noqa: FBT001 - a value
    return {"setValue": {"valueId": value_id, "value": is_pending}}


@dataclass(slots=True)
class Case:
    """Milliseconds, an item for each round."""

    state: str
    package: str
    value_id: str
    is_pending: bool
    """Whether the fix is pending now."""
    counts: tuple[int, int, int] = (0, 0, 0)
    """Values affected, recomputed, changed."""
    total: list[float] = field(default_factory=list)
    phases: list[list[float]] = field(default_factory=list)
    plan: list[float] = field(default_factory=list)
    evaluate: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)

    async def measure(self, rebaser: Rebaser, beside: InProcess, rounds: int) -> None:
        """Measure `rounds` changes, a round more if the last would leave the fix taken back."""
        for number in range(WARM_UP + rounds + rounds % 2):
            await self._round(rebaser, beside, counted=number >= WARM_UP)

    async def _round(self, rebaser: Rebaser, beside: InProcess, *, counted: bool) -> None:
        self.is_pending = not self.is_pending
        change = [set_pending(self.value_id, self.is_pending)]
        counts = await rebaser.update(change)
        local = await asyncio.to_thread(beside.apply, change)
        empty = await asyncio.to_thread(empty_job)
        # Rebaser walks no further than values change: it counts as affected what it came to.
        if local.counts[1:] != counts[1:]:
            raise RuntimeError(f"{self.package}: Rebaser {counts}, in process {local.counts}")
        if counted:
            self.counts = counts
            self.total.append(rebaser.trace.seconds * MILLI)
            self.phases.append([seconds * MILLI for seconds in rebaser.trace.phases()])
            self.plan.append(local.plan_seconds * MILLI)
            self.evaluate.append(local.evaluate_seconds * MILLI)
            self.empty.append(empty * MILLI)

    def row(self) -> list[Cell]:
        """Return the durations of the updates, beside their limits."""
        total, empty = median(self.total), median(self.empty)
        here = median([p + e for p, e in zip(self.plan, self.evaluate, strict=True)])
        return [
            *(self.package, self.state, *self.counts),
            *(total, min(self.total), max(self.total)),
            *(here, total / here, empty, total / empty, total / (here + empty)),
        ]

    def phases_row(self) -> list[Cell]:
        """Return the duration of each phase."""
        phases = [median(phase) for phase in zip(*self.phases, strict=True)]
        return [self.package, self.state, *phases, median(self.plan), median(self.evaluate)]


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


AS_IT_IS, ALONE = "others pending", "no other pending"
"""With other fixes pending most values come out unchanged, and what depends on them is left."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """One change set that holds the graph, in two states of it."""
    say("dvu: read the packages")
    packages = load_packages()
    dependents = debian.Dependents(packages)
    names = [dependents.nearest(count) for count in sizes.affected]
    if not sizes.whole_graph:
        packages = dependents.above(names)
    once, cases = _once(), []
    by_size = await sizes_of(directory / "sizes", sizes, say)
    with broker(directory / "nats") as nats:
        async with running(directory, nats.url) as rebaser:
            beside = debian.InProcess(rebaser.slots)
            say("dvu: load the graph")
            once.rows.append(["all, Spark cold", *await _both(rebaser, beside, packages.updates())])
            for state in (AS_IT_IS, ALONE):
                if state == ALONE:
                    say("dvu: mark all packages as fixed")
                    fixed = _all_fixed(packages)
                    once.rows.append(["fix all packages", *await _both(rebaser, beside, fixed)])
                for name in names:
                    say(f"dvu: {name}, {state}")
                    is_pending = state == AS_IT_IS
                    cases.append(Case(state, name, packages.own_id(name), is_pending))
                    await cases[-1].measure(rebaser, beside, sizes.dvu_rounds)
        return [by_size, *_tables(cases, nats.durability, len(packages.names)), once]


def _all_fixed(packages: Packages) -> list[dict[str, Any]]:
    known = zip(packages.own_ids, packages.pending, strict=True)
    return [set_pending(value_id, False) for value_id, is_pending in known if is_pending]  # noqa: FBT003


async def _both(
    rebaser: Rebaser, beside: InProcess, updates: Sequence[dict[str, Any]]
) -> list[Cell]:
    """Apply a batch here and there; counts, seconds in all, of each phase, and in process."""
    counts = await rebaser.update(updates)
    local = await asyncio.to_thread(beside.apply, updates)
    if local.counts != counts:
        raise RuntimeError(f"Rebaser {counts}, in process {local.counts}")
    here = local.plan_seconds + local.evaluate_seconds
    return [len(updates), *counts, rebaser.trace.seconds, *rebaser.trace.phases(), here]


_WHOLE = """\
The Debian graph with {packages:,} packages, synced {durability}, medians. From the call of
`enqueue_updates` to the activity that tells the end. Limits: the same plan and evaluation in
this process; a `mapInArrow` job of one row in the same Spark session; both together. Rebaser
runs in this process, too."""
_WHERE = """\
Between what is seen on the streams: the request's commit, the claim's, the job's start and end,
the result's commit, the end as told."""


def _tables(cases: Sequence[Case], durability: str, packages: int) -> list[Table]:
    return [
        Table(
            "A value is set: until all that depends on it is recomputed and committed (ms)",
            [
                *("set", "graph", "affected", "recomputed", "changed"),
                *("Rebaser p50", "fastest", "slowest"),
                *("in process", "ratio", "empty job", "ratio to it", "ratio to both"),
            ],
            [case.row() for case in cases],
            [_WHOLE.format(packages=packages, durability=durability)],
        ),
        Table(
            "Where the time goes (median ms)",
            ["set", "graph", *PHASES, "plan in process", "evaluation in process"],
            [case.phases_row() for case in cases],
            [_WHERE],
        ),
    ]


def _once() -> Table:
    return Table(
        "Large batches, once each (s)",
        [
            *("batch", "updates", "affected", "recomputed", "changed", "Rebaser"),
            *(*PHASES, "in process"),
        ],
    )
