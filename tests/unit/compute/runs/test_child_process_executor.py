"""Runs beside this process: stopped when told to, and never taking it down."""

import asyncio
import os
import pickle
import re
import resource
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

from rebaser_server.compute import executors
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import CodeDiffers, EvaluationFailed
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.evaluator_processes import _Prints
from rebaser_server.compute.executors import ChildProcessExecutor, RoutingExecutor
from rebaser_server.compute.isolation import STRAY
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import RunStore, decode_result
from rebaser_server.compute.run import Run
from rebaser_server.compute.work_unit import CallLimits, WorkUnit, digest_of
from rebaser_server.files import SharedFiles
from tests.helpers.dear_functions import install_meeting, meetings, most_at_once
from tests.helpers.graph_builder import (
    Builder,
    eventually,
    forget_code,
    install,
    is_running,
    pids_in,
)
from tests.helpers.noted_progress import NotedProgress

FUNCTIONS = """
import ctypes, os, stat, time

def hang(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    while True:
        pass

def crash():
    print("now or never", flush=True)
    os.abort()

def crash_in_a_line():
    print("now or never", end="")
    os.abort()

def told(path): # its process's parent, which goes on
    with open(path, "a") as file:
        file.write(f"{os.getppid()}\\n")

def prints_a_word(): print("word ✓ \\udcff", end="")

def prints_in_c(): ctypes.CDLL(None).printf(b"from C")

def prints_much(size):
    print("first")
    for _ in range(size >> 10):
        print("x" * 1023)
    print("last")

def slow(value):
    time.sleep(0.01)
    return value

def pipes():
    return [
        fd
        for fd in range(3, 256)
        if os.path.exists(f"/proc/self/fd/{fd}")
        and stat.S_ISFIFO(os.fstat(fd).st_mode)
        and ctypes.CDLL(None).fcntl(fd, 3) & os.O_WRONLY
    ]

def descriptors():
    here = "/proc/self/fd"
    opened = [os.path.realpath(f"{here}/{fd}") for fd in os.listdir(here)]
    return {"sockets": sum("socket" in name for name in opened), "pipes": len(pipes())}

def answers(): # with the frame of an answer of 1, as it has been, and as the next would begin
    for fd in pipes():
        os.write(fd, (1).to_bytes(8) + b"1")

def floods():
    block = b"\\x01" * (1 << 20)
    for fd in pipes():
        for _ in range(4096):
            os.write(fd, block)

def waits(path, number):
    with open(f"{path}.{number}", "w") as file:
        file.write(str(os.getpid()))
    while not os.path.exists(path):
        time.sleep(0.01)
    return number
"""


@pytest.fixture
async def executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ChildProcessExecutor]:
    names = re.findall(r"^def (\w+)", FUNCTIONS, re.MULTILINE)
    install(tmp_path, "odd", FUNCTIONS, {name: f"odd:{name}" for name in names})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    executor = ChildProcessExecutor()
    yield executor
    await executor.close()


def units(code: str, runtime: str = "python", **sources: object) -> list[WorkUnit]:
    build = Builder()
    for name, data in sources.items():
        build.source(name, data)
    build.dependent("it", code, {name: name for name in sources}, runtime)
    return plan(build.graph, slots=1).units


async def test_outcomes_are_those_of_the_evaluator(executor: ChildProcessExecutor) -> None:
    build = Builder()
    build.source("one", 1)
    for n in range(1000):
        build.dependent(f"{n}", "sum", {"values": ["one", f"{n - 1}" if n % 10 else "one"]})
    planned = plan(build.graph, slots=2, small=0)
    progress = NotedProgress(1000)

    outcomes = await executor.run(planned.units, Run(progress=progress))

    here = [decode_result(evaluate(unit.encode())) for unit in planned.units]
    assert [outcome.value_results for outcome in outcomes] == [
        outcome.value_results for outcome in here
    ]
    assert progress.seen == sorted(progress.seen)
    assert {(250, 1000), (500, 1000), (750, 1000), (1000, 1000)} <= set(progress.seen)


