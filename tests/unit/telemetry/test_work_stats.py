"""The failures that the pages show, and when they are over."""

from typing import Any

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import RequestOutcome
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.telemetry.work_stats import WorkStats

FINISHED = {"seconds": 1.0, "affected": 1, "recomputed": 1, "changed": 1}


def standing(stats: WorkStats) -> list[Any]:
    return [row["what"] for row in stats.failures if not row["over"]]


def test_a_failure_is_over_once_the_change_set_gets_on() -> None:
    """That of an update by the next update, that of a request by the next request."""
    one, other = (ChangeSet(WorkspaceId(), ChangeSetId()) for _ in range(2))
    stats = WorkStats()
    stats.activity(one, ActivityKind.DVU_FAILED, None, {"reason": "why"})
    stats.failure(one, "retry scheduled", "why")
    stats.values_failed(one, 2)

    stats.activity(other, ActivityKind.DVU_FINISHED, None, FINISHED)
    stats.request(other, RequestOutcome.APPLIED, 0.0, 0)
    assert standing(stats) == ["update failed", "retry scheduled", "2 values failed"]

    stats.activity(one, ActivityKind.DVU_FINISHED, None, FINISHED)
    assert standing(stats) == ["retry scheduled", "2 values failed"]
    stats.request(one, RequestOutcome.APPLIED, 0.0, 0)
    assert standing(stats) == ["2 values failed"]
    stats.values_failed(one, 0)
    assert standing(stats) == []
