"""Tables in Spark's tasks, which write the rows of a query to the store, and read files from there.

Each task that writes has files of its own. Its answer names them, with their digests and with what
it has seen of the rows. So one pass over the rows makes the table, in a folder and in an object
store, here and on a cluster. Of a task that is repeated the files count that its last answer names.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa

from rebaser_core.table_schemas import NotATable, arrow_schema, cast, require_few_partitions
from rebaser_server.compute.errors import describe
from rebaser_server.files import tables_directory
from rebaser_server.runtime.failures import StoreFailed
from rebaser_server.tables import DataFile, TableFiles, Target, View, Written, WrittenPart
from rebaser_server.values.canonical_json import dumps, loads
from rebaser_server.values.column_hashes import ContentDigest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL: Final = 4 << 20
"""Bytes of a table that each task of a join takes whole."""
_TASK_BYTES: Final = 16 << 20
"""Bytes of files that one task reads."""
_FILE_COST: Final = 256 << 10
"""Bytes that are read in the time that it takes to open a file."""
_LINES: Final = pa.schema([pa.field("line", pa.string(), nullable=False)])


class _Rows(NamedTuple):
    """Instructions for a task that writes rows."""

    fields: list[dict[str, Any]]
    required: Sequence[str]
    """Columns in which nulls are counted."""
    by: str | None
    """Column whose values have files of their own each."""


def write(
    frame: "DataFrame",
    target: Target,
    fields: list[dict[str, Any]],
    required: Sequence[str],
    by: str | None = None,
) -> Written:
    """Write the rows of a frame, those of each value of column `by` apart, and return their sum.

    Raises:
        NotATable: the rows cannot be kept, or a required column has nulls.
    """
    if by is not None:  # the fewest files
        frame = frame.sortWithinPartitions("`" + by.replace("`", "``") + "`")
    how = _Rows(fields, required, by)
    # Spark looks for columns by name there, and takes a point for the field of one.
    frame = frame.toDF(*(f"c{place}" for place in range(len(fields))))
    answers = frame.mapInArrow(partial(_write, target, how), "line string not null").toArrow()
    return _summed_up([loads(line) for line in answers.column("line").to_pylist()], how)


def _write(
    target: Target, how: _Rows, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    tables, name = TableFiles(target.files), f"{uuid4().hex}-"
    schema = arrow_schema([{**field, "nullable": True} for field in how.fields])
    nulls, whole = [0] * len(how.required), ContentDigest()

    def seen() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = cast(batch, schema)
            for number, column in enumerate(how.required):
                nulls[number] += rows.column(column).null_count
            if how.by is None:
                whole.add(rows)
            yield rows

    found: dict[str | None, tuple[ContentDigest, list[DataFile]]]
    try:
        with _store():
            if how.by is None:
                found = {None: (whole, tables.write(target.attempt, schema, seen(), name))}
            else:
                found = tables.write_apart(target.attempt, schema, how.by, seen(), name)
    except NotATable as error:
        # The error is answered and not raised: a cluster repeats a task that raises, in vain.
        said: dict[str, Any] = {"refused": str(error)}
    else:
        parts = [
            [value, digest.state, list(map(list, files))]
            for value, (digest, files) in found.items()
        ]
        said = {"nulls": nulls, "parts": parts}
    yield pa.record_batch([pa.array([dumps(said)], pa.string())], schema=_LINES)


@contextmanager
def _store() -> Iterator[None]:
    """Raise `StoreFailed` for errors of the store, which Spark hands on by their names alone."""
    try:
        yield
    except OSError as error:
        raise StoreFailed(describe(error)) from error


def _summed_up(answers: Sequence[dict[str, Any]], how: _Rows) -> Written:
    for answer in answers:
        if "refused" in answer:
            raise NotATable(answer["refused"])
    for number, name in enumerate(how.required):
        if nulls := sum(answer["nulls"][number] for answer in answers):
            raise NotATable(
                f"column {name!r} is declared `not null`, and is null in {nulls:,} rows"
            )
    digests: dict[str | None, ContentDigest] = {}
    files: dict[str | None, list[DataFile]] = {}
    for answer in answers:
        for value, state, of_part in answer["parts"]:
            digests.setdefault(value, ContentDigest()).add_state(state)
            files.setdefault(value, []).extend(DataFile(*file) for file in of_part)
    rows = sum(digest.rows for digest in digests.values())
    if how.by is None:
        whole = digests.get(None, ContentDigest())
        return Written(how.fields, rows, whole.text, files.get(None, []))
    require_few_partitions(how.by, len(digests))
    parts = [
        WrittenPart(value, digest.rows, digest.text, files[value])
        for value, digest in digests.items()
    ]
    return Written(how.fields, rows, "", [], parts)


def frame_of(spark: "SparkSession", view: View) -> "DataFrame":
    """Return the rows of a table as a frame.

    Spark itself reads what is in a folder that it shares; else each task reads whole files.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415 - see `spark_executor`

    manifest, place = view.manifest, view.files
    schema = StructType.fromJson({"type": "struct", "fields": manifest.fields})
    count = len(manifest.files)
    if not count:
        return spark.createDataFrame([], schema)
    if place.is_local:
        root = f"file://{place.root}/{tables_directory(view.workspace)}"
        return spark.read.schema(schema).parquet(*(f"{root}/{f.path}" for f in manifest.files))
    tasks = task_count(count, manifest.size)
    frame = spark.range(0, count, 1, tasks).mapInArrow(partial(_read, view), schema)
    return frame.hint("broadcast") if manifest.size < _SMALL else frame


def task_count(files: int, size: int) -> int:
    """Return the number of tasks that read these files, which have that many bytes in all.

    Many small files are read by one: a task takes longer to begin than a small file to be read.
    """
    return min(files, 1 + (size + files * _FILE_COST) // _TASK_BYTES)


def _read(view: View, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    tables, manifest = TableFiles(view.files), view.manifest
    names = [field["name"] for field in manifest.fields]
    for batch in batches:
        taken = [manifest.files[number] for number in batch.column(0).to_pylist()]
        with _store():
            yield from tables.batches(view.workspace, replace(manifest, files=taken), names)
