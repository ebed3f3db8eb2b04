"""Columns of a table of another release, older or newer."""

import pyarrow as pa
from deltalake import DeltaTable, Schema

from rebaser_server.store.table_schema import SCHEMA
from rebaser_server.store.vacuum import KEEP_ENTRIES


def add_missing_columns(delta: DeltaTable) -> None:
    """Add the columns that a table of an earlier release lacks."""
    existing = {field.name for field in delta.schema().fields}
    wanted = Schema.from_arrow(SCHEMA).fields
    if existing < {field.name for field in wanted}:
        delta.alter.add_columns(
            [field for field in wanted if field.name not in existing],
            post_commithook_properties=KEEP_ENTRIES,
        )


def add_unknown_columns(delta: DeltaTable, rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The rows with null in the columns that a newer release has added to the table."""
    known = rows.schema
    unknown = [field for field in pa.schema(delta.schema()) if field.name not in known.names]
    if not unknown:
        return rows
    schema = pa.schema([*known, *unknown])

    def widened(batch: pa.RecordBatch) -> pa.RecordBatch:
        nulls = [pa.nulls(len(batch), field.type) for field in unknown]
        return pa.record_batch([*batch.columns, *nulls], schema)

    return pa.RecordBatchReader.from_batches(schema, map(widened, rows))
