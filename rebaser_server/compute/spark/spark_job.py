"""The one Spark stage of a run: blobs in, what became of them out, a row each."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from rebaser_server.compute.evaluate.task_protocol import done
from rebaser_server.compute.units.run_store import Shelf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ORDERS: Final = pa.schema([pa.field("order", pa.binary(), nullable=False)])
_DONE: Final = pa.schema([pa.field("done", pa.binary(), nullable=False)])


def evaluate_on(
    spark: "SparkSession", orders: Sequence[bytes], shelf: Shelf | None, run: str
) -> list[bytes]:
    """What was done about each order, in their order: see `work`.

    Each is a task of its own, since the session asks for as many partitions as rows.
    Blocks until all are done. Raises whatever Spark and what it is made of do.
    """
    # In chunks of one row: what is too large for the query plan is partitioned by chunks.
    column = pa.chunked_array([[order] for order in orders], pa.binary())
    frame = spark.createDataFrame(pa.table([column], schema=_ORDERS))
    found = frame.mapInArrow(_evaluating(shelf, run), "done binary not null").toArrow()
    rows: list[bytes] = found.column("done").to_pylist()
    return rows


def _evaluating(
    shelf: Shelf | None, run: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    return partial(_evaluate_batches, shelf, run)


def _evaluate_batches(
    shelf: Shelf | None, run: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [done(order.as_py(), shelf, run) for order in batch.column("order")]
        yield pa.record_batch([pa.array(rows, pa.binary())], schema=_DONE)
