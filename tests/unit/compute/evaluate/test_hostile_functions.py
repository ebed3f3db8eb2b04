"""Functions that do what no function should: their values fail, the others are computed."""

from pathlib import Path

import pytest

from rebaser_server.compute.evaluation import start_evaluation
from rebaser_server.compute.plan import UnitLimits, plan
from rebaser_server.compute.results import ValueResult
from rebaser_server.compute.work_unit import CallLimits
from tests.helpers.graph_builder import Builder, install

FUNCTIONS = """
import asyncio, heapq

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

class Nameless(type):
    @property
    def __name__(cls): raise KeyboardInterrupt
    def __hash__(cls): raise KeyboardInterrupt
class Unnamed(Exception, metaclass=Nameless): pass
def raises_what_has_no_name(value): raise Unnamed("it")
class Unclassed(Exception):
    @property
    def __class__(self): raise KeyboardInterrupt
def raises_what_has_no_class(value): raise Unclassed("it")
def returns_what_has_no_name(value): return [Nameless("Unnamed", (), {})()]
class Items(dict):
    def items(self): raise KeyboardInterrupt
    def __iter__(self): raise KeyboardInterrupt
def returns_other_items(value): return Items(a=1)
def returns_odd_text(value): return Odd("odd")
def recurses(value): return recurses(value)

class Lying:
    @property
    def __code__(self): raise RuntimeError
    @property
    def vectorised(self): raise RuntimeError
    def __call__(self, value): return value
lies = Lying()

def heaps(value):
    heapq.heapify(value)
    return 1
def appends(value):
    list.append(value, object())
    return value
def nests(value):
    dict.clear(value[3])
    return 1
def as_it_is(value): return value
def reuses(value):
    RESULT[:] = [*RESULT, 1]
    return RESULT
RESULT = []

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
    "raises_what_has_no_name": "Unnamed: it",
    "raises_what_has_no_class": "Unclassed: it",
    "returns_what_has_no_name": "KeyboardInterrupt",
    "returns_other_items": "the result cannot be a value: Items is not JSON",
    "returns_odd_text": "the result cannot be a value: Odd is not JSON",
    "recurses": "RecursionError: maximum recursion depth exceeded",
}
SOUND = ("lies", "interrupts_for_many")
NAMES = (*MESSAGES, *SOUND)
ARGUMENTS = ("heaps", "appends", "nests", "as_it_is", "reuses")


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "hostile", FUNCTIONS, {name: f"hostile:{name}" for name in NAMES + ARGUMENTS})
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
    evaluation = start_evaluation(unit)
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


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize("is_forked", [False, True])
def test_what_one_function_does_to_its_arguments_reaches_no_other(
    count: int, *, is_forked: bool
) -> None:
    """C code may change lists and objects that refuse to be changed."""
    build = Builder()
    build.source("given", [3, 1, 2, {"a": [1]}])
    build.dependent("copy", "as_it_is", {"value": "given"}, "python")
    names = ("appends", "nests", "as_it_is", "heaps")
    for n in range(count):
        for name in names:
            build.dependent(f"{n} {name}", name, {"value": "copy"}, "python")
    limits = UnitLimits(CallLimits(is_forked=is_forked))
    [unit] = plan(build.graph, slots=1, limits=limits).units
    evaluation = start_evaluation(unit)

    while evaluation.done < len(unit):
        evaluation.advance(10**6)

    refused = "failed", "TypeError: inputs are read-only: change a copy() of them"
    for value, *result in evaluation.result().value_results:
        name = value.split()[-1]
        expected = refused if name in {"appends", "nests"} else ("ok", [3, 1, 2, {"a": [1]}])
        if name != "heaps":
            assert tuple(result) == expected, value


def test_a_list_that_a_function_uses_again_is_read_before_the_next_call() -> None:
    build = Builder()
    build.source("one", 1)
    for n in range(300):
        build.dependent(f"{n}", "reuses", {"value": "one"}, "python")
    [unit] = plan(build.graph, slots=1).units
    evaluation = start_evaluation(unit)

    evaluation.advance(300)

    lengths = [len(result) for _, _, result in evaluation.result().value_results]
    assert sorted(set(lengths)) == list(range(lengths[0], lengths[0] + 300))