async def test_a_child_with_other_code_calls_nothing_and_both_versions_are_named(
    executor: ChildProcessExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says is no fault of the values, and nothing that was found before is mixed in."""
    planned, called = tmp_path / "planned", tmp_path / "called"
    planned.mkdir()
    install(planned, "odd", "def told(path): return path", {"told": "odd:told"}, version="0.9")
    store = RunStore(SharedFiles(str(tmp_path / "store")), "a" * 64)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(planned)
        made = units("told", path=str(called))

    with pytest.raises(CodeDiffers, match=r"'told' .* odd 0\.9 \(.* and 1\.0 \(") as error:
        await executor.run(made, Run(store=store))

    assert not error.value.crashed
    assert not called.exists()
    forget_code()
    assert digest_of(made[0].encode()) != digest_of(units("told", path=str(called))[0].encode())


async def test_what_functions_print_is_in_the_log_cut_and_with_its_change_set(
    executor: ChildProcessExecutor,
) -> None:
    """The end of it, where a crash says its reason, and how much is missing."""
    size = 8 << 20
    with capture_logs([merge_contextvars]) as logs:
        with bound_contextvars(change_set="one"):
            await executor.run(units("prints_much", size=size))

        await eventually(lambda: any("last" in line["text"] for line in logs))

    assert {(line["event"], line["change_set"]) for line in logs} == {("functions printed", "one")}
    assert sum(len(line["text"]) for line in logs) < 50_000
    told = sum(len(line["text"]) + line.get("bytes_before", 0) for line in logs)
    assert told >= size


@pytest.mark.parametrize("function", ["crash", "crash_in_a_line"])
async def test_what_is_printed_before_a_crash_is_in_the_log(
    executor: ChildProcessExecutor, function: str
) -> None:
    with capture_logs() as logs:
        [outcome] = await executor.run(units(function))
        await eventually(lambda: logs)

    assert outcome.value_results[0][1] == "failed"
    assert [line["text"] for line in logs] == ["now or never"]


async def test_the_last_words_of_a_process_are_logged_though_nobody_has_read_them() -> None:
    """It may end while this process is busy with others."""
    read, write = os.pipe()
    with os.fdopen(read, "rb", 0) as prints, os.fdopen(write, "wb", 0) as printed:
        _, log_of_prints = await asyncio.get_running_loop().connect_read_pipe(_Prints, prints)
        printed.write(b"word\n" * 5_000 + b"the last word\n")

        with capture_logs() as logs:
            log_of_prints.close()

    assert [line["text"].endswith("the last word") for line in logs] == [True]


@pytest.mark.parametrize("is_forked", [False, True])
@pytest.mark.parametrize(
    ("function", "text"), [("prints_a_word", "word ✓ \\udcff"), ("prints_in_c", "from C")]
)
async def test_what_a_function_prints_last_is_in_the_log_when_its_call_ends(
    executor: ChildProcessExecutor,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    text: str,
    *,
    is_forked: bool,
) -> None:
    """In a machine's encoding or out of it, whether its process goes on or ends."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    [unit] = units(function)

    with capture_logs() as logs:
        [outcome] = await executor.run([replace(unit, limits=CallLimits(is_forked=is_forked))])
        await eventually(lambda: logs)

    assert outcome.value_results[0][1] == "ok"
    assert [line["text"] for line in logs] == [text]


async def test_a_crash_fails_its_value_and_not_the_next_run(
    executor: ChildProcessExecutor,
) -> None:
    [crashed] = await executor.run(units("crash"))
    ended = "computing it ended the evaluator: killed by SIGABRT"
    assert crashed.value_results == [("it", "failed", ended)]

    (outcome,) = await executor.run(units("identity", "builtin", value=1))
    assert outcome.value_results == [("it", "ok", 1)]


async def test_a_broken_blob_fails_its_run_and_not_the_next(executor: ChildProcessExecutor) -> None:
    [unit] = units("identity", "builtin", value=1)

    with pytest.raises(EvaluationFailed, match="IndexError"):
        await executor.run([replace(unit, functions=[])])

    (outcome,) = await executor.run(units("identity", "builtin", value=1))
    assert outcome.value_results == [("it", "ok", 1)]


async def test_a_small_run_does_not_wait_for_a_large_one(
    executor: ChildProcessExecutor, tmp_path: Path
) -> None:
    """Which has a minute of work."""
    build = Builder()
    build.source("value", 1)
    for n in range(6_000):
        build.dependent(f"{n}", "slow", {"value": f"{n - 1}" if n else "value"}, "python")
    store = RunStore(SharedFiles(str(tmp_path / "store")), "ab" * 32)
    large = asyncio.create_task(executor.run(plan(build.graph, slots=1).units, Run(store=store)))
    await eventually(lambda: "progress" in store.names())

    (outcome,) = await executor.run(units("slow", value=1))

    assert outcome.value_results == [("it", "ok", 1)]
    assert not large.done()
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large


async def test_cancellation_ends_a_function_that_never_returns(
    executor: ChildProcessExecutor, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    hanging = asyncio.create_task(executor.run(units("hang", path=str(pids))))
    next_one = asyncio.create_task(executor.run(units("identity", "builtin", value=1)))
    await eventually(lambda: pids_in(pids))

    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging

    await eventually(lambda: not any(map(is_running, pids_in(pids))))
    (outcome,) = await next_one
    assert outcome.value_results == [("it", "ok", 1)]


@pytest.fixture
async def children(executor: ChildProcessExecutor) -> AsyncIterator[ChildProcessExecutor]:
    """What computes small updates in a daemon on two cores."""
    children = ChildProcessExecutor(2)
    yield children
    await children.close()


@pytest.mark.parametrize("joined", [False, True])
async def test_dear_values_are_computed_by_all_cores(
    children: ChildProcessExecutor, tmp_path: Path, *, joined: bool
) -> None:
    """Also if their function was never measured, and if something takes all of them."""
    install_meeting(tmp_path)
    (tmp_path / "here").mkdir()
    executor = RoutingExecutor(children, children, CostModel(), large_from=100)

    assert await most_at_once(executor, meetings(tmp_path / "here", 8, joined=joined)) == 2


async def test_a_quick_run_passes_more_slow_ones_than_there_are_children(
    children: ChildProcessExecutor, tmp_path: Path
) -> None:
    """All of them go on at once, and each begins once."""
    gate = tmp_path / "gate"
    slow = [
        asyncio.create_task(children.run(units("waits", path=str(gate), number=n), Run(f"{n}")))
        for n in range(8)
    ]
    await eventually(lambda: len([*tmp_path.glob("gate.*")]) == 8)

    (outcome,) = await children.run(units("identity", "builtin", value=1), Run("small"))

    assert outcome.value_results == [("it", "ok", 1)]
    assert not any(task.done() for task in slow)
    gate.touch()
    for n, [result] in enumerate(await asyncio.gather(*slow)):
        assert result.value_results == [("it", "ok", n)]


async def test_of_what_answers_go_by_a_function_has_its_own_pipe_alone(
    executor: ChildProcessExecutor,
) -> None:
    [found] = await executor.run(units("descriptors"))

    assert found.value_results == [("it", "ok", {"sockets": 0, "pipes": 1})]


@pytest.mark.parametrize("function", ["answers", "floods"])
async def test_what_a_function_writes_into_its_pipe_answers_no_other_question(
    executor: ChildProcessExecutor, function: str
) -> None:
    """Its value fails, and says why. A flood takes no memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    strays = [asyncio.create_task(executor.run(units(function), Run("stray"))) for _ in range(2)]
    for n in range(10):
        [sums] = await executor.run(units("identity", "builtin", value=n), Run("other"))
        assert sums.value_results == [("it", "ok", n)]
    fates = [fate for [fate] in await asyncio.gather(*strays)]

    for fate in fates:
        [(_, status, message)] = fate.value_results
        assert (status, STRAY in str(message)) == ("failed", True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 << 10


async def test_a_child_that_another_caller_has_by_now_goes_on(
    children: ChildProcessExecutor, tmp_path: Path
) -> None:
    """A caller whose task was slow gives its child back. Another takes that before it goes on."""
    gate = tmp_path / "gate"
    slow = asyncio.create_task(children.run(units("waits", path=str(gate), number=1)))
    await eventually(lambda: [*tmp_path.glob("gate.*")])
    await asyncio.sleep(2 * executors.QUICK)  # until it has a slow seat, and the quick one is free
    gate.touch()
    while not children._idle:  # noqa: ASYNC110 - in the very turn of the loop in which it has one
        await asyncio.sleep(0)

    answer = await children._ask(pickle.dumps(partial(bytes, 3)), "other")

    assert answer == bytes(3)
    [result] = await slow
    assert result.value_results == [("it", "ok", 1)]
