"""Values computed many at once are what they are computed one by one, to the last digit."""

import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_server.compute.functions.vectorised import VECTOR_BUILTINS, sum_rows_exact
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.work_unit import VECTOR_THRESHOLD, ArgumentSpec, WorkUnit
from tests.helpers.graph_builder import UNHURRIED, install
from tests.helpers.reference_evaluator import independently
from tests.helpers.work_units import evaluated, unit_from_rows

NUMBERS = [0, 1, -1, 3, 0.0, -0.0, 1.0, 0.5, -2.5, 1e16, 0.1, 1e308, 5e-324, 2**53 + 1, 2**62]
EXTREMES = [2**63 - 1, -(2**63), -1e308, 2**31, 1e-300]
OTHERS = [None, True, False, "", "a", "é", "null", "1", [], [1], [1.0], {"a": None}, {}]
DEEP = [[["x" * 200]]]
SHAPES: dict[str, tuple[str, ...]] = {
    "identity": ("value",), "not": ("value",), "round": ("value",),
    "subtract": ("left", "right"), "divide": ("left", "right"), "equal": ("left", "right"),
    "less": ("left", "right"), "if": ("condition", "then", "otherwise"), "lookup": ("table", "key"),
}  # fmt: skip


def random_blob(rng: random.Random, groups: int = 6) -> WorkUnit:
    """Wide groups one upon the other, whose inputs are of few kinds each, mixed in places."""
    pools = [NUMBERS, [0, 1, 2, 3], [0.5, 0.1, 0.7, 1.5], [True, False], NUMBERS + EXTREMES]
    pools += [NUMBERS + OTHERS, OTHERS, [0, 1, 2, None], [*OTHERS, DEEP], [0.1, 0.7, None]]
    constants = [
        (f"c{pool}.{n}", rng.random() < 0.99, rng.choice(pools[pool]))
        for pool in range(len(pools))
        for n in range(20)
    ]
    functions: list[tuple[str | None, str]] = []
    signatures: list[tuple[int, list[ArgumentSpec]]] = []
    values: list[tuple[str, int, str, Any, bool, list[int]]] = []
    for group in range(groups):
        code = rng.choice(sorted(VECTOR_BUILTINS))
        functions.append(("builtin", code))
        width = rng.randint(0, 5)
        shape: list[ArgumentSpec] = [
            (name, width if name == "table" else None) for name in SHAPES.get(code, ())
        ] or [("values", width)]
        if rng.random() < 0.05:
            shape = [("wrong", None)]
        signatures.append((group, shape))
        count = sum(1 if n is None else n for _, n in shape)
        pool, above = rng.randrange(len(pools)), len(values)
        for n in range(VECTOR_THRESHOLD + rng.randint(0, 20)):
            refs = [
                rng.randrange(above)
                if above and rng.random() < 0.3
                else ~(rng.randrange(20) + 20 * (3 if name == "condition" else pool))
                for name, many in shape
                for _ in range(1 if many is None else many)
            ]
            status = rng.choice(["pending", "ok", "ok", "failed"])
            before = rng.choice(pools[pool]) if status == "ok" else "why" * (status == "failed")
            must_compute = status == "pending" or rng.random() < 0.7
            values.append((f"v{group}.{n}", group, status, before, must_compute, refs[:count]))
    return unit_from_rows(functions, signatures, values, constants)


def rows_of(outcome: UnitResult) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = outcome.table.to_pylist()
    return rows


def require_same(unit: WorkUnit) -> UnitResult:
    at_once = evaluated(unit)
    one_by_one = evaluated(unit, one_by_one=True)
    assert rows_of(at_once) == rows_of(one_by_one)
    assert at_once.recomputed == one_by_one.recomputed
    return at_once


@pytest.mark.parametrize("seed", range(round(40 * float(os.environ.get("EXAMPLES", "1")))))
def test_builtins_at_once_are_builtins_one_by_one(seed: int) -> None:
    unit = random_blob(random.Random(seed))

    outcome = require_same(unit)

    assert (rows_of(outcome), outcome.recomputed) == independently(unit)


@pytest.mark.parametrize("code", ["identity", "coalesce"])
def test_a_stored_value_that_is_too_deep_is_no_result_of_many_at_once_either(code: str) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    shape: list[ArgumentSpec] = [("value", None)] if code == "identity" else [("values", 1)]
    values = [(f"v{n}", 0, "pending", None, True, [~(n % 2)]) for n in range(2 * VECTOR_THRESHOLD)]

    outcome = require_same(
        unit_from_rows(
            [("builtin", code)], [(0, shape)], values, [("deep", True, deep), ("b", True, "b")]
        )
    )

    assert outcome.value_results[:2] == [("v0", "blocked", "deep"), ("v1", "ok", "b")]


