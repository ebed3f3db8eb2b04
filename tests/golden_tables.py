"""Compare the copies of Delta tables with what another reader makes of them.

    python -m tests.golden_tables FOLDER…

Each version of each table below a folder is copied as a source, and read by Polars or DuckDB, which
share no reader of Parquet with us, or from the folder `expected` beside it. They are equal, or the
copy is refused. Good folders are checkouts of
delta-io/delta, delta-io/delta-rs and delta-io/delta-kernel-rs (its archives unpacked).
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from rebaser_core.table_schemas import NotATable, arrow_schema
from rebaser_core.table_values import PinnedTable
from rebaser_server.files import SharedFiles
from rebaser_server.store.sources import Sources
from rebaser_server.tables import TableFiles

_OWNER = "golden"


def _rows(table: pa.Table) -> list[str]:
    """Return each row as a text, in an order that depends on the rows alone."""
    columns = sorted(table.column_names)
    values = [list(map(_plain, table.column(name).to_pylist())) for name in columns]
    return sorted(map(repr, zip(*values, strict=True)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _plain(value[key])) for key in sorted(value)]
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value


def _copied(path: Path, version: int, store: str) -> pa.Table:
    files = TableFiles(SharedFiles(store))
    manifest = Sources(str(path)).copy(PinnedTable.at(str(path), version), _OWNER, files)
    batches = list(files.batches(_OWNER, manifest, [each["name"] for each in manifest.fields]))
    return pa.Table.from_batches(batches, arrow_schema(manifest.fields))


def _by_polars(path: Path, version: int) -> pa.Table:
    return pl.read_delta(str(path), version=version).to_arrow()


def _by_duckdb(path: Path, version: int) -> pa.Table:
    """Read the files that the log names; Polars cuts INT96 at 2262, and knows no version 2."""
    files = DeltaTable(str(path), version=version).file_uris()
    with duckdb.connect() as connection:
        return connection.read_parquet(files, union_by_name=True).to_arrow_table()


def _by_expected(path: Path, version: int) -> pa.Table:
    """Read what the makers of the table have put beside it."""
    return pq.read_table(path.parent / "expected")


def _newest(log: Path) -> int:
    return max(int(each.stem) for each in log.glob("*.json") if each.stem.isdigit())


def outcome(path: Path, version: int) -> str:
    """Return what comes of a copy: equal, refused, or how it differs."""
    with tempfile.TemporaryDirectory() as store:
        try:
            ours = _copied(path, version, store)
        except NotATable as error:
            return f"refused: {str(error).replace(str(path), '')[:300]}"
    readers = [_by_polars, _by_duckdb]
    if (path.parent / "expected").is_dir() and version == _newest(path / "_delta_log"):
        readers = [_by_expected]
    found = "alone: no other reader"
    for reader in readers:
        try:
            theirs = reader(path, version)
        except Exception as error:  # noqa: BLE001 - of another library, which may raise anything
            found += f"; {reader.__name__} fails: {str(error)[:100]!r}"
            continue
        names = (sorted(ours.column_names), sorted(theirs.column_names))
        if names[0] == names[1] and _rows(ours) == _rows(theirs):
            return f"equal: {reader.__name__}"
        found = f"DIFFERENT: {reader.__name__}: {names}"
        if names[0] == names[1]:
            pairs = zip(_rows(ours), _rows(theirs), strict=False)
            found += f" {next((pair for pair in pairs if pair[0] != pair[1]), None)}"
    return found


def main(folders: list[str]) -> int:
    outcomes: Counter[str] = Counter()
    for folder in folders:
        for log in sorted(Path(folder).absolute().rglob("_delta_log")):
            versions = sorted(int(e.stem) for e in log.glob("*.json") if e.stem.isdigit())
            for version in versions or [0]:
                found = outcome(log.parent, version)
                outcomes[found.partition(":")[0]] += 1
                print(f"{log.parent.relative_to(Path(folder).absolute())}@{version}: {found}")
    print(dict(outcomes))
    return 1 if outcomes["DIFFERENT"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
