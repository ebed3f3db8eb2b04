"""Uploaded files in Parquet that become tables: what is kept, as what, and what is refused."""

import errno
import io
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from rebaser_core.table_schemas import MAX_COLUMNS, PARTITION_BY, NotATable, columns_of
from rebaser_server import tables as module
from rebaser_server.files import SharedFiles
from rebaser_server.tables import Manifest, TableFiles

SHOP = "shop"


def described(manifest: Manifest) -> list[tuple[str, str, bool]]:
    """Name, type and whether it may be null, of each column."""
    return [(c.name, c.type, c.nullable) for c in columns_of(manifest.fields)]


@pytest.fixture
def tables(tmp_path: Path) -> TableFiles:
    return TableFiles(SharedFiles(str(tmp_path)))


def parquet(table: pa.Table, **how: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **how)
    return sink.getvalue()


def adopted(tables: TableFiles, payload: bytes) -> tuple[Manifest, list[dict[str, Any]]]:
    digest = blake3(payload).hexdigest()
    manifest = tables.adopt(SHOP, digest, payload)
    names = [column.name for column in columns_of(manifest.fields)]
    batches = tables.batches(SHOP, manifest, names)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return manifest, rows


NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, UTC).replace(tzinfo=None)

KEPT = [
    (pa.bool_(), True, "boolean"),
    (pa.int8(), -128, "tinyint"),
    (pa.int16(), -(2**15), "smallint"),
    (pa.int32(), -(2**31), "int"),
    (pa.int64(), -(2**63), "bigint"),
    (pa.uint8(), 2**8 - 1, "smallint"),
    (pa.uint16(), 2**16 - 1, "int"),
    (pa.uint32(), 2**32 - 1, "bigint"),
    (pa.uint64(), 2**64 - 1, "decimal(20,0)"),
    (pa.float16(), 0.5, "float"),
    (pa.float32(), 0.25, "float"),
    (pa.float64(), 5e-324, "double"),
    (pa.decimal128(38, 9), Decimal("12345678901234567890123456789.123456789"), "decimal(38,9)"),
    (pa.string(), "Grüße 🌍", "string"),
    (pa.large_string(), "", "string"),
    (pa.string_view(), "a text of more than twelve bytes", "string"),
    (pa.binary(), b"\x00\xff", "binary"),
    (pa.large_binary(), b"", "binary"),
    (pa.binary_view(), b"bytes", "binary"),
    (pa.binary(2), b"\x00\xff", "binary"),
    (pa.date32(), date(1, 1, 1), "date"),
    (pa.date64(), date(9999, 12, 31), "date"),
    (pa.timestamp("s"), NOON.replace(microsecond=0), "timestamp_ntz"),
    (pa.timestamp("ms"), NOON.replace(microsecond=123000), "timestamp_ntz"),
    (pa.timestamp("us"), NOON, "timestamp_ntz"),
    (pa.timestamp("ns"), NOON, "timestamp_ntz"),
    (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=UTC), "timestamp"),
    (pa.timestamp("us", "+02:00"), NOON.replace(tzinfo=UTC), "timestamp"),
    (pa.dictionary(pa.int32(), pa.string()), "often", "string"),
    (pa.list_(pa.uint8()), [1, None], "array<smallint>"),
    (pa.large_list(pa.string()), ["a"], "array<string>"),
    (pa.list_(pa.int32(), 2), [1, 2], "array<int>"),
    (pa.struct([pa.field("a", pa.uint32())]), {"a": 1}, "struct<a:bigint>"),
    (pa.map_(pa.string(), pa.list_(pa.int8())), [("a", [1])], "map<string,array<tinyint>>"),
]
"""Types that are kept, a value of each, and the type in SQL."""


@pytest.mark.parametrize(("kind", "value", "name"), KEPT, ids=lambda each: str(each)[:40])
def test_values_are_kept(tables: TableFiles, kind: pa.DataType, value: Any, name: str) -> None:
    """With nulls, in the type that Spark has for them."""
    payload = parquet(pa.table({"x": pa.array([value, None, value], kind)}))

    manifest, rows = adopted(tables, payload)

    assert described(manifest) == [("x", name, True)]
    assert [row["x"] for row in rows] == [value, None, value]
    assert manifest.rows == 3


