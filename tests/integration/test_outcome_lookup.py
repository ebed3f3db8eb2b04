"""What a caller is told of a request that it asks for, whatever the log still holds of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.msg import Msg

from rebaser_client import Unreachable, requests
from rebaser_core.commits import CommitV2, ControlState, RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.messages import OutcomeQueryV1, OutcomeReply, OutcomeReplyV2, RequestState
from rebaser_core.query_protocol import RETRY_AFTER
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import GraphContent, graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.store.checkpoints import take_changes
from tests.helpers.batches import new_id, put
from tests.helpers.deployment import Deployment, new_change_sets
from tests.wire.samples import FAILED, response


async def line(
    deployment: Deployment, change_set: ChangeSet, previous: int, settled: SettledRequest
) -> tuple[CommitV2, int]:
    """A line of the log that settles something, and its sequence."""
    head = ControlState(epoch=1, owner="x/y", last_sequence=settled.sequence)
    commit = CommitV2(id=RequestId(), previous=previous, control=head, settled=settled)
    [sequence] = await deployment.archive(change_set).log.append([commit])
    return commit, sequence


async def test_the_line_of_a_duplicate_is_not_taken_for_the_one_that_settled_the_request(
    deployment: Deployment,
) -> None:
    """That line was purged: what the checkpoint remembers counts, not what was stored again (W8).

    C3: whoever asks learns in which commit the request took effect, each time the same.
    """
    [change_set], request_id = new_change_sets(1), RequestId()
    archive, state = deployment.archive(change_set), State(GraphContent())
    applied = SettledRequest(id=request_id, sequence=1, outcome=RequestOutcome.APPLIED)
    commit, settled = await line(deployment, change_set, 0, applied)
    state.advance(commit, settled)
    checkpoints_of(archive).save(
        change_set, take_changes(graph_of(state), settled, state.metadata(), whole=True)
    )
    again = SettledRequest(id=request_id, sequence=2, outcome=RequestOutcome.DUPLICATE)
    await line(deployment, change_set, settled, again)
    await archive.log.purge(settled)

    outcomes = OutcomeLookup(deployment.streams, archive.machine)
    reply = await outcomes.find(
        OutcomeQueryV1(
            id=request_id,
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
        )
    )

    assert reply.state is RequestState.SETTLED
    assert reply.response.status.success.commit == settled


@asynccontextmanager
async def told(
    deployment: Deployment, change_set: ChangeSet, *replies: OutcomeReplyV2, **more: str
) -> AsyncIterator[None]:
    """Answer questions for outcomes by these replies, one after the other."""
    left = iter(replies)

    async def answer(question: Msg) -> None:
        headers, payload = OutcomeReply.encode(next(left))
        await deployment.nc.publish(question.reply, payload, headers=headers | more)

    async with subscribed(deployment.nc, deployment.streams.outcomes(change_set), answer):
        yield


async def test_a_request_that_one_look_does_not_find_is_looked_for_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look may have been at a replica that lags behind."""
    monkeypatch.setattr(requests, "OUTCOME_POLLS", (0.1, 0.1))
    [change_set], request_id = new_change_sets(1), RequestId()
    known = response(FAILED).model_copy(update={"id": request_id, **change_set._asdict()})
    unknown = OutcomeReplyV2(id=request_id, state=RequestState.UNKNOWN)
    settled = OutcomeReplyV2(id=request_id, state=RequestState.SETTLED, response=known)

    async with told(deployment, change_set, unknown, settled):
        _, reply = await deployment.client.enqueue_updates_with_reply(
            *change_set, [put(new_id(), 1)], request_id=request_id
        )
        assert await reply == known


async def test_a_rebaser_that_is_too_busy_to_look_has_not_answered(deployment: Deployment) -> None:
    [change_set], request_id = new_change_sets(1), RequestId()
    busy = OutcomeReplyV2(id=request_id, error="busy")

    async with told(deployment, change_set, busy, **{RETRY_AFTER: "1"}):
        with pytest.raises(Unreachable, match="busy"):
            await deployment.client.change_set(*change_set).outcome(request_id)
