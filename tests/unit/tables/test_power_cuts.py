"""A table that a commit may name outlasts a power cut (S-7)."""

import io
import os
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from rebaser_core.table_schemas import PARTITION_BY
from rebaser_server.files import SharedFiles, forget_directories
from rebaser_server.tables import TableFiles
from tests.helpers.attempts import finish
from tests.helpers.sync_recorder import SyncRecorder

SHOP, KEY = "shop", "a" * 64
FIELDS = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]


def parquet(*ids: int, partition_by: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, pa.schema({"id": pa.int64()})) as writer:
        writer.write_table(pa.table({"id": pa.array(ids, pa.int64())}))
        if partition_by is not None:
            writer.add_key_value_metadata({PARTITION_BY: partition_by})
    return sink.getvalue()


def written_by_spark(root: Path) -> None:
    """Make a table of the key, of two files that Spark did not sync."""
    tables = TableFiles(SharedFiles(str(root)))
    attempt = tables.begin(SHOP, KEY)
    for number in range(2):
        path = f"{attempt.directory}/part-{number}.parquet"
        tables.files.put(path, parquet(number), durable=False)
    finish(tables, attempt, FIELDS, 2, "content")


def upload(root: Path, partition_by: str | None = None) -> str:
    """Adopt an upload; return its key."""
    payload = parquet(1, 2, partition_by=partition_by)
    digest = blake3(payload).hexdigest()
    TableFiles(SharedFiles(str(root))).adopt(SHOP, digest, payload)
    return digest


def test_a_table_is_on_the_disk_with_all_names_once_it_is_finished(tmp_path: Path) -> None:
    root, recorder = tmp_path / "not" / "there", SyncRecorder()
    with recorder.recording():
        written_by_spark(root)
        assert recorder.lost(tmp_path) == []

        upload(root)
        upload(root, partition_by="id")

        assert recorder.lost(tmp_path) == []


def test_what_is_found_at_any_moment_is_on_the_disk(tmp_path: Path) -> None:
    """Its writer may be killed before it has synced all, and then a commit of another names it."""
    recorder, looks, looking = SyncRecorder(), [0, 0], False
    reader = TableFiles(SharedFiles(str(tmp_path)))

    def look() -> None:
        nonlocal looking
        looking = True
        forget_directories()  # as a process that begins here
        for key in reader.files.list_names(f"tables/{SHOP}"):
            found = reader.find(SHOP, key) is not None
            looks[found] += 1
            for each in (key, *reader.parts_of(SHOP, key)) if found else ():
                assert recorder.lost(tmp_path / "tables" / SHOP / each) == []
        looking = False

    with recorder.recording():
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            if not looking:
                look()
            sync(descriptor)

        with mock.patch("os.fsync", fsync):
            written_by_spark(tmp_path)
            upload(tmp_path)
            upload(tmp_path, partition_by="id")

    assert min(looks) > 4
