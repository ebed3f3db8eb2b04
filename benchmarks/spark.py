"""The least that Spark can be asked to do in the session that a Rebaser uses."""

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


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
