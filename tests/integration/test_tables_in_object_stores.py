"""Tables of values in S3, as a server on loopback speaks it."""

import io
from collections.abc import Iterator
from threading import Barrier, Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from rebaser_core.table_schemas import PARTITION_BY, kept_schema, spark_fields
from rebaser_server.files import SharedFiles
from rebaser_server.tables import Attempt, Manifest, TableFiles, TableMissing, WrittenPart
from tests.helpers.batches import new_id
from tests.helpers.s3_server import BUCKET, s3_running
from tests.unit.tables.test_lifetime import (
    KEY,
    OTHER,
    SHOP,
    WHOLE,
    Interrupted,
    begun,
    collect,
    found,
    ids_in,
    require_stays,
    written,
)


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    with s3_running() as options:
        yield options


@pytest.fixture
def files(options: dict[str, str]) -> SharedFiles:
    return SharedFiles(f"s3://{BUCKET}/tables of/{new_id()}", options)


@pytest.fixture
def tables(files: SharedFiles) -> TableFiles:
    return TableFiles(files)


def everything(files: SharedFiles) -> list[str]:
    """All that is in the store, directories too."""
    return [info.path for info in files.list_infos("", recursive=True)]


# ----------------------------------------------------------------------------------------- files


def test_of_many_who_put_a_file_at_one_moment_one_wins(files: SharedFiles) -> None:
    """Each of them reads then what that one has put."""
    together, seen = Barrier(8), []

    def put(number: int) -> None:
        mine = SharedFiles(files.root, files._options)
        together.wait()
        mine.put_if_absent("note", b"%d" % number)
        seen.append(bytes(mine.get("note")))

    threads = [Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_what_is_deleted_or_renamed_leaves_no_directory(files: SharedFiles) -> None:
    files.put("a/b/one", b"1")
    files.put("a/b/c/two", b"2")
    files.put("a/bc", b"3")

    files.rename("a/b/one", "d/one")
    assert bytes(files.get("d/one")) == b"1"
    files.delete("d/one")
    files.delete("d/one")
    files.delete_directory("a/b")
    files.delete_directory("a/b")

    assert sorted(path.rpartition("/")[2] for path in everything(files)) == ["a", "bc"]
    with pytest.raises(FileNotFoundError):
        files.rename("a/b/one", "d/one")


def test_a_file_whose_writing_fails_is_not_there(files: SharedFiles) -> None:
    def fail(sink: pa.NativeFile) -> None:
        sink.write(b"x" * (6 << 20))
        raise ValueError("no more rows")

    with pytest.raises(ValueError, match="no more rows"):
        files.put("a/one", fail)

    assert everything(files) == []


def test_a_store_that_is_away_is_no_bad_upload(tables: TableFiles) -> None:
    """The request waits for the store, and is not refused."""
    with s3_running() as options:
        away = TableFiles(SharedFiles(tables.files.root, options))

    with pytest.raises(OSError, match=r"AWS Error NETWORK_CONNECTION|error sending request"):
        away.adopt(SHOP, KEY, parquet(pa.table({"id": [1]})))


# ---------------------------------------------------------------------------------------- tables


def parquet(table: pa.Table, partition_by: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)
        if partition_by is not None:
            writer.add_key_value_metadata({PARTITION_BY: partition_by})
    return sink.getvalue()


@pytest.mark.parametrize("by", [None, "day"])
def test_an_upload_is_kept_and_collected_without_a_trace(
    tables: TableFiles, by: str | None
) -> None:
    rows = pa.table({"id": range(9), "day": [f"d{n % 3}" for n in range(9)]})
    payload = parquet(rows, by)
    digest = blake3(payload).hexdigest()

    manifest = tables.adopt(SHOP, digest, payload)

    assert tables.find(SHOP, digest) == manifest
    assert len(manifest.parts) == (3 if by else 0)
    assert sorted(ids_in(tables, digest)) == [*range(9)]
    for _ in range(5):
        collect(tables)
    assert everything(tables.files) == []


def test_two_attempts_that_finish_at_one_moment_are_one_table(tables: TableFiles) -> None:
    """Both make a commit that names what is there."""
    together, made = Barrier(2), []

    class Racing(TableFiles):
        looks = 0

        def find(self, workspace: str, key: str) -> Any:
            self.looks += 1
            if self.looks > 1:
                return super().find(workspace, key)
            together.wait()
            return None

    def finish(number: int) -> None:
        mine = SharedFiles(tables.files.root, tables.files._options)
        attempt = written(Racing(mine), *range(number))
        made.append((attempt, mine))

    threads = [Thread(target=finish, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 2
    assert len(found(tables).attempts) == 1
    assert tables.find(SHOP, KEY) is not None


class _Interrupted(Interrupted):
    """As of a folder, at the calls that an object store answers."""

    counted = ("get", "has", "list_infos", "put", "put_if_absent", "rename", "delete")


@pytest.mark.long
@pytest.mark.parametrize("call", range(3, 8))
@pytest.mark.parametrize("how", ["written", "renewed"])
def test_a_table_that_is_found_while_it_is_removed_stays(
    tables: TableFiles, call: int, how: str
) -> None:
    """Also between the two steps of a renaming."""
    removing = _Interrupted(tables.files.root, tables.files._options)
    require_stays(tables, removing, call, how)


@pytest.mark.long
@pytest.mark.parametrize("call", range(7, 13))
def test_a_table_that_is_removed_while_it_is_written_anew_is_there(
    tables: TableFiles, call: int
) -> None:
    written(tables, 1)
    tables.condemn(SHOP, KEY)
    seen = found(tables)
    writing = _Interrupted(tables.files.root, tables.files._options)
    writing.calls, writing.meanwhile = call, lambda: tables.remove(seen)

    written(TableFiles(writing), 2)

    assert ids_in(tables) == [2]


@pytest.mark.parametrize(
    ("until", "at"),
    [
        (4, 11),
        *(
            pytest.param(until, at, marks=pytest.mark.long)
            for until in (4, 5)
            for at in range(8, 13)
            if (until, at) != (4, 11)
        ),
    ],
)
def test_a_table_that_is_written_and_removed_in_turns_is_there(
    tables: TableFiles, until: int, at: int
) -> None:
    """The removal begins; the table is written for some steps; each goes on in its turn.

    4 is before the removal deletes the manifest that it has copied, 11 before the mark goes.
    """
    written(tables, 1)
    tables.condemn(SHOP, KEY)
    seen = found(tables)
    removing = _Interrupted(tables.files.root, tables.files._options)
    writing = _Interrupted(tables.files.root, tables.files._options)
    has_begun, is_removed = Event(), Event()

    def wait() -> None:
        has_begun.set()
        assert is_removed.wait(60)

    def write() -> None:
        written(TableFiles(writing), 2)
        has_begun.set()

    def begin_writing() -> None:
        thread.start()
        assert has_begun.wait(60)

    removing.calls, removing.meanwhile = until, begin_writing
    writing.calls, writing.meanwhile = at, wait
    thread = Thread(target=write)
    TableFiles(removing).remove(seen)
    is_removed.set()
    thread.join()

    assert tables.find(SHOP, KEY) is not None
    assert ids_in(tables) in ([1], [2])


# ----------------------------------------------------------------------------------------- parts


def test_parts_take_the_files_that_a_query_has_written(tables: TableFiles) -> None:
    attempt, rows = tables.begin(SHOP, WHOLE), pa.record_batch({"day": ["a", "b", "b"]})
    schema = kept_schema(rows.schema)
    apart = tables.write_apart(attempt, schema, "day", [rows])

    keys = {"a": KEY, "b": OTHER}
    for value, (seen, of_part) in apart.items():
        found = WrittenPart(value, seen.rows, seen.text, of_part)
        tables.finish_part(SHOP, keys[value or ""], spark_fields(schema), found)
    tables.discard(attempt)

    assert [tables.get(SHOP, key).rows for key in (KEY, OTHER)] == [1, 2]
    batches = tables.batches(SHOP, tables.get(SHOP, OTHER), ["day"])
    assert [row["day"] for batch in batches for row in batch.to_pylist()] == ["b", "b"]
    assert not tables.files.list_names(attempt.directory)


def test_parts_are_finished_and_looked_for_side_by_side(tables: TableFiles) -> None:
    """Each takes several requests, one after the other: a year of days would take minutes."""

    class Meeting(SharedFiles):
        together = Barrier(2, timeout=60)

        def get(self, path: str) -> bytes:
            self.together.wait()
            return super().get(path)

    attempt, rows = tables.begin(SHOP, WHOLE), pa.record_batch({"day": ["a", "b", "b"]})
    schema = kept_schema(rows.schema)
    apart = tables.write_apart(attempt, schema, "day", [rows])
    parts = [
        (key, WrittenPart(value, seen.rows, seen.text, files))
        for key, (value, (seen, files)) in zip((KEY, OTHER), apart.items(), strict=True)
    ]
    meeting = TableFiles(Meeting(tables.files.root, tables.files._options))

    finished = meeting.finish_parts(SHOP, spark_fields(schema), parts)

    assert [(part.value, part.rows) for part in finished] == [("a", 1), ("b", 2)]
    there = meeting.find_all(SHOP, [KEY, OTHER])
    assert [each.rows for each in there if each] == [1, 2]


def test_parts_are_written_side_by_side(tables: TableFiles) -> None:
    class Meeting(SharedFiles):
        together = Barrier(2, timeout=60)

        def put(self, path: str, payload: Any, **options: Any) -> None:
            self.together.wait()
            super().put(path, payload, **options)

    files = Meeting(tables.files.root, tables.files._options)

    apart = write_days(TableFiles(files), tables.begin(SHOP, WHOLE), 4)

    assert [(value, seen.rows, len(of_part)) for value, (seen, of_part) in apart.items()] == [
        (f"d{day}", 2, 1) for day in range(4)
    ]
    paths = {file.path for _, of_part in apart.values() for file in of_part}
    assert len(paths) == 4


def write_days(tables: TableFiles, attempt: Attempt, count: int) -> dict[str | None, Any]:
    rows = pa.record_batch({"day": [f"d{n % count}" for n in range(2 * count)]})
    return tables.write_apart(attempt, kept_schema(rows.schema), "day", [rows])


class _Read(SharedFiles):
    """Notes which files are read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.paths: list[str] = []

    def get(self, path: str) -> bytes:
        self.paths.append(path)
        return super().get(path)


def days_in(tables: TableFiles, count: int) -> Manifest:
    """A table of that many files."""
    apart = write_days(tables, tables.begin(SHOP, WHOLE), count).values()
    files = [file for _, of_part in apart for file in of_part]
    return Manifest(spark_fields(pa.schema({"day": pa.string()})), files, 2 * count, "")


def test_small_files_are_read_ever_more_at_a_time(tables: TableFiles) -> None:
    """The first is read alone, for a page that shows its rows; each of a year of days is not."""

    class Meeting(_Read):
        together = Barrier(2, timeout=60)

        def get(self, path: str) -> bytes:
            data = super().get(path)
            if path != self.paths[0]:
                self.together.wait()
            return data

    files = Meeting(tables.files.root, tables.files._options)
    batches = TableFiles(files).batches(SHOP, days_in(tables, 3), ["day"])

    rows = next(batches).to_pylist()
    assert len(files.paths) == 1
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert [row["day"] for row in rows] == ["d0", "d0", "d1", "d1", "d2", "d2"]


def test_large_files_are_read_one_after_the_other(
    tables: TableFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of them were in memory."""
    manifest = days_in(tables, 3)
    monkeypatch.setattr("rebaser_server.tables._WAITING_BYTES", 1)
    files = _Read(tables.files.root, tables.files._options)

    read = [len(files.paths) for _ in TableFiles(files).batches(SHOP, manifest, ["day"])]

    assert read == [1, 2, 3]


def test_a_file_is_read_in_one_request_and_its_damage_found(tables: TableFiles) -> None:
    written(tables, 1, 2)

    class Counting(_Read):
        def get_buffer(self, path: str) -> pa.Buffer:
            self.paths.append(path)
            return super().get_buffer(path)

        def open(self, path: str) -> pa.NativeFile:
            self.paths.append(path)
            return super().open(path)

    files = Counting(tables.files.root, tables.files._options)
    assert ids_in(TableFiles(files)) == [1, 2]
    assert sum(path.endswith(".parquet") for path in files.paths) == 1

    path = next(path for path in files.paths if path.endswith(".parquet"))
    data = bytearray(files.get(path))
    data[30] ^= 1
    files.put(path, bytes(data))
    with pytest.raises(TableMissing, match="is damaged"):
        ids_in(TableFiles(files))
    assert tables.find(SHOP, KEY) is None


def test_what_is_discarded_leaves_no_table(tables: TableFiles) -> None:
    begun(tables, 1)
    attempt = begun(tables, 2)

    tables.discard(attempt)
    collect(tables)
    collect(tables)

    assert tables.find(SHOP, KEY) is None
    assert everything(tables.files) == []
    with pytest.raises(TableMissing):
        tables.get(SHOP, KEY)
