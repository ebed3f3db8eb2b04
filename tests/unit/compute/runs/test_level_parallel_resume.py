"""A unit that is swept goes on where an earlier attempt ended, in whichever process that was."""

from pathlib import Path

import pytest

from rebaser_server.compute import task_protocol
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import RunFailed
from rebaser_server.compute.executors import UnitTasks
from rebaser_server.compute.level_parallel import LeveledRun
from rebaser_server.compute.results import RunStore, UnitResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.files import SharedFiles
from tests.helpers.graph_builder import install
from tests.helpers.work_units import unit_from_rows

LEVELS, WIDTH = 3, 400
FUNCTION = ("python", "logged")


class Here:
    """A `Place` that does as a Spark worker would, and breaks down after some runs."""

    slots = 2

    def __init__(self, sound: int) -> None:
        self._sound = sound
        self.runs = 0

    async def run(self, units, run):
        self.runs += 1
        if self.runs > self._sound:
            raise RunFailed("the evaluator ended")
        tasks = UnitTasks(f"{self.runs}", units, run.store)
        while orders := tasks.next_tasks():
            for number, order in orders.items():
                tasks.record(number, task_protocol.execute(order, tasks.store, tasks.id))
        return tasks.results()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A function's: a dot for each call."""
    log = tmp_path / "calls"
    source = (
        "def logged(value, more):\n"
        f"    with open({str(log)!r}, 'a') as file: file.write('.')\n"
        "    return value + more\n"
    )
    install(tmp_path, "logging_calls", source, {"logged": "logging_calls:logged"})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(task_protocol, "INLINE_BYTES", 0)  # else computed again
    return log


def calls_in(log: Path) -> int:
    return len(log.read_text())


def layers() -> WorkUnit:
    values = [
        (f"{level}.{n}", 0, "pending", None, True, [above(level, n), above(level, n + 1)])
        for level in range(LEVELS)
        for n in range(WIDTH)
    ]
    return unit_from_rows(
        [FUNCTION], [(0, [("value", None), ("more", None)])], values, [("c", True, 1)]
    )


def above(level: int, n: int) -> int:
    return (level - 1) * WIDTH + n % WIDTH if level else -1


async def test_levels_that_are_done_are_not_computed_again(tmp_path: Path, log: Path) -> None:
    """The second attempt knows nothing of costs but what the first has left, and learns others."""
    unit, store = layers(), RunStore(SharedFiles(str(tmp_path / "store")), "ab" * 32)
    run = Run(store=store)
    with pytest.raises(RunFailed):
        await LeveledRun(Here(sound=2), CostModel({FUNCTION: 0.01}), run).results([unit])
    assert calls_in(log) == 2 * WIDTH

    [outcome] = await LeveledRun(Here(sound=LEVELS), CostModel(), run).results([unit])

    assert calls_in(log) == LEVELS * WIDTH
    assert isinstance(outcome, UnitResult)
    assert outcome.recomputed == LEVELS * WIDTH
    assert [value for _, _, value in outcome.value_results] == [
        2 ** (level + 1) for level in range(LEVELS) for _ in range(WIDTH)
    ]
