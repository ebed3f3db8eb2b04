"""Large random change sets end where an evaluator that shares no code with ours ends.

Large enough for values to be computed many at once. In between, inputs would close cycles,
values and functions go, functions are replaced, and an update finds that things have changed.
"""

import json
import random
from collections import Counter
from typing import Any

import pytest

from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetInputs,
    SetValue,
)
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.drawn_graphs import computed_in, told
from tests.helpers.in_memory_change_set import ChangeSet
from tests.helpers.reference_spreadsheet import FUNCTIONS, Sheet

SOURCES, LAYERS, WIDTH = 40, 3, 70
VALUES = [ulid(number) for number in range(SOURCES + LAYERS * WIDTH)]
FUNCS = [ulid(1000 + number) for number in range(8)]
DATA = [0, 1, 2, 3, -1, 0.5, 0.1, 0.7, 1e16, 2**53 + 1, 2**62, 1.5, 2.0]
ODD = [None, True, "a", "é", [1, 2], {"k": 1}]


class World:
    """A change set and a sheet that get the same updates."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.change_set = ChangeSet()
        self.sheet = Sheet()
        self.corrections: Counter[str] = Counter()

    def request(self, updates: list[AnyUpdate]) -> None:
        done = self.change_set.request(updates)
        self.sheet.take(done.updates)
        self.corrections.update(correction.code for correction in done.corrections)

    def define(self) -> None:
        codes = [*FUNCTIONS, "sum", "max"]
        self.request([self._function(f, code) for f, code in zip(FUNCS, codes, strict=True)])
        batch: list[AnyUpdate] = [
            PutValue(value_id=value_id, value=self._data()) for value_id in VALUES[:SOURCES]
        ]
        for number in range(SOURCES, len(VALUES)):
            below = SOURCES + (number - SOURCES) // WIDTH * WIDTH
            func = self.random.choice(FUNCS)
            batch.append(
                PutValue(
                    value_id=VALUES[number], func_id=func, inputs=self._inputs(func, VALUES[:below])
                )
            )
        self.request(batch)

    def step(self) -> None:
        match self.random.randrange(8):
            case 0 | 1:
                self.change_set.start_update()
            case 2 | 3:
                self.change_set.finish_update()
            case _:
                self.request([self._edit() for _ in range(self.random.randint(1, 6))])

    def _edit(self) -> AnyUpdate:  # noqa: PLR0911 - one a kind
        value_id, func = self.random.choice(VALUES), self.random.choice(FUNCS)
        source = self.random.choice(VALUES[:SOURCES])
        match self.random.randrange(12):
            case 0:
                return RemoveValue(value_id=value_id)
            case 1:
                return RemoveFunc(func_id=func)
            case 2:
                return self._function(func, self.random.choice([*FUNCTIONS, "no such"]))
            case 3 | 4:
                return SetInputs(value_id=value_id, inputs=self._inputs(func, VALUES))
            case 5:
                return PutValue(value_id=value_id, func_id=func, inputs=self._inputs(func, VALUES))
            case 6:
                return PutValue(value_id=source, value=self._data())
            case _:
                return SetValue(value_id=source, value=self._data())

    def _function(self, func_id: str, code: str) -> PutFunc:
        return PutFunc(func_id=func_id, name=code, runtime="builtin", code=code)

    def _inputs(self, func_id: str, among: list[str]) -> dict[str, Any]:
        if self.sheet.codes.get(func_id) == "subtract":
            return {"left": self.random.choice(among), "right": self.random.choice(among)}
        return {"values": self.random.choices(among, k=self.random.randint(1, 4))}

    def _data(self) -> Any:
        return self.random.choice(DATA if self.random.random() < 0.95 else ODD)


def require_the_same(seed: int) -> Counter[str]:
    world = World(seed)
    world.define()
    for _ in range(world.random.randint(3, 12)):
        world.step()
    world.change_set.update_until_right()

    here = computed_in(world.change_set.graph)
    assert here == told(world.sheet.worked_out())
    seen = Counter(json.loads(text)[0] for text in here.values())
    return seen + world.corrections


@pytest.mark.parametrize("seed", range(25))
def test_large_change_sets_end_where_an_independent_evaluator_does(seed: int) -> None:
    require_the_same(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(20))
def test_thousands_of_large_change_sets_end_there(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        require_the_same(seed)


def test_all_kinds_of_ends_and_refused_cycles_occur() -> None:
    """Else the tests above would show less than they say."""
    seen = sum((require_the_same(seed) for seed in range(3)), Counter[str]())

    assert {"ok", "failed", "blocked", "cycle"} <= seen.keys()
    assert seen["ok"] > seen["failed"] + seen["blocked"]
