"""Whose fault it is that a run came to nothing decides whether values may fail for it."""

import pytest

from rebaser_server.compute.errors import (
    EvaluationFailed,
    JavaMissing,
    RunFailed,
    SessionFailed,
    evaluator_error,
)
from rebaser_server.runtime.failures import DiskFull, Stalled
from rebaser_server.runtime.transient_errors import is_transient


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ValueError", EvaluationFailed),
        ("pyarrow.lib.ArrowInvalid", EvaluationFailed),
        ("MemoryError", RunFailed),
        ("ConnectionResetError", RunFailed),
        ("ModuleNotFoundError", RunFailed),
        ("rebaser_server.runtime.failures.StoreFailed", RunFailed),
    ],
)
def test_what_a_machine_lacks_is_not_the_evaluators_error(name: str, kind: type) -> None:
    assert type(evaluator_error(name, f"{name}: why")) is kind


def test_a_full_disk_is_told_from_other_errors_of_a_machine() -> None:
    error = evaluator_error("OSError", "OSError: [Errno 28] No space left on device")

    assert isinstance(error, DiskFull)


@pytest.mark.parametrize("kind", [SessionFailed, JavaMissing, RunFailed])
def test_an_evaluator_that_is_away_is_waited_for(kind: type[Exception]) -> None:
    assert is_transient(kind("why"))


@pytest.mark.parametrize("kind", [EvaluationFailed, Stalled])
def test_an_evaluation_that_fails_counts(kind: type[Exception]) -> None:
    assert not is_transient(kind("why"))
