"""A function harms its own change set only: other values come out as if it had not run."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rebaser_server.compute.executors import ChildProcessExecutor
from tests.helpers.graph_builder import eventually, install, is_running, pids_in
from tests.helpers.harmful_functions import (
    QUICK,
    SOUND,
    compute,
    install_harmful,
    require_calls_end_at_their_limit,
    require_sound_beside_hostile,
)

FUNCTIONS = """
import decimal, os, sys, time
from pathlib import Path
import numpy as np

HERE = Path(__file__)
with HERE.with_name("imported").open("a") as file:
    file.write(f"{os.getpid()} ")

def many(x): return x
def of_many(x):
    os.chdir("/")
    os.abort()
many.vectorised = of_many

def forking(x):
    if os.fork() == 0:
        os.setsid()
        with HERE.with_name("children").open("a") as file:
            file.write(f"{os.getpid()} ")
        time.sleep(600)
    while not HERE.with_name("children").exists():
        time.sleep(0.01)
    os.abort()
"""
SETTING = """
import decimal, os, sys
import numpy as np

decimal.getcontext().prec = 3
os.chdir("/")
sys.setrecursionlimit(150)
np.seterr(all="raise")

def importing(x): return str(decimal.Decimal(x) / decimal.Decimal(3))
"""
ZONED = """
import os, time
from pathlib import Path

time.tzset()
with Path(__file__).with_name("imported").open("a") as file:
    file.write(f"{os.getpid()} ")

def zoned(x): return x
"""
BROKEN = {
    "crashing": ("import os; os.abort()", "killed by SIGABRT"),
    "hanging": ("while True: pass", "it did not return within 0.5 s"),
    "growing": ("KEPT = bytearray(1 << 30)", "MemoryError"),
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install_harmful(tmp_path)
    install(tmp_path, "others", FUNCTIONS, {name: f"others:{name}" for name in ("many", "forking")})
    install(tmp_path, "setting", SETTING, {"importing": "setting:importing"})
    install(tmp_path, "zone", ZONED, {"zoned": "zone:zoned"})
    for name, (code, _) in BROKEN.items():
        install(tmp_path, name, f"{code}\ndef {name}(x): return x", {name: f"{name}:{name}"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("TZ", "Europe/Zurich")
    return tmp_path


@pytest.fixture
async def executor(installed: Path) -> AsyncIterator[ChildProcessExecutor]:
    del installed
    executor = ChildProcessExecutor(2)
    yield executor
    await executor.close()


async def test_sound_values_beside_hostile_functions_are_what_they_are_alone(
    executor: ChildProcessExecutor,
) -> None:
    await require_sound_beside_hostile(executor, int(os.environ.get("ROUNDS", "30")))


async def test_a_call_ends_at_its_limit_whatever_it_catches_or_switches_off(
    executor: ChildProcessExecutor,
) -> None:
    await require_calls_end_at_their_limit(executor)


async def test_what_a_module_sets_when_it_is_imported_holds_for_no_other_change_set(
    executor: ChildProcessExecutor,
) -> None:
    alone = await compute(executor, SOUND)

    for _ in range(2):
        assert await compute(executor, ["importing"]) == [("importing", "ok", "0." + 28 * "3")]
        assert await compute(executor, SOUND) == alone


@pytest.mark.parametrize("name", ["many", "zoned"])
async def test_a_module_whose_import_changes_nothing_is_imported_for_all(
    executor: ChildProcessExecutor, installed: Path, name: str
) -> None:
    """Once in a child that finds that, and once in the process that the others are forked from.

    To set the zone that holds already is no change: pandas does that.
    """
    for _ in range(4):
        assert await compute(executor, [name]) == [(name, "ok", 1)]

    assert len(pids_in(installed / "imported")) == 2


@pytest.mark.parametrize("name", BROKEN)
async def test_an_import_that_breaks_down_fails_the_values_of_its_functions_alone(
    executor: ChildProcessExecutor, name: str
) -> None:
    alone = await compute(executor, QUICK)

    results = await compute(executor, [name, *QUICK, name], seconds=0.5, memory=256 << 20)

    assert results[1:-1] == alone
    for _, status, message in (results[0], results[-1]):
        assert status == "failed"
        assert message.startswith(f"Python function {name!r} does not load: {BROKEN[name][1]}")


async def test_a_function_of_many_values_that_crashes_is_called_for_each(
    executor: ChildProcessExecutor,
) -> None:
    alone = await compute(executor, SOUND)

    results = await compute(executor, ["many"] * 60 + SOUND)

    assert results == [("many", "ok", 1)] * 60 + alone


async def test_what_a_function_forked_ends_with_its_child(
    executor: ChildProcessExecutor, installed: Path
) -> None:
    """Also if it has a session of its own, and its parent did not come to end it."""
    [(_, status, _)] = await compute(executor, ["forking"])

    assert status == "failed"
    children = pids_in(installed / "children")
    assert children
    await eventually(lambda: not any(map(is_running, children)))
