"""Runs on a Spark Connect server: no JVM of ours, and all else as on our own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rebaser_server.compute.errors import RunFailed, SessionFailed
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import RunStore, StoredResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark import connect_session
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.files import SharedFiles
from rebaser_server.runtime.ports import free_port
from tests.helpers.graph_builder import eventually, is_running, pids_in
from tests.helpers.table_sheet import TableSheet, compute_by_day
from tests.spark.servers import connect_server, connect_url, listening
from tests.spark.test_spark_executor import python, require_one_run_cancelled, wide

pytestmark = pytest.mark.spark


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    number = free_port()
    with connect_server(tmp_path, number):
        await listening(number)
        yield number


def executor_at(port: int, directory: Path) -> SparkExecutor:
    return SparkExecutor(SparkOptions(directory / "spark", master=connect_url(port)))


@pytest.mark.long
async def test_a_connect_server_does_what_a_jvm_of_ours_does(port: int, tmp_path: Path) -> None:
    """Large results in the run store; a run is cancelled by itself; a crash fails its value alone.

    And tables are computed.
    """
    executor = executor_at(port, tmp_path)
    store = RunStore(SharedFiles(str(tmp_path / "store")), "ab" * 32)
    try:
        units = plan(wide(20_000).graph, slots=2).units
        outcomes = await executor.run(units, Run(store=store))
        assert executor.jvm_pid is None
        await eventually(lambda: executor.slots == 2)
        assert sum(outcome.recomputed for outcome in outcomes) == 20_000
        assert all(isinstance(outcome, StoredResult) for outcome in outcomes)

        await require_one_run_cancelled(executor, tmp_path)

        (crashed,) = await executor.run(plan(python("crash", value=1).graph, slots=2).units)
        [(_, status, message)] = crashed.value_results
        assert (status, "computing it ended the evaluator" in str(message)) == ("failed", True)
        (outcome,) = await executor.run(
            plan(python("slow", value=1, seconds=0).graph, slots=2).units
        )
        assert outcome.value_results == [("it", "ok", 1)]
        rows = await compute_by_day(executor, tmp_path / "store")
        assert [row["total"] for row in rows] == [60, 240, 120]

        sheet, pids = TableSheet(executor, tmp_path / "store"), tmp_path / "others"
        sheet.source("place", str(pids))
        sheet.dependent("it", "spark.endless", {"place": "place"}, "pyspark")
        hanging = asyncio.create_task(sheet.compute())
        await eventually(lambda: pids_in(pids), within=300)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        await eventually(lambda: not any(map(is_running, pids_in(pids))), within=120)
        await sheet.close()
    finally:
        await executor.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED")  # which pyspark warns of before it raises
async def test_a_server_that_was_started_again_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks while it is gone is told so before long."""
    monkeypatch.setattr(connect_session, "MAX_ATTEMPTS", 5)
    number = free_port()
    executor = executor_at(number, tmp_path)
    units = plan(wide(100).graph, slots=2).units
    try:
        with connect_server(tmp_path / "first", number):
            await listening(number)
            await executor.run(units)
        with pytest.raises((RunFailed, SessionFailed)):
            await executor.run(units)
        with connect_server(tmp_path / "second", number):
            await listening(number)
            assert sum(outcome.recomputed for outcome in await executor.run(units)) == 100
            await executor.close()  # while there is somebody to tell
    finally:
        await executor.close()


@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED")
def test_a_server_that_does_not_answer_is_named_without_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is logged, on the page and in what watchers get."""
    monkeypatch.setattr(connect_session, "MAX_ATTEMPTS", 1)
    remote = f"sc://127.0.0.1:{free_port()}/;use_ssl=true;token=hush"

    with pytest.raises(SessionFailed, match=r"answers at sc://127\.0\.0\.1:\d+/;") as failed:
        connect_session.start(SparkOptions(tmp_path, master=remote))

    assert "hush" not in str(failed.value)
