"""What applying a branch, or undoing a commit, would change, as any Rebaser answers it."""

import pytest

from rebaser_client import ReadRefused
from rebaser_client.queries.branch_difference import BranchDifference
from rebaser_server.queries.diff import diff
from rebaser_server.queries.revert import plan_revert
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Deployment
from tests.helpers.workspace import Team


@pytest.fixture
async def team(deployment: Deployment) -> Team:
    await deployment.start()
    return await Team(deployment).begin()


async def test_a_branchs_difference_is_the_same_as_from_the_store(team: Team) -> None:
    branch, added = await team.fork(), new_id()
    await team.send(branch, [set_to(team.sum.net, 40), put(added, {"a": [1.5, None]})])
    await team.send(team.head, [set_to(team.sum.net, 60)])
    await team.deployment.at_rest()

    read = await team.client.reader(*branch).difference(computed=True)

    stored = await diff(team.deployment.archive(branch), computed=True)
    assert read == BranchDifference(
        stored.commit, stored.digest, stored.updates, stored.changes, stored.computed
    )
    assert {change.id: (change.head, change.branch, change.both) for change in read.changes} == {
        team.sum.net: (60, 40, True),
        added: (None, {"a": [1.5, None]}, False),
    }
    assert [each.id for each in read.computed or ()] == [team.sum.gross]
    await team.workspaces.apply(*branch, reviewed=read.digest)
    await team.becomes(team.head, added, {"a": [1.5, None]})


async def test_a_commit_is_undone_by_the_batch_that_a_rebaser_plans(team: Team) -> None:
    values = team.sum
    _, reply = await team.client.enqueue_updates_with_reply(
        *team.head, [set_to(values.net, 40), set_to(values.tax, 7)]
    )
    commit = (await reply).status.success.commit
    await team.send(team.head, [set_to(values.tax, 8)])
    reader = team.client.reader(*team.head)

    careful, forced = await reader.plan_revert(commit), await reader.plan_revert(commit, force=True)

    loader = team.deployment.archive(team.head)
    assert careful == await plan_revert(loader, commit)
    assert forced == await plan_revert(loader, commit, force=True)
    assert careful.skipped == [values.tax]
    assert len(forced.updates) == 2
    await team.send(team.head, careful.updates)
    await team.becomes(team.head, values.net, 1)


async def test_what_cannot_be_compared_or_undone_is_refused_with_the_reason(team: Team) -> None:
    reader = team.client.reader(*team.head)

    with pytest.raises(ReadRefused, match="is no branch"):
        await reader.difference()
    with pytest.raises(ReadRefused, match="the log ends at commit"):
        await reader.plan_revert(10**6)


async def test_a_difference_that_is_too_large_for_an_answer_is_refused(
    deployment: Deployment,
) -> None:
    await deployment.start(QUERIES__MAX_REPLY_BYTES=f"{1 << 20}")
    team = await Team(deployment).begin()
    branch = await team.fork()
    await team.send(branch, [put(new_id(), "x" * 600_000) for _ in range(2)])

    with pytest.raises(ReadRefused, match="more than 1,048,576 octets"):
        await team.client.reader(*branch).difference()
