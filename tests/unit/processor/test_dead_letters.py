"""What a letter carries of its request, and which requests a change set rejects."""

from pathlib import Path

import pytest

from rebaser_core.commits import ClosedState, ControlState
from rebaser_core.ids import RequestId
from rebaser_core.records import ChangeSetRequestV1
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import GraphContent
from rebaser_server.processor.dead_letters import (
    HEADERS,
    command_rejection,
    is_other_request,
    original_request,
    sendable_headers,
)
from tests.helpers.deployment import new_change_sets
from tests.helpers.simulated_nats import Nats, simulated


def test_headers_that_a_letter_cannot_carry_come_back_with_the_others(tmp_path: Path) -> None:
    """Those that would instruct NATS, or pass for ours, above all."""
    odd = {"Nats-Msg-Id": "1", "X-DEAD-REASON": "not ours", "name: odd": "x", "LINES": "a\nb"}
    sent = {"MESSAGE_TYPE": "EnqueueUpdatesRequest_v1", **odd}

    carried = sendable_headers(sent)

    assert set(carried) == {"MESSAGE_TYPE", HEADERS}
    [change_set] = new_change_sets(1)

    async def test(nats: Nats) -> None:
        batches = nats.loader(change_set).batches
        assert await original_request(batches, carried, b"payload") == (sent, b"payload")

    simulated(tmp_path, test)


@pytest.mark.parametrize(
    ("settled", "digest", "is_other"),
    [("a", "a", False), ("a", "b", True), ("", "b", False), ("a", "", False)],
)
def test_an_unknown_digest_may_be_of_the_same_request(
    settled: str, digest: str, *, is_other: bool
) -> None:
    assert is_other_request(settled, digest) == is_other


@pytest.mark.parametrize(
    ("status", "action", "rejected"),
    [
        (None, "checkpoint", None),
        (None, "apply", "only a branch can be told to apply"),
        ("abandoned", "checkpoint", "change set is abandoned"),
        ("abandoned", "delete", None),
        ("deleted", "delete", "change set is deleted"),
    ],
)
def test_a_command_is_rejected_where_the_change_set_is_closed_or_no_branch(
    status: str | None, action: str, rejected: str | None
) -> None:
    closing = status and ClosedState(status=status, request=RequestId())
    state = State(GraphContent(), control=ControlState(closing=closing or None))
    [(workspace, change_set)] = new_change_sets(1)
    request = ChangeSetRequestV1(
        id=RequestId(), workspace_id=workspace, change_set_id=change_set, action=action
    )

    assert command_rejection(state, request) == rejected