REFUSED = [
    pa.array([None], pa.null()),
    pa.array([1], pa.time32("s")),
    pa.array([1], pa.time64("us")),
    pa.array([timedelta(1)], pa.duration("us")),
    pa.array([Decimal(1)], pa.decimal256(40, 2)),
    pa.array([[1]], pa.list_(pa.duration("s"))),
    pa.array([{"a": 1}], pa.struct([pa.field("a", pa.time32("s"))])),
    pa.array([[("a", 1)]], pa.map_(pa.string(), pa.duration("s"))),
]


@pytest.mark.parametrize("column", REFUSED, ids=lambda column: str(column.type))
def test_a_type_that_a_table_cannot_keep_is_refused(tables: TableFiles, column: pa.Array) -> None:
    """By the column's name and type, and nothing of it stays."""
    payload = parquet(pa.table({"good": [1], "bad": column}))

    with pytest.raises(NotATable, match=r"column 'bad' is of type .*convert it"):
        adopted(tables, payload)

    assert list(tables.stored()) == []


def test_times_that_fit_into_no_microsecond_are_refused(tables: TableFiles) -> None:
    """They are not rounded in silence; and nothing of the attempt stays."""
    column = pa.array([0, 1], pa.timestamp("ns"))

    with pytest.raises(NotATable, match="column 'at' does not fit"):
        adopted(tables, parquet(pa.table({"at": column})))

    assert [table.attempts for table in tables.stored()] in ([], [()])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "a"], "two columns are called 'a'"),
        (["a", "b", "A"], "'a' and 'A' differ in upper and lower case alone"),
        (["a", ""], "a column without a name"),
    ],
)
def test_columns_that_a_query_cannot_tell_apart_are_refused(
    tables: TableFiles, names: list[str], message: str
) -> None:
    """The message says which."""
    payload = parquet(pa.table([[1]] * len(names), names))

    with pytest.raises(NotATable, match=message):
        adopted(tables, payload)


def test_a_name_that_is_no_text_is_refused(tables: TableFiles) -> None:
    payload = parquet(pa.table({"a name": [1]})).replace(b"a name", b"a \xffame")

    with pytest.raises(NotATable, match="Parquet"):
        adopted(tables, payload)


def test_names_with_any_characters_are_kept(tables: TableFiles) -> None:
    """Spaces, points, quotes and letters of all scripts are no reason to refuse a table."""
    names = ["a b", "a.b", 'quo"te', "back`tick", "größe", "名前", "-", "1", "x" * 300]

    manifest, rows = adopted(tables, parquet(pa.table([[1]] * len(names), names)))

    assert [name for name, _, _ in described(manifest)] == list(rows[0]) == names


@pytest.mark.parametrize("count", [0, MAX_COLUMNS + 1, 10_000])
def test_too_few_and_too_many_columns_are_refused(tables: TableFiles, count: int) -> None:
    """The message has the number that a table may have."""
    payload = parquet(pa.table({f"c{number}": [1] for number in range(count)}))

    with pytest.raises(NotATable, match="at least one column" if not count else "at most 2,000"):
        adopted(tables, payload)


def test_a_table_without_rows_is_one(tables: TableFiles) -> None:
    """Its schema is known, and queries over it have no row."""
    manifest, rows = adopted(tables, parquet(pa.table({"id": pa.array([], pa.int32())})))

    assert (manifest.rows, rows) == (0, [])
    assert described(manifest) == [("id", "int", True)]


@pytest.mark.parametrize("part", [0, 3, 0.3, 0.6, 0.9, -1])
def test_a_file_that_is_cut_off_is_refused(tables: TableFiles, part: float) -> None:
    """Wherever it ends."""
    payload = parquet(pa.table({"id": range(10_000)}))
    end = int(part * len(payload)) if isinstance(part, float) else part

    with pytest.raises(NotATable, match="not a whole file in Parquet"):
        adopted(tables, payload[:end])

    assert list(tables.stored()) == []


@pytest.mark.parametrize("start", [0.5, 0.8])
def test_a_file_whose_pages_are_spoiled_is_refused(tables: TableFiles, start: float) -> None:
    """Its footer is whole, so the damage shows when rows are read; no part of them stays."""
    payload = bytearray(parquet(pa.table({"id": range(50_000)}), compression="zstd"))
    middle = int(start * 100_000)
    payload[middle : middle + 1000] = bytes(1000)

    with pytest.raises(NotATable, match="not a whole file in Parquet"):
        adopted(tables, bytes(payload))

    assert all(not table.attempts and not table.written for table in tables.stored())


