"""A graph recomputed level by level with joins, as a Spark user would without Rebaser."""

import time

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own

from benchmarks.evaluation_peers import Ready, numpy


def joined(spark: SparkSession, ready: Ready, slots: int) -> float:
    """Seconds from data frames that exist to all values in this process."""
    spark = spark.newSession()  # the context's, with settings that suit joins
    for setting in ("leafNodeDefaultParallelism", "shuffle.partitions"):
        spark.conf.set(f"spark.sql.{setting}", slots)
    count = len(ready.ids)
    places = np.arange(count, count + len(ready.graph.constants))
    values = _frame(spark, {"id": places, "v": ready.graph.constants})
    levels = [
        _frame(spark, {"to": chosen, **dict(zip("abc", ready.flat[chosen].T, strict=True))})
        for chosen in ready.by_level
    ]
    started = time.perf_counter()
    for level in levels:
        for name in "abc":
            taken = values.select(F.col("id").alias(name), F.col("v").alias(f"v_{name}"))
            level = level.join(taken, name)  # noqa: PLW2901 - the same level, wider
        computed = level.select(
            F.col("to").alias("id"),
            ((F.col("v_a") * F.col("v_b") + F.col("v_c")) / 2).alias("v"),
        )
        values = values.unionByName(computed).coalesce(slots).localCheckpoint()
    found = values.toArrow()
    seconds = time.perf_counter() - started
    by_id = np.empty(count + len(places))
    by_id[found["id"].to_numpy()] = found["v"].to_numpy()
    if not np.array_equal(by_id[:count], numpy(ready)[1]):
        raise RuntimeError(f"{ready.graph.name}: joins come to something else")
    return seconds


def _frame(spark: SparkSession, columns: dict[str, np.ndarray]) -> DataFrame:
    return spark.createDataFrame(pd.DataFrame(columns)).localCheckpoint()
