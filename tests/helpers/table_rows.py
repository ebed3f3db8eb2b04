"""A graph from the rows of its table."""

import pyarrow as pa

from rebaser_server.store.table_schema import graph_from_batches, split_rows
from rebaser_server.values.graph import Graph


def graph_from_table(rows: pa.Table) -> Graph:
    """The graph of a table that has all columns."""
    return graph_from_batches(*split_rows(rows.to_batches()))
