"""Which update a value waits for, and since when."""

from types import SimpleNamespace
from typing import Any

import pytest

from rebaser_core.commits import ControlState, DvuClaim
from rebaser_core.ids import RequestId
from rebaser_core.queries import DueUpdate
from rebaser_server.queries.provenance import due_update, failed_inputs, time_of

COMMIT_ID = RequestId.from_timestamp(1_800_000_000.0)
CLAIM = DvuClaim(id=RequestId(), covers=8)


def history(**requests: tuple[int, RequestId]) -> Any:
    return SimpleNamespace(requests={int(key[1:]): known for key, known in requests.items()})


def lineage(**roots: int) -> Any:
    return SimpleNamespace(roots=roots)


@pytest.mark.parametrize(
    ("control", "roots", "due"),
    [
        (ControlState(clean_sequence=9), {"a": 8, "b": 9}, None),
        (ControlState(clean_sequence=9), {}, None),
        (
            ControlState(clean_sequence=6),
            {"a": 6, "b": 8, "c": 9},
            DueUpdate(commit=12, since=time_of(COMMIT_ID)),
        ),
        (
            ControlState(clean_sequence=6, claim=CLAIM, dvu_failures=2),
            {"b": 8},
            DueUpdate(commit=12, since=time_of(COMMIT_ID), update=CLAIM.id, failures=2),
        ),
        (ControlState(clean_sequence=6, claim=CLAIM), {"b": 9}, DueUpdate()),
    ],
    ids=["up to date", "not concerned", "due", "under way", "behind the one under way"],
)
def test_the_first_change_that_is_not_covered_counts(
    control: ControlState, roots: dict[str, int], due: DueUpdate | None
) -> None:
    assert due_update(control, lineage(**roots), history(s8=(12, COMMIT_ID))) == due


def test_a_commit_is_of_the_time_of_its_request() -> None:
    assert time_of(COMMIT_ID) == "2027-01-15T08:00:00.000Z"


def test_the_nearest_failures_are_listed() -> None:
    failures = {f"{number:026}": "no" for number in range(30)}
    far = SimpleNamespace(
        failures=failures, path=lambda i: ["x"] * (30 - int(i)), steps=lambda i: 30 - int(i)
    )

    listed = failed_inputs(far)  # type: ignore[arg-type]

    assert [len(each.path) for each in listed] == [*range(1, 21)]
