"""Part `runs`: what Spark adds to evaluating, for few values and for many, and how a run ends."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.memory import proportional
from benchmarks.shapes import made
from benchmarks.sizes import Sizes
from benchmarks.spark import empty_job
from benchmarks.tables import MILLI, Cell, Table, median
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.results import RunStore
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.files import SharedFiles
from tests.helpers.graph_builder import install

FEW = 10
WARM_UP = 5
SHAPES = ("chains of 1,000", "one giant, 100 levels")
FUNCTION = ("builtin", "sum")
ARGUMENTS = [("values", 3)]
DEAR = 60_000
"""Values of a millisecond each: half a minute for two slots."""
DEAR_RUNS = 12
_SOURCE = """
import time

def dear(a, b, c):
    time.sleep(0.001)
    return a
"""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """One session; what is compared alternates."""
    install(directory, "benchmarked_runs", _SOURCE, {"dear": "benchmarked_runs:dear"})
    os.environ["PYTHONPATH"] = str(directory)
    executor = SparkExecutor(SparkOptions(directory / "spark"))
    try:
        say("runs: start Spark")
        await executor.start()
        runs = _Runs(executor, SharedFiles(str(directory / "store")), say)
        return [
            await runs.few(sizes),
            await runs.many(sizes),
            await runs.beside(sizes),
            await runs.cancelled(sizes),
        ]
    finally:
        await executor.close()
        del os.environ["PYTHONPATH"]


class _Runs:
    def __init__(
        self, executor: SparkExecutor, files: SharedFiles, say: Callable[[str], None]
    ) -> None:
        self._executor = executor
        self._files = files
        self._say = say
        self._shelves = 0

    def _shelf(self) -> RunStore:
        """An empty one."""
        self._shelves += 1
        return RunStore(self._files, f"{self._shelves:064x}")

    async def _seconds(self, blobs: Sequence[bytes], shelf: RunStore) -> float:
        began = time.perf_counter()
        await self._executor.run(blobs, store=shelf)
        return time.perf_counter() - began

    async def few(self, sizes: Sizes) -> Table:
        self._say(f"runs: {FEW} values")
        [blob] = _blobs("one giant, 100 levels", FEW, 1)
        ours: list[float] = []
        empty: list[float] = []
        for number in range(WARM_UP + 3 * sizes.dvu_rounds):
            taken = [await self._seconds([blob], self._shelf()), await asyncio.to_thread(empty_job)]
            if number >= WARM_UP:
                ours.append(taken[0] * MILLI)
                empty.append(taken[1] * MILLI)
        row: list[Cell] = [FEW, median(ours), min(ours), median(empty), min(empty)]
        return Table(
            "A run of few values beside an empty job (ms)",
            ["values", "run p50", "fastest", "empty p50", "fastest ", "ratio", "of the fastest"],
            [[*row, median(ours) / median(empty), min(ours) / min(empty)]],
            ["The same warm session, in turns. An empty job is a `mapInArrow` of one row."],
        )

    async def many(self, sizes: Sizes) -> Table:
        rows: list[Sequence[Cell]] = []
        for shape in SHAPES:
            self._say(f"runs: {sizes.values:,} values, {shape}")
            blobs = await asyncio.to_thread(_blobs, shape, sizes.values, 2 * self._executor.slots)
            spark: list[float] = []
            here: list[float] = []
            for _ in range(sizes.rounds // 2 + 1):
                shelf = self._shelf()
                spark.append(await self._seconds(blobs, shelf))
                here.append(await asyncio.to_thread(_evaluated, blobs))
                shelf.clear()
            memory = proportional(self._executor.jvm_pid or 0)
            memory += proportional(os.getpid(), inner=False)
            rows.append(
                [
                    *(shape, sizes.values, len(blobs), median(spark), median(here)),
                    *(median(spark) / median(here), min(spark) / min(here), memory / 2**20),
                ]
            )
        return Table(
            "Runs of many values beside the same blobs evaluated in this process (s)",
            [
                *("shape", "values", "blobs", "Spark p50", "in process p50"),
                *("ratio", "of the fastest", "MiB in all"),
            ],
            rows,
            ["Results go to files, whose names the driver hears. `sum` of three, all changed."],
        )

    async def beside(self, sizes: Sizes) -> Table:
        """Small runs, one after another, while large ones go on, and alone."""
        self._say(f"runs: {FEW} values beside {sizes.values:,}")
        [few] = _blobs(SHAPES[1], FEW, 1)
        many = await asyncio.to_thread(_blobs, SHAPES[0], sizes.values, 2 * self._executor.slots)
        alone = [await self._seconds([few], self._shelf()) for _ in range(3 * sizes.dvu_rounds)]
        large_alone = [await self._emptied(many) for _ in range(3)]
        beside: list[float] = []
        large: list[float] = []
        for _ in range(sizes.rounds):
            going = asyncio.create_task(self._emptied(many))
            await asyncio.sleep(0.1)
            while not going.done():
                beside.append(await self._seconds([few], self._shelf()))
            large.append(await going)
        cheap: list[Cell] = [
            *("`sum`", sizes.values, *_beside(alone, beside)),
            *(median(large_alone), median(large), median(large) / median(large_alone)),
        ]
        dear: list[Cell] = ["1 ms", DEAR, *_beside(alone, await self._beside_dear([few]))]
        return Table(
            f"Runs of {FEW} values while one of many goes on, in one session",
            [
                *("function", "of many", "small runs", "alone p50, ms", "beside p50, ms"),
                *("slowest, ms", "ratio", "the large one alone, s", "beside, s", "ratio "),
            ],
            [cheap, [*dear, None, None, None]],
            ["A small one waits until a task of the large one ends or gives way."],
        )

    async def _beside_dear(self, few: Sequence[bytes]) -> list[float]:
        """Of small runs, as long as a large one of dear functions has work for every slot."""
        blobs = await asyncio.to_thread(
            _blobs,
            *(SHAPES[0], DEAR, self._executor.slots, ("python", "dear")),
            [("a", None), ("b", None), ("c", None)],
        )
        going = asyncio.create_task(self._emptied(blobs))
        await asyncio.sleep(1)
        found = [await self._seconds(few, self._shelf()) for _ in range(DEAR_RUNS)]
        if going.done():
            raise RuntimeError("the large run ended before the small ones")
        going.cancel()
        with suppress(asyncio.CancelledError):
            await going
        return found

    async def _emptied(self, blobs: Sequence[bytes]) -> float:
        shelf = self._shelf()
        try:
            return await self._seconds(blobs, shelf)
        finally:
            shelf.clear()

    async def cancelled(self, sizes: Sizes) -> Table:
        self._say("runs: cancel")
        blobs = await asyncio.to_thread(_blobs, SHAPES[1], sizes.values, 1)
        taken = []
        for _ in range(sizes.rounds):
            shelf = self._shelf()
            going = asyncio.create_task(self._executor.run(blobs, store=shelf))
            await asyncio.sleep(0.5)
            began = time.perf_counter()
            going.cancel()
            with suppress(asyncio.CancelledError):
                await going
            taken.append(time.perf_counter() - began)
        return Table(
            "From cancelling a run until it is gone (s)",
            ["values", "p50", "slowest"],
            [[sizes.values, median(taken), max(taken)]],
        )


def _beside(alone: Sequence[float], beside: Sequence[float]) -> list[Cell]:
    p50 = median(beside)
    times: list[Cell] = [MILLI * each for each in (median(alone), p50, max(beside))]
    return [len(beside), *times, p50 / median(alone)]


def _blobs(
    shape: str,
    count: int,
    most: int,
    function: tuple[str, str] = FUNCTION,
    arguments: Sequence[tuple[str, int | None]] = ARGUMENTS,
) -> list[bytes]:
    parts = made(shape, count).parts(most) if most > 1 else [made(shape, count)]
    return [part.blob(function, list(arguments)).encode() for part in parts]


def _evaluated(blobs: Sequence[bytes]) -> float:
    began = time.perf_counter()
    for blob in blobs:
        evaluate(blob)
    return time.perf_counter() - began
