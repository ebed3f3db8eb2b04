"""Tables from the first attempt to write them until nothing of them is left."""

import io
import json
import os
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from rebaser_server.files import SharedFiles
from rebaser_server.tables import (
    Attempt,
    DataFile,
    Manifest,
    StoredTable,
    TableFiles,
    TableMissing,
    WrittenPart,
)
from tests.helpers.attempts import finish

SHOP, KEY, OTHER = "shop", "a" * 64, "b" * 64
WHOLE, MORE = "c" * 64, "d" * 64
FIELDS = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
LATER = 4e9
"""A time, in seconds since 1970, before which everything was written."""


@pytest.fixture
def tables(tmp_path: Path) -> TableFiles:
    return TableFiles(SharedFiles(str(tmp_path)))


def begun(tables: TableFiles, *ids: int, key: str = KEY) -> Attempt:
    """An attempt whose file is written, beside those of tasks that were repeated."""
    attempt = tables.begin(SHOP, key)
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), sink)
    tables.files.put(f"{attempt.directory}/part-0.parquet", sink.getvalue())
    tables.files.put(f"{attempt.directory}/_SUCCESS", b"")
    tables.files.put(f"{attempt.directory}/.part-0.parquet.crc", b"crc")
    return attempt


def written(tables: TableFiles, *ids: int, key: str = KEY) -> Attempt:
    attempt = begun(tables, *ids, key=key)
    finish(tables, attempt, FIELDS, len(ids), f"content of {ids}")
    return attempt


def composed(tables: TableFiles, key: str, *parts: str) -> Manifest:
    """A table of parts that are there."""
    listed = [tables.get(SHOP, part).part(part, part) for part in parts]
    return tables.compose(SHOP, key, FIELDS, "id", listed)


def compose_found(tables: TableFiles) -> None:
    parts = [part for part in (KEY, OTHER) if tables.find(SHOP, part) is not None]
    if parts:
        composed(tables, WHOLE, *parts)


def ids_in(tables: TableFiles, key: str = KEY) -> list[int]:
    batches = tables.batches(SHOP, tables.get(SHOP, key), ["id"])
    return [row["id"] for batch in batches for row in batch.to_pylist()]


def left(tables: TableFiles) -> list[str]:
    """Every file and directory below the tables, relative to them."""
    root = Path(tables.files.root) / "tables" / SHOP
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def age(tables: TableFiles, path: str, seconds: float) -> None:
    os.utime(Path(tables.files.root) / path, (seconds, seconds))


def found(tables: TableFiles, key: str = KEY) -> StoredTable:
    return next(table for table in tables.stored() if table.key == key)


def collect(
    tables: TableFiles, named: Collection[str] = (), running: Collection[Attempt] = ()
) -> None:
    """Do as the collector of garbage does, when all but what is running is old."""
    stored = list(tables.stored())
    parts = tables.parts_in(stored)
    for table in stored:
        for attempt in tables.abandoned(table, LATER):
            if attempt not in running:
                tables.discard(attempt)
        if table.key in named or table.key in parts:
            continue
        if table.condemned or not (table.written or table.attempts):
            tables.remove(table)
        elif table.written:
            tables.condemn(SHOP, table.key)


def test_a_table_is_found_once_it_is_finished(tables: TableFiles) -> None:
    """Until then there is none, so that no value comes to name a part of it."""
    attempt = begun(tables, 1, 2)
    assert tables.find(SHOP, KEY) is None

    manifest = finish(tables, attempt, FIELDS, 2, "content")

    assert tables.find(SHOP, KEY) == tables.get(SHOP, KEY) == manifest
    assert [file.path for file in manifest.files] == [f"{KEY}/{attempt.name}/part-0.parquet"]
    assert ids_in(tables) == [1, 2]
    assert tables.find("another", KEY) is None


def test_of_two_attempts_the_first_to_finish_wins_whole(tables: TableFiles) -> None:
    """The other one leaves nothing behind."""
    first, second = begun(tables, 1), begun(tables, 2, 3)

    finish(tables, second, FIELDS, 2, "second")
    manifest = finish(tables, first, FIELDS, 1, "first")

    assert manifest.content == "second"
    assert ids_in(tables) == [2, 3]
    assert found(tables).attempts == (second.name,)


