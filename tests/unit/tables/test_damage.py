"""Bits of tables that flip in the store: no row of theirs is believed."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from rebaser_core.table_schemas import NotATable, spark_fields
from rebaser_server import tables as module
from rebaser_server.files import SharedFiles
from rebaser_server.tables import (
    Manifest,
    TableDamaged,
    TableFiles,
    TableMissing,
    Written,
)
from rebaser_server.values.column_hashes import ContentDigest

FLIPS = int(500 * float(os.environ.get("EXAMPLES", "1")))
SHOP, KEY = "shop", "a" * 64
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
ROWS = pa.record_batch([[*range(300)], [f"d{n % 3}" for n in range(300)]], schema=SCHEMA)


def store(root: Path, *, is_apart: bool = False) -> None:
    """Write a table, of parts if it is to be apart."""
    tables = TableFiles(SharedFiles(str(root)))
    if is_apart:
        tables.write_parts(SHOP, KEY, SCHEMA, "day", [ROWS])
        return
    attempt, digest = tables.begin(SHOP, KEY), ContentDigest()
    digest.add(ROWS)
    files = tables.write(attempt, SCHEMA, [ROWS])
    tables.finish(attempt, Written(spark_fields(SCHEMA), ROWS.num_rows, digest.text, files))


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def rows_in(tables: TableFiles) -> list[tuple[int, str]]:
    batches = tables.batches(SHOP, tables.get(SHOP, KEY), ["id", "day"])
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return sorted(rows)


EXPECTED = sorted(tuple(row.values()) for row in ROWS.to_pylist())


@pytest.fixture(autouse=True)
def _no_lines() -> Iterator[None]:
    """Hundreds of lines about damage would be counted, and told of in a later test."""
    with capture_logs():
        yield


@pytest.mark.parametrize("is_apart", [False, True])
def test_no_flipped_bit_is_served(tmp_path: Path, is_apart: bool) -> None:
    """Of files, of manifests and of those of parts."""
    draw = random.Random(7)
    for number in range(FLIPS):
        root = tmp_path / str(number)
        store(root, is_apart=is_apart)
        path = draw.choice(sorted(path for path in root.rglob("*") if path.is_file()))
        flip(path, draw.randrange(8 * path.stat().st_size))

        try:
            found = rows_in(TableFiles(SharedFiles(str(root))))
        except TableMissing:
            store(root, is_apart=is_apart)
            found = rows_in(TableFiles(SharedFiles(str(root))))
        assert found == EXPECTED, path.name  # at once, or after it was written again


def test_a_damaged_file_is_set_aside_and_its_table_made_anew(tmp_path: Path) -> None:
    store(tmp_path)
    [path] = tmp_path.rglob("*.parquet")
    sound = path.read_bytes()
    flip(path, 100)
    tables = TableFiles(SharedFiles(str(tmp_path)))

    with pytest.raises(TableDamaged, match=r"table a{12} is damaged .* `rebaser dvu run`"):
        rows_in(tables)

    assert [each.name for each in tmp_path.rglob("*.damaged")] == [f"{path.name}.damaged"]
    assert tables.find(SHOP, KEY) is None
    with pytest.raises(TableMissing, match="not whole"):
        rows_in(tables)
    store(tmp_path)
    assert rows_in(tables) == EXPECTED
    assert sound != path.with_name(f"{path.name}.damaged").read_bytes()


def test_a_digest_is_compared_once_in_a_process(tmp_path: Path) -> None:
    store(tmp_path)
    read = []

    class Counting(SharedFiles):
        def open(self, path: str) -> pa.NativeFile:
            read.append(path)
            return super().open(path)

    tables = TableFiles(Counting(str(tmp_path)))
    assert rows_in(tables) == rows_in(tables) == EXPECTED
    assert len(read) == 3  # once for the digest, and for each reading


def test_a_wrong_reading_is_no_damage(tmp_path: Path) -> None:
    """Memory and cables err, too: what was read wrong once is read once more."""
    store(tmp_path)
    left = [1]

    class Erring(TableFiles):
        def _digest_of(self, path: str, sink: pa.NativeFile | None = None) -> str:
            found = super()._digest_of(path, sink)
            return "0" * 64 if left and left.pop() else found

    assert rows_in(Erring(SharedFiles(str(tmp_path)))) == EXPECTED
    assert list(tmp_path.rglob("*.damaged")) == []


@pytest.mark.parametrize("change", [('"rows": 300', '"rows": 200'), ('"id"', '"ID"')])
def test_a_manifest_that_was_changed_is_none(tmp_path: Path, change: tuple[str, str]) -> None:
    store(tmp_path)
    [path] = tmp_path.rglob("manifest.json")
    path.write_text(path.read_text().replace(*change))

    assert TableFiles(SharedFiles(str(tmp_path))).find(SHOP, KEY) is None


def test_a_manifest_without_its_digest_is_none(tmp_path: Path) -> None:
    store(tmp_path)
    [path] = tmp_path.rglob("manifest.json")
    said = path.read_text()
    path.write_text(said[: said.index(', "seal"')] + "}")

    assert TableFiles(SharedFiles(str(tmp_path))).find(SHOP, KEY) is None
    with pytest.raises(LookupError):
        Manifest.decode(path.read_bytes())


def test_a_large_table_has_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read whole; so none may be as large as the table."""
    monkeypatch.setattr(module, "_FILE_BYTES", 1_000)
    tables = TableFiles(SharedFiles(str(tmp_path)))
    attempt, draw = tables.begin(SHOP, KEY), random.Random(1)
    batches = [
        pa.record_batch([[draw.getrandbits(60) for _ in range(500)], ["d"] * 500], schema=SCHEMA)
        for _ in range(8)
    ]

    files = tables.write(attempt, SCHEMA, batches)
    tables.finish(attempt, Written(spark_fields(SCHEMA), 4_000, "content", files))

    assert len(files) > 1
    assert [row[0] for row in rows_in(tables)] == sorted(
        number for batch in batches for number in batch["id"].to_pylist()
    )


def test_what_repeated_tasks_have_written_is_removed(tmp_path: Path) -> None:
    """The files of an attempt are those that the last answers of its tasks name."""
    tables = TableFiles(SharedFiles(str(tmp_path)))
    attempt = tables.begin(SHOP, KEY)
    tables.write(attempt, SCHEMA, [ROWS], "first-")
    files = tables.write(attempt, SCHEMA, [ROWS], "second-")

    tables.finish(attempt, Written(spark_fields(SCHEMA), 300, "content", files))

    assert rows_in(tables) == EXPECTED
    assert [path.name for path in tmp_path.rglob("*.parquet")] == ["second-part-0.parquet"]


def test_a_partition_has_a_name_that_is_text(tmp_path: Path) -> None:
    """Spark makes text of any bytes."""
    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")
    )
    rows = pa.record_batch([pa.array([1], pa.int64()), broken], schema=SCHEMA)

    with pytest.raises(NotATable, match="'day', which partitions the table, has text that is no"):
        TableFiles(SharedFiles(str(tmp_path))).write_parts(SHOP, KEY, SCHEMA, "day", [rows])

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_part_is_damaged_for_each_table_that_has_it(tmp_path: Path) -> None:
    store(tmp_path, is_apart=True)
    tables = TableFiles(SharedFiles(str(tmp_path)))
    path = tmp_path / "tables" / SHOP / tables.get(SHOP, KEY).files[0].path
    flip(path, 99)

    with pytest.raises(TableDamaged):
        rows_in(tables)

    assert tables.find(SHOP, KEY) is None
    store(tmp_path, is_apart=True)
    assert rows_in(tables) == EXPECTED
