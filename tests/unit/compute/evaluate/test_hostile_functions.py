"""Functions that do what no function should: their values fail, the others are computed."""

from pathlib import Path

import pytest

from rebaser_server.compute.evaluate.evaluator import start_evaluation
from rebaser_server.compute.plan.admission import UnitLimits
from rebaser_server.compute.plan.plan import plan
from rebaser_server.compute.units.unit_result import ValueResult
from rebaser_server.compute.units.work_unit import CallLimits, WorkUnit
from tests.helpers.graph_builder import Builder, install

FUNCTIONS = """
import asyncio

def raises_keyboard_interrupt(value): raise KeyboardInterrupt
def raises_generator_exit(value): raise GeneratorExit
def raises_system_exit(value): raise SystemExit(3)
def raises_cancelled(value): raise asyncio.CancelledError
def raises_stop_iteration(value): raise StopIteration

class Mute(Exception):
    def __str__(self): raise RuntimeError
def raises_what_has_no_words(value): raise Mute

class Worse(BaseException):
    def __str__(self): raise KeyboardInterrupt
def raises_what_interrupts(value): raise Worse

class Odd(str):
    def __format__(self, _): raise KeyboardInterrupt
    def __getitem__(self, _): raise KeyboardInterrupt
class Sly(Exception):
    def __str__(self): return Odd("sly")
def raises_odd_words(value): raise Sly

class Thing:
    def __eq__(self, other): raise KeyboardInterrupt
    def __len__(self): raise KeyboardInterrupt
    def __repr__(self): raise KeyboardInterrupt
    def __hash__(self): return 1
def returns_a_thing(value): return Thing()
def returns_a_thing_as_key(value): return {Thing(): 1}

def recurses(value): return recurses(value)

class Lying:
    @property
    def __code__(self): raise RuntimeError
    @property
    def vectorised(self): raise RuntimeError
    def __call__(self, value): return value
lies = Lying()

def of_many(value): raise KeyboardInterrupt
def interrupts_for_many(value): return value
interrupts_for_many.vectorised = of_many
"""
MESSAGES = {
    "raises_keyboard_interrupt": "KeyboardInterrupt",
    "raises_generator_exit": "GeneratorExit",
    "raises_system_exit": "SystemExit: 3",
    "raises_cancelled": "CancelledError",
    "raises_stop_iteration": "StopIteration",
    "raises_what_has_no_words": "Mute",
    "raises_what_interrupts": "Worse",
    "raises_odd_words": "Sly: sly",
    "returns_a_thing": "the result cannot be a value: Thing is not JSON",
    "returns_a_thing_as_key": "the result cannot be a value: the key of type Thing is not a string",
    "recurses": "RecursionError: maximum recursion depth exceeded",
}
SOUND = ("lies", "interrupts_for_many")
NAMES = (*MESSAGES, *SOUND)


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "hostile", FUNCTIONS, {name: f"hostile:{name}" for name in NAMES})
    monkeypatch.syspath_prepend(str(tmp_path))


def found(count: int, *, is_forked: bool = False) -> dict[str, ValueResult]:
    """What becomes of `count` values of each function, which takes some together."""
    build = Builder()
    build.source("one", 1)
    for number, name in enumerate(NAMES):
        for n in range(count):
            build.dependent(f"{number} {n}", name, {"value": "one"}, "python")
            build.dependent(f"after {number} {n}", name, {"value": f"{number} {n}"}, "python")
    [unit] = plan(build.graph, slots=1, limits=UnitLimits(CallLimits(is_forked=is_forked))).units
    evaluation = start_evaluation(WorkUnit.decode(unit))
    evaluation.advance(10**6)
    return {result[0]: result for result in evaluation.result().value_results}


@pytest.mark.parametrize("count", [1, 60])
def test_whatever_a_function_raises_or_returns_only_its_values_fail(count: int) -> None:
    results = found(count)

    for number, (name, message) in enumerate(MESSAGES.items()):
        _, status, said = results[f"{number} {count - 1}"]
        assert (status, said[: len(message)]) == ("failed", message), name
        assert results[f"after {number} 0"][1] == "blocked"
    for number in range(len(MESSAGES), len(NAMES)):
        assert results[f"after {number} 0"][1:] == ("ok", 1)


def test_likewise_where_it_is_forked() -> None:
    results = found(1, is_forked=True)

    statuses = [results[f"{number} 0"][1] for number in range(len(NAMES))]
    assert statuses == ["failed"] * len(MESSAGES) + ["ok"] * len(SOUND)
