"""A function that takes too much fails its value, and nothing else."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.work_unit import CallLimits
from tests.helpers.graph_builder import install
from tests.helpers.work_units import unit_from_rows

LIMITS = CallLimits(seconds=0.5, memory=64 << 20)
FUNCTIONS = """
def loops(value):
    while value: pass

def holds_on(value):
    while True:
        try:
            while True: pass
        except Exception: pass

def grows(value):
    return len(bytearray(1 << 30))

def grows_slowly(value):
    kept = []
    while True: kept.append(bytearray(1 << 20))

def leaves_a_cycle(value):
    kept = []
    kept.append(kept)
    while True: kept.append(bytearray(1 << 20))

def fine(value): return len(bytearray(1 << 20)) and value
"""
NAMES = ("loops", "holds_on", "grows", "grows_slowly", "leaves_a_cycle", "fine")


@pytest.fixture
async def executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ChildProcessExecutor]:
    install(tmp_path, "greedy", FUNCTIONS, {name: f"greedy:{name}" for name in NAMES})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    executor = ChildProcessExecutor()
    yield executor
    await executor.close()


async def test_a_function_that_takes_too_much_fails_its_value_alone(
    executor: ChildProcessExecutor,
) -> None:
    unit = unit_from_rows(
        [("python", name) for name in NAMES],
        [(n, [("value", None)]) for n in range(len(NAMES))],
        [(name, n, "pending", None, True, [-1]) for n, name in enumerate(NAMES)]
        + [("after", 5, "pending", None, True, [5]), ("blocked", 5, "pending", None, True, [0])],
        [("one", True, 1)],
        LIMITS,
    )

    [outcome] = await executor.run([unit])

    assert isinstance(outcome, UnitResult)
    late, large = "it did not return within 0.5 s", "it took more than 67,108,864 bytes of memory"
    assert outcome.value_results == [
        ("loops", "failed", late),
        ("holds_on", "failed", late),
        ("grows", "failed", large),
        ("grows_slowly", "failed", large),
        ("leaves_a_cycle", "failed", large),
        ("fine", "ok", 1),
        ("after", "ok", 1),
        ("blocked", "blocked", "loops"),
    ]
    assert outcome.recomputed == len(outcome.value_results)  # however often a call was made
