"""Tables in an object store, computed here, on a cluster and by a Connect server."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import pytest

from rebaser_core.table_values import TableHandle
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.files import SharedFiles
from rebaser_server.runtime.ports import free_port
from tests.helpers.batches import new_id
from tests.helpers.paths import ROOT
from tests.helpers.s3_server import BUCKET, s3_running
from tests.helpers.table_sheet import OWNER, TableSheet, compute_by_day
from tests.spark.servers import cluster, connect_server, connect_url, driver_settings, listening

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    with s3_running() as options:
        yield {**options, "AWS_SECRET_ACCESS_KEY": SECRET}


SECRET = "not-to-be-seen"


@pytest.fixture
def store(options: dict[str, str]) -> SharedFiles:
    return SharedFiles(f"s3://{BUCKET}/tables anywhere/{new_id()}", options)


@pytest.mark.long
async def test_a_spark_of_ours_computes_tables_in_an_object_store(
    executor: SparkExecutor, store: SharedFiles
) -> None:
    rows = await compute_by_day(executor, store)

    assert [row["total"] for row in rows] == [60, 240, 120]


DRIVER = """
import asyncio, json, sys
from pathlib import Path
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.files import SharedFiles
from tests.helpers.table_sheet import compute_by_day

async def main(directory, master, extra, root, options):
    executor = SparkExecutor(SparkOptions(Path(directory), master=master, extra=extra))
    try:
        print(json.dumps(await compute_by_day(executor, SharedFiles(root, options))))
    finally:
        await executor.close()

asyncio.run(main(*json.loads(sys.stdin.read())))
"""


@pytest.mark.long
async def test_a_cluster_computes_tables_in_an_object_store(
    store: SharedFiles, options: dict[str, str], tmp_path: Path
) -> None:
    """And the store's secrets are in no log, nor in what Spark keeps of a query."""
    port = free_port()
    extra = driver_settings() | {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{tmp_path}",
    }
    with cluster(tmp_path, port, workers=2) as spark:
        await listening(port)
        given = json.dumps([str(tmp_path / "spark"), spark.url, extra, store.root, options])
        # Tests before have a session in this process, and there is one in a process.
        driver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DRIVER, stdin=PIPE, stdout=PIPE, cwd=ROOT
        )
        printed, _ = await driver.communicate(given.encode())

    rows = json.loads(printed.splitlines()[-1])
    assert [row["total"] for row in rows] == [60, 240, 120]
    logs = await asyncio.to_thread(logs_below, tmp_path)
    assert any(b"MapInArrow" in said for said in logs.values())
    assert [path for path, said in logs.items() if SECRET.encode() in said] == []


def logs_below(directory: Path) -> dict[str, bytes]:
    found = [*directory.rglob("*.log"), *directory.rglob("std*"), *directory.rglob("events_*")]
    return {str(path): path.read_bytes() for path in found if path.is_file()}


@pytest.mark.long
async def test_a_connect_server_computes_tables_in_an_object_store(
    store: SharedFiles, tmp_path: Path
) -> None:
    port = free_port()
    with connect_server(tmp_path, port):
        await listening(port)
        executor = SparkExecutor(SparkOptions(tmp_path / "spark", master=connect_url(port)))
        try:
            rows = await compute_by_day(executor, store)
        finally:
            await executor.close()

    assert [row["total"] for row in rows] == [60, 240, 120]


async def test_a_table_that_a_task_finds_damaged_is_named(
    executor: SparkExecutor, store: SharedFiles
) -> None:
    """The value fails with what to do, and the table is computed anew."""
    sheet = TableSheet(executor, store)
    try:
        sheet.source("rate", 1)
        numbers = "SELECT id * :rate AS id FROM range(1000)"
        total = "-- returns: value\nSELECT sum(id) FROM numbers"
        sheet.query("numbers", numbers, "rate")
        await sheet.compute()
        before = sheet.content("numbers")
        handle = TableHandle.of(sheet.value("numbers"))
        assert handle is not None
        file = sheet.tables.get(OWNER, handle.key).files[0]
        path = f"tables/{OWNER}/{file.path}"
        data = bytearray(store.get(path))
        data[len(data) // 2] ^= 4
        store.put(path, bytes(data))

        sheet.query("total", total, "numbers")
        await sheet.compute()

        assert "is damaged in the store" in sheet.value("total")
        assert "computed again with `rebaser dvu run`" in sheet.value("total")
        sheet.query("numbers", numbers, "rate")
        sheet.query("total", total, "numbers")
        await sheet.compute()
        assert sheet.content("numbers") == before
        assert sheet.value("total") == 499_500
    finally:
        await sheet.close()
