"""Tables of a program as files in Parquet, to be uploaded: equal rows make equal files.

A table may be of any library that has Arrow's stream interface, or a file of Parquet or CSV. It is
read and written in parts, so that a large file does not have to fit into memory; takes pyarrow.
"""

import tempfile
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from rebaser_client.arrow_batches import read_frame, read_parquet
from rebaser_client.csv_files import read_csv_table
from rebaser_client.draft import TableSource, TableUpload
from rebaser_client.errors import InvalidDraft
from rebaser_core.table_schemas import (
    PARTITION_BY,
    NotATable,
    cast,
    first_line,
    kept_schema,
    require_partition_column,
    spark_fields,
)

_GROUP_ROWS: Final = 131_072
"""Rows of a row group, however the source is cut."""
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


def _write(batches: pa.RecordBatchReader, sink: Any, partition_by: str | None) -> int:
    """Write the file; return the number of rows."""
    schema = kept_schema(batches.schema)
    if partition_by is not None:
        require_partition_column(spark_fields(schema), partition_by)
    # Without Arrow's own schema, which tells the same types of different libraries apart.
    with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False) as writer:
        if partition_by is not None:
            writer.add_key_value_metadata({PARTITION_BY: partition_by})
        rows, held, waiting = 0, 0, list[pa.RecordBatch]()
        for batch in batches:
            waiting.append(cast(batch, schema))
            held += batch.num_rows
            if held >= _GROUP_ROWS:
                whole = _write_groups(writer, waiting)
                rows, held = rows + whole, held - whole
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


def _read(table: TableSource, text: frozenset[str]) -> pa.RecordBatchReader:
    if isinstance(table, str | PathLike):
        path = Path(table)
        match path.suffix.lower():
            case ".parquet":
                return read_parquet(path)
            case ".csv":
                rows = read_csv_table(path, lambda name: pa.string() if name in text else None)
                if missing := sorted(text.difference(rows.schema.names)):
                    names = ", ".join(rows.schema.names)
                    raise NotATable(f"there is no column {missing[0]!r}, only {names}")
                return rows
        raise InvalidDraft(f"{path}: a file with a table is .parquet or .csv")
    if not hasattr(table, "__arrow_c_stream__"):
        raise InvalidDraft(
            f"{type(table).__name__} is no table; give one of pyarrow, pandas, Polars or DuckDB, "
            "or the path of a .parquet or .csv file"
        )
    return read_frame(table)