def test_two_attempts_that_finish_at_one_moment_are_one_table(tables: TableFiles) -> None:
    """Neither has seen the other, and both make a commit that names what is there."""

    class Racing(TableFiles):
        looks = 0

        def find(self, workspace: str, key: str) -> Manifest | None:
            self.looks += 1
            return super().find(workspace, key) if self.looks > 1 else None

    first, second = begun(tables, 1), begun(tables, 2, 3)
    made = [
        finish(Racing(tables.files), attempt, FIELDS, rows, f"content of {rows}")
        for attempt, rows in ((first, 1), (second, 2))
    ]

    assert made == [tables.get(SHOP, KEY)] * 2
    assert ids_in(tables) == [1]
    assert found(tables).attempts == (first.name,)


def test_a_discarded_attempt_is_gone(tables: TableFiles) -> None:
    """It is no error to discard one that has written nothing, or twice."""
    attempt = begun(tables, 1)

    tables.discard(attempt)
    tables.discard(attempt)
    tables.discard(tables.begin(SHOP, OTHER))

    assert left(tables) == [KEY]


def test_a_table_without_files_is_one_without_rows(tables: TableFiles) -> None:
    """Spark writes no file for a result of no partition."""
    attempt = tables.begin(SHOP, KEY)

    finish(tables, attempt, FIELDS, 0, "nothing")

    assert tables.find(SHOP, KEY) is not None
    assert ids_in(tables) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
    ],
    ids=["gone", "cut off", "empty"],
)
@pytest.mark.parametrize("name", ["part-0.parquet", "manifest.json"])
def test_a_table_that_is_not_whole_is_not_found(
    tables: TableFiles, name: str, damage: Callable[[Path], Any]
) -> None:
    """A result is computed again then, in its place; the message says what to do with an upload."""
    written(tables, 1, 2)
    [path] = Path(tables.files.root).rglob(name)

    damage(path)

    assert tables.find(SHOP, KEY) is None
    with pytest.raises(TableMissing, match=r"not whole .* upload it again; else .* `rebaser dvu"):
        tables.get(SHOP, KEY)
    written(tables, 3)
    assert ids_in(tables) == [3]


def test_a_condemned_table_is_read_and_not_found(tables: TableFiles) -> None:
    """Values that name it keep it; no other value comes to name it."""
    written(tables, 1)
    assert not tables.is_condemned(SHOP, KEY)

    tables.condemn(SHOP, KEY)

    assert tables.is_condemned(SHOP, KEY)
    assert tables.find(SHOP, KEY) is None
    assert ids_in(tables) == [1]
    assert found(tables).condemned is not None


def test_a_condemned_table_that_is_written_anew_is_found(tables: TableFiles) -> None:
    """The rows of before are left to those that read them now."""
    before = written(tables, 1)
    tables.condemn(SHOP, KEY)

    after = written(tables, 2)

    assert not tables.is_condemned(SHOP, KEY)
    assert tables.find(SHOP, KEY) is not None
    assert ids_in(tables) == [2]
    assert set(found(tables).attempts) == {before.name, after.name}


def test_a_condemned_upload_is_renewed_if_it_is_whole(tables: TableFiles) -> None:
    """Its bytes need not be sent again; without them there is nothing to renew."""
    written(tables, 1)
    tables.condemn(SHOP, KEY)

    assert tables.renew(SHOP, KEY)
    assert not tables.renew(SHOP, OTHER)

    assert tables.find(SHOP, KEY) is not None


def test_an_abandoned_attempt_is_known_by_its_newest_file(tables: TableFiles) -> None:
    """One that goes on may have begun long ago: its directories are old."""
    attempt = begun(tables, 1)
    age(tables, attempt.directory, 1000)
    for name in ("part-0.parquet", "_SUCCESS", ".part-0.parquet.crc"):
        age(tables, f"{attempt.directory}/{name}", 1000)
    assert tables.abandoned(found(tables), 1001) == [attempt]

    age(tables, f"{attempt.directory}/_SUCCESS", 2000)

    assert tables.abandoned(found(tables), 1001) == []
    assert tables.abandoned(found(tables), 2001) == [attempt]


