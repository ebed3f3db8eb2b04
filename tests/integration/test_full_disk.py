"""A store whose disk is full refuses a write, keeps what it has, and takes it once it can."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rebaser_server.compute.errors import SessionFailed
from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import RunStore
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.files import BatchFiles, SharedFiles
from rebaser_server.runtime.failures import DiskFull
from rebaser_server.runtime.transient_errors import is_transient
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.compaction import compact
from tests.helpers.checkpoint_writer import CHANGE_SET, graph_of, saved
from tests.helpers.graph_builder import Builder
from tests.helpers.machine_requirements import lacking
from tests.helpers.table_sheet import TableSheet
from tests.unit.store.test_publications import Shelf

OCTETS = 2 << 20
SCRATCH = 256 << 20
"""Bytes for a Spark's own files and those of its queries."""
FULL = "No space left on device|Generic LocalFileSystem error"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    with mounted(tmp_path / "disk", OCTETS) as directory:
        yield directory


@contextmanager
def mounted(directory: Path, octets: int) -> Iterator[Path]:
    """A file system of that size there, while the body runs."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={octets}", "tmpfs", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        lacking("the right to mount", "run the test as root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def full(disk: Path, left: int = 0) -> Iterator[None]:
    """While no more than `left` octets have room."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        written = 1
        while written:
            try:
                written = file.write(bytes(4096))
            except OSError:
                break
        file.truncate(max(0, file.tell() - left))
    try:
        yield
    finally:
        filler.unlink()


@pytest.mark.parametrize("left", [0, 4096, 65_536])
def test_a_file_is_as_it_was_until_there_is_room(disk: Path, left: int) -> None:
    batches = BatchFiles(SharedFiles(str(disk / "store")))
    batches.put("key", b"before")

    with full(disk, left):
        with pytest.raises(OSError, match=FULL) as refused:
            batches.put("key", bytes(100_000))
        kept = batches.get("key")
    batches.put("key", bytes(100_000))

    assert is_transient(refused.value)
    assert str(disk) in str(refused.value)
    assert kept == b"before"
    assert batches.get("key") == bytes(100_000)


async def test_an_update_without_room_for_its_result_is_no_fault_of_its_values(disk: Path) -> None:
    build = Builder()
    build.source("large", "x" * 100_000)
    build.dependent("it", "identity", {"value": "large"})
    units = plan(build.graph, slots=1).units
    store = RunStore(SharedFiles(str(disk / "store")), "ab" * 32)
    executor = ChildProcessExecutor()

    try:
        with full(disk), pytest.raises(DiskFull, match=FULL) as refused:
            await executor.run(units, Run(store=store))
        [result] = await executor.run(units, Run(store=store))
    finally:
        await executor.close()

    assert is_transient(refused.value)
    assert len(result) == 1


@pytest.mark.spark
async def test_a_spark_without_room_to_start_is_away_and_says_where_to_make_some(
    disk: Path,
) -> None:
    executor = SparkExecutor(SparkOptions(disk / "spark"))

    with full(disk), pytest.raises(SessionFailed, match="No space left") as refused:
        await executor.start()

    assert is_transient(refused.value)
    assert "make room in REBASER_SPARK__STATE_DIRECTORY" in str(refused.value)
    assert str(disk) in str(refused.value)
    assert str(refused.value) in str(executor.absence)
    await executor.close()


@pytest.mark.parametrize("left", [0, 4096, 8192])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "added"])
def test_a_checkpoint_is_the_one_before_until_there_is_room(
    disk: Path, left: int, whole: bool
) -> None:
    checkpoints = Checkpoints(str(disk / "store"))
    saved(checkpoints, graph_of(1), 1, whole=True)

    with full(disk, left):
        with pytest.raises(OSError, match=FULL) as refused:
            saved(checkpoints, graph_of(2), 2, whole=whole)
        kept = Checkpoints(str(disk / "store")).load(CHANGE_SET)
    saved(checkpoints, graph_of(2), 2, whole=whole)

    assert is_transient(refused.value)
    assert kept is not None
    assert (kept.commit, {v.value for v in kept.graph.values.values()}) == (1, {1})
    again = checkpoints.load(CHANGE_SET)
    assert again is not None
    assert (again.commit, {v.value for v in again.graph.values.values()}) == (2, {2})


