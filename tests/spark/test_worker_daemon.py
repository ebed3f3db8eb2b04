"""Spark's workers are small, since a child is forked from them for each unit."""

import pytest

from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.work_unit import CallLimits
from tests.helpers.work_units import unit_from_rows

pytestmark = pytest.mark.spark


async def test_workers_have_no_pandas_and_no_modules_from_archives(
    executor: SparkExecutor,
) -> None:
    """pandas comes with the first function that imports it."""
    unit = unit_from_rows(
        [("python", "preloaded")],
        [(0, [("value", None)])],
        [("seen", 0, "pending", None, True, [-1])],
        [("one", True, 1)],
        CallLimits(seconds=100),
    )

    [outcome] = await executor.run([unit])

    assert list(outcome.value_results) == [("seen", "ok", {"pandas": False, "archives": []})]
