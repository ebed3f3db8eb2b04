"""A workspace is deleted with all that is in it; what was not in it yet can be deleted later."""

import pytest

from rebaser_client.errors import RequestRefused
from rebaser_core.errors import NoSuchChangeSet
from rebaser_core.registry import Registry
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.upkeep import DeletedDataJob
from rebaser_server.files import SharedFiles
from tests.helpers.batches import set_to
from tests.helpers.deployment import Deployment
from tests.helpers.workspace import Team


async def begun(deployment: Deployment) -> Team:
    await deployment.start()
    return await Team(deployment).begin()


async def forget(deployment: Deployment, keep: float = 0) -> None:
    """What a Rebaser does once the retention time is over."""
    streams = deployment.streams
    files = SharedFiles(deployment.settings.store.root)
    await DeletedDataJob(streams, files, Membership(streams, "me"), keep=keep).purge()


async def test_a_workspace_is_deleted_with_its_branches_and_then_forgotten(
    deployment: Deployment,
) -> None:
    team = await begun(deployment)
    open_one, applied = await team.fork("open"), await team.fork("applied")
    await team.send(open_one, [set_to(team.sum.net, 40)])
    await team.client.change_set(*applied).apply()

    await team.workspaces.delete_workspace(team.id)
    await team.workspaces.delete_workspace(team.id)  # asked again it is as it was

    for change_set in (team.head, open_one, applied):
        status = await team.send(change_set, [set_to(team.sum.net, 50)])
        assert status.error.message == "refused: change set is deleted"
    await deployment.at_rest()
    await forget(deployment)
    assert await team.workspaces.all() == []
    assert await team.workspaces.change_sets(team.id, closed=True) == []
    with pytest.raises(NoSuchChangeSet):
        await team.workspaces.delete_workspace(team.id)


async def test_a_clock_of_years_ago_makes_no_deleted_data_old(deployment: Deployment) -> None:
    """The Rebaser that closed the branch went by it; NATS knows when that was."""
    team = await begun(deployment)
    branch = await team.fork()
    await team.client.change_set(*branch).delete()
    registry = Registry(deployment.streams)
    long_ago = {"closed_at": "1972-02-22T21:35:54.900Z"}
    await registry.update(branch, lambda record: record.model_copy(update=long_ago))

    await forget(deployment, keep=3600)

    assert (await registry.change_set(branch)).status == "deleted"
    await forget(deployment)
    assert not await registry.has_change_set(branch)


async def test_a_head_is_not_deleted_by_itself(deployment: Deployment) -> None:
    team = await begun(deployment)

    with pytest.raises(RequestRefused, match="with its workspace only"):
        await team.client.change_set(*team.head).delete()

    assert await team.value(team.head, team.sum.net) == 1


async def test_a_branch_of_a_deleted_head_goes_on_by_itself_and_can_be_deleted(
    deployment: Deployment,
) -> None:
    """As one that was forked while its workspace was being deleted."""
    team = await begun(deployment)
    branch = await team.fork()
    await team.client.change_set(*branch).refresh()
    await team.send(team.head, [set_to(team.sum.net, 7)])
    await team.client._sender.command(team.head, "delete")
    await deployment.at_rest()
    await forget(deployment)

    await team.send(branch, [set_to(team.sum.tax, 30)])
    await team.client.change_set(*branch).refresh()
    with pytest.raises(RequestRefused, match="deleted"):
        await team.client.change_set(*branch).apply()
    await team.becomes(branch, team.sum.gross, await team.value(branch, team.sum.net) + 30)

    await team.client.change_set(*branch).delete()
    assert (await team.client.change_set(*branch).describe()).status == "deleted"