def test_an_upload_is_taken_once(tables: TableFiles) -> None:
    """A repetition finds the table, and another workspace has its own."""
    payload = parquet(pa.table({"id": [1, 2]}))
    digest = blake3(payload).hexdigest()

    first = tables.adopt(SHOP, digest, payload)
    again = tables.adopt(SHOP, digest, b"not looked at")
    tables.adopt("another", digest, payload)

    assert again == first
    assert [(each.workspace, len(each.attempts)) for each in tables.stored()] == [
        ("another", 1),
        (SHOP, 1),
    ]


def test_large_uploads_are_rewritten_in_parts(tables: TableFiles) -> None:
    """The order of the rows stays."""
    _, rows = adopted(tables, parquet(pa.table({"id": range(200_000)}), row_group_size=50_000))

    assert [row["id"] for row in rows] == list(range(200_000))


def test_equal_handles_mean_equal_rows_and_schema(tables: TableFiles) -> None:
    """A column that may not be null is another schema than one that may."""
    schemas = [pa.schema([pa.field("id", pa.int64(), nullable)]) for nullable in (True, False)]
    manifests = [adopted(tables, parquet(pa.table({"id": [1]}, schema)))[0] for schema in schemas]

    assert manifests[0].schema_digest != manifests[1].schema_digest
    assert manifests[0].handle("a" * 64).rows == 1


def test_a_store_that_fails_is_no_fault_of_the_upload(tmp_path: Path) -> None:
    """The request is not refused, and tried again."""

    class Full(SharedFiles):
        def put(self, *_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        adopted(TableFiles(Full(str(tmp_path))), parquet(pa.table({"id": [1]})))


def partitioned(table: pa.Table, by: str, **how: Any) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table, **how)
        writer.add_key_value_metadata({PARTITION_BY: by})
    return sink.getvalue()


DAYS = pa.table({"day": ["tue", None, "mon", "tue", "", "mon"], "n": range(6)})


def test_a_partitioned_upload_has_a_part_for_each_value(tables: TableFiles) -> None:
    """Null is one, and another than the empty text; their rows are in the order that they had."""
    manifest, rows = adopted(tables, partitioned(DAYS, "day"))

    assert [(part.value, part.rows) for part in manifest.parts] == [
        (None, 1), ("", 1), ("mon", 2), ("tue", 2)
    ]  # fmt: skip
    assert (manifest.partition_by, manifest.rows) == ("day", 6)
    assert [row["n"] for row in rows] == [1, 4, 2, 5, 0, 3]
    assert manifest.size == sum(file.size for file in manifest.files) > 0
    assert manifest.handle("k").content != adopted(tables, parquet(DAYS))[0].content


def test_uploads_share_the_partitions_in_which_they_are_equal(tables: TableFiles) -> None:
    """In any order of rows, and of row groups."""
    first, _ = adopted(tables, partitioned(DAYS, "day"))
    moved = DAYS.take([5, 4, 3, 2, 1, 0]).set_column(1, "n", pa.array([5, 4, 3, 2, 9, 0]))

    second, _ = adopted(tables, partitioned(moved, "day", row_group_size=2))

    assert first.parts[1:] == second.parts[1:]
    assert first.parts[0] != second.parts[0]


def test_a_large_partitioned_upload_is_written_in_parts(
    tables: TableFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH_ROWS", 100)
    monkeypatch.setattr(module, "_WAITING_BYTES", 5_000)
    table = pa.table({"day": [n % 3 for n in range(1_000)], "n": range(1_000)})

    manifest, rows = adopted(tables, partitioned(table, "day"))

    assert len(manifest.files) > len(manifest.parts) == 3
    assert sorted(rows, key=lambda row: row["n"]) == table.to_pylist()


@pytest.mark.parametrize(
    ("table", "by", "says"),
    [
        (DAYS, "days", "there is no column 'days', by which the table is partitioned; .*'day'"),
        (pa.table({"s": [0.5]}), "s", "column 's' is of type double, and a table is partitioned"),
        (pa.table({"n": range(4_001)}), "n", "column 'n' makes more than 4,000 partitions"),
    ],
)
def test_what_no_table_is_partitioned_by_is_refused(
    tables: TableFiles, table: pa.Table, by: str, says: str
) -> None:
    """Nothing is left of it."""
    with pytest.raises(NotATable, match=says):
        adopted(tables, partitioned(table, by))

    assert not [path for path in Path(tables.files.root).rglob("*") if path.is_file()]


def test_a_partitioned_upload_without_rows_has_no_parts(tables: TableFiles) -> None:
    manifest, rows = adopted(tables, partitioned(DAYS.slice(0, 0), "day"))

    assert (manifest.parts, rows, manifest.partition_by) == ((), [], "day")
