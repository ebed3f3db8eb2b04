"""A record in the bucket of pauses counts as a pause, also if another program wrote it."""

from datetime import UTC, datetime

import pytest

from rebaser_core.codecs import JSON
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.records import PauseRecord, PauseRecordV1, PauseScope, decode_pause

CHANGE_SET = ChangeSet(WorkspaceId(), ChangeSetId())
STORED = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def payload(record: PauseRecordV1) -> bytes:
    return PauseRecord.encode(record, JSON)[1]


def test_a_pause_is_read_as_it_was_written() -> None:
    record = PauseRecordV1(id=RequestId(), since="2030-01-02T03:04:05Z", by="ada", reason="a look")

    assert decode_pause("all", payload(record), STORED) == record


@pytest.mark.parametrize(
    "written",
    [
        b'{"v2": {"until": "tomorrow"}}',
        b'{"v999999999": {}}',
        b"this is no JSON",
        payload(PauseRecordV1(id=RequestId(), since="2030-01-02T03:04:05Z")),
    ],
    ids=["newer", "much newer", "no JSON", "of everything"],
)
def test_a_record_that_this_release_cannot_read_pauses_what_its_key_says(written: bytes) -> None:
    """To work on what an operator has paused is worse than to wait until it is resumed."""
    scope = PauseScope(*CHANGE_SET)

    pause = decode_pause(scope.key, written, STORED)

    assert (pause.scope, pause.since) == (scope, "2030-01-02T03:04:05Z")


def test_a_key_of_nothing_that_can_be_paused_is_an_error() -> None:
    with pytest.raises(ValueError, match="x"):
        decode_pause("x", b"{}", STORED)
