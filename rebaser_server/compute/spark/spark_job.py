"""The one Spark stage of a run: a row for each task in, a row for its answer out."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from rebaser_server.compute import isolation
from rebaser_server.compute.results import RunStore
from rebaser_server.compute.task_protocol import execute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASK_SCHEMA: Final = pa.schema([pa.field("order", pa.binary(), nullable=False)])
_ANSWER_SCHEMA: Final = pa.schema([pa.field("done", pa.binary(), nullable=False)])


def execute_tasks(
    spark: "SparkSession", tasks: Sequence[bytes], store: RunStore | None, run: str
) -> list[bytes]:
    """Return the answers to the tasks, in their order, see `task_protocol`.

    Each row is one task of Spark's, since the session asks for as many partitions as rows. Blocks
    until all are done. Errors of Spark and its libraries pass through.
    """
    # Chunks of one row: data too large for the query plan is partitioned by chunks.
    column = pa.chunked_array([[task] for task in tasks], pa.binary())
    frame = spark.createDataFrame(pa.table([column], schema=_TASK_SCHEMA))
    answers = frame.mapInArrow(
        partial(_execute_batches, store, run), "done binary not null"
    ).toArrow()
    rows: list[bytes] = answers.column("done").to_pylist()
    return rows


def _execute_batches(
    store: RunStore | None, run: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        isolation.claim()
        rows = [execute(task.as_py(), store, run) for task in batch.column("order")]
        # A worker that is reused lies idle after its answer. Processes that functions left would go
        # on until its next task.
        isolation.end_children()
        yield pa.record_batch([pa.array(rows, pa.binary())], schema=_ANSWER_SCHEMA)
