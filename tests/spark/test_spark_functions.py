"""Functions of runtime `pyspark` on real Spark: what they take, give, leave, and do wrong."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

from rebaser_core.table_values import TableHandle
from rebaser_server.compute.isolation import STRAY
from rebaser_server.compute.plan import plan
from rebaser_server.compute.rescue import isolated
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.work_unit import CallLimits
from tests.helpers.eventually import eventually
from tests.helpers.graph_builder import is_running, pids_in
from tests.helpers.table_sheet import BY_DAY, OWNER, TableSheet

pytestmark = pytest.mark.spark


async def test_frames_and_plain_values_are_taken_and_returned(sheet: TableSheet) -> None:
    """A graph may mix them with queries; functions of rows run on the workers."""
    sheet.query("by_day", BY_DAY, "orders", "rate")
    sheet.call("same", "by_day", "orders", "rate")
    sheet.call("total", "total", "orders")
    sheet.dependent("all", "spark.all_rows", {"several": ["by_day", "same"]}, "pyspark")
    sheet.query("days", "-- returns: value\nSELECT count(*) FROM all", "all")
    sheet.source("rates", {"mon": [1, None]})
    sheet.call("kinds", "kinds", "orders", "rates")
    sheet.call("doubled", "doubled", "orders")

    assert await sheet.compute() == 7

    assert sheet.rows("same") == sheet.rows("by_day")
    assert (sheet.value("total"), sheet.value("days")) == (210, 6)
    assert sheet.value("kinds") == ["DataFrame", "dict"]
    assert [row["amount"] for row in sheet.rows("doubled")] == [20, 40, 60, 80, 100, 120]


async def test_what_was_computed_before_is_not_computed_again(
    sheet: TableSheet,
) -> None:
    """Neither a table nor a plain value."""
    sheet.call("by_day", "by_day", "orders", "rate")
    sheet.query("amounts", "SELECT total AS amount FROM by_day", "by_day")
    sheet.dependent("total", "spark.total", {"orders": "amounts"}, "pyspark")
    await sheet.compute()
    before = sheet.value("by_day")

    sheet.source("rate", 3)
    changed = await sheet.compute()
    sheet.source("rate", 2)
    again = await sheet.compute()

    assert (changed, again) == (3, 0)
    assert (sheet.value("by_day"), sheet.value("total")) == (before, 420)


async def test_what_a_function_sets_in_its_session_reaches_nothing_else(
    sheet: TableSheet, executor: SparkExecutor
) -> None:
    """Neither another call, nor how the files of its own table are written."""
    sheet.call("it", "by_view", "orders")
    sheet.call("cached", "cached", "orders")
    await sheet.compute()
    sheet.call("then", "settings", "orders")
    await sheet.compute()

    handle = TableHandle.of(sheet.value("it"))
    assert handle is not None
    [file] = sheet.tables.get(OWNER, handle.key).files
    [_, at] = pq.ParquetFile(f"{sheet.tables.files.root}/tables/{OWNER}/{file.path}").schema
    assert at.physical_type == "INT64"
    assert sheet.value("then") == ["UTC", []]
    assert len(sheet.rows("cached")) == 10
    with executor._session.job("looks", "looks") as spark:
        assert not spark.sparkContext._jsc.getPersistentRDDs()


MISTAKES = {
    "raises": "KeyError: 'rate' (at of_spark.py:41 in raises)",
    "exits": "SystemExit: 3 (at of_spark.py:42 in exits)",
    "unknown": "`nothing` cannot be resolved",
    "no_column": "should be Column or str, got int. (at of_spark.py:46 in no_column)",
    "lazy": "[DIVIDE_BY_ZERO] Division by zero.",
    "lazy_rows": "(at of_spark.py:51 in missing)",
    "eager": "[USER_RAISED_EXCEPTION] no such day (at of_spark.py:54 in eager)",
    "by_day": "by_day() missing 1 required keyword-only argument: 'rate'",
    "rows": "the result cannot be a value: ",
    "pandas": "DataFrame is neither JSON nor a table: return a DataFrame of Spark",
    "column": "Column is neither JSON nor a table",
    "nothing_kept": "the result has no column",
    "twice": "differ in upper and lower case alone",
    "interval": "'since' has the type interval, which a table cannot keep",
    "stops": "the session is Rebaser's, and others compute in it: remove spark.stop()",
    "gone": "no Python function 'spark.gone' is installed here",
}


async def test_mistakes_fail_their_values_and_block_what_takes_them(sheet: TableSheet) -> None:
    """With the line of the function, where it raised."""
    for name in MISTAKES:
        sheet.call(name, name, "orders")
    sheet.query("then", "SELECT * FROM raises", "raises")

    await sheet.compute()

    other = {
        name: sheet.value(name) for name, said in MISTAKES.items() if said not in sheet.value(name)
    }
    assert other == {}
    assert sheet.value("unknown").endswith("(at of_spark.py:44 in unknown)")
    assert {sheet.state()[name][0] for name in MISTAKES} == {"failed"}
    assert sheet.state()["then"] == ("blocked", "raises")


async def test_a_function_that_ends_its_process_fails_its_value_alone(sheet: TableSheet) -> None:
    """The message names the function, whichever way it ended; the log has its prints."""
    for name in ("ends", "crashes_here", "answers_itself", "by_day"):
        sheet.call(name, name, "orders", *(["rate"] if name == "by_day" else []))

    with capture_logs([merge_contextvars]) as logs, bound_contextvars(change_set="one"):
        await sheet.compute()

    ended = "computing it ended the evaluator of function"
    assert sheet.value("ends") == f"{ended} 'spark.ends': exit code 7"
    assert sheet.value("crashes_here") == f"{ended} 'spark.crashes_here': killed by SIGSEGV"
    assert sheet.value("answers_itself") == STRAY
    assert len(sheet.rows("by_day")) == 3
    lines = [each for each in logs if each["event"] == "functions printed"]
    printed = "".join(line["text"] for line in lines).replace("\0", "")  # of answers_itself
    assert (printed.strip(), {line["change_set"] for line in lines}) == (
        "for the last time",
        {"one"},
    )


async def test_a_function_that_takes_much_memory_fails_its_value(sheet: TableSheet) -> None:
    """By the limit of other functions, and what it prints is bounded as theirs."""
    sheet.call("much", "takes_much", "orders")
    sheet.call("prints", "prints_much", "orders")
    limits = CallLimits(memory=1 << 30)
    units = [replace(unit, limits=limits) for unit in plan(sheet.graph, 2).units]

    with capture_logs() as logs:
        outcomes = await sheet.executor.run(units, Run(OWNER))

    sheet.apply([outcome for outcome in outcomes if isinstance(outcome, UnitResult)])
    assert sheet.value("much") == "it took more than 1,073,741,824 bytes of memory"
    assert len(sheet.rows("prints")) == 6
    texts = [each["text"] for each in logs if each["event"] == "functions printed"]
    assert texts[-1].endswith("word 99999")
    assert sum(map(len, texts)) < 50_000


async def test_a_job_that_a_function_leaves_behind_ends_with_it(
    sheet: TableSheet, tmp_path: Path
) -> None:
    """The job is one that a thread of the function began. Nobody sees the secret of its process."""
    place = tmp_path / "place"
    sheet.source("place", str(place))
    sheet.dependent("it", "spark.leaves_a_job", {"place": "place"}, "pyspark")
    sheet.call("secrets", "tells_secrets", "orders")

    await sheet.compute()

    assert sheet.value("it") == "left"
    assert sheet.value("secrets") == [False, False, False]
    await eventually(lambda: not any(map(is_running, pids_in(place))), within=120)


@pytest.mark.long
async def test_a_function_that_ends_its_worker_fails_its_value(sheet: TableSheet) -> None:
    """After some tries, since a worker may end for other reasons."""
    sheet.call("it", "crashes", "orders")

    [result] = await sheet.executor.run(isolated(plan(sheet.graph, 2).units, 300), Run(OWNER))

    assert isinstance(result, UnitResult)
    [(_, status, message)] = result.value_results
    assert status == "failed"
    assert "Python worker exited unexpectedly" in message


async def test_a_cancelled_call_ends_with_its_workers(sheet: TableSheet, tmp_path: Path) -> None:
    """Whether it hangs in its own process, where no other thread gets on, or in a worker."""
    here, there = tmp_path / "here", tmp_path / "there"
    sheet.source("here", str(here))
    sheet.source("there", str(there))
    sheet.dependent("one", "spark.endless_here", {"place": "here"}, "pyspark")
    sheet.dependent("two", "spark.endless", {"place": "there"}, "pyspark")

    def have_begun() -> bool:
        return bool(pids_in(here)) and bool(pids_in(there))

    running = asyncio.create_task(sheet.compute())
    await eventually(have_begun, within=600)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running

    pids = [*pids_in(here), *pids_in(there)]
    await eventually(lambda: not any(map(is_running, pids)), within=120)
    stored = list(sheet.tables.stored())
    assert [name for each in stored if each.written is None for name in each.attempts] == []