def test_the_files_of_a_table_are_never_abandoned(tables: TableFiles) -> None:
    """Attempts that came to nothing beside it are; one that it replaces is from then on."""
    kept, other = written(tables, 1), begun(tables, 2)
    manifest = f"tables/{SHOP}/{KEY}/manifest.json"
    assert tables.abandoned(found(tables), LATER) == [other]

    age(tables, manifest, 5e9)
    assert tables.abandoned(found(tables), LATER) == []

    assert ids_in(tables) == [1]
    assert kept.name in found(tables).attempts


def test_a_removed_table_leaves_nothing(tables: TableFiles) -> None:
    """Tables beside it are untouched."""
    written(tables, 1)
    written(tables, 2, key=OTHER)
    tables.condemn(SHOP, KEY)

    tables.remove(found(tables))

    assert ids_in(tables, OTHER) == [2]
    assert not [path for path in left(tables) if path.startswith(KEY)]
    with pytest.raises(TableMissing):
        tables.get(SHOP, KEY)


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda tables: written(tables, 2),
        lambda tables: tables.renew(SHOP, KEY),
        lambda tables: begun(tables, 2),
        lambda tables: tables.condemn(SHOP, KEY),
    ],
    ids=["written", "renewed", "begun", "condemned again"],
)
def test_a_table_that_changed_since_it_was_found_stays(
    tables: TableFiles, meanwhile: Callable[[TableFiles], Any]
) -> None:
    """A commit may come to name it."""
    written(tables, 1)
    tables.condemn(SHOP, KEY)
    age(tables, f"tables/{SHOP}/{KEY}/condemned", 1000)
    seen = found(tables)

    meanwhile(tables)
    tables.remove(seen)

    assert tables.get(SHOP, KEY)


class Interrupted(SharedFiles):
    """Something else happens just before one of the calls."""

    calls = -1
    meanwhile: Callable[[], Any]
    counted: Collection[str] = (
        *("get", "has", "list_infos", "sizes", "put", "rename", "delete", "sync"),
    )

    def __getattribute__(self, name: str) -> Any:
        if name != "counted" and name in self.counted:
            self.calls -= 1
            if self.calls == 0:
                self.meanwhile()
        return super().__getattribute__(name)


@pytest.mark.parametrize("call", range(1, 16))
@pytest.mark.parametrize("how", ["written", "renewed"])
def test_a_table_that_is_found_while_it_is_removed_stays(
    tables: TableFiles, call: int, how: str
) -> None:
    """Or it is not found, and then written anew."""
    require_stays(tables, Interrupted(tables.files.root), call, how)


def require_stays(tables: TableFiles, removing: Interrupted, call: int, how: str) -> None:
    """Have a table found just before a call of its removal, and require that it stays then."""
    written(tables, 1)
    tables.condemn(SHOP, KEY)
    seen, was_found = found(tables), []

    def meanwhile() -> None:
        was_found.append(how == "written" or tables.renew(SHOP, KEY))
        if how == "written":
            written(tables, 2)

    removing.calls, removing.meanwhile = call, meanwhile
    TableFiles(removing).remove(seen)

    assert not any(was_found) or ids_in(tables)


@pytest.mark.parametrize("call", range(1, 9))
def test_a_table_that_is_removed_while_it_is_renewed_is_not_found(
    tables: TableFiles, call: int
) -> None:
    """Or it stays."""
    written(tables, 1)
    tables.condemn(SHOP, KEY)
    seen, renewing = found(tables), Interrupted(tables.files.root)
    renewing.calls, renewing.meanwhile = call, lambda: tables.remove(seen)

    is_found = TableFiles(renewing).renew(SHOP, KEY)

    assert not is_found or ids_in(tables) == [1]


@pytest.mark.parametrize("call", range(1, 5))
def test_a_manifest_that_is_taken_away_during_a_look_is_not_found(
    tables: TableFiles, call: int
) -> None:
    """The collector does so for a moment, until it sees that the table was renewed."""
    written(tables, 1)
    [path] = Path(tables.files.root).rglob("manifest.json")
    looking = Interrupted(tables.files.root)
    looking.calls, looking.meanwhile = call, path.unlink

    assert TableFiles(looking).find(SHOP, KEY) is None or call > 3


