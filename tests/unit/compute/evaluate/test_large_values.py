"""A result is no larger than a value may be, whatever computes it."""

import os
from pathlib import Path

import pytest

from rebaser_server.compute.errors import ResultTooLarge
from rebaser_server.compute.evaluation import start_evaluation
from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.plan import UnitLimits, plan
from rebaser_server.compute.results import ValueResult
from rebaser_server.compute.work_unit import CallLimits
from tests.helpers.graph_builder import Builder, install

MIB = 1 << 20


def results(build: Builder, limits: CallLimits) -> dict[str, ValueResult]:
    [unit] = plan(build.graph, slots=1, limits=UnitLimits(limits)).units
    evaluation = start_evaluation(unit)
    evaluation.advance(10**6)
    return {result[0]: result for result in evaluation.result().value_results}


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        ("concat", {"values": ["text", "text"]}),
        ("collect", {"values": ["text", "text"]}),
        ("json_merge", {"values": ["object", "other"]}),
        ("identity", {"value": "long"}),
    ],
)
@pytest.mark.parametrize("count", [1, 60])
def test_a_result_that_is_too_large_fails(
    function: str, inputs: dict[str, str | list[str]], count: int
) -> None:
    build = Builder()
    build.source("text", "x" * 60)
    build.source("object", {"one": "x" * 40})
    build.source("other", {"other": "x" * 40})
    build.source("long", "x" * 200)
    for n in range(count):
        build.dependent(f"it{n}", function, inputs)
        build.dependent(f"after{n}", "count", {"values": [f"it{n}"]})

    found = results(build, CallLimits(value_bytes=100))

    for n in range(count):
        assert found[f"it{n}"][1] == "failed"
        assert found[f"it{n}"][2].endswith(" bytes; at most 100 are allowed")
        assert found[f"after{n}"][1:] == ("blocked", f"it{n}")


def test_a_result_as_large_as_a_value_may_be_is_one() -> None:
    build = Builder()
    build.source("text", "x" * 49)
    build.dependent("it", "concat", {"values": ["text", "text"]})

    assert results(build, CallLimits(value_bytes=100))["it"][1:] == ("ok", "x" * 98)


def test_bytes_count_and_not_characters() -> None:
    build = Builder()
    build.source("text", "é" * 30)
    build.dependent("it", "concat", {"values": ["text", "text"]})

    assert results(build, CallLimits(value_bytes=100))["it"][1] == "failed"


@pytest.mark.parametrize(
    ("size", "most", "message"),
    [
        (16 * MIB, 8 * MIB, "the result has 16 MiB; at most 8 are allowed"),
        (8 * MIB + 1, 8 * MIB, "the result has 8,388,609 bytes; at most 8,388,608 are allowed"),
        (3 * MIB, 1000, "the result has 3,145,728 bytes; at most 1,000 are allowed"),
    ],
)
def test_the_message_tells_both_sizes(size: int, most: int, message: str) -> None:
    assert str(ResultTooLarge(size, most)) == message


async def test_a_result_of_100_mib_ends_no_evaluator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is not made where memory is limited: what makes it crashes where that ends."""
    code = (
        "def large(value): return 'x' * (100 << 20)\n"
        "def parts(value): return ['x' * (1 << 20)] * 100\n"
        "def escaped(value): return ''.join(['\\x00'] * (1 << 20))\n"
    )
    names = ("large", "parts", "escaped")
    install(tmp_path, "large", code, {name: f"large:{name}" for name in names})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    build = Builder()
    build.source("one", 1)
    for name in names:
        build.dependent(name, name, {"value": "one"}, "python")
    limits = CallLimits(memory=160 << 20, value_bytes=8 * MIB)
    executor = ChildProcessExecutor()

    (outcome,) = await executor.run(plan(build.graph, slots=1, limits=UnitLimits(limits)).units)
    await executor.close()

    found = {value_id: (status, what) for value_id, status, what in outcome.value_results}
    told = "the result has 100 MiB; at most 8 are allowed"
    assert found["large"] == found["parts"] == ("failed", told)
    assert found["escaped"][0] == "ok"
