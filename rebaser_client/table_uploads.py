"""Tables of a program as files in Parquet, to be uploaded: equal rows make equal files.

A table may be of any library that has Arrow's stream interface, or a file of Parquet or CSV. It is
read and written in parts, so that a large file does not have to fit into memory; takes pyarrow.
"""

import tempfile
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from blake3 import blake3

from rebaser_client.draft import TableSource, TableUpload
from rebaser_client.errors import InvalidDraft
from rebaser_client.row_files import INDEX, NUMBER
from rebaser_core.table_schemas import (
    AS_WRITTEN,
    PARTITION_BY,
    NotATable,
    cast,
    checked_rows,
    first_line,
    kept_schema,
    require_distinct,
    require_partition_column,
    spark_fields,
)

_GROUP_ROWS: Final = 131_072
"""Rows of a row group, however the source is cut."""
_BLOCK: Final = 16 * 1024 * 1024
"""Bytes of CSV that are in memory at a time; a row has no more."""
_READ: Final = 1024 * 1024
"""Bytes of a file that are read at a time."""


def written(
    table: TableSource, text: Iterable[str] = (), partition_by: str | None = None
) -> TableUpload:
    """Write the file that is to be uploaded. Blocks.

    `text`: columns of CSV that stay text. `partition_by`: column that partitions the table.

    Raises:
        InvalidDraft: it is no table, or has what a table cannot keep.
        OSError: the file cannot be read.
    """
    file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - `TableUpload` closes it
    try:
        rows = _write(_read(table, frozenset(text)), file, partition_by)
    except (NotATable, pa.ArrowException, ValueError) as error:
        file.close()
        where = f"{table}: " if isinstance(table, str | PathLike) else ""
        raise InvalidDraft(f"{where}{first_line(error)}") from error
    except BaseException:
        file.close()
        raise
    size, hasher = file.tell(), blake3()
    file.seek(0)
    while part := file.read(_READ):
        hasher.update(part)
    return TableUpload(file, rows, size, hasher.hexdigest())


def _write(batches: Iterator[pa.RecordBatch], sink: Any, partition_by: str | None) -> int:
    """Write the file; return the number of rows. The first batch may be empty."""
    first = next(batches)
    schema = kept_schema(first.schema)
    if partition_by is not None:
        require_partition_column(spark_fields(schema), partition_by)
    # Without Arrow's own schema, which tells the same types of different libraries apart.
    with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False) as writer:
        if partition_by is not None:
            writer.add_key_value_metadata({PARTITION_BY: partition_by})
        rows, waiting = 0, [cast(first, schema)]
        for batch in batches:
            waiting.append(cast(batch, schema))
            if sum(each.num_rows for each in waiting) >= _GROUP_ROWS:
                rows += _write_groups(writer, waiting)
        table = pa.Table.from_batches(waiting, schema).combine_chunks()
        writer.write_table(table, _GROUP_ROWS)
        return rows + int(table.num_rows)


def _write_groups(writer: pq.ParquetWriter, waiting: list[pa.RecordBatch]) -> int:
    """Write the rows that make whole groups; leave the others in `waiting`."""
    table = pa.Table.from_batches(waiting).combine_chunks()
    whole = int(table.num_rows) // _GROUP_ROWS * _GROUP_ROWS
    writer.write_table(table.slice(0, whole), _GROUP_ROWS)
    waiting[:] = table.slice(whole).combine_chunks().to_batches()
    return whole


def _read(table: TableSource, text: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows, at least one batch."""
    if isinstance(table, str | PathLike):
        path = Path(table)
        match path.suffix.lower():
            case ".parquet":
                return _read_parquet(path)
            case ".csv":
                return _read_csv(path, text)
        raise InvalidDraft(f"{path}: a file with a table is .parquet or .csv")
    if not hasattr(table, "__arrow_c_stream__"):
        raise InvalidDraft(
            f"{type(table).__name__} is no table; give one of pyarrow, pandas, Polars or DuckDB, "
            "or the path of a .parquet or .csv file"
        )
    return _without_index(pa.RecordBatchReader.from_stream(table))


def _without_index(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the rows without the numbers that pandas gives to rows of a filtered frame."""
    is_pandas = b"pandas" in (reader.schema.metadata or {})
    names = [n for n in reader.schema.names if not (is_pandas and INDEX.fullmatch(n))]
    places = [place for place, name in enumerate(reader.schema.names) if name in names]
    yield pa.RecordBatch.from_pylist([], reader.schema).select(places)
    for batch in reader:
        yield batch.select(places)


def _read_parquet(path: Path) -> Iterator[pa.RecordBatch]:
    with path.open("rb") as file:
        try:
            source = pq.ParquetFile(file, **AS_WRITTEN)
            batches = checked_rows(source.metadata, source.iter_batches())
            yield from _without_index(
                pa.RecordBatchReader.from_batches(source.schema_arrow, batches)
            )
        except (pa.ArrowException, OSError) as error:
            raise NotATable(f"not a whole file in Parquet: {first_line(error)}") from error


def _read_csv(path: Path, text: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file of CSV; what `row_files.read_csv` reads as numbers are numbers."""
    with _open_csv(path, {}) as reader:
        require_distinct(reader.schema.names)
        kinds = {name: pa.string() if name in text else pa.null() for name in reader.schema.names}
        if missing := sorted(text - kinds.keys()):
            raise NotATable(f"there is no column {missing[0]!r}, only {', '.join(kinds)}")
        for batch in reader:
            for name, column in zip(kinds, batch.columns, strict=True):
                kinds[name] = _kind(column.drop_null(), kinds[name])
    kinds = {n: pa.string() if pa.types.is_null(kind) else kind for n, kind in kinds.items()}
    with _open_csv(path, kinds) as reader:
        yield pa.RecordBatch.from_pylist([], reader.schema)
        yield from reader


def _open_csv(path: Path, kinds: dict[str, pa.DataType]) -> pa.csv.CSVStreamingReader:
    """Open the file with these types of columns; others are text."""
    convert = pa.csv.ConvertOptions(
        column_types=kinds,
        default_column_type=pa.string(),
        null_values=[""],
        strings_can_be_null=True,
    )
    return pa.csv.open_csv(
        path,
        pa.csv.ReadOptions(block_size=_BLOCK),
        pa.csv.ParseOptions(newlines_in_values=True),
        convert,
    )


def _kind(cells: pa.Array, known: pa.DataType) -> pa.DataType:
    """Return the type of a column with these cells behind others of the type that is `known`."""
    if pa.types.is_string(known) or not len(cells):
        return known
    if not pc.all(pc.match_substring_regex(cells, f"^(?:{NUMBER.pattern})$")).as_py():
        return pa.string()
    is_whole = pc.match_substring_regex(cells, "^-?[0-9]+$")
    try:
        cells.filter(is_whole).cast(pa.int64())
    except pa.ArrowInvalid:  # beyond 64 bits
        return pa.string()
    fractions = cells.filter(pc.invert(is_whole)).cast(pa.float64())
    if not pc.all(pc.is_finite(fractions), min_count=0).as_py():
        return pa.string()
    return pa.float64() if len(fractions) or pa.types.is_floating(known) else pa.int64()