@pytest.mark.parametrize(
    "before", [[0.5], [7], [1e22], [0.5, 7], [1e22, 7], [None, 7, True, "1.5"]]
)
def test_what_was_computed_before_is_known_by_its_text(before: list[Any]) -> None:
    """Nothing has changed, so there is nothing to say."""
    data = [before[n % len(before)] for n in range(2 * VECTOR_THRESHOLD)]
    values = [(f"v{n}", 0, "ok", each, True, [~n]) for n, each in enumerate(data)]
    constants = [(f"c{n}", True, each) for n, each in enumerate(data)]

    outcome = require_same(
        unit_from_rows([("builtin", "identity")], [(0, [("value", None)])], values, constants)
    )

    assert (len(outcome), outcome.recomputed) == (0, 2 * VECTOR_THRESHOLD)


@UNHURRIED
@given(
    st.sampled_from(sorted(VECTOR_BUILTINS.keys() - SHAPES.keys())),
    st.lists(
        st.lists(
            st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
            | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False),
            min_size=3, max_size=3,
        ),
        min_size=4, max_size=12,
    ),
)  # fmt: skip
def test_lists_at_once_are_lists_one_by_one(code: str, lists: list[list[Any]]) -> None:
    rows = [each for each in lists for _ in range(VECTOR_THRESHOLD // len(lists) + 1)]
    constants = [(f"{i}.{n}", True, v) for i, row in enumerate(rows) for n, v in enumerate(row)]
    values = [(f"v{i}", 0, "pending", None, True, [~(3 * i + n) for n in range(3)])
              for i in range(len(rows))]  # fmt: skip

    require_same(unit_from_rows([("builtin", code)], [(0, [("values", 3)])], values, constants))


@UNHURRIED
@given(st.lists(st.lists(st.floats(-1e300, 1e300), min_size=4, max_size=4), min_size=1))
def test_a_sum_that_is_sure_is_the_correctly_rounded_one(rows: list[list[float]]) -> None:
    totals, sure = sum_rows_exact(np.array(rows))

    for row, total, is_sure in zip(rows, totals, sure, strict=True):
        assert not is_sure or total == math.fsum(row)


def test_most_sums_are_sure() -> None:
    """Else they would be right, but slow."""
    matrix = np.random.default_rng(1).normal(size=(2000, 5))

    _, sure = sum_rows_exact(matrix)

    assert sure.mean() > 0.99


FUNCTIONS = """
import numpy as np
calls = []

def taxed(price, rate, discounts=()):
    return (price - sum(discounts)) * (1 + rate)

def at_once(price, rate, discounts=None):
    calls.append(len(price))
    total = price if discounts is None else price - discounts.sum(1)
    return np.ma.masked_array(total * (1 + rate), price > 10**6)

taxed.vectorised = at_once

def broken(value): return value + 1
def raises(value): raise RuntimeError
broken.vectorised = raises

def inverse(value): return 1 / value
inverse.vectorised = lambda value: 1 / value
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("taxed", "broken", "inverse")
    install(tmp_path, "wide", FUNCTIONS, {f"wide.{name}": f"wide:{name}" for name in names})
    monkeypatch.syspath_prepend(tmp_path)


def calls_of(code: str, arguments: list[dict[str, Any]]) -> WorkUnit:
    """A value for each of these, of one signature; lists are lists of inputs."""
    shape: list[ArgumentSpec] = [
        (name, len(data) if isinstance(data, list) else None) for name, data in arguments[0].items()
    ]
    cells = [
        [cell for data in row.values() for cell in (data if isinstance(data, list) else [data])]
        for row in arguments
    ]
    width = len(cells[0])
    values = [(f"v{i}", 0, "pending", None, True, [~(width * i + n) for n in range(width)])
              for i in range(len(cells))]  # fmt: skip
    constants = [(f"{i}", True, cell) for i, cell in enumerate(c for row in cells for c in row)]
    return unit_from_rows([("python", code)], [(0, shape)], values, constants)


@pytest.mark.usefixtures("python")
def test_a_vectorised_function_is_called_at_once_where_its_arguments_are_of_a_kind() -> None:
    arguments = [
        {"price": price, "rate": rate, "discounts": [2, 3]}
        for price, rate in zip(
            [5, 7.5, 10**7] * VECTOR_THRESHOLD, [0.5] * 3 * VECTOR_THRESHOLD, strict=True
        )
    ]
    arguments += [{"price": None, "rate": 1, "discounts": [2, 3]}, {"price": 2**40, "rate": 2, "discounts": [0, 1]}]  # noqa: E501  # fmt: skip

    outcome = require_same(calls_of("wide.taxed", arguments))

    import wide  # type: ignore[import-not-found]  # noqa: PLC0415

    assert wide.calls == [2 * VECTOR_THRESHOLD, VECTOR_THRESHOLD], (
        "prices that are integers, then those that are floats"
    )
    assert outcome.value_results[0] == ("v0", "ok", 0.0)
    assert outcome.value_results[-2][1] == "failed"


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("code", ["wide.broken", "wide.inverse"])
def test_what_a_vectorised_form_cannot_compute_is_computed_one_by_one(code: str) -> None:
    outcome = require_same(calls_of(code, [{"value": n % 3} for n in range(2 * VECTOR_THRESHOLD)]))

    assert {status for _, status, _ in outcome.value_results} <= {"ok", "failed"}
    assert len(outcome) == 2 * VECTOR_THRESHOLD
