"""A checkpoint as it is read from a table."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from rebaser_server.store.graph_loader import InputsNeeded
from rebaser_server.store.row_digest import Head, RowDigest, SealedDigest, heads_in
from rebaser_server.store.store_errors import translate_store_errors
from rebaser_server.store.table_files import require_content, require_last
from rebaser_server.store.table_schema import (
    LOADED,
    checkpoint_record,
    graph_from_batches,
    split_rows,
)
from rebaser_server.values.graph import Graph

_DICTIONARY_COLUMNS: Final = ["kind", "func_id", "status", "arguments"]
"""Columns with few different texts are read as dictionaries."""


@dataclass(frozen=True, slots=True)
class GraphCheckpoint:
    """A graph as of one commit."""

    commit: int
    metadata: dict[str, Any]
    """Everything but the graph."""
    graph: Graph
    digest: RowDigest
    """Of all rows that were written to the table up to this checkpoint."""
    damage: str = ""
    """Why a later checkpoint could not be read; empty if this is the last one."""


def import_reader() -> None:
    """Import what `scan` does, which takes half as long as a start, before it is needed."""
    import_module("pyarrow.dataset")  # and with it pandas


def read_checkpoint(
    delta: DeltaTable, damage: str, at: int | None = None
) -> GraphCheckpoint | None:
    """The last checkpoint of the table, or the last at or before commit `at`, if there is one."""
    columns = {field.name for field in delta.schema().fields}
    try:
        return _read(delta, [name for name in LOADED if name in columns], damage, at)
    except InputsNeeded:
        return _read(delta, sorted(columns), damage, at)


def read_head(delta: DeltaTable) -> Head | None:
    """The head of the last checkpoint, if there is one."""
    with translate_store_errors():
        columns = ["kind", "commit", "value"]  # all would take gigabytes: heads lie among values
        heads = heads_in(delta.to_pyarrow_table(columns=columns, filters=[("kind", "=", "head")]))
        require_last(delta, heads)
        return max(heads, default=None)


def read_metadata(delta: DeltaTable, damage: str) -> dict[str, Any] | None:
    """Everything but the graph of the last checkpoint, if there is one."""
    del damage
    head = read_head(delta)
    return None if head is None else checkpoint_record(head)


def _read(
    delta: DeltaTable, columns: list[str], damage: str, at: int | None
) -> GraphCheckpoint | None:
    """Raises what `graph_from_batches` does only if the rows are those that were written."""
    with translate_store_errors():
        rows = scan(delta, columns, at)
        if at is None:
            require_last(delta, rows.heads)
        require_content(delta, rows.digest, rows.heads)
    if not rows.heads:
        return None
    head = max(rows.heads)
    metadata = checkpoint_record(head)
    graph = graph_from_batches(rows.values, rows.others)
    return GraphCheckpoint(head.commit, metadata, graph, head.digest, damage)


class _Rows(NamedTuple):
    """Rows of a table."""

    values: list[pa.RecordBatch]
    """Those of values, without their kind."""
    others: pa.Table
    digest: RowDigest
    heads: list[Head]


def scan(delta: DeltaTable, columns: list[str], at: int | None = None) -> _Rows:
    """The rows of these columns up to commit `at`, or all."""
    from pyarrow.dataset import ParquetReadOptions  # see `import_reader`

    options = ParquetReadOptions(dictionary_columns=_DICTIONARY_COLUMNS)
    dataset = delta.to_pyarrow_dataset(parquet_read_options=options)
    wanted = None if at is None else pc.field("commit") <= at
    digests = SealedDigest()
    batches = map(digests.add, dataset.to_batches(columns=columns, filter=wanted))
    values, others = split_rows(batches)
    return _Rows(values, others, *digests.result())
