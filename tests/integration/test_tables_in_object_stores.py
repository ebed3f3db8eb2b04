"""Tables of values in S3, as a server on loopback speaks it, and their copies on a disk."""

import io
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from rebaser_core.table_schemas import PARTITION_BY, NotATable
from rebaser_server.files import SharedFiles
from rebaser_server.local_copies import Abandoned, LocalCopies
from rebaser_server.tables import Part, TableFiles, TableMissing
from tests.helpers.batches import new_id
from tests.helpers.machine_requirements import lacking
from tests.helpers.s3_server import BUCKET, s3_running
from tests.unit.tables.test_lifetime import (
    FIELDS,
    KEY,
    OTHER,
    SHOP,
    WHOLE,
    Interrupted,
    collect,
    composed,
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


@pytest.fixture
def near(files: SharedFiles, tmp_path: Path) -> TableFiles:
    """The same tables, with copies in a folder."""
    return TableFiles(files, LocalCopies(files, tmp_path / "copies"))


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


def test_a_store_that_is_away_is_no_bad_upload(tables: TableFiles, tmp_path: Path) -> None:
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


# ---------------------------------------------------------------------------------------- copies


def spark_writes(tables: TableFiles, directory: str, *ids: int) -> None:
    """Write the files that Spark would leave at this URI."""
    folder = Path(tables._near.root) / directory
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.crc").touch()


def copied(tables: TableFiles) -> list[Path]:
    return list(Path(tables._near.root).rglob("*.parquet"))


def paths_of(tables: TableFiles, key: str = KEY) -> list[Path]:
    uris = tables.uris(SHOP, tables.get(SHOP, key).files)
    return [Path(uri.removeprefix("file://")) for uri in uris]


def test_a_cluster_computes_tables_in_a_folder_alone(tables: TableFiles) -> None:
    """The message names what to do instead."""
    with pytest.raises(NotATable, match=r"a folder that it shares .* or REBASER_SPARK__MASTER to"):
        tables.uri(tables.begin(SHOP, KEY))


def test_what_spark_writes_is_uploaded_and_at_hand(near: TableFiles, tables: TableFiles) -> None:
    attempt = near.begin(SHOP, KEY)
    spark_writes(near, attempt.directory, 1, 2)
    assert near.size(attempt)[0] > 0

    near.finish(attempt, FIELDS, 2, "content")

    assert ids_in(tables) == [1, 2]
    [path] = paths_of(near)
    assert pq.read_table(path).num_rows == 2
    names = [path.rpartition("/")[2] for path in everything(tables.files)]
    assert not {"_SUCCESS", ".part-0.parquet.crc"}.intersection(names)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_parts_are_uploaded_one_by_one(near: TableFiles, tables: TableFiles) -> None:
    attempt = near.begin(SHOP, WHOLE)
    for name, ids in (("p=1", [1]), ("p=2", [2, 3])):
        spark_writes(near, f"{attempt.directory}/{name}", *ids)
    assert near.size(attempt)[1] == 2

    for name, key, rows in (("p=1", KEY, 1), ("p=2", OTHER, 2)):
        near.finish_part(attempt, name, FIELDS, Part(name, key, rows, name))
    assert near.copies is not None
    assert near.copies.moved == sum(path.stat().st_size for path in copied(near))
    near.discard(attempt)
    composed(near, WHOLE, KEY, OTHER)

    assert sorted(ids_in(tables, WHOLE)) == [1, 2, 3]
    assert sorted(path.exists() for path in paths_of(near, WHOLE)) == [True, True]
    assert not (Path(near._near.root) / attempt.directory).exists()


def test_what_a_query_reads_is_fetched_once_and_given_up_later(
    tables: TableFiles, tmp_path: Path
) -> None:
    """Copies in use stay, also beyond the limit."""
    written(tables, 1)
    written(tables, 2, key=OTHER)
    copies = LocalCopies(tables.files, tmp_path / "copies", keep=1)
    near = TableFiles(tables.files, copies)
    [one], [other] = paths_of(near), paths_of(near, OTHER)

    held = near.hold([f"file://{one}", f"file://{one}"])
    assert held is not None
    held.fetch()
    moved = copies.moved
    held.fetch()
    also = near.hold([f"file://{one}", f"file://{other}"])
    assert also is not None
    also.fetch()

    assert moved == one.stat().st_size
    assert copies.moved == moved + other.stat().st_size
    also.release()
    assert (one.exists(), other.exists()) == (True, False)
    held.release()
    assert list((tmp_path / "copies").rglob("*.parquet")) == []
    assert list((tmp_path / "copies" / "tables").rglob("*")) == []


def test_a_file_that_is_gone_is_said_so_and_fetched_later(near: TableFiles) -> None:
    written(TableFiles(near.files), 1)
    [path] = paths_of(near)
    place = str(path.relative_to(near._near.root))
    payload = bytes(near.files.get(place))
    near.files.delete(place)
    held = near.hold([f"file://{path}"])
    assert held is not None

    with pytest.raises(FileNotFoundError):
        held.fetch()
    near.files.put(place, payload)
    held.fetch()
    held.release()

    assert path.read_bytes() == payload


def test_what_is_stopped_or_discarded_leaves_no_table(
    near: TableFiles, tables: TableFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor half a file; also if some of its files are in the store already."""
    attempt = near.begin(SHOP, KEY)
    spark_writes(near, attempt.directory, 1)
    sound = near.files.put

    def put(path: str, payload: Any, **options: Any) -> None:
        near.abandon(attempt)
        sound(path, payload, **options)

    monkeypatch.setattr(near.files, "put", put)
    with pytest.raises((Abandoned, FileNotFoundError)):
        near.finish(attempt, FIELDS, 1, "content")
    near.discard(attempt)

    assert tables.find(SHOP, KEY) is None
    assert everything(tables.files) == []
    with pytest.raises(TableMissing):
        tables.get(SHOP, KEY)


def test_a_process_that_dies_before_the_manifest_leaves_only_an_attempt(
    near: TableFiles, tables: TableFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    attempt = near.begin(SHOP, KEY)
    spark_writes(near, attempt.directory, 1)
    with monkeypatch.context() as patched:
        patched.setattr(near.files, "put_if_absent", die)
        with pytest.raises(Died):
            near.finish(attempt, FIELDS, 1, "content")

    assert tables.find(SHOP, KEY) is None
    assert tables.abandoned(found(tables), 4e9) == [attempt]
    collect(tables)
    collect(tables)
    assert everything(tables.files) == []


def test_a_store_that_is_away_when_spark_is_done_has_no_table(
    tables: TableFiles, tmp_path: Path
) -> None:
    """The error is the store's, and what was written is removed here."""
    with s3_running() as options:
        files = SharedFiles(tables.files.root, options)
        near = TableFiles(files, LocalCopies(files, tmp_path / "copies"))
        attempt = near.begin(SHOP, KEY)
        spark_writes(near, attempt.directory, 1)

    with pytest.raises(OSError, match="AWS Error"):
        near.finish(attempt, FIELDS, 1, "content")
    with pytest.raises(OSError, match="AWS Error"):
        near.discard(attempt)

    assert list((tmp_path / "copies").rglob("*.parquet")) == []
    assert tables.find(SHOP, KEY) is None


def test_a_disk_without_room_for_a_copy_is_named(near: TableFiles) -> None:
    if not Path("/dev/full").exists():
        lacking("/dev/full", "run it on Linux")
    written(TableFiles(near.files), 1)
    [path] = paths_of(near)
    (Path(near._near.root) / "unfinished").mkdir(parents=True)
    held = near.hold([f"file://{path}"])
    assert held is not None
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        patched.setattr("rebaser_server.files.uuid4", lambda: type("U", (), {"hex": "full"}))
        (Path(near._near.root) / "unfinished" / "full").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left on device"):
            held.fetch()
    held.release()
    assert not path.exists()
