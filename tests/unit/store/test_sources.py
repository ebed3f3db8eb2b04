"""Tables of others: which may be read, what a version is, and what is copied of it."""

import json
import os
import shutil
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from rebaser_core.table_schemas import MAX_COLUMNS, NotATable, arrow_schema
from rebaser_core.table_values import PinnedTable
from rebaser_server.files import SharedFiles
from rebaser_server.store import sources as store_sources
from rebaser_server.store.sources import Sources
from rebaser_server.tables import TableFiles

SHOP = "shop"
ORDERS = pa.table({"id": range(10), "day": [f"day {n % 3}" for n in range(10)]})
DIGEST = "0" * 64


class Lake:
    """A folder that the operator allows, a place beside it, and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.outside = folder / "lake", folder / "secret"
        for each in (self.folder, self.outside):
            each.mkdir()
        self.tables = TableFiles(SharedFiles(str(folder / "store")))
        self.sources = Sources(f"{folder / 'other'}:{self.folder}")

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def delta(self, name: str, table: pa.Table = ORDERS, **how: Any) -> str:
        write_deltalake(self.path(name), table, **how)
        return self.path(name)

    def parquet(self, name: str, table: pa.Table = ORDERS) -> str:
        file = Path(self.path(name))
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file)
        return str(file)

    def copy(self, path: str, version: int | str | None = None) -> pa.Table:
        """Copy a version, or the newest; return its rows."""
        if version is None:
            table = self.sources.newest(path).table
        else:
            table = PinnedTable.at(path, version)
        manifest = self.sources.copy(table, SHOP, self.tables)
        names = [field["name"] for field in manifest.fields]
        batches = list(self.tables.batches(SHOP, manifest, names))
        assert sum(batch.num_rows for batch in batches) == manifest.rows
        schema = arrow_schema(manifest.fields)
        return pa.Table.from_batches(batches, schema).sort_by(names[0])

    def refusal(self, path: str, version: int | str | None = None) -> str:
        """Return why the version cannot be copied; nothing of it stays."""
        before = [table for table in self.tables.stored() if table.attempts]
        with pytest.raises(NotATable) as refused:
            self.copy(path, version)
        now = [table for table in self.tables.stored() if table.attempts]
        assert now == before
        return str(refused.value)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.mark.parametrize("how", [{}, {"partition_by": ["day"]}], ids=["flat", "in partitions"])
def test_a_version_of_delta_is_copied_as_it_was(lake: Lake, how: dict[str, Any]) -> None:
    """Later versions change nothing about it."""
    path = lake.delta("orders", **how)
    lake.delta("orders", ORDERS.slice(0, 4), mode="append", **how)
    lake.delta("orders", ORDERS.slice(0, 1), mode="overwrite", **how)

    assert lake.sources.newest(path).table == PinnedTable(path, 2)
    assert lake.copy(path, 0) == ORDERS
    assert lake.copy(path, 1).num_rows == 14
    assert lake.copy(path) == ORDERS.slice(0, 1)


def test_a_copy_stays_when_its_source_is_gone(lake: Lake) -> None:
    """It is made once."""
    path = lake.delta("orders")
    lake.copy(path, 0)

    shutil.rmtree(path)

    assert lake.copy(path, 0) == ORDERS


def test_a_version_with_the_rows_of_before_has_the_content_of_before(lake: Lake) -> None:
    """Rewriting files changes no rows, so what depends on them is not computed again."""
    path = lake.delta("orders", ORDERS.slice(0, 4))
    lake.delta("orders", ORDERS.slice(4), mode="append")
    DeltaTable(path).optimize.compact()

    before, after, first = (
        lake.sources.copy(PinnedTable(path, version), SHOP, lake.tables) for version in (1, 2, 0)
    )

    assert before.content == after.content != first.content


def test_parquet_is_pinned_by_the_digest_of_its_files(lake: Lake) -> None:
    """A version that the files no longer have is refused, and is not another table."""
    lake.parquet("orders/b.parquet", ORDERS.slice(0, 6))
    lake.parquet("orders/a.parquet", ORDERS.slice(6))
    path = lake.path("orders")
    (lake.folder / "orders" / "_SUCCESS").write_text("")
    first = lake.sources.newest(path)

    assert lake.copy(path, first.table.version) == ORDERS
    assert lake.sources.newest(path) == first
    lake.parquet("orders/c.parquet", ORDERS.slice(0, 0))
    assert lake.copy(path) == ORDERS
    assert lake.copy(path, first.table.version) == ORDERS  # that copy is there
    assert "3 files changed since this version" in lake.refusal(path, DIGEST)


def test_folders_of_parquet_name_a_column(lake: Lake) -> None:
    """As other programs write and read it: it comes last, and stands for one of that name."""
    lake.parquet("orders/day=2026-11-02/b.parquet", ORDERS.slice(0, 6))
    lake.parquet("orders/day=2026-11-01/a.parquet", ORDERS.slice(6))
    lake.parquet("orders/day=__HIVE_DEFAULT_PARTITION__/a.parquet", ORDERS.slice(0, 0))
    first, second = date(2026, 11, 2), date(2026, 11, 1)

    copied = lake.copy(lake.path("orders"))

    assert copied == pa.table({"id": range(10), "day": [first] * 6 + [second] * 4})


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (["3", "-1", "40"], [3, -1, 40]),
        (["03", "1"], ["03", "1"]),
        (["2026-02-30", "2026-01-01"], ["2026-02-30", "2026-01-01"]),
        (["99999999999999999999"], ["99999999999999999999"]),
        (["a%2Fb=c", "__HIVE_DEFAULT_PARTITION__"], ["a/b=c", None]),
        (["__HIVE_DEFAULT_PARTITION__"], [None]),
    ],
)
def test_values_of_folders_have_the_type_that_all_can_have(
    lake: Lake, names: list[str], values: list[Any]
) -> None:
    for number, name in enumerate(names):
        lake.parquet(f"orders/part={name}/a.parquet", pa.table({"id": [number]}))

    assert lake.copy(lake.path("orders"))["part"].to_pylist() == values


def test_names_of_folders_are_taken_apart_before_they_are_decoded(lake: Lake) -> None:
    """A column may have `=` in its name; bytes that are no text are refused, not made one value."""
    lake.parquet("orders/a%3Db=c%3Dd/a.parquet", pa.table({"id": [1]}))
    for name in ("%FF", "%FE"):
        lake.parquet(f"bytes/part={name}/a.parquet", pa.table({"id": [1]}))

    assert lake.copy(lake.path("orders")) == pa.table({"id": [1], "a=b": ["c=d"]})
    assert "it has a folder 'part=%F" in lake.refusal(lake.path("bytes"), DIGEST)


def test_folders_in_folders_name_more_columns(lake: Lake) -> None:
    lake.parquet("orders/year=2026/month=1/a.parquet", pa.table({"id": [1]}))
    lake.parquet("orders/year=2026/month=2/a.parquet", pa.table({"id": [2]}))

    copied = lake.copy(lake.path("orders"))

    assert copied == pa.table({"id": [1, 2], "year": [2026, 2026], "month": [1, 2]})


def test_files_in_folders_of_different_columns_are_no_table(lake: Lake) -> None:
    lake.parquet("orders/day=1/a.parquet")
    lake.parquet("orders/a.parquet")
    lake.parquet("twice/day=1/day=2/a.parquet")

    assert "lie in folders of other columns" in lake.refusal(lake.path("orders"), DIGEST)
    assert "it has a folder 'day=1/day=2'" in lake.refusal(lake.path("twice"), DIGEST)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_versions_share_the_partitions_that_are_equal_in_both(lake: Lake, kind: str) -> None:
    """So what is computed by partitions is computed anew for the others alone."""

    def parts(version: int) -> dict[str | None, str]:
        days = [ORDERS.slice(0, 4), ORDERS.slice(4 + version)]
        table = pa.table({"id": [], "day": []}, ORDERS.schema)
        for number, rows in enumerate(days):
            day = pa.array([f"day {number}"] * rows.num_rows)
            if kind == "parquet":
                lake.parquet(f"orders/day=day {number}/a.parquet", rows.drop_columns("day"))
            table = pa.concat_tables([table, rows.set_column(1, "day", day)])
        if kind == "delta":
            lake.delta("orders", table, mode="overwrite", partition_by=["day"])
        newest = lake.sources.newest(lake.path("orders")).table
        manifest = lake.sources.copy(newest, SHOP, lake.tables)
        assert manifest.partition_by == "day"
        assert manifest.rows == table.num_rows
        return {part.value: part.key for part in manifest.parts}

    before, after = parts(0), parts(1)

    assert before["day 0"] == after["day 0"]
    assert before["day 1"] != after["day 1"]


def test_a_table_that_cannot_be_kept_in_parts_is_kept_whole(lake: Lake) -> None:
    """As one that is partitioned by two columns, or by numbers that are not whole."""
    for name, by, table in [
        ("two", ["id", "day"], ORDERS.append_column("n", ORDERS["id"])),
        ("doubles", ["x"], pa.table({"id": [1, 2], "x": [0.5, 1.5]})),
    ]:
        path = lake.delta(name, table, partition_by=by)

        manifest = lake.sources.copy(PinnedTable(path, 0), SHOP, lake.tables)

        assert manifest.partition_by is None
        assert lake.copy(path) == table


def test_one_file_of_parquet_is_a_table(lake: Lake) -> None:
    assert lake.copy(lake.parquet("orders.parquet")) == ORDERS


def test_what_is_outside_of_the_folders_is_not_read(lake: Lake) -> None:
    """Neither by its path nor by a link of the table, of its log, or of one of its files."""
    secret = lake.outside / "orders"
    write_deltalake(str(secret), ORDERS)
    pq.write_table(ORDERS, lake.outside / "orders.parquet")
    within = Path(lake.delta("within"))
    Path(lake.path("linked")).symlink_to(secret)
    Path(lake.path("parts")).mkdir()
    Path(lake.path("parts/a.parquet")).symlink_to(lake.outside / "orders.parquet")
    Path(lake.path("log")).mkdir()
    Path(lake.path("log/_delta_log")).symlink_to(secret / "_delta_log")
    [data] = within.glob("*.parquet")
    shutil.move(data, lake.outside / data.name)
    data.symlink_to(lake.outside / data.name)

    assert "not below a folder that the operator allows" in lake.refusal(str(secret), 0)
    assert "not below a folder that the operator allows" in lake.refusal("/etc/passwd", 0)
    assert "not below a folder that the operator allows" in lake.refusal(f"{lake.folder}2/a", 0)
    for name, version in [("linked", 0), ("parts", DIGEST), ("log", 0), ("within", 0)]:
        assert "a link to outside" in lake.refusal(lake.path(name), version)
    assert "a link to outside" in lake.refusal(lake.path("parts"))


def test_a_file_that_the_log_names_outside_is_not_read(lake: Lake) -> None:
    """Delta allows paths from the root, as of a clone that shares files."""
    path, secret = Path(lake.delta("orders")), lake.outside / "orders"
    write_deltalake(str(secret), ORDERS)
    [ours], [theirs] = path.glob("*.parquet"), secret.glob("*.parquet")
    entry = path / "_delta_log" / f"{0:020d}.json"
    for absolute in (str(theirs), theirs.as_uri()):
        text = entry.read_text()
        entry.write_text(text.replace(ours.name, absolute, 1))

        assert "a link to outside" in lake.refusal(str(path), 0)

        entry.write_text(text)


def test_nothing_is_read_where_the_operator_allows_nothing(lake: Lake) -> None:
    """The message names the setting."""
    lake.sources = Sources("")

    assert "REBASER_STORE__SOURCES" in lake.refusal(lake.delta("orders"), 0)


def test_a_link_within_the_folders_is_followed(lake: Lake) -> None:
    Path(lake.path("link")).symlink_to(lake.delta("orders"))

    assert lake.copy(lake.path("link"), 0) == ORDERS


def test_a_version_that_was_vacuumed_away_is_refused(lake: Lake) -> None:
    """By the file that is gone, with the newest version."""
    path = lake.delta("orders")
    lake.delta("orders", ORDERS.slice(0, 1), mode="overwrite")
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)

    said = lake.refusal(path, 0)

    assert "version 0 is not whole any more" in said
    assert ".parquet is gone, as after a vacuum" in said
    assert "the newest version is " in said


def test_a_version_whose_log_is_gone_is_refused(lake: Lake) -> None:
    path = lake.delta("orders")
    for _ in range(3):
        lake.delta("orders", mode="append")
    DeltaTable(path).create_checkpoint()
    for version in range(3):
        (Path(path) / "_delta_log" / f"{version:020d}.json").unlink()

    assert "version 1 cannot be read" in lake.refusal(path, 1)


def test_a_version_that_is_not_there_yet_is_refused(lake: Lake) -> None:
    assert "no version 7 yet: the newest is 0" in lake.refusal(lake.delta("orders"), 7)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_file_that_was_cut_off_is_refused(lake: Lake, kind: str) -> None:
    """By its name."""
    if kind == "delta":
        path = Path(lake.delta("orders"))
        [file] = path.glob("*.parquet")
    else:
        path = file = Path(lake.parquet("orders.parquet"))
    os.truncate(file, file.stat().st_size // 2)

    said = lake.refusal(str(path), 0 if kind == "delta" else None)

    assert file.name in said
    assert "cut off" in said or "not a whole file in Parquet" in said


def test_what_is_no_table_is_refused(lake: Lake) -> None:
    """An empty folder, a file of another kind, nothing at all, and a version of the other kind."""
    Path(lake.path("empty")).mkdir()
    Path(lake.path("notes.txt")).write_text("notes")
    lake.parquet("days/may/part.parquet")
    Path(lake.path("log/_delta_log")).mkdir(parents=True)

    assert "it has no _delta_log and no .parquet file" in lake.refusal(lake.path("empty"))
    assert "notes.txt is not a whole file in Parquet" in lake.refusal(lake.path("notes.txt"))
    assert "there is no such file or folder" in lake.refusal(lake.path("lost"))
    assert "it has a folder 'may'" in lake.refusal(lake.path("days"))
    assert "cannot be read" in lake.refusal(lake.path("log"), 0)
    assert "its versions are numbers" in lake.refusal(lake.delta("delta"), DIGEST)
    assert "is their digest" in lake.refusal(lake.parquet("a.parquet"), 0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table([[1], [2]], ["a", "a"]), "two columns are called 'a'"),
        (pa.table([[1], [2]], ["a", "A"]), "differ in upper and lower case"),
        (pa.table({"a": pa.array([timedelta(1)])}), "column 'a' is of type duration"),
        (pa.table({"a": pa.array([0, 1], pa.timestamp("ns"))}), "column 'a' does not fit"),
        (pa.table({f"c{n}": [1] for n in range(MAX_COLUMNS + 1)}), "at most 2,000"),
        (pa.table([pa.array([], pa.int64())], ["a"]).drop(["a"]), "this one has none"),
    ],
)
def test_what_a_table_cannot_keep_is_refused(lake: Lake, table: pa.Table, message: str) -> None:
    """As of an upload."""
    assert message in lake.refusal(lake.parquet("orders.parquet", table))


def test_files_with_different_columns_are_no_table(lake: Lake) -> None:
    lake.parquet("orders/a.parquet")
    lake.parquet("orders/b.parquet", pa.table({"id": [1]}))

    assert "b.parquet has other columns than a.parquet" in lake.refusal(lake.path("orders"))


def test_an_empty_table_is_copied(lake: Lake) -> None:
    assert lake.copy(lake.delta("orders", ORDERS.slice(0, 0))) == ORDERS.slice(0, 0)


def test_columns_that_are_never_null_stay_so(lake: Lake) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string())])
    path = lake.delta("orders", ORDERS.cast(schema))

    assert [field.nullable for field in lake.copy(path).schema] == [False, True]


def test_a_table_beyond_the_limit_is_refused(lake: Lake) -> None:
    """Before it is read, by the setting."""
    lake.sources = Sources(str(lake.folder), max_bytes=100)

    for path in (lake.delta("orders"), lake.parquet("orders.parquet")):
        assert "REBASER_FUNCTIONS__TABLE_BYTES" in lake.refusal(path)


def declare(path: str, reader: int, features: list[str] | None, **configuration: str) -> None:
    """Have the first version of a table declare another protocol, and other properties."""
    entry = Path(path) / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    protocol: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": 7}
    if features is not None:
        protocol["readerFeatures"] = features
    protocol["writerFeatures"] = [*(features or ()), "rowTracking", "generatedColumns"]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = protocol
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], 1):
                mapped = {"id": number, "physicalName": f"c-{number}"}
                field["metadata"] = {f"delta.columnMapping.{key}": v for key, v in mapped.items()}
            action["metaData"]["schemaString"] = json.dumps(schema)
            action["metaData"]["configuration"] = configuration
    entry.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    "feature",
    [
        *("deletionVectors", "columnMapping", "typeWidening", "v2Checkpoint", "variantType"),
        *("variantType-preview", "vacuumProtocolCheck", "of-the-next-year"),
    ],
)
def test_a_feature_of_readers_that_is_not_done_here_is_refused(lake: Lake, feature: str) -> None:
    """Whichever it is, also one that the library knows, and by its name: no row is shown."""
    path = lake.delta("orders")
    declare(path, 3, [feature])

    assert feature in lake.refusal(path, 0)


@pytest.mark.parametrize("mode", ["name", "id", "of-the-next-year"])
@pytest.mark.parametrize("reader", [1, 2])
def test_column_mapping_is_refused_by_its_property(lake: Lake, reader: int, mode: str) -> None:
    """A reader of version 2 has no list of features, and would find null in each column."""
    path = lake.delta("orders")
    declare(path, reader, None, **{"delta.columnMapping.mode": mode})

    for version in (None, 0):
        assert f"column mapping by {mode}" in lake.refusal(path, version)


@pytest.mark.parametrize("reader", [0, 4, 99])
def test_a_reader_version_that_is_not_known_is_refused(lake: Lake, reader: int) -> None:
    path = lake.delta("orders")
    declare(path, reader, None)

    lake.refusal(path, 0)


@pytest.mark.parametrize(("reader", "features"), [(1, None), (2, None), (3, ["timestampNtz"])])
def test_what_is_asked_of_writers_alone_is_no_matter(
    lake: Lake, reader: int, features: list[str] | None
) -> None:
    path = lake.delta("orders")
    declare(path, reader, features, **{"delta.columnMapping.mode": "none"})

    assert lake.copy(path) == ORDERS


def test_files_that_have_other_columns_than_the_table_are_refused(lake: Lake) -> None:
    """A column that came later is null in former files, and no other is."""
    path = lake.delta("orders")
    more = ORDERS.append_column("more", pa.array(range(10)))
    for _ in (1, 2):
        lake.delta("orders", more, mode="append", schema_mode="merge")
    assert lake.copy(path, 1).column("more").null_count == 10

    other = Path(lake.parquet("other.parquet", ORDERS.rename_columns(["ID", "day"])))
    entry = Path(path) / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            shutil.copy(other, Path(path) / action["add"]["path"])
            action["add"]["size"] = other.stat().st_size
    entry.write_text("\n".join(map(json.dumps, actions)))

    assert "has a column 'ID' and none 'id'" in lake.refusal(path, 2)


def test_bytes_that_partition_a_table_are_refused(lake: Lake) -> None:
    """The log has them as escaped text, which would be taken for them."""
    path = lake.delta("orders", pa.table({"id": [1], "raw": [b"\0\xff"]}), partition_by=["raw"])

    assert "it is partitioned by 'raw', bytes" in lake.refusal(path, 0)


@pytest.mark.parametrize("times", [pa.timestamp("us", "UTC"), pa.timestamp("us")])
def test_times_in_names_of_partitions_are_of_a_known_zone(lake: Lake, times: pa.DataType) -> None:
    """Writers write them in the time zone of their session, and do not say which it was."""
    table = pa.table({"id": [1], "at": pa.array([time(2026, 11, 1)], times)})
    path = lake.delta("orders", table, partition_by=["at"])

    if times.tz is None:
        assert lake.copy(path) == table
    else:
        assert "does not say the time zone" in lake.refusal(path, 0)


def time(year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day)  # noqa: DTZ001 - as Arrow takes them


FAR = pa.array([time(1, 1, 1), time(9999, 12, 31), None], pa.timestamp("us"))
"""Times that 64 bits of nanoseconds cannot hold."""


def test_far_times_of_former_writers_are_as_they_were_written(lake: Lake) -> None:
    """INT96, as Hive, Impala and Spark before 3.0 write times."""
    table = pa.table({"at": FAR, "in": pa.array([[each] for each in FAR.to_pylist()])})
    path = lake.path("orders.parquet")
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)

    assert lake.copy(path).column("at").combine_chunks() == FAR.take([0, 1, 2])
    assert lake.copy(path).column("in").combine_chunks().flatten() == FAR


def test_a_column_that_arrow_takes_for_another_is_refused(lake: Lake) -> None:
    """Arrow gives the bytes of it, without a word."""
    path = lake.path("orders.parquet")
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT INTERVAL 3 DAY AS since) TO '{path}'")

    assert "column 'since' is of type Interval" in lake.refusal(path)


@pytest.mark.parametrize("kind", ["variant", "interval day to second", {"type": "udt"}])
def test_a_column_whose_type_spark_alone_tells_is_refused(lake: Lake, kind: Any) -> None:
    """In Parquet it is numbers, or a pair of bytes."""
    field = {"name": "day", "type": {"type": "array", "elementType": kind}}
    said = json.dumps({"type": "struct", "fields": [field]})
    key = "org.apache.spark.sql.parquet.row.metadata"
    path = lake.parquet("orders.parquet", ORDERS.replace_schema_metadata({key: said}))
    assert "a column of type" in lake.refusal(path)

    lake.parquet("orders.parquet", ORDERS.replace_schema_metadata({key: "[" * 100_000}))
    assert "cannot be read" in lake.refusal(path)


@pytest.mark.parametrize(
    "said",
    [
        {"org.apache.spark.version": "2.4.5"},
        {"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyDateTime": ""},
        {"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyINT96": ""},
    ],
)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (date(1582, 10, 14), date(1582, 10, 15)),
        (time(1899, 12, 31), time(1900, 1, 1)),
    ],
)
def test_old_days_in_the_calendar_of_a_former_spark_are_refused(
    lake: Lake, said: dict[str, str], before: date, after: date
) -> None:
    """They are up to ten days away from those that Arrow reads; later ones are the same."""
    for number, day in enumerate((after, before)):
        days = pa.array([None, day])
        pairs = pa.StructArray.from_arrays([pa.array([[], [day]])], ["days"])
        for column in (days, pairs):
            table = pa.table({"id": [1, 2], "day": column}).replace_schema_metadata(said)
            path = lake.parquet(f"{number}.parquet", table)
            if day == after:
                assert lake.copy(path).num_rows == 2
            else:
                assert "as a former Spark counted them" in lake.refusal(path)


def test_old_days_of_today_are_kept(lake: Lake) -> None:
    table = pa.table({"day": [date(1, 1, 1)]})
    table = table.replace_schema_metadata({"org.apache.spark.version": "4.1.0"})

    assert lake.copy(lake.parquet("orders.parquet", table)) == table


def test_want_of_memory_is_no_mistake_of_a_table() -> None:
    """Its request would be refused for it."""
    with pytest.raises(MemoryError), store_sources._reading("a table"):
        raise pa.ArrowMemoryError("malloc of size 64 failed")
