"""Published tables: each version once, never older rows over newer ones, readable by anything."""

import io
import json
import shutil
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Barrier, Thread

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from deltalake import DeltaTable

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.table_schemas import PARTITION_BY
from rebaser_server.files import SharedFiles
from rebaser_server.store.publications import HeadTables, Publications, folder_of
from rebaser_server.tables import TableFiles, TableMissing

HEAD = ChangeSet(WorkspaceId(), ChangeSetId())
APP = str(HEAD.change_set_id)
DAY = 86_400.0


class Shelf:
    """A store with tables, and a folder in which they are published."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / "published"
        self.tables = TableFiles(SharedFiles(str(directory / "store")))
        self.publications = self.another()

    def another(self, keep_replaced: float = DAY) -> Publications:
        """Those of another Rebaser."""
        return Publications(self.folder, self.tables, keep_replaced)

    def table(self, rows: pa.Table | int) -> str:
        """Key of a table in the store."""
        content = pa.table({"id": range(rows)}) if isinstance(rows, int) else rows
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, content.schema) as writer:
            writer.write_table(content)
            if "day" in content.schema.names:
                writer.add_key_value_metadata({PARTITION_BY: "day"})
        key = blake3(sink.getvalue()).hexdigest()
        self.tables.adopt(str(HEAD.workspace_id), key, sink.getvalue())
        return key

    def publish(self, commit: int, **tables: pa.Table | int) -> int:
        return self.publications.publish(HEAD, self.state(commit, tables))

    def state(self, commit: int, tables: Mapping[str, pa.Table | int], *failed: str) -> HeadTables:
        return HeadTables(commit, {name: self.table(r) for name, r in tables.items()}, failed)

    def path(self, name: str) -> str:
        return str(self.folder / str(HEAD.workspace_id) / folder_of(name))

    def delta(self, name: str, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.path(name), version=version)

    def rows(self, name: str, version: int | None = None) -> int:
        return int(self.delta(name, version).to_pyarrow_table().num_rows)

    def commits(self, name: str) -> list[int]:
        """The commit that each version names, the first version first."""
        log = Path(self.path(name)) / "_delta_log"
        entries = [path.read_text().splitlines() for path in sorted(log.glob("*.json"))]
        actions = [json.loads(line) for lines in entries for line in lines]
        return [action["txn"]["version"] for action in actions if "txn" in action]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_each_commit_that_changes_a_table_is_a_version(shelf: Shelf) -> None:
    """A table that is as before gets none."""
    written = [shelf.publish(3, orders=1, parts=9), shelf.publish(5, orders=2, parts=9)]
    written += [shelf.publish(6, orders=2, parts=9), shelf.publish(7, orders=1, parts=9)]

    assert written == [2, 1, 0, 1]
    assert shelf.commits("orders") == [3, 5, 7]
    assert shelf.commits("parts") == [3]
    assert [shelf.rows("orders", version) for version in range(3)] == [1, 2, 1]
    assert shelf.delta("orders").transaction_version(APP) == 7
    assert json.loads(shelf.delta("orders").history(1)[0]["userMetadata"])["commit"] == 7


def test_a_partitioned_table_is_published_with_the_rows_of_all_parts(shelf: Shelf) -> None:
    """Each version has those of its commit; equal parts are copied once."""
    for commit, amount in ((1, 5), (2, 6)):
        rows = pa.table({"day": ["mon", "tue", None], "amount": [amount, 7, 8]})
        shelf.publish(commit, orders=rows)

    read = [shelf.delta("orders", version).to_pyarrow_table().to_pylist() for version in (0, 1)]
    assert [sorted(row["amount"] for row in rows) for rows in read] == [[5, 7, 8], [6, 7, 8]]
    files = [set(shelf.delta("orders", version).file_uris()) for version in (0, 1)]
    assert len(files[0] & files[1]) == 2, "those of two days are shared"


def test_a_shared_file_that_was_lost_is_brought_again(shelf: Shelf) -> None:
    shelf.publish(1, orders=pa.table({"day": ["mon", "tue"], "amount": [5, 7]}))
    for file in Path(shelf.path("orders")).glob("*.parquet"):
        file.unlink()

    shelf.publish(2, orders=pa.table({"day": ["mon", "tue"], "amount": [6, 7]}))

    rows = shelf.delta("orders").to_pyarrow_table().to_pylist()
    assert sorted(row["amount"] for row in rows) == [6, 7]


def test_duckdb_polars_and_deltalake_read_equal_rows_of_all_types(shelf: Shelf) -> None:
    """Also of a table that comes to have other columns, which is not published twice either."""
    shelf.publish(1, orders=3)
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "Straße": ["ä", None],
            "on": [date(2026, 1, 2), date(1, 1, 1)],
            "at": [datetime(2026, 1, 2, 3, tzinfo=UTC), None],
            "local": [datetime(2026, 1, 2, 3, 4, 5, 6), None],  # noqa: DTZ001
            "price": [Decimal("1.10"), Decimal("-2.25")],
            "tags": [["a"], []],
            "where": [{"x": 1.5}, {"x": None}],
            "raw": [b"\x00", b""],
        }
    )
    rows = rows.cast(rows.schema.set(0, pa.field("id", pa.int64(), nullable=False)))
    shelf.publish(2, orders=rows)

    dataset = shelf.delta("orders").to_pyarrow_dataset()
    expected = rows.to_pylist()
    assert dataset.to_table().to_pylist() == expected
    assert pl.scan_delta(shelf.path("orders")).collect().to_dicts() == expected
    query = 'SELECT id, "Straße", price FROM dataset ORDER BY id'
    found = duckdb.connect().execute(query).fetchall()
    assert found == [(1, "ä", Decimal("1.10")), (2, None, Decimal("-2.25"))]
    assert shelf.delta("orders").protocol().min_reader_version == 3
    assert not shelf.delta("orders").schema().fields[0].nullable
    assert shelf.rows("orders", 0) == 3
    (shelf.folder / str(HEAD.workspace_id) / "published.json").unlink()
    assert shelf.publish(3, orders=rows) == 0


def test_what_is_no_table_any_more_is_empty_and_keeps_its_columns(shelf: Shelf) -> None:
    """It comes back as a further version. A value that failed keeps its last rows."""
    shelf.publish(1, orders=3, parts=4)
    shelf.publications.publish(HEAD, shelf.state(2, {}, "parts"))

    assert shelf.rows("orders") == 0
    assert shelf.delta("orders").schema().fields[0].name == "id"
    assert shelf.rows("parts") == 4
    assert shelf.publications.names(HEAD) == ["parts"]
    assert shelf.publish(3, orders=3, parts=4) == 1
    assert shelf.rows("orders") == 3


def test_nothing_is_published_twice_if_the_note_is_lost(shelf: Shelf) -> None:
    """A process that died before it wrote the note down, too, leaves that to the next one."""
    shelf.publish(1, orders=1)
    shelf.publish(2, orders=2)
    note = shelf.folder / str(HEAD.workspace_id) / "published.json"
    note.unlink()

    assert shelf.another().is_behind(HEAD, 2)
    assert shelf.publish(2, orders=2) == 0
    note.write_text("spoiled")
    assert shelf.publish(4, orders=2) == 0
    assert not shelf.another().is_behind(HEAD, 4)
    assert shelf.publish(5, orders=3) == 1
    assert shelf.commits("orders") == [1, 2, 5]


def test_an_older_state_is_not_published_over_a_newer_one(shelf: Shelf) -> None:
    shelf.publish(1, orders=1)
    slow = shelf.table(2)
    shelf.publish(9, orders=3)
    (shelf.folder / str(HEAD.workspace_id) / "published.json").unlink()

    assert shelf.another().publish(HEAD, HeadTables(5, {"orders": slow}, ())) == 0

    assert shelf.rows("orders") == 3
    assert shelf.commits("orders") == [1, 9]


def test_of_publishers_that_race_each_commit_has_one_version(shelf: Shelf) -> None:
    """One that was slow may add an older state behind a look at a newer one: the next look sees it.

    The state of the newer one may be that of before, so that it adds nothing itself.
    """
    for round_ in range(1, 16):
        tables = [1, 2, 3, 3 if round_ % 2 else 4]
        states = [
            HeadTables(10 * round_ + number, {"t": shelf.table(rows)}, ())
            for number, rows in enumerate(tables)
        ]
        start = Barrier(len(states))

        def publish(state: HeadTables, start: Barrier = start) -> None:
            start.wait()
            shelf.another().publish(HEAD, state)

        threads = [Thread(target=publish, args=(state,)) for state in states]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shelf.publications.publish(HEAD, states[-1])

        commits = shelf.commits("t")
        assert commits == sorted(set(commits))
        assert shelf.rows("t") == tables[-1]


def test_a_log_is_summed_up_and_goes_on(shelf: Shelf) -> None:
    for commit in range(1, 25):
        shelf.publish(commit, orders=commit)

    log = Path(shelf.path("orders")) / "_delta_log"
    assert [path.name[18:20] for path in sorted(log.glob("*.checkpoint.parquet"))] == ["10", "20"]
    assert (shelf.rows("orders"), shelf.delta("orders").version()) == (24, 23)
    assert shelf.rows("orders", 12) == 13


def test_replaced_files_go_after_a_time(shelf: Shelf) -> None:
    """Also those that a publisher left that died before its version."""
    shelf.publish(1, orders=1)
    folder = Path(shelf.path("orders"))
    (folder / f"{'0' * 32}-1.parquet").write_bytes(b"left")
    shelf.publish(2, orders=2)
    shelf.publish(3, orders=3)
    assert shelf.rows("orders", 0) == 1
    assert not shelf.publications.is_behind(HEAD, 3)

    later = shelf.another(keep_replaced=-1)
    assert later.is_behind(HEAD, 3)
    assert later.publish(HEAD, HeadTables(3, {"orders": shelf.table(3)}, ())) == 0

    assert [file.name.partition("-")[2] for file in folder.glob("*.parquet")] == ["3.parquet"]
    assert shelf.rows("orders") == 3
    assert not later.is_behind(HEAD, 3)


def test_a_table_whose_folder_was_removed_is_published_anew(shelf: Shelf) -> None:
    shelf.publish(1, orders=1, parts=2)
    shutil.rmtree(shelf.path("orders"))

    assert shelf.publish(2, orders=1, parts=2) == 1

    assert shelf.rows("orders") == 1


def test_what_another_program_changed_is_put_right(shelf: Shelf) -> None:
    """At the next commit, also if that changes nothing: no commit is published twice."""
    shelf.publish(1, orders=5)
    shelf.delta("orders").delete("id > 2")
    assert shelf.publish(1, orders=5) == 0
    assert shelf.rows("orders") == 3

    shelf.publish(2, orders=5)

    assert shelf.rows("orders") == 5
    assert shelf.commits("orders") == [1, 2]


def test_one_table_that_fails_holds_up_no_other(shelf: Shelf) -> None:
    """It is published at the next try."""
    orders, parts = shelf.table(1), shelf.table(2)
    directory = shelf.tables.files.root + f"/tables/{HEAD.workspace_id}/{orders}"
    shutil.move(directory, directory + "-away")
    state = HeadTables(1, {"orders": orders, "parts": parts}, ())
    with pytest.raises(TableMissing, match="not whole in the store"):
        shelf.publications.publish(HEAD, state)
    assert shelf.rows("parts") == 2
    assert shelf.publications.is_behind(HEAD, 1)

    shutil.move(directory + "-away", directory)
    assert shelf.publications.publish(HEAD, state) == 1

    assert shelf.rows("orders") == 1


def test_who_writes_to_a_published_file_does_not_write_to_the_store(shelf: Shelf) -> None:
    shelf.publish(1, orders=4)

    [published] = Path(shelf.path("orders")).glob("*.parquet")
    with published.open("r+b") as file:
        file.write(b"other")

    [stored] = Path(shelf.tables.files.root).rglob("*.parquet")
    assert stored.read_bytes()[:4] == b"PAR1"


def test_damaged_rows_are_not_published(shelf: Shelf) -> None:
    """The last version stays, and the table is missing, so that it is made anew."""
    shelf.publish(1, orders=4)
    state = shelf.state(2, {"orders": 5})
    stored = max(Path(shelf.tables.files.root).rglob("*.parquet"), key=lambda p: p.stat().st_mtime)
    data = bytearray(stored.read_bytes())
    data[20] ^= 1
    stored.write_bytes(data)

    with pytest.raises(TableMissing, match="damaged"):
        shelf.publications.publish(HEAD, state)

    assert shelf.rows("orders") == 4
    with pytest.raises(TableMissing, match="not whole"):
        shelf.publications.publish(HEAD, state)
    shelf.publish(2, orders=5)
    assert shelf.rows("orders") == 5


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("by_day", "by_day"),
        ("sales/eu.orders-1", "sales~2Feu.orders-1"),
        ("../x", "~2E.~2Fx"),
        ("_hidden", "~5Fhidden"),
        ("a b~%=:", "a~20b~7E~25~3D~3A"),
        ("Größe", "Gr~C3~B6~C3~9Fe"),
        ("€", "~E2~82~AC"),
    ],
)
def test_the_folder_of_a_value_is_safe_and_says_its_name(
    shelf: Shelf, name: str, folder: str
) -> None:
    assert folder_of(name) == folder
    shelf.publications.publish(HEAD, shelf.state(1, {name: 3}))
    assert shelf.rows(name) == 3
    assert pl.scan_delta(shelf.path(name)).collect().height == 3
    assert shelf.delta(name).metadata().name == name


def test_long_names_are_cut_and_stay_distinct(shelf: Shelf) -> None:
    names = ["/" * 512, "/" * 511 + "x", "ü" * 512]
    folders = {folder_of(name) for name in names}

    assert len(folders) == 3
    assert all(len(folder.encode()) <= 200 for folder in folders)
    shelf.publications.publish(HEAD, shelf.state(1, dict.fromkeys(names, 2)))
    assert shelf.delta(names[1]).metadata().name == names[1]
