"""A function harms its own value only: others come out as if it had not run."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.results import RunStore
from rebaser_server.files import SharedFiles
from tests.helpers.graph_builder import eventually, install, is_running, pids_in
from tests.helpers.harmful_functions import (
    ENDED,
    ENDLESS,
    PUT_BACK,
    REPLACED,
    SOUND,
    compute,
    install_harmful,
)

FUNCTIONS = """
import decimal, os, sys, time
from pathlib import Path
import numpy as np

decimal.getcontext().prec = 3
os.chdir("/")
sys.setrecursionlimit(150)
np.seterr(all="raise")

def importing(x): return str(decimal.Decimal(x) / decimal.Decimal(3))

def many(x): return x
def of_many(x):
    decimal.getcontext().prec = 3
    os.chdir("/")
    np.seterr(all="raise")
    return x
many.vectorised = of_many

KEPT = []
def keeping(x):
    KEPT.append(b"x" * (100 << 20))
    return os.getpid()

def forking(x):
    if os.fork() == 0:
        os.setsid()
        with Path(__file__).with_name("children").open("a") as file:
            file.write(f"{os.getpid()} ")
        time.sleep(600)
    while not Path(__file__).with_name("children").exists():
        time.sleep(0.01)
    os.abort()
"""


@pytest.fixture
async def executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ChildProcessExecutor]:
    install_harmful(tmp_path)
    names = ("importing", "many", "keeping", "forking")
    install(tmp_path, "others", FUNCTIONS, {name: f"others:{name}" for name in names})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("TZ", "Europe/Zurich")
    executor = ChildProcessExecutor()
    yield executor
    await executor.close()


def new_store(tmp_path: Path) -> RunStore:
    return RunStore(SharedFiles(str(tmp_path / "store")), random.randbytes(32).hex())


@pytest.mark.parametrize("is_forked", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_what_a_function_sets_is_put_back_before_the_next_call(
    executor: ChildProcessExecutor, tmp_path: Path, *, is_forked: bool
) -> None:
    alone = await compute(executor, SOUND, None)
    names = [name for each in [*PUT_BACK, *ENDED] for name in (each, *SOUND)]

    results = await compute(executor, names, new_store(tmp_path), is_forked=is_forked)

    harmful = {name: (status, data) for name, status, data in results if name not in SOUND}
    assert harmful == {
        **dict.fromkeys([*PUT_BACK, *ENDED], ("ok", 1)),
        "reads_input": ("ok", ""),
    }
    for n in range(len(harmful)):
        start = n * (len(SOUND) + 1)
        assert results[start + 1 : start + 1 + len(SOUND)] == alone, results[start]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "leaks_files" else pytest.mark.long)
        for name in REPLACED
    ],
)
async def test_what_cannot_be_put_back_ends_with_its_process(
    executor: ChildProcessExecutor, tmp_path: Path, name: str
) -> None:
    alone = await compute(executor, SOUND, None)

    results = await compute(executor, [*SOUND, name, *SOUND], new_store(tmp_path))

    assert results[: len(SOUND)] == alone
    assert results[len(SOUND) + 1 :] == alone
    assert await compute(executor, SOUND, None) == alone


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))]
)
async def test_sound_values_beside_harmful_ones_are_what_they_are_alone(
    executor: ChildProcessExecutor, tmp_path: Path, seed: int
) -> None:
    """In any order; few are computed one after the other, many by function; or in a fork."""
    rng = random.Random(seed)
    alone = {name: result for name, *result in await compute(executor, SOUND, None)}
    harmful = [*PUT_BACK, *ENDED, "leaves_thread"]
    names = rng.choices([*harmful, *SOUND * 3], k=rng.choice([40, 200]))
    for name in rng.sample(REPLACED, 2):
        names.insert(rng.randrange(len(names)), name)

    results = await compute(executor, names, new_store(tmp_path), is_forked=rng.random() < 0.3)

    assert [name for name, *_ in results] == names
    assert {name: result for name, *result in results if name in alone} == {
        name: result for name, result in alone.items() if name in names
    }
    assert all(result == alone[name] for name, *result in results if name in alone)
    assert {name: result for name, *result in await compute(executor, SOUND, None)} == alone


@pytest.mark.parametrize(
    "names", [["endless_disarming"], pytest.param(ENDLESS, marks=pytest.mark.long)]
)
async def test_a_call_ends_at_its_limit_whatever_it_catches_or_switches_off(
    executor: ChildProcessExecutor, tmp_path: Path, names: list[str]
) -> None:
    alone = await compute(executor, SOUND, None)

    results = await asyncio.wait_for(
        compute(executor, [*names, *SOUND], new_store(tmp_path), seconds=0.4), 120
    )

    for _, status, message in results[: len(names)]:
        assert status == "failed"
        assert "it did not return" in message
    assert results[len(names) :] == alone
    assert await compute(executor, SOUND, None) == alone


async def test_what_a_module_sets_when_it_is_imported_holds_in_no_call(
    executor: ChildProcessExecutor,
) -> None:
    """Not in its own functions either: whether it was imported first is up to the evaluator."""
    alone = await compute(executor, SOUND, None)

    results = await compute(executor, ["importing", *SOUND], None)

    assert results == [("importing", "ok", "0." + 28 * "3"), *alone]


async def test_a_function_of_many_values_leaves_its_process_as_it_was(
    executor: ChildProcessExecutor,
) -> None:
    alone = await compute(executor, SOUND, None)

    results = await compute(executor, ["many"] * 60 + SOUND, None)

    assert results == [("many", "ok", 1)] * 60 + alone


@pytest.mark.long
async def test_a_process_in_which_functions_hold_memory_is_replaced(
    executor: ChildProcessExecutor,
) -> None:
    """Although each call takes less than it may."""
    limits = {"memory": 256 << 20}

    processes = [(await compute(executor, ["keeping"], None, **limits))[0][2] for _ in range(5)]

    assert len(set(processes)) > 1
    assert processes[0] == processes[1]


async def test_a_forked_child_ends_with_the_process_that_it_was_forked_in(
    executor: ChildProcessExecutor, tmp_path: Path
) -> None:
    """Also if it has a session of its own, and its parent did not come to end it."""
    [(_, status, _)] = await compute(executor, ["forking"], new_store(tmp_path))

    assert status == "failed"
    children = pids_in(Path(os.environ["PYTHONPATH"].split(os.pathsep)[0], "children"))
    assert children
    await eventually(lambda: not any(map(is_running, children)))