class _Crash(Exception):
    pass


class _Crashing(SharedFiles):
    """Dies before one of its changes."""

    after = 0

    def _step(self) -> None:
        if self.after == 0:
            raise _Crash
        self.after -= 1

    def put(self, *args: Any, **options: Any) -> None:
        self._step()
        super().put(*args, **options)

    def delete(self, path: str) -> None:
        self._step()
        super().delete(path)

    def delete_directory(self, directory: str) -> None:
        self._step()
        super().delete_directory(directory)

    def delete_empty(self, directory: str) -> None:
        self._step()
        super().delete_empty(directory)


@pytest.mark.parametrize("after", range(12))
@pytest.mark.parametrize("was_condemned", [False, True])
def test_a_crash_between_any_two_changes_leaves_a_whole_table_or_none(
    tmp_path: Path, after: int, *, was_condemned: bool
) -> None:
    """The collector removes the rest, and nothing that is named."""
    tables = TableFiles(SharedFiles(str(tmp_path)))
    written(tables, 9, key=OTHER)
    if was_condemned:
        written(tables, 0)
        tables.condemn(SHOP, KEY)
    dying = TableFiles(_Crashing(str(tmp_path)))
    dying.files.after = after

    try:
        written(dying, 1)
        collect(dying, [KEY, OTHER])
        dying.condemn(SHOP, KEY)
        dying.remove(found(dying))
    except _Crash:
        pass

    if tables.find(SHOP, KEY) is not None:
        assert ids_in(tables) in ([0], [1])
    for _ in range(2):
        collect(tables, [KEY, OTHER])
    assert ids_in(tables, OTHER) == [9]
    for _ in range(3):
        collect(tables)
    assert left(tables) == []


def test_a_table_of_parts_has_their_rows_and_no_files(tables: TableFiles) -> None:
    written(tables, 1, 2)
    written(tables, 3, key=OTHER)

    manifest = composed(tables, WHOLE, OTHER, KEY)

    assert (manifest.rows, ids_in(tables, WHOLE)) == (3, [1, 2, 3])
    assert tables.find(SHOP, WHOLE) == manifest
    assert found(tables, WHOLE).attempts == ()
    same = composed(tables, MORE, KEY, OTHER)
    assert same.content == manifest.content != composed(tables, "e" * 64, KEY).content


def test_a_part_outlives_the_wholes_that_have_it(tables: TableFiles) -> None:
    """Whichever are named; afterwards it goes like any table that nothing names."""
    written(tables, 1)
    written(tables, 2, key=OTHER)
    composed(tables, WHOLE, KEY, OTHER)
    composed(tables, MORE, KEY)

    for _ in range(5):
        collect(tables, [MORE])
    assert ids_in(tables, MORE) == [1]
    assert {table.key for table in tables.stored()} == {MORE, KEY}
    for _ in range(5):
        collect(tables)

    assert left(tables) == []


@pytest.mark.parametrize("name", ["part-0.parquet", "manifest.json"])
def test_a_table_that_lacks_a_part_is_not_found(tables: TableFiles, name: str) -> None:
    """It is whole again once the part is written again, with the rows that it had."""
    written(tables, 1)
    written(tables, 2, key=OTHER)
    composed(tables, WHOLE, KEY, OTHER)

    next((Path(tables.files.root) / "tables" / SHOP / KEY).rglob(name)).unlink()

    assert tables.find(SHOP, WHOLE) is None
    with pytest.raises(TableMissing):
        tables.get(SHOP, WHOLE)
    written(tables, 1)
    assert ids_in(tables, WHOLE) == [1, 2]


def test_a_look_at_a_table_reads_no_manifests_of_its_parts(tables: TableFiles) -> None:
    """Each would take a request to an object store."""
    written(tables, 1)
    written(tables, 2, key=OTHER)
    composed(tables, WHOLE, KEY, OTHER)
    read = []

    class Counting(SharedFiles):
        def get(self, path: str) -> bytes:
            read.append(path)
            return super().get(path)

    looking = TableFiles(Counting(tables.files.root))
    assert looking.get(SHOP, WHOLE) == looking.find(SHOP, WHOLE) == tables.get(SHOP, WHOLE)

    assert [path.split("/")[-2:] for path in read] == [[WHOLE, "manifest.json"]] * 2


