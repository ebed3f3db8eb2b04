"""A checkpoint as it is read from a table."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from rebaser_server.store.graph_loader import InputsNeeded
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


def read_metadata(delta: DeltaTable, damage: str) -> dict[str, Any] | None:
    """Everything but the graph of the last checkpoint, if there is one."""
    del damage
    columns = ["kind", "commit", "value"]  # all would take gigabytes: heads lie among the values
    rows = delta.to_pyarrow_table(columns=columns, filters=[("kind", "=", "head")])
    return checkpoint_record(rows)[1] if rows else None


def _read(
    delta: DeltaTable, columns: list[str], damage: str, at: int | None
) -> GraphCheckpoint | None:
    values, others = scan(delta, columns, at)
    if not pc.any(pc.equal(others["kind"], "head")).as_py():
        return None
    commit, metadata = checkpoint_record(others)
    return GraphCheckpoint(commit, metadata, graph_from_batches(values, others), damage)


def scan(
    delta: DeltaTable, columns: list[str], at: int | None = None
) -> tuple[list[pa.RecordBatch], pa.Table]:
    """The rows of these columns up to commit `at`, or all, as `split_rows` gives them."""
    from pyarrow.dataset import ParquetReadOptions  # see `import_reader`

    options = ParquetReadOptions(dictionary_columns=_DICTIONARY_COLUMNS)
    dataset = delta.to_pyarrow_dataset(parquet_read_options=options)
    wanted = None if at is None else pc.field("commit") <= at
    return split_rows(dataset.to_batches(columns=columns, filter=wanted))
