"""Tables of several libraries and files become one file in Parquet, equal for equal rows."""

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rebaser_client import Draft, InvalidDraft, sql
from rebaser_client.draft import TableUpload
from rebaser_client.table_uploads import written
from rebaser_client.tables import read_updates
from rebaser_core.errors import MalformedMessage
from rebaser_core.table_schemas import PARTITION_BY

ROWS = [
    {"id": n, "day": f"d{n % 3}", "net": n / 2 if n % 5 else None, "tags": ["a", "b"]}
    for n in range(1000)
]
ARROW = pa.Table.from_pylist(ROWS)


def rows_in(upload: TableUpload) -> list[dict[str, Any]]:
    return pq.read_table(io.BytesIO(upload.read())).to_pylist()


def test_each_of_several_loads_of_one_draft_reads_the_whole_file() -> None:
    """Files are read in threads, as for several branches at a time."""
    upload = written(ARROW)

    class Slow(io.BytesIO):
        """A file of which others have time to read before this one does."""

        def seek(self, *place: int) -> int:
            begun = super().seek(*place)
            threading.Event().wait(0.05)
            return begun

    slow = TableUpload(Slow(upload.read()), upload.rows, upload.size, upload.digest)
    with ThreadPoolExecutor(3) as threads:
        parts = [*threads.map(lambda _: slow.read(), range(3))]

    assert parts == [upload.read()] * 3


@pytest.mark.parametrize(
    "convert",
    [
        lambda table: pa.concat_tables([table.slice(0, 10), table.slice(10)]),
        lambda table: pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
        pl.from_arrow,
        duckdb.from_arrow,
        lambda table: table.to_pandas(),
        lambda table: table.to_pandas().sample(frac=1, random_state=1).sort_values("id"),
    ],
    ids=["chunks", "reader", "polars", "duckdb", "pandas", "filtered"],
)
def test_equal_rows_of_each_library_are_one_file(convert: Callable[[pa.Table], Any]) -> None:
    upload = written(convert(ARROW))

    assert upload.digest == written(ARROW).digest
    assert (upload.rows, upload.size) == (1000, len(upload.read()))
    assert rows_in(upload) == ROWS


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (pl.Categorical, "x"),
        (pl.List(pl.Categorical), ["x", None]),
        (pl.Struct({"k": pl.Enum(["y", "x"])}), {"k": "x"}),
    ],
    ids=["plain", "list", "struct"],
)
def test_categories_of_polars_are_their_text(kind: Any, cell: Any) -> None:
    """Wherever they stand."""
    rows = [{"a": cell}, {"a": None}]
    table = pl.DataFrame(rows, schema={"a": kind})

    assert written(table).digest == written(pa.Table.from_pylist(rows)).digest


def test_the_cut_of_a_large_table_does_not_show_in_the_file(tmp_path: Path) -> None:
    """A file is read in parts, however its own groups of rows are cut."""
    table, path = pa.table({"id": range(300_000)}), tmp_path / "large.parquet"
    pq.write_table(table, path, row_group_size=70_001)

    assert written(str(path)).digest == written(table).digest
    assert written(table).rows == 300_000


def test_a_table_of_very_many_parts_is_written_as_any_other() -> None:
    """Frames have such parts once rows were added one by one; the work grows with their number."""
    table = pa.table({"id": range(50_000)})
    rows = pa.Table.from_batches(table.to_batches(max_chunksize=1))

    assert (written(rows).digest, written(rows).rows) == (written(table).digest, 50_000)


def test_an_empty_table_keeps_its_columns() -> None:
    upload = written(ARROW.slice(0, 0))

    assert (upload.rows, pq.read_schema(io.BytesIO(upload.read())).names) == (0, ARROW.schema.names)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (5, "int is no table; give one of pyarrow"),
        (pa.table({"a": [None]}), "column 'a' is of type null"),
        (pa.table({"a": pa.array([1], pa.duration("s"))}), "column 'a' is of type duration"),
        (pa.table({"a": pa.array([1], pa.timestamp("ns"))}), "column 'a' does not fit timestamp"),
        (pa.table({"a": pa.array([100], pa.decimal128(5, -2))}), r"of type decimal128\(5, -2\)"),
        (duckdb.sql(f"SELECT {2**127 - 1}::hugeint AS a"), "column 'a' does not fit decimal128"),
        (pa.table([[1], [2]], names=["a", "a"]), "two columns are called 'a'"),
        (pa.table({"a": [1], "A": [2]}), "'a' and 'A' differ in upper and lower case alone"),
        (pa.table({}), "at least one column"),
        (pa.table({str(n): [1] for n in range(2_001)}), "2,001 columns; a table has at most 2,000"),
    ],
)
def test_what_a_table_cannot_keep_is_refused_by_name(table: Any, says: str) -> None:
    with pytest.raises(InvalidDraft, match=says):
        Draft().table("orders", table)