def test_a_table_that_names_no_files_of_its_parts_is_found(tables: TableFiles) -> None:
    """Older releases wrote such manifests."""
    written(tables, 1)
    written(tables, 2, key=OTHER)
    composed(tables, WHOLE, KEY, OTHER)
    path = Path(tables.files.root) / "tables" / SHOP / WHOLE / "manifest.json"
    said = json.loads(path.read_text())
    del said["seal"]
    said["parts"] = [part[:4] for part in said["parts"]]
    seal = blake3(json.dumps(said, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**said, "seal": seal}))

    assert tables.find(SHOP, WHOLE) is not None
    assert ids_in(tables, WHOLE) == [1, 2]


def test_a_part_with_other_rows_is_none_of_the_table(tables: TableFiles) -> None:
    """Of an impure function: the table is not taken for what it was not."""
    written(tables, 1)
    composed(tables, WHOLE, KEY)
    tables.condemn(SHOP, KEY)

    written(tables, 2)

    assert tables.find(SHOP, WHOLE) is None
    assert composed(tables, WHOLE, KEY).rows == 1
    assert ids_in(tables, WHOLE) == [2]


@pytest.mark.parametrize("after", range(22))
def test_a_crash_while_a_table_is_made_of_parts_loses_nothing(tmp_path: Path, after: int) -> None:
    """It is whole or not there; what is left of it goes, and another's parts stay."""
    tables = TableFiles(SharedFiles(str(tmp_path)))
    written(tables, 9, key=OTHER)
    composed(tables, MORE, OTHER)
    dying = TableFiles(_Crashing(str(tmp_path)))
    dying.files.after = after

    try:
        attempt = dying.begin(SHOP, "e" * 64)
        for place in ("x", "y"):
            sink = io.BytesIO()
            pq.write_table(pa.table({"id": pa.array([ord(place)], pa.int64())}), sink)
            dying.files.put(f"{attempt.directory}/{place}.parquet", sink.getvalue())
        for place in ("x", "y"):
            key = KEY if place == "x" else "f" * 64
            data = bytes(dying.files.get(f"{attempt.directory}/{place}.parquet"))
            file = DataFile(attempt / f"{place}.parquet", len(data), blake3(data).hexdigest())
            dying.finish_part(SHOP, key, FIELDS, WrittenPart(place, 1, place, [file]))
        dying.discard(attempt)
        composed(dying, WHOLE, KEY, "f" * 64, OTHER)
        collect(dying, [WHOLE, MORE])
    except _Crash:
        pass

    if tables.find(SHOP, WHOLE) is not None:
        assert sorted(ids_in(tables, WHOLE)) == [9, ord("x"), ord("y")]
    for _ in range(4):
        collect(tables, [MORE])
    assert ids_in(tables, MORE) == [9]
    assert {table.key for table in tables.stored()} == {MORE, OTHER}
    for _ in range(5):
        collect(tables)
    assert left(tables) == []


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 30))]
)
def test_a_named_table_is_whole_after_any_sequence_of_steps(tables: TableFiles, seed: int) -> None:
    """Of writers that race and die, and of a collector that knows which tables are named."""
    draw = random.Random(seed)
    named: set[str] = set()
    running: list[Attempt] = []
    for step in range(100):
        key = draw.choice([KEY, OTHER, WHOLE])
        match draw.randrange(6):
            case 0 if key == WHOLE:
                compose_found(tables)
            case 0:
                running.append(begun(tables, step, key=key))
            case 1 if running:
                attempt = running.pop(draw.randrange(len(running)))
                finish(tables, attempt, FIELDS, 1, attempt.name)
            case 2 if tables.find(SHOP, key) is not None:
                named.add(key)
            case 3:
                named.discard(key)
            case 4:
                running.clear()  # they died
            case _:
                collect(tables, named, running)
        for each in named:
            assert len(ids_in(tables, each)) == len(tables.get(SHOP, each).parts or [each])
    for _ in range(5):
        collect(tables)
    assert left(tables) == []
