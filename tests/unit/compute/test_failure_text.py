"""The message of a value that failed says which lines of its function it came from."""

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from rebaser_server.compute.errors import MAX_LINES, MAX_MESSAGE, describe_call, truncate
from rebaser_server.compute.work_unit import VECTOR_THRESHOLD
from tests.helpers.graph_builder import Builder, install

RATES = """
def rate_of(country):
    return {"DE": 19}[country]
"""
SHOP = """
from rates import rate_of

def gross(country):
    return 100 + rate_of(country)
"""


@pytest.mark.parametrize("alike", [1, VECTOR_THRESHOLD + 1], ids=["one", "side by side"])
def test_the_lines_of_all_its_files_are_named(
    alike: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "rates", RATES, {})
    install(tmp_path, "shop", SHOP, {"shop.gross": "shop:gross"})
    monkeypatch.syspath_prepend(tmp_path)
    build = Builder()
    build.source("country", "XX")
    for number in range(alike):
        build.dependent(f"gross{number}", "shop.gross", {"country": "country"}, runtime="python")

    build.update()

    message = "KeyError: 'XX' (at shop.py:5 in gross, rates.py:3 in rate_of)"
    assert {build.state()[f"gross{number}"] for number in range(alike)} == {("failed", message)}


def test_a_builtin_function_names_no_lines() -> None:
    build = Builder()
    build.source("zero", 0)
    build.source("text", "a")
    build.dependent("it", "sum", {"values": ["zero", "text"]})

    build.update()

    status, message = build.state()["it"]
    assert status == "failed"
    assert " (at " not in message


def test_of_many_lines_the_first_and_the_last_are_named(tmp_path: Path) -> None:
    lines = ["def f0():", "    raise ValueError"]
    for number in range(1, 40):
        lines += [f"def f{number}():", f"    f{number - 1}()"]

    message = raised_by(defined(tmp_path, "\n".join(lines), "f39"))

    place = message.partition(" (at ")[2].removesuffix(")").split(", ")
    assert len(place) == MAX_LINES + 1
    assert place[0].endswith("in raised_by")
    assert place[MAX_LINES // 2] == "…"
    assert place[-1] == "deep.py:2 in f0"


def test_names_of_any_length_leave_room_for_the_message(tmp_path: Path) -> None:
    name = "f" * 5_000

    message = raised_by(
        defined(tmp_path, f"def {name}():\n    raise ValueError('y' * 5_000)\n", name)
    )

    assert message.startswith("ValueError: yyy")
    assert len(message) == MAX_MESSAGE
    assert truncate(message) == message


def test_an_error_that_breaks_its_own_traceback_has_its_message_all_the_same() -> None:
    hostile = type("Hostile", (Exception,), {"__traceback__": property(lambda _: 1 / 0)})

    assert describe_call(hostile("no")) == "Hostile: no"


def raised_by(function: Callable[[], Any]) -> str:
    with pytest.raises(ValueError, match=r"^(y|$)") as caught:
        function()
    return describe_call(caught.value)


def defined(folder: Path, source: str, name: str) -> Callable[[], Any]:
    file = folder / "deep.py"
    file.write_text(source)
    function: Callable[[], Any] = run_path(str(file))[name]
    return function
