"""The builtin functions do what their manual says, and the manual names all of them."""

import inspect
import re
from typing import Any

import pytest

from rebaser_core.codecs import json_equal
from rebaser_core.table_values import TABLE
from rebaser_server.compute.functions.builtin import BUILTINS
from tests.helpers.paths import ROOT

A_TABLE = {TABLE: {"key": "ab" * 32}}
MANUAL = ROOT / "docs" / "functions.md"


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("identity", {"value": [1]}, [1]),
        ("collect", {"values": [1, None, "a"]}, [1, None, "a"]),
        ("sum", {"values": []}, 0),
        ("sum", {"values": [1, None, 2]}, 3),
        ("sum", {"values": [0.1] * 10}, 1.0),
        ("product", {"values": []}, 1),
        ("product", {"values": [2, None, 1.5]}, 3.0),
        ("product", {"values": [2**62] * 50_000 + [0]}, 0),
        ("product", {"values": [-3, 0, 0.5]}, 0.0),
        ("product", {"values": [-3, 0.0, 2]}, -0.0),
        ("mean", {"values": [1, 2]}, 1.5),
        ("mean", {"values": [0.1] * 10}, 0.1),
        ("mean", {"values": [None]}, None),
        ("min", {"values": [2, None, 1.5]}, 1.5),
        ("min", {"values": []}, None),
        ("max", {"values": ["a", "b"]}, "b"),
        ("count", {"values": [1, None, False]}, 2),
        ("subtract", {"left": 3, "right": 1}, 2),
        ("divide", {"left": 3, "right": 2}, 1.5),
        ("round", {"value": 2.567}, 3),
        ("round", {"value": 2.567, "digits": 2}, 2.57),
        ("round", {"value": 1234, "digits": -2}, 1200),
        ("round", {"value": 2**63 - 1, "digits": -(2**63)}, 0),
        ("round", {"value": -1e308, "digits": -308}, round(round(-1e308, -308))),
        ("any", {"values": []}, False),
        ("any", {"values": [False, None, True]}, True),
        ("all", {"values": []}, True),
        ("all", {"values": [True, None, False]}, False),
        ("not", {"value": False}, True),
        ("equal", {"left": 1, "right": 1.0}, False),
        ("equal", {"left": {"a": 1, "b": 2}, "right": {"b": 2, "a": 1}}, True),
        ("less", {"left": 1, "right": 1.5}, True),
        ("less", {"left": "b", "right": "a"}, False),
        ("if", {"condition": True, "then": 1, "otherwise": 2}, 1),
        ("if", {"condition": False, "then": 1}, None),
        ("coalesce", {"values": [None, False, 1]}, False),
        ("coalesce", {"values": [None]}, None),
        ("concat", {"values": ["a", None, "b"], "separator": "-"}, "a-b"),
        ("concat", {"values": []}, ""),
        ("concat", {"values": [[1], None, [2]]}, [1, 2]),
        ("lookup", {"table": {"a": 1}, "key": "a"}, 1),
        ("lookup", {"table": {"a": 1}, "key": "b", "default": 0}, 0),
        ("lookup", {"table": [5, 6], "key": 1}, 6),
        ("lookup", {"table": [5, 6], "key": -1}, None),
        ("json_get", {"document": {"a": [{"b/c": 1}]}, "pointer": "/a/0/b~1c"}, 1),
        ("json_get", {"document": {"a": 1}, "pointer": ""}, {"a": 1}),
        ("json_get", {"document": {"": 1}, "pointer": "/"}, 1),
        ("json_get", {"document": [1], "pointer": "/1", "default": 2}, 2),
        ("json_get", {"document": [1], "pointer": "/-1"}, None),
        ("json_get", {"document": [1, 2], "pointer": "/01"}, None),
        ("json_get", {"document": {"a": None}, "pointer": "/a", "default": 2}, None),
        ("json_merge", {"values": [{"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}]},
         {"a": 1, "b": {"c": 2, "d": 3}}),
        ("json_merge", {"values": [{"a": 1, "b": 2}, None, {"a": None}]}, {"b": 2}),
        ("json_merge", {"values": [{"a": [1]}, {"a": {"b": None}}]}, {"a": {}}),
        ("json_merge", {"values": [{"a": {"b": 1}}, {"a": 2}, {"a": {"c": None}}]}, {"a": {}}),
        ("json_merge", {"values": [{str(n): n} for n in range(100_000)]},
         {str(n): n for n in range(100_000)}),
        ("json_merge", {"values": []}, None),
    ],
)  # fmt: skip
def test_a_builtin_returns_the_expected_result(
    name: str, arguments: dict[str, Any], result: Any
) -> None:
    assert json_equal(BUILTINS[name](**arguments), result)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("sum", {"values": [1, True]}, "expected numbers, not true"),
        ("sum", {"values": 1}, "expected a list, not 1"),
        ("sum", {"values": [1, A_TABLE]}, "expected numbers, not a table$"),
        ("count", {"values": A_TABLE}, "expected a list, not a table$"),
        ("min", {"values": [1, "a"]}, 'expected numbers, or strings, not "a"'),
        ("max", {"values": [[1]]}, r"expected numbers, or strings, not \[1\]"),
        ("any", {"values": [1]}, "expected booleans, not 1"),
        ("if", {"condition": None, "then": 1}, "expected booleans, not null"),
        ("concat", {"values": ["a", 1]}, "expected strings, or lists, not 1"),
        ("less", {"left": 1, "right": "a"}, 'expected two numbers, or two strings, not "a"'),
        ("lookup", {"table": {"a": 1}, "key": 1}, "expected an object and a string"),
        ("lookup", {"table": [1], "key": True}, "expected an object and a string"),
        ("json_get", {"document": {}, "pointer": "a"}, "a JSON pointer is empty or begins"),
        ("product", {"values": [2**62] * 100_000}, "the product is larger than any number"),
        ("product", {"values": [2**62] * 50_000 + [0.5, 0]}, "the product is larger than any"),
    ],
)
def test_what_does_not_fit_is_named(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError), match=message):
        BUILTINS[name](**arguments)


def test_the_manual_names_every_function_and_argument() -> None:
    chapter = MANUAL.read_text().partition("## Builtin functions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_0-9]+)` \| (.*?) \|", chapter, re.MULTILINE)
    documented = {name: re.findall(r"`(\w+)`", arguments) for name, arguments in rows}

    assert documented == {
        name: list(inspect.signature(function).parameters) for name, function in BUILTINS.items()
    }
