"""A value that ends its evaluator, or never returns, fails alone; all others are computed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rebaser_server.compute.errors import EvaluationFailed, RunFailed
from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.plan import plan
from rebaser_server.compute.rescue import isolated
from rebaser_server.compute.results import ValueResult
from rebaser_server.compute.work_unit import WorkUnit
from tests.helpers.graph_builder import Builder, children, eventually, install

FUNCTIONS = """
import os, time

def crash_at(values, bad):
    if sum(values) == bad: os.abort()
    return sum(values)

def hang_at(values, bad):
    while sum(values) == bad: pass
    return sum(values)

def stuck_at(values, bad):
    if sum(values) == bad: sum(range(10**15))
    return sum(values)

def crash(values): os.abort()

def noted(values, path):
    with open(path, "a") as file: file.write("\\n")
    while not os.path.exists(path + ".over"): time.sleep(0.01)
    return sum(values)
"""
MESSAGES = {
    "crash_at": "computing it ended the evaluator: killed by SIGABRT",
    "hang_at": "it did not return within 0.8 s",
    "stuck_at": "it did not return within 0.8 s",
}


@pytest.fixture
async def executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ChildProcessExecutor]:
    names = (*MESSAGES, "crash", "noted")
    install(tmp_path, "deadly", FUNCTIONS, {name: f"deadly:{name}" for name in names})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    executor = ChildProcessExecutor()
    yield executor
    await executor.close()


def chain(code: str, length: int, bad: int) -> list[WorkUnit]:
    """Each value is the one before it and one more: 1, 2, 3, …."""
    build = Builder()
    build.source("one", 1)
    build.source("bad", bad)
    for n in range(1, length + 1):
        before = f"v{n - 1}" if n > 1 else "one"
        build.dependent(f"v{n}", code, {"values": ["one", before], "bad": "bad"}, "python")
    return plan(build.graph, slots=1).units


async def results(
    executor: ChildProcessExecutor, units: list[WorkUnit], limit: float
) -> list[ValueResult]:
    [outcome] = await executor.run(isolated(units, limit))
    return outcome.value_results


@pytest.mark.parametrize("code", MESSAGES)
async def test_the_one_value_that_breaks_the_run_fails_and_blocks_what_follows(
    executor: ChildProcessExecutor, code: str
) -> None:
    found = await results(executor, chain(code, length=9, bad=7), limit=0.8)

    statuses = {value_id: status for value_id, status, _ in found}
    assert [statuses[f"v{n}"] for n in range(1, 10)] == ["ok"] * 5 + ["failed"] + ["blocked"] * 3
    message = {value_id: what for value_id, _, what in found}["v6"]
    assert message == MESSAGES[code]


async def test_a_sound_run_has_no_culprit(executor: ChildProcessExecutor) -> None:
    found = await results(executor, chain("crash_at", length=20, bad=-1), limit=10)

    assert [status for _, status, _ in found] == ["ok"] * 20


async def test_where_every_value_breaks_it_the_run_fails(executor: ChildProcessExecutor) -> None:
    build = Builder()
    build.source("one", 1)
    for n in range(20):
        build.dependent(f"v{n}", "crash", {"values": ["one"]}, "python")

    with pytest.raises(EvaluationFailed):
        await executor.run(isolated(plan(build.graph, slots=1).units, 10))


def noted(path: Path, count: int) -> list[WorkUnit]:
    """Return units of so many values that note in the file that they are computed."""
    build = Builder()
    build.source("one", 1)
    build.source("path", str(path))
    for n in range(count):
        build.dependent(f"v{n}", "noted", {"values": ["one"], "path": "path"}, "python")
    return plan(build.graph, slots=1).units


def kill_evaluator(executor: ChildProcessExecutor) -> None:
    [evaluator] = executor._busy
    os.kill(evaluator.pid, signal.SIGKILL)


async def test_a_value_is_not_blamed_for_an_evaluator_that_is_killed(
    executor: ChildProcessExecutor, tmp_path: Path
) -> None:
    path = tmp_path / "begun"
    running = asyncio.create_task(executor.run(isolated(noted(path, 2), 10)))
    await eventually(path.exists)
    kill_evaluator(executor)

    with pytest.raises(RunFailed):
        await running


async def test_a_value_is_not_blamed_for_a_child_that_is_killed_once(
    executor: ChildProcessExecutor, tmp_path: Path
) -> None:
    """By the kernel, say, when others take the machine's memory."""
    path = tmp_path / "begun"
    running = asyncio.create_task(executor.run(noted(path, 1)))
    await eventually(path.exists)
    [evaluator] = executor._busy
    for child in children(evaluator.pid):
        os.kill(child, signal.SIGKILL)
    path.with_suffix(".over").touch()

    [outcome] = await running

    assert outcome.value_results == [("v0", "ok", 1)]
    assert len(path.read_text()) == 2
