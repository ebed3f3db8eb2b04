"""The one Spark stage of a run: blobs in, outcomes out, a row each.

Imports pyspark, hence is itself imported by the first run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException

from rebaser_server.dvu.evaluate import evaluate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

SPARK_ERRORS: Final = (PySparkException, Py4JError, OSError, EOFError)
"""All that a broken job or JVM is known to raise."""
_ABORTED: Final = re.compile(
    r"Job aborted due to stage failure: (?:.*most recent failure: .*?\): )?"
    r"(?:[\w.$]+(?:Exception|Error): )?(?P<cause>.*)"
)
_CAUSED_BY: Final = re.compile(r"^Caused by: (.*)", re.MULTILINE)
_BLOBS: Final = pa.schema([pa.field("blob", pa.binary(), nullable=False)])
_OUTCOMES: Final = pa.schema([pa.field("outcome", pa.binary(), nullable=False)])


def evaluate_on(spark: SparkSession, group: str, blobs: Sequence[bytes]) -> list[bytes]:
    """An outcome for each blob, in their order.

    Each blob is a task of its own, since the session asks for as many partitions as rows.
    Blocks until all are done; to be cancelled by the job group. Raises `SPARK_ERRORS`.
    """
    # Not interrupted, a cancelled task has its Python process killed, within 3 s; interrupted,
    # it lets go of one that may never end.
    spark.sparkContext.setJobGroup(group, "dependent values update", interruptOnCancel=False)
    frame = spark.createDataFrame(pa.table([pa.array(blobs, pa.binary())], schema=_BLOBS))
    outcomes = frame.mapInArrow(_evaluate_batches, "outcome binary not null").toArrow()
    found: list[bytes] = outcomes.column("outcome").to_pylist()
    return found


def _evaluate_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        outcomes = [evaluate(blob.as_py()) for blob in batch.column("blob")]
        yield pa.record_batch([pa.array(outcomes, pa.binary())], schema=_OUTCOMES)


def cause(error: Exception) -> str:
    """The line that says what went wrong, out of the hundred that Spark raises."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, PythonException):
        return text.splitlines()[-1]
    if aborted := _ABORTED.search(text):
        return aborted["cause"]
    causes = _CAUSED_BY.findall(text)
    return str(causes[-1] if causes else text.splitlines()[0])
