"""Runs on a cluster: a standalone master with two workers, each a process of its own."""

from pathlib import Path

import pytest

from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import RunStore, StoredResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark import spark_executor
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.files import SharedFiles
from rebaser_server.runtime.ports import free_port
from tests.helpers.eventually import eventually
from tests.helpers.table_sheet import compute_by_day
from tests.spark.servers import cluster, driver_settings, listening
from tests.spark.test_spark_executor import wide

pytestmark = [pytest.mark.spark, pytest.mark.slow]


async def test_a_cluster_computes_values_and_tables_and_leaves_large_results_in_the_store(
    tmp_path: Path,
) -> None:
    port = free_port()
    store = RunStore(SharedFiles(str(tmp_path / "store")), "ab" * 32)
    with cluster(tmp_path, port, workers=2) as spark:
        await listening(port)
        options = SparkOptions(tmp_path / "spark", master=spark.url, extra=driver_settings())
        executor = SparkExecutor(options)
        try:
            outcomes = await executor.run(plan(wide(20_000).graph, slots=2).units, Run(store=store))
            rows = await compute_by_day(executor, tmp_path / "store")
        finally:
            await executor.close()

    assert [row["total"] for row in rows] == [60, 240, 120]
    assert sum(outcome.recomputed for outcome in outcomes) == 20_000
    assert all(isinstance(outcome, StoredResult) for outcome in outcomes)
    table = [
        row for o in outcomes for name, _ in o.files for row in store.get_part(name).value_results
    ]
    assert len(table) == sum(map(len, outcomes))


async def test_as_much_is_asked_of_a_cluster_as_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cores are asked for while there are jobs, and new workers count."""
    monkeypatch.setattr(spark_executor, "_SLOTS_EVERY", 0.0)
    port = free_port()
    with cluster(tmp_path, port, workers=1) as spark:
        await listening(port)
        options = SparkOptions(tmp_path / "spark", master=spark.url, extra=driver_settings())
        executor = SparkExecutor(options)
        units = plan(wide(10).graph, slots=2).units

        async def has(slots: int) -> bool:
            await executor.run(units)
            return executor.slots == slots

        try:
            # Spark says two where there is one.
            await eventually(lambda: has(2), within=120)
            spark.add_worker()
            spark.add_worker()
            await eventually(lambda: has(3), within=120)
        finally:
            await executor.close()
