"""The evaluator beside this process ends with what its functions forked, and never holds us up."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.plan import UnitLimits, plan
from rebaser_server.compute.work_unit import CallLimits, WorkUnit
from tests.helpers.graph_builder import Builder, eventually, install, is_running, pids_in
from tests.helpers.machine_requirements import lacking

FUNCTIONS = """
import os, re, signal, time

def note(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")

def leaves_a_child(path):
    if os.fork() == 0:
        note(path)
        time.sleep(600)
        os._exit(0)
    while not os.path.exists(path) or not os.path.getsize(path):
        time.sleep(0.01)  # or the child is ended, with this process, before it has begun
    return 1

def returns_twice(path):
    os.fork()
    return 1

def leaves_a_child_and_crashes(path):
    leaves_a_child(path)
    os.abort()

def leaves_a_child_and_hangs(path):
    leaves_a_child(path)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except OSError:
            pass
    while True:
        sum(range(10**12))

def lets_no_thread_get_on(path):
    note(path)
    re.match("(a+)+$", "a" * 60 + "b")
"""
PARENT = """
import asyncio, pickle, sys
from functools import partial
import forking
from rebaser_server.compute.evaluator_processes import Template

async def ask():
    child = await Template().fork()
    await child.ask(pickle.dumps(partial(forking.lets_no_thread_get_on, sys.argv[1])))

asyncio.run(ask())
"""
NAMES = (
    "leaves_a_child",
    "returns_twice",
    "leaves_a_child_and_crashes",
    "leaves_a_child_and_hangs",
)


@pytest.fixture
async def executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ChildProcessExecutor]:
    install(tmp_path, "forking", FUNCTIONS, {name: f"forking:{name}" for name in NAMES})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    executor = ChildProcessExecutor()
    yield executor
    await asyncio.wait_for(executor.close(), 60)


def units(code: str, path: Path) -> list[WorkUnit]:
    build = Builder()
    build.source("path", str(path))
    build.dependent("it", code, {"path": "path"}, "python")
    return list(plan(build.graph, slots=1, limits=UnitLimits(CallLimits())).units)


async def test_the_worker_ends_although_a_forked_child_holds_its_pipes(
    executor: ChildProcessExecutor, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    (outcome,) = await executor.run(units("leaves_a_child", pids))
    await eventually(lambda: pids_in(pids))

    await asyncio.wait_for(executor.close(), 60)

    assert outcome.value_results == [("it", "ok", 1)]
    await eventually(lambda: not any(map(is_running, pids_in(pids))))


async def test_a_child_that_returns_from_the_function_too_answers_nothing(
    executor: ChildProcessExecutor, tmp_path: Path
) -> None:
    for _ in range(3):
        (outcome,) = await asyncio.wait_for(executor.run(units("returns_twice", tmp_path)), 60)

        assert outcome.value_results == [("it", "ok", 1)]


async def test_a_crash_is_seen_although_a_forked_child_has_the_pipes(
    executor: ChildProcessExecutor, tmp_path: Path
) -> None:
    running = executor.run(units("leaves_a_child_and_crashes", tmp_path / "pids"))

    (outcome,) = await asyncio.wait_for(running, 60)
    ended = "computing it ended the evaluator: killed by SIGABRT"
    assert outcome.value_results == [("it", "failed", ended)]


async def test_a_function_that_ignores_all_signals_is_ended(
    executor: ChildProcessExecutor, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    running = asyncio.create_task(executor.run(units("leaves_a_child_and_hangs", pids)))
    await eventually(lambda: pids_in(pids))

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)

    await eventually(lambda: not any(map(is_running, pids_in(pids))))


@pytest.mark.usefixtures("executor")
async def test_a_child_that_is_stuck_ends_with_its_parent(tmp_path: Path) -> None:
    """Also where the function lets no other thread get on, which would see the parent's end."""
    if sys.platform != "linux":
        lacking("PR_SET_PDEATHSIG", "run it on Linux")
    path = tmp_path / "pids"
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, str(path))
    try:
        await eventually(lambda: pids_in(path), within=120)
    finally:
        parent.kill()
        await parent.wait()

    await eventually(lambda: not any(map(is_running, pids_in(path))), within=60)
