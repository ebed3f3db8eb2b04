"""A Rebaser with its Spark, from settings: what `serve`, `up` and the demo run."""

import gc
from typing import Final

from rebaser_server import server
from rebaser_server.dvu.by_size import BySizeExecutor
from rebaser_server.dvu.executor import SparkExecutor
from rebaser_server.dvu.in_process import InProcessExecutor
from rebaser_server.dvu.options import SparkOptions
from rebaser_server.lifetimes import Shutdown
from rebaser_server.settings import Settings

_COLLECT_EVERY: Final = 100_000
"""Allocations between two garbage collections. A graph is a million objects without a cycle
among them: at the default of 700, looking for one takes half of the time of large batches."""


async def run(settings: Settings, shutdown: Shutdown) -> None:
    """Serve until `shutdown`; Spark starts with the first update and ends with this.

    Raises:
        Unreachable, StopOverdue: as `server.serve`.
    """
    gc.set_threshold(_COLLECT_EVERY, 20, 20)
    options = SparkOptions(
        state_directory=settings.spark.state.absolute(),
        master=settings.spark.master,
        remote=settings.spark.remote,
        driver_memory=settings.spark.driver_memory,
    )
    spark = SparkExecutor(options)
    executor = BySizeExecutor(InProcessExecutor(), spark, large_from=settings.spark_min_affected)
    try:
        await server.serve(settings, executor, shutdown, slots=spark.slots)
    finally:
        await executor.close()