NOON = datetime(2026, 11, 1, 12)  # noqa: DTZ001 - without a time zone


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ([NOON.date(), NOON], "column 'a' has days and times"),
        ([NOON, NOON.replace(tzinfo=UTC)], "column 'a' has times with and without a time zone"),
        ([NOON.replace(tzinfo=UTC), NOON], "column 'a' has times with and without a time zone"),
        (["x", b"x"], "column 'a' has bytes and text"),
        ([1.5, True], "column 'a' has numbers and booleans"),
        ([np.True_, 1], "column 'a' has numbers and booleans"),
        ([NOON, pd.Timestamp(1)], "column 'a' has parts of a microsecond"),
    ],
)
def test_cells_that_arrow_would_make_alike_are_refused(cells: list[Any], says: str) -> None:
    """Without a word it drops the time of a day, or the zone of a time."""
    first, second = cells

    for column in (
        cells,
        [[first], [second]],
        [[first, second, None]],
        [{"k": first}, {"k": second}],
        [[{"k": (first,)}, {"k": (second, None)}], None, []],
    ):
        with pytest.raises(InvalidDraft, match=says):
            written(pd.DataFrame({"a": pd.Series(column, dtype=object)}))


def test_a_query_that_fails_on_the_way_is_no_table() -> None:
    """A relation of DuckDB is computed while it is read; its error comes with the row."""
    failing = duckdb.sql(
        "SELECT 'id' AS id, if(n = 290000, 'x', '1')::int AS value FROM range(300000) each(n)"
    )

    with pytest.raises(InvalidDraft, match="Could not convert string 'x' to INT32"):
        written(failing)
    with pytest.raises(MalformedMessage, match="Could not convert string 'x' to INT32"):
        read_updates(failing)


@pytest.mark.parametrize(
    "cells", [[NOON, pd.NaT, None], [NOON.date(), pd.NaT], [1.5, 2, float("nan")], ["x", pd.NA]]
)
def test_missing_cells_are_like_any_others(cells: list[Any]) -> None:
    for column in (cells, [cells, None], [{"k": cells}, {}]):
        frame = pd.DataFrame({"a": pd.Series(column, dtype=object)})
        assert written(frame).rows == len(column)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("orders.xlsx", b"", "orders.xlsx: a file with a table is .parquet or .csv"),
        ("orders.parquet", b"PAR1", "orders.parquet: not a whole file in Parquet"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_its_path(
    name: str, content: bytes, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(InvalidDraft, match=says):
        Draft().table("orders", tmp_path / name)


@pytest.mark.parametrize(
    "spoil",
    [lambda octets: octets[:-100], lambda octets: octets.replace(b"day", b"d\xffy")],
    ids=["cut off in the middle", "a name that is no text"],
)
def test_a_damaged_parquet_file_is_refused(spoil: Callable[[bytes], bytes], tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole.parquet", tmp_path / "damaged.parquet"
    pq.write_table(ARROW, whole)
    damaged.write_bytes(spoil(whole.read_bytes()))

    with pytest.raises(InvalidDraft, match=r"damaged.parquet: not a whole file in Parquet"):
        Draft().table("orders", damaged)


def test_a_table_is_one_value_and_sql_takes_inputs_by_name() -> None:
    """A second table under the name is another value, unless it has equal rows."""
    g = Draft()
    orders = g.table("orders", ARROW)
    g.table("orders", pd.DataFrame(ROWS))
    query = sql("SELECT day, sum(net) AS net\nFROM orders\nGROUP BY day")
    g.value("by day", query, orders=orders)

    assert (query.runtime, query.name) == (
        "sql",
        "SELECT day, sum(net) AS net FROM orders GROUP BY day",
    )
    with pytest.raises(InvalidDraft, match="takes its inputs by name"):
        g.value("wrong", query, orders)
    with pytest.raises(InvalidDraft, match="two values are called 'orders'"):
        g.table("orders", ARROW.slice(1))


def test_a_table_says_which_column_partitions_it() -> None:
    """It is another value than the same rows without it; a column that cannot is named."""
    plain, upload = written(ARROW), written(ARROW, partition_by=ARROW.schema.names[0])

    metadata = pq.read_metadata(io.BytesIO(upload.read())).metadata
    assert metadata == {PARTITION_BY.encode(): ARROW.schema.names[0].encode()}
    assert upload.digest == written(ARROW, (), ARROW.schema.names[0]).digest != plain.digest
    with pytest.raises(InvalidDraft, match="no column 'x', by which the table is partitioned"):
        Draft().table("orders", ARROW, partition_by="x")
    with pytest.raises(InvalidDraft, match="'n' is of type double, and a table is partitioned by"):
        Draft().table("orders", pa.table({"n": [0.5]}), partition_by="n")
