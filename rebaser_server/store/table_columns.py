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


def add_unknown_columns(delta: DeltaTable, rows: pa.Table) -> pa.Table:
    """The rows with null in the columns that a newer release has added to the table."""
    for field in pa.schema(delta.schema()):
        if field.name not in rows.schema.names:
            rows = rows.append_column(field, pa.nulls(len(rows), field.type))
    return rows
