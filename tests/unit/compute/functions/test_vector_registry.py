"""A builtin function of many calls is called with the arguments that it is registered for."""

import numpy as np
import pytest

from rebaser_server.compute.functions.vectorised import (
    ArgumentBuffers,
    VectorRegistry,
    VectorResult,
)
from rebaser_server.compute.value_buffers import INT, NONE

COUNT = 3


@pytest.fixture
def registry() -> VectorRegistry:
    registry = VectorRegistry()

    @registry.register("first", "value", optional=("other",))
    def first(
        value: ArgumentBuffers, count: int, other: ArgumentBuffers | None = None
    ) -> VectorResult:
        result = VectorResult.none(count)
        result.set_integers(np.ones(count, np.bool_), value.bits[:, 0])
        return result

    return registry


def integers(*, is_list: bool = False) -> ArgumentBuffers:
    bits = np.arange(COUNT, dtype=np.int64).reshape(COUNT, 1)
    return ArgumentBuffers(np.full((COUNT, 1), INT, np.uint8), bits, bits, is_list)


@pytest.mark.parametrize("names", [["value"], ["value", "other"]])
def test_calls_that_fit_are_computed_at_once(registry: VectorRegistry, names: list[str]) -> None:
    """With all arguments that it requires, and with those that it may have."""
    result = registry["first"]({name: integers() for name in names}, COUNT)

    assert isinstance(result, VectorResult)
    assert result.bits.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"other": integers()},
        {"value": integers(), "more": integers()},
        {"value": integers(is_list=True)},
    ],
)
def test_other_calls_are_left_to_the_scalar_function(
    registry: VectorRegistry, arguments: dict[str, ArgumentBuffers]
) -> None:
    """Which says what is wrong with them."""
    result = registry["first"](arguments, COUNT)

    assert isinstance(result, VectorResult)
    assert set(result.kinds.tolist()) == {NONE}
