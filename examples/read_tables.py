# %% Checkpoints are tables. Cell by cell in a notebook, or as a whole:
# python examples/read_tables.py rebaser-data/store
import sys
from pathlib import Path

import duckdb
import polars as pl
from deltalake import DeltaTable

store = Path(sys.argv[1])

# %% One table a change set, under its workspace and its own id.
tables = sorted(store.glob("change_sets/*/*"), key=lambda table: table.stat().st_mtime)
if not tables:
    sys.exit("no table yet: it is written when a change set goes quiet, or by `rebaser checkpoint`")
uri = str(tables[-1])
print(len(tables), "change sets; the last one written is", tables[-1].name)

# %% DuckDB: of each kind and id the row of the greatest commit counts, unless it is removed.
rows = duckdb.read_parquet(DeltaTable(uri).file_uris(), union_by_name=True)
duckdb.sql("""
    SELECT name, value, status, commit
    FROM (FROM rows QUALIFY row_number() OVER (PARTITION BY kind, id ORDER BY commit DESC) = 1)
    WHERE kind = 'value' AND NOT removed
    ORDER BY name
""").show()

# %% Polars: the same, and what changed in the last commit.
present = (
    pl.scan_delta(uri)
    .sort("commit")
    .group_by("kind", "id")
    .last()
    .filter(~pl.col("removed"), kind="value")
)
changed = present.filter(pl.col("commit") == pl.col("commit").max()).collect()
print(len(changed), "values are of the last commit:", sorted(filter(None, changed["name"])))
