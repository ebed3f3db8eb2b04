"""Functions in CEL: what they compute, what they cannot do, and what JSON is to them."""

import subprocess
import sys
from subprocess import PIPE
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.codecs import MAX_DEPTH
from rebaser_server.compute.errors import FunctionMissing
from rebaser_server.compute.functions import runtimes
from rebaser_server.compute.functions.runtimes import MAX_ARGUMENTS, MAX_CODE, CelError
from rebaser_server.compute.json_values import NotJson, read_only
from rebaser_server.values.canonical_json import dumps
from tests.helpers.graph_builder import UNHURRIED, Builder

TEXT = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


def call(code: str, **arguments: Any) -> Any:
    given = {name: read_only(data) for name, data in arguments.items()}
    return read_only(runtimes.compile_function(code)(**given))


def nested(depth: int) -> Any:
    data: Any = 1
    for _ in range(depth):
        data = [data]
    return data


@pytest.mark.parametrize(
    ("code", "arguments", "result"),
    [
        ('region.name == "eu" ? price * (1.0 + region.tax) : price',
         {"price": 2.0, "region": {"name": "eu", "tax": 0.5}}, 3.0),
        ("a + b", {"a": 1, "b": 2}, 3),
        ("double(a) * b", {"a": 3, "b": 1.5}, 4.5),
        ("size(text)", {"text": "é😀"}, 2),
        ("values.filter(v, v > 1).map(v, v * 2)", {"values": [1, 2, 3]}, [4, 6]),
        ("has(value.x) ? value.x : null", {"value": {}}, None),
        ("{'a': value}", {"value": [True]}, {"a": [True]}),
        ("true", {}, True),
    ],
)  # fmt: skip
def test_expressions_give_their_values(code: str, arguments: dict[str, Any], result: Any) -> None:
    assert call(code, **arguments) == result


def test_time_zones_are_those_of_a_package_and_not_of_the_machine() -> None:
    code = 'timestamp("2026-07-01T00:00:00Z").getHours("Europe/Berlin")'
    program = (
        "from rebaser_server.compute.functions.runtimes import compile_function\n"
        f"print(compile_function({code!r})())"
    )

    found = subprocess.run(
        [sys.executable, "-c", program], env={"TZDIR": "/missing"}, stdout=PIPE, check=True
    )

    assert found.stdout == b"2\n"


@UNHURRIED
@given(JSON)
def test_every_json_comes_through_as_it_is(data: Any) -> None:
    assert dumps(call("value", value=data)) == dumps(data)


@pytest.mark.parametrize(
    ("code", "arguments", "message"),
    [
        ("1 +", {}, "Syntax error"),
        ("missing", {"a": 1}, "undeclared reference to 'missing'"),
        ("a / 0", {"a": 1}, "divide by zero"),
        ("a + 1", {"a": 2**63 - 1}, "integer overflow"),
        ("a + 1.0", {"a": 1}, r"No matching overloads.* write double\(x\)"),
        ("a.b", {"a": {}}, "Key not found"),
        ("v.map(a, v.map(b, v.map(c, v.map(d, 1))))", {"v": [0] * 30}, "Iteration budget exceeded"),
        ("(" * 500 + "1" + ")" * 500, {}, "recursion limit"),
        ("a", {"a": {"\0": 1}}, "NUL"),
        ("a", {"a": "\\\0"}, "NUL"),
        ("a + a", {"a": "x" * (MAX_ARGUMENTS + 1)}, "the arguments are longer"),
    ],
)
def test_a_failing_expression_is_explained(
    code: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(CelError, match=message):
        call(code, **arguments)


@pytest.mark.parametrize("code", ["b'bytes'", "timestamp('2020-01-01T00:00:00Z')", "{1: 2}", "1.0 / 0.0", "type(1)"])  # noqa: E501  # fmt: skip
def test_a_result_must_be_json(code: str) -> None:
    with pytest.raises(NotJson):
        call(code)


def test_nesting_is_limited_before_the_engine_sees_it() -> None:
    """It ends the process for values that are nested too deep."""
    assert call("value", value=nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    with pytest.raises(NotJson):
        call("value", value=nested(MAX_DEPTH + 1))


@pytest.mark.parametrize("code", ["1" * (MAX_CODE + 1), "'\\x00'", "'\0'"])
def test_expressions_that_the_engine_cannot_be_given_are_refused(code: str) -> None:
    with pytest.raises(FunctionMissing, match="an expression in CEL"):
        runtimes.compile_function(code)


def test_what_only_looks_like_a_nul_character_is_text() -> None:
    assert call("a", a="\\u0000") == "\\u0000"


def test_values_are_computed_by_expressions() -> None:
    build = Builder()
    build.source("price", 2)
    build.source("others", [1, 2])
    build.dependent("sum", "price + others[1]", {"price": "price", "others": "others"}, "cel")
    build.dependent("wrong", "price / 0", {"price": "sum"}, "cel")
    build.dependent("after", "value", {"value": "wrong"}, "cel")

    build.update()

    assert build.state()["sum"] == ("ok", 4)
    assert build.state()["wrong"] == ("failed", "CelError: divide by zero")
    assert build.state()["after"] == ("blocked", "wrong")
