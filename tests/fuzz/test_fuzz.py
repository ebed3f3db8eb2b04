"""Commands end with a documented code and without a traceback, on spoilt input, too."""

import pytest

from tests.fuzz.fuzzer import fuzz


@pytest.mark.parametrize("inputs", [250, pytest.param(1_500, marks=pytest.mark.long)])
def test_spoiled_inputs_end_commands_with_a_documented_code(inputs: int) -> None:
    """And a file that is taken is planned as another reader reads it."""
    figures = fuzz(inputs, lambda sofar: sofar.tried >= inputs)

    assert figures.faults == []
    assert figures.taken > 0
