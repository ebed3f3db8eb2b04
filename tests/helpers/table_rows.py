"""Rows of tables: the graph that they are, and rows that a test changes as a Rebaser would."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from rebaser_server.store.row_digest import digest_of, seal
from rebaser_server.store.table_files import APP_ID, transactions
from rebaser_server.store.table_schema import graph_from_batches, split_rows
from rebaser_server.values.graph import Graph


def graph_from_table(rows: pa.Table) -> Graph:
    """The graph of a table that has all columns."""
    return graph_from_batches(*split_rows(rows.to_batches()))


def overwrite(delta: DeltaTable, rows: pa.Table) -> None:
    """Have these rows in place of the table's, as another release may have written them.

    Their heads get the digest that belongs to them, and the table no row that was dropped.
    """
    sealed = _sealed(rows)
    last = pc.max(rows.filter(pc.equal(rows["kind"], "head"))["commit"]).as_py()
    write_deltalake(
        delta,
        sealed,
        mode="overwrite",
        schema_mode="overwrite",
        commit_properties=CommitProperties(app_transactions=transactions(last)),
    )
    assert DeltaTable(delta.table_uri).transaction_version(APP_ID) == last


def _sealed(rows: pa.Table) -> pa.Table:
    plain = pa.Table.from_pylist(list(map(_unsealed, rows.to_pylist())), rows.schema)
    sealed: list[dict[str, Any]] = []
    for row in plain.to_pylist():
        if row["kind"] == "head":
            before = plain.filter(pc.less_equal(plain["commit"], row["commit"]))
            digest = digest_of(before.combine_chunks().to_batches()[0])
            row["value"] = seal(row["value"].encode(), digest).decode()
        sealed.append(row)
    return pa.Table.from_pylist(sealed, rows.schema)


def _unsealed(row: dict[str, Any]) -> dict[str, Any]:
    if row["kind"] != "head":
        return row
    metadata = json.loads(row["value"])
    metadata.pop("digest", None)
    return row | {"value": json.dumps(metadata)}
