"""On Spark, too, a function that takes too much or crashes fails its value alone."""

from dataclasses import replace

import pytest

from rebaser_server.compute.errors import CodeDiffers
from rebaser_server.compute.rescue import isolated
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.work_unit import CallLimits
from tests.helpers.work_units import unit_from_rows

pytestmark = pytest.mark.spark


def unit(*functions: tuple[str, str, int], code: dict[int, str] | None = None) -> bytes:
    """A value by each of these functions, whose arguments are the constants from a position on."""
    shapes = {key: ["value"] for key in ("crash", "interrupts", "forks", "large")}
    shapes |= {"slow": ["value", "seconds"], "v": ["v"]}
    signatures = [
        (n, [(name, None) for name in shapes[code]]) for n, (_, code, _) in enumerate(functions)
    ]
    made = unit_from_rows(
        [(runtime, code) for runtime, code, _ in functions],
        signatures,
        [
            (
                f"{n} {code}",
                n,
                "pending",
                None,
                True,
                [~(first + i) for i in range(len(shapes[code]))],
            )
            for n, (_, code, first) in enumerate(functions)
        ],
        [("path", True, "/dev/null"), ("one", True, 1), ("seconds", True, 0)],
    )
    return replace(made, code=code or {})


async def test_an_executor_with_other_code_calls_nothing_and_both_versions_are_named(
    executor: SparkExecutor,
) -> None:
    """The run is refused as one whose Spark is away: it fails no value."""
    expecting = unit(("python", "slow", 1), code={0: "misbehaving 0.9 3fa9"})

    with pytest.raises(CodeDiffers, match=r"misbehaving 0\.9 \(3fa9\) .* and 1\.0 \("):
        await executor.run([expecting])


@pytest.mark.long
async def test_a_crashing_value_fails_alone_in_one_more_run(executor: SparkExecutor) -> None:
    units = [
        unit(("python", "slow", 1), ("python", "crash", 1), ("cel", "v", 1)),
        unit(("cel", "v", 0)),
    ]

    first, second = await executor.run(isolated(units, 30))

    assert isinstance(first, UnitResult)
    assert isinstance(second, UnitResult)
    assert first.value_results == [
        ("0 slow", "ok", 1),
        ("1 crash", "failed", "computing it ended the evaluator: killed by SIGABRT"),
        ("2 v", "ok", 1),
    ]
    assert second.value_results == [("0 v", "ok", "/dev/null")]


async def test_hostile_functions_fail_alone(executor: SparkExecutor) -> None:
    """One interrupts, one leaves a child that returns as well, one returns more than it may."""
    functions = [("python", name, 1) for name in ("interrupts", "forks", "large", "slow")]
    limited = replace(unit(*functions), limits=CallLimits(memory=160 << 20, value_bytes=8 << 20))

    [outcome] = await executor.run([limited])

    assert isinstance(outcome, UnitResult)
    [(_, status, message), *others] = outcome.value_results
    assert status == "failed"
    assert str(message).startswith("KeyboardInterrupt (at misbehaving.py:")
    assert others == [
        ("1 forks", "ok", 1),
        ("2 large", "failed", "the result has 100 MiB; at most 8 are allowed"),
        ("3 slow", "ok", 1),
    ]
