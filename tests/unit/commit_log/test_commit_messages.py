"""What the last message of a log says, decoded or known."""

from datetime import UTC, datetime

import pytest

from rebaser_core.commits import CommitV2, ControlState
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import StoredMessage
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.commit_log.log import UNSAVED, log_end, publish_options
from rebaser_server.errors import HistoryInconsistent


def commit(owner: str = "") -> CommitV2:
    return CommitV2(id=RequestId(), previous=6, control=ControlState(epoch=3, owner=owner))


def stored(entry: CommitV2, payload: bytes | None = None, **headers: str) -> StoredMessage:
    options = publish_options(entry, {entry.id: headers})
    return StoredMessage(
        "log",
        7,
        datetime.now(UTC),
        {**options["headers"], MESSAGE_ID: options["message_id"]},
        options["payload"] if payload is None else payload,
    )


def test_a_commit_that_is_known_is_not_decoded() -> None:
    """Its headers are read all the same."""
    entry = commit()

    end = log_end(stored(entry, b"never read", **{UNSAVED: "1"}), (7, entry))

    assert end.sequence == 7
    assert end.entry is entry
    assert end.unsaved


def test_another_commit_in_its_place_is_decoded() -> None:
    """As after a restore, or once another run wrote: by sequence and by id (W2c)."""
    entry, other = commit(), commit("another")

    assert log_end(stored(other), (7, entry)).entry == other
    assert log_end(stored(entry), (8, entry)).entry == entry
    assert log_end(stored(other), None).entry == other
    with pytest.raises(HistoryInconsistent):
        log_end(stored(other, b"never written"), (7, entry))


def test_commits_that_are_no_edits_say_when_the_last_edit_was() -> None:
    """Of commits written before that was said, the last one's own time stands for it."""
    old = log_end(stored(commit()), None).entry
    assert old is not None
    assert not old.edited

    after = log_end(stored(commit().without_edit(old)), None).entry
    assert after is not None
    later = log_end(stored(commit().without_edit(after)), None).entry

    assert later is not None
    assert datetime.fromisoformat(later.edited) == old.id.datetime
    assert later.edited == after.edited
    assert not commit().without_edit(None).edited
