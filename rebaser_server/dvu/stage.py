"""The one Spark stage of a run: blobs in, outcomes out, a row each."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from rebaser_server.dvu.evaluate import evaluate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BLOBS: Final = pa.schema([pa.field("blob", pa.binary(), nullable=False)])
_OUTCOMES: Final = pa.schema([pa.field("outcome", pa.binary(), nullable=False)])


def evaluate_on(spark: "SparkSession", group: str, blobs: Sequence[bytes]) -> list[bytes]:
    """An outcome for each blob, in their order.

    Each blob is a task of its own, since the session asks for as many partitions as rows.
    Blocks until all are done; to be cancelled by the job group. Raises whatever Spark
    and what it is made of do.
    """
    # Not interrupted, a cancelled task has its Python process killed, within 3 s; interrupted,
    # it lets go of one that may never end.
    spark.sparkContext.setJobGroup(group, "dependent values update", interruptOnCancel=False)
    # In chunks of one blob: what is too large for the query plan is partitioned by chunks.
    column = pa.chunked_array([[blob] for blob in blobs], pa.binary())
    frame = spark.createDataFrame(pa.table([column], schema=_BLOBS))
    outcomes = frame.mapInArrow(_evaluate_batches, "outcome binary not null").toArrow()
    found: list[bytes] = outcomes.column("outcome").to_pylist()
    return found


def _evaluate_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        outcomes = [evaluate(blob.as_py()) for blob in batch.column("blob")]
        yield pa.record_batch([pa.array(outcomes, pa.binary())], schema=_OUTCOMES)
