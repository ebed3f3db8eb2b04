"""Rows of a table from an offset on, whatever files and groups of rows they lie in."""

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rebaser_core.table_schemas import spark_fields
from rebaser_server.files import SharedFiles
from rebaser_server.tables import Manifest, TableFiles
from tests.helpers.attempts import finish

KEY = "0" * 64
COUNT = 40


@pytest.fixture
def tables(tmp_path: Path) -> TableFiles:
    return TableFiles(SharedFiles(str(tmp_path)))


@pytest.fixture
def manifest(tables: TableFiles, tmp_path: Path) -> Manifest:
    """A table of three files, of which one has no rows; each has groups of a few rows."""
    attempt = tables.begin("shop", KEY)
    folder = tmp_path / attempt.directory
    folder.mkdir(parents=True)
    rows = pa.table({"id": range(COUNT), "a.b": [f"row {n}" for n in range(COUNT)]})
    ends = [0, 13, 13, COUNT]
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        part = rows.slice(start, end - start)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=5)
    return finish(tables, attempt, spark_fields(rows.schema), COUNT, "digest")


@pytest.mark.parametrize("offset", [0, 4, 5, 12, 13, 14, 39, 40, 41])
def test_rows_are_read_from_an_offset_on(
    tables: TableFiles, manifest: Manifest, offset: int
) -> None:
    batches = tables.batches("shop", manifest, ["id"], offset)

    assert [cell for batch in batches for cell in batch["id"].to_pylist()] == [
        *range(offset, COUNT)
    ]


def test_columns_come_in_the_order_that_is_asked_for(
    tables: TableFiles, manifest: Manifest
) -> None:
    first = next(tables.batches("shop", manifest, ["a.b", "id"]))

    assert first.schema.names == ["a.b", "id"]
    assert first.to_pylist()[0] == {"a.b": "row 0", "id": 0}
