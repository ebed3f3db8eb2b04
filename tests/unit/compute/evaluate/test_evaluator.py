"""What becomes of each value: computed, failed, blocked, or left as it was."""

from pathlib import Path
from typing import Any

import pytest

from rebaser_server.compute.errors import MAX_MESSAGE
from rebaser_server.compute.results import UnitResult
from rebaser_server.values.columns import ValueStatus
from tests.helpers.graph_builder import Builder, install

FUNCTIONS = """
def long(): raise ValueError("x" * 10_000)
def nameless(): raise KeyError
def broken_text():
    class Broken(Exception):
        def __str__(self): raise RuntimeError
    raise Broken
def surrogate(): raise ValueError("\\ud800")
def exits(): raise SystemExit(1)
def endless(): return endless()
def returns_set(): return {"a": [1, {2}]}
def grows(values): values[0].append(1)
def sorts(values): values.sort(); return values
def copies(values): return sorted(values[0]) + [1]
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [line.split("(")[0][4:] for line in FUNCTIONS.splitlines() if line.startswith("def")]
    install(tmp_path, "odd", FUNCTIONS, {f"odd.{name}": f"odd:{name}" for name in names})
    monkeypatch.syspath_prepend(tmp_path)


def only(outcomes: list[UnitResult]) -> UnitResult:
    (outcome,) = outcomes
    return outcome


def tree() -> Builder:
    """a, b → sum → next → last; and other, which needs b alone."""
    build = Builder()
    build.source("a", 1)
    build.source("b", 2)
    build.dependent("sum", "sum", {"values": ["a", "b"]})
    build.dependent("next", "min", {"values": ["sum", "b"]})
    build.dependent("last", "identity", {"value": "next"})
    build.dependent("other", "identity", {"value": "b"})
    return build


def test_everything_is_computed_at_first() -> None:
    build = tree()

    outcome = only(build.update())

    assert outcome.recomputed == 4
    assert set(outcome.value_results) == {
        ("sum", "ok", 3),
        ("next", "ok", 2),
        ("last", "ok", 2),
        ("other", "ok", 2),
    }


def test_a_change_goes_only_as_far_as_values_change() -> None:
    build = tree()
    build.update()

    build.source("a", 10)
    outcome = only(build.update())

    assert outcome.value_results == [("sum", "ok", 12)]
    assert outcome.recomputed == 2, "sum, and next which comes out as it was"


def test_no_change_is_no_result() -> None:
    build = tree()
    build.update()

    build.source("b", 2)
    outcome = only(build.update())

    assert outcome.value_results == []
    assert outcome.recomputed == 3, "the direct dependents of the root"


@pytest.mark.parametrize(
    ("before", "after"), [(1, 1.0), (1, True), (0.0, -0.0), ([1], [True]), ({"a": 0}, {"a": False})]
)
def test_equal_in_python_may_be_different_in_json(before: Any, after: Any) -> None:
    build = Builder()
    build.source("it", before)
    build.dependent("copy", "identity", {"value": "it"})
    build.update()

    build.source("it", after)
    outcome = only(build.update())

    assert repr(outcome.value_results) == repr([("copy", "ok", after)])


def test_a_failure_blocks_what_depends_on_it_and_nothing_else() -> None:
    build = tree()
    build.source("a", "one")

    outcome = only(build.update())

    assert set(outcome.value_results) == {
        ("sum", "failed", 'TypeError: expected numbers, not "one"'),
        ("next", "blocked", "sum"),
        ("last", "blocked", "next"),
        ("other", "ok", 2),
    }
    assert outcome.recomputed == 4


def test_another_failure_of_the_same_value_ends_there() -> None:
    """Its dependents are blocked by it already, whatever its message."""
    build = tree()
    build.source("a", "one")
    build.update()

    build.source("a", "two")
    outcome = only(build.update())

    assert outcome.value_results == [("sum", "failed", 'TypeError: expected numbers, not "two"')]
    assert outcome.recomputed == 1


def test_a_blocked_value_recovers() -> None:
    build = tree()
    build.source("a", "one")
    build.update()

    build.source("a", 5)
    outcome = only(build.update())

    assert outcome.value_results == [("sum", "ok", 7), ("next", "ok", 2), ("last", "ok", 2)]


@pytest.mark.parametrize("status", [ValueStatus.FAILED, ValueStatus.BLOCKED, ValueStatus.PENDING])
def test_an_input_without_a_value_blocks_from_outside_of_the_run(status: ValueStatus) -> None:
    build = tree()
    build.update()
    build.graph.assign(build.graph.values["sum"], None, status, "why")

    build.source("new", 1)
    build.dependent("late", "sum", {"values": ["new", "sum"]})
    outcome = only(build.update())

    assert outcome.value_results == [("late", "blocked", "sum")]


def test_a_missing_function_fails_its_values() -> None:
    build = tree()
    del build.graph.funcs[build.func("min")]

    build.update()

    assert build.state()["next"] == ("failed", "function builtin/min does not exist")
    assert build.state()["last"] == ("blocked", "next")


@pytest.mark.parametrize(
    ("code", "inputs", "message"),
    [
        ("sum", {}, "missing 1 required keyword-only argument: 'values'"),
        ("identity", {"value": "a", "more": "b"}, "unexpected keyword argument 'more'"),
    ],
)
def test_wrong_arguments_are_named(code: str, inputs: dict[str, Any], message: str) -> None:
    build = tree()
    build.dependent("it", code, inputs)

    build.update()

    status, found = build.state()["it"]
    assert status == "failed"
    assert found == f"TypeError: {code}() {'got an ' if 'unexpected' in message else ''}{message}"


def test_lists_keep_their_order_and_repetitions() -> None:
    build = tree()
    build.dependent("list", "collect", {"values": ["b", "a", "b", "sum"]})
    build.dependent("both", "concat", {"values": ["list", "list"]})

    build.update()

    assert build.state()["both"] == ("ok", [2, 1, 2, 3, 2, 1, 2, 3])


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("odd.nameless", "KeyError (at odd.py:3 in nameless)"),
        ("odd.broken_text", "Broken (at odd.py:7 in broken_text)"),
        ("odd.surrogate", "ValueError: ? (at odd.py:8 in surrogate)"),
        ("odd.exits", "SystemExit: 1 (at odd.py:9 in exits)"),
        (
            "odd.endless",
            "RecursionError: maximum recursion depth exceeded (at odd.py:10 in endless)",
        ),
        ("odd.returns_set", "the result cannot be a value: ['a'][1]: set is not JSON"),
    ],
)
def test_any_way_to_fail_is_a_message(code: str, message: str) -> None:
    build = Builder()
    build.dependent("it", code, {}, runtime="python")

    build.update()

    assert build.state()["it"] == ("failed", message)


@pytest.mark.usefixtures("python")
def test_a_message_is_bounded() -> None:
    build = Builder()
    build.dependent("it", "odd.long", {}, runtime="python")

    build.update()

    message = build.state()["it"][1]
    assert len(message) == MAX_MESSAGE
    assert message.endswith("x (at odd.py:2 in long)")


@pytest.mark.usefixtures("python")
def test_functions_cannot_change_what_others_see() -> None:
    build = Builder()
    build.source("list", [3, 1])
    build.dependent("grown", "odd.grows", {"values": ["list"]}, runtime="python")
    build.dependent("sorted", "odd.sorts", {"values": "list"}, runtime="python")
    build.dependent("copied", "odd.copies", {"values": ["list"]}, runtime="python")
    build.dependent("same", "identity", {"value": "list"})

    build.update()

    refused = "TypeError: inputs are read-only: change a copy() of them"
    assert build.state() == {
        "list": ("ok", [3, 1]),
        "grown": ("failed", f"{refused} (at odd.py:12 in grows)"),
        "sorted": ("failed", f"{refused} (at odd.py:13 in sorts)"),
        "copied": ("ok", [1, 3, 1]),
        "same": ("ok", [3, 1]),
    }


def test_a_stored_value_beyond_the_limits_blocks_its_dependents_only() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    build = Builder()
    build.source("deep", deep)
    build.source("flat", [1])
    build.dependent("of deep", "identity", {"value": "deep"})
    build.dependent("of flat", "identity", {"value": "flat"})

    build.update(slots=1)

    assert build.state()["of deep"] == ("blocked", "deep")
    assert build.state()["of flat"] == ("ok", [1])