def test_a_first_checkpoint_is_none_until_there_is_room(disk: Path) -> None:
    checkpoints = Checkpoints(str(disk / "store"))

    with full(disk):
        with pytest.raises(OSError, match=FULL):
            saved(checkpoints, graph_of(1), 1, whole=True)
        assert checkpoints.last_commit(CHANGE_SET) == 0
    saved(checkpoints, graph_of(1), 1, whole=True)

    assert checkpoints.last_commit(CHANGE_SET) == 1


def test_a_compaction_changes_nothing_until_there_is_room(disk: Path) -> None:
    checkpoints, last = Checkpoints(str(disk / "store")), 8
    for commit in range(1, last + 1):
        saved(checkpoints, graph_of(commit), commit)

    with full(disk):
        with pytest.raises(OSError, match=FULL):
            compact(checkpoints, CHANGE_SET, last, 3600)
        kept = checkpoints.load(CHANGE_SET)
    step = compact(checkpoints, CHANGE_SET, last, 3600)

    assert step == "superseded rows dropped"
    assert kept is not None
    assert kept.commit == last


# ---------------------------------------------------------------------------------------- tables

NUMBERS = "SELECT id, id * :factor AS many FROM range(300000)"
SPREAD = (
    "SELECT id % 100000 AS key, max(sha2(CAST(id AS string), 256)) AS text FROM range(300000) "
    "GROUP BY key"
)


@pytest.mark.spark
@pytest.mark.long
async def test_a_table_without_room_in_the_store_is_no_fault_of_its_query(
    disk: Path, tmp_path: Path
) -> None:
    """It is computed once there is room, and nothing else is left."""
    executor = SparkExecutor(SparkOptions(tmp_path / "spark", master="local[2]"))
    sheet = TableSheet(executor, disk / "store")
    sheet.source("factor", 2)
    sheet.query("numbers", NUMBERS, "factor")
    sheet.query("doubled", "SELECT many FROM numbers WHERE id < 9", "numbers")

    try:
        with full(disk), pytest.raises(OSError, match=FULL) as refused:
            await sheet.compute()
        await sheet.compute()
    finally:
        await sheet.close()
        await executor.close()

    assert is_transient(refused.value)
    assert str(disk) in str(refused.value)
    assert {row["many"] for row in sheet.rows("doubled")} == {*range(0, 18, 2)}
    stored = list(sheet.tables.stored())
    assert [len(table.attempts) for table in stored] == [1, 1]


@pytest.mark.spark
@pytest.mark.long
async def test_a_query_without_room_for_its_own_files_is_computed_once_there_is_some(
    tmp_path: Path,
) -> None:
    """The error says where to make room."""
    with mounted(tmp_path / "disk", SCRATCH) as disk:
        options = SparkOptions(disk / "spark", master="local[2]")
        executor = SparkExecutor(options, has_tables=lambda: True)
        sheet = TableSheet(executor, tmp_path / "store")
        sheet.query("first", "SELECT 1 AS id")
        try:
            await sheet.compute()
            sheet.query("spread", SPREAD)
            with full(disk), pytest.raises(OSError, match=FULL) as refused:
                await sheet.compute()
            await sheet.compute()
        finally:
            await sheet.close()
            await executor.close()

    assert is_transient(refused.value)
    assert "make room in REBASER_SPARK__STATE_DIRECTORY" in str(refused.value)
    assert len(sheet.rows("spread")) == 100_000


@pytest.mark.parametrize("left", [0, 4096, 65_536])
def test_published_tables_are_those_before_until_there_is_room(
    disk: Path, tmp_path: Path, left: int
) -> None:
    shelf = Shelf(tmp_path)
    shelf.folder = disk / "published"
    shelf.publications = shelf.another()
    shelf.publish(1, numbers=10)

    with full(disk, left):
        with pytest.raises(OSError, match=FULL) as refused:
            shelf.publish(2, numbers=100_000, others=100_000)
        kept = shelf.rows("numbers"), shelf.commits("numbers")
    shelf.publish(2, numbers=100_000, others=100_000)

    assert is_transient(refused.value)
    assert str(disk) in str(refused.value)
    assert kept == (10, [1])
    assert shelf.commits("numbers") == [1, 2]
    assert (shelf.rows("numbers"), shelf.rows("others")) == (100_000, 100_000)
