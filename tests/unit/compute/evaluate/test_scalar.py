"""Many values of one function that has no vectorised form: each is what it is by itself."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.evaluators import CHUNK, _compile_call
from rebaser_server.compute.functions.builtin import BUILTINS
from rebaser_server.compute.results import UnitResult, ValueResult, decode_result
from rebaser_server.compute.work_unit import CallLimits
from tests.helpers.graph_builder import install
from tests.helpers.work_units import unit_from_rows

FUNCTIONS = """
import time
from decimal import Decimal, getcontext

ODD = [1.5, float("nan"), 2**63, True, None, "text", [1, [2]], {1}, -0.0, 7]

def odd(value):
    if value == len(ODD):
        raise ValueError(value)
    return ODD[value]

def collected(first, others): return [first, *others]
def any_name(**given): return sum(given.values())

def loops(value):
    while value == 7: pass
    return value

def sleeps(value): return time.sleep(0.5)

def third(value):
    result = str(Decimal(value) / 3)
    getcontext().prec = 3
    return result

def any_third(**given): return third(given["value"])
"""
MANY = 300
"""Number of values of which some are called in a loop: the first step of a unit takes few."""
NAMES = ("odd", "collected", "any_name", "loops", "sleeps", "third", "any_third")


@pytest.fixture(autouse=True)
def _python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "many", FUNCTIONS, {f"many.{name}": f"many:{name}" for name in NAMES})
    monkeypatch.syspath_prepend(tmp_path)


def computed(
    code: str, shape: list[tuple[str, int | None]], rows: list[list[int]], seconds: float = 0
) -> UnitResult:
    """A value for each row of constants, which are integers; one below 0 has no value."""
    limits = CallLimits(seconds=seconds)
    given = sorted({item for row in rows for item in row})
    values = [
        (f"v{n}", 0, "pending", None, True, [~given.index(item) for item in row])
        for n, row in enumerate(rows)
    ]
    constants = [(f"c{item}", item >= 0, item) for item in given]
    unit = unit_from_rows([("python", f"many.{code}")], [(0, shape)], values, constants, limits)
    return decode_result(evaluate(unit.encode()))


def test_whatever_a_call_comes_to_is_its_values_alone() -> None:
    one: list[tuple[str, Any]] = [
        ("ok", 1.5),
        ("failed", "the result cannot be a value: nan is not JSON"),
        ("failed", "the result cannot be a value: an integer of more than 64 bits"),
        ("ok", True),
        ("ok", None),
        ("ok", "text"),
        ("ok", [1, [2]]),
        ("failed", "the result cannot be a value: set is not JSON"),
        ("ok", -0.0),
        ("ok", 7),
        ("failed", "ValueError: 10 (at many.py:9 in odd)"),
        ("blocked", "c-1"),
    ]
    count = CHUNK + MANY

    outcome = computed(
        "odd", [("value", None)], [[n % 12 if n % 12 < 11 else -1] for n in range(count)]
    )

    expected: list[ValueResult] = [(f"v{n}", *one[n % 12]) for n in range(count)]
    assert repr(outcome.value_results) == repr(expected)
    assert outcome.recomputed == count


@pytest.mark.parametrize("alike", [[0], [2], [3], [4], [9], [1], [10]], ids=str)
def test_those_that_are_all_of_a_kind_are_what_they_are_among_others(alike: list[int]) -> None:
    mixed = computed("odd", [("value", None)], [[n % 11] for n in range(MANY)]).value_results
    same = computed("odd", [("value", None)], [alike] * MANY).value_results

    assert {repr(row[1:]) for row in same} == {repr(mixed[alike[0]][1:])}


def test_each_call_has_a_list_of_its_own() -> None:
    rows = [[n, n + 1, n + 2] for n in range(MANY)]

    outcome = computed("collected", [("first", None), ("others", 2)], rows)

    assert [value for _, _, value in outcome.value_results] == rows


def test_a_list_may_be_empty() -> None:
    outcome = computed("collected", [("first", None), ("others", 0)], [[n] for n in range(MANY)])

    assert [value for _, _, value in outcome.value_results] == [[n] for n in range(MANY)]


def test_arguments_may_have_names_that_the_function_does_not_write_down() -> None:
    shape: list[tuple[str, int | None]] = [("a b", None), ("class", None)]

    outcome = computed("any_name", shape, [[n, 1] for n in range(MANY)])

    assert [value for _, _, value in outcome.value_results] == [n + 1 for n in range(MANY)]


def test_a_call_that_does_not_return_fails_alone() -> None:
    outcome = computed("loops", [("value", None)], [[n] for n in range(MANY)], seconds=0.2)

    failed = [row for row in outcome.value_results if row[1] != "ok"]
    assert failed == [("v7", "failed", "it did not return within 0.2 s")]
    assert len(outcome) == MANY


@pytest.mark.parametrize("code", ["third", "any_third"])
@pytest.mark.parametrize("count", [2, MANY])
def test_settings_of_decimal_hold_for_one_call(code: str, count: int) -> None:
    outcome = computed(code, [("value", None)], [[1]] * count)

    assert {row[2] for row in outcome.value_results} == {"0." + 28 * "3"}


def test_each_call_has_the_whole_limit_of_time() -> None:
    outcome = computed("sleeps", [("value", None)], [[n] for n in range(7)], seconds=3)

    assert {row[1] for row in outcome.value_results} == {"ok"}


def test_the_call_of_a_list_of_some_length_does_not_stay_for_ever() -> None:
    """Each length is another call; a process that evaluates lives as long as the daemon."""

    def compiled(length: int) -> weakref.ref[Any]:
        return weakref.ref(_compile_call(BUILTINS["sum"], [("values", length)], is_installed=False))

    first = compiled(0)

    for length in range(1, 2_000):
        compiled(length)

    gc.unfreeze()  # another test may have compiled the first one, and exempted it
    gc.collect()
    assert first() is None
