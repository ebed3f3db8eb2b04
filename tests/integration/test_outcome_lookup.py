"""What a caller is told of a request that it asks for, whatever the log still holds of it."""

from rebaser_core.commits import CommitV2, ControlState, RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import OutcomeQueryV1, RequestState
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import GraphContent, graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.processor.outcomes import OutcomeLookup
from rebaser_server.store.checkpoints import take_changes
from tests.helpers.deployment import Deployment, new_change_sets


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
