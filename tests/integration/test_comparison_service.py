"""What applying a branch, or undoing a commit, would change, as any Rebaser answers it."""

import csv
import io
import json
from typing import Any

import pytest

from rebaser_client import ReadRefused, RequestRefused, builtin
from rebaser_client.change_set import ChangeSetHandle, WorkspaceHandle
from rebaser_client.reader import BranchDifference
from rebaser_server.commands import change_sets
from rebaser_server.queries.comparisons import diff
from rebaser_server.queries.query_service import QueryBounds
from rebaser_server.queries.reverts import plan_revert
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.helpers.workspace import Team
from tests.integration.test_action_service import target
from tests.integration.test_ops_endpoint import get, started, url_of


@pytest.fixture
async def team(deployment: Deployment) -> Team:
    await deployment.start()
    return await Team(deployment).begin()


async def test_a_branchs_difference_is_the_same_as_from_the_store(team: Team) -> None:
    branch, added = await team.fork(), new_id()
    await team.send(branch, [set_to(team.sum.net, 40), put(added, {"a": [1.5, None]})])
    await team.send(team.head, [set_to(team.sum.net, 60)])
    await team.deployment.at_rest()

    read = await team.client.change_set(*branch).difference(computed=True)

    stored = await diff(team.deployment.archive(branch), computed=True)
    assert read == BranchDifference(
        stored.commit,
        stored.digest,
        stored.updates,
        stored.changes,
        stored.computed,
        stored.behind,
        stored.uncomputed,
    )
    assert {change.id: (change.head, change.branch, change.both) for change in read.changes} == {
        team.sum.net: (60, 40, True),
        added: (None, {"a": [1.5, None]}, False),
    }
    assert [each.id for each in read.computed or ()] == [team.sum.gross]
    await team.client.change_set(*branch).apply(reviewed=read.digest)
    await team.becomes(team.head, added, {"a": [1.5, None]})


async def regions(deployment: Deployment) -> tuple[WorkspaceHandle, ChangeSetHandle]:
    """A workspace with the branch `b`, where `uk` was set; head set `us` while it slept."""
    shop = await deployment.client.workspace("s").create()
    async with shop.edit() as g:
        us, uk = g.source("us", 10), g.source("uk", 10)
        g.value("pus", builtin("sum"), us)
        g.value("puk", builtin("sum"), uk)
        g.value("both", builtin("sum"), us, uk)
    branch = await shop.fork("b")
    async with branch.edit() as g:
        g.source("uk", 11)
    await deployment.at_rest()
    async with shop.edit() as g:
        g.source("us", 20)
    await deployment.at_rest()
    return shop, branch


def results(found: BranchDifference) -> dict[str | None, tuple[Any, Any]]:
    return {each.name: (each.head, each.branch) for each in found.computed or ()}


async def test_a_sleeping_branch_shows_no_effect_of_head_and_all_of_its_own_once_it_follows(
    deployment: Deployment,
) -> None:
    await deployment.start()
    _, branch = await regions(deployment)

    asleep = await branch.difference(computed=True)
    await branch.refresh()
    await deployment.at_rest()
    awake = await branch.difference(computed=True)

    assert (results(asleep), asleep.behind, asleep.uncomputed) == ({"puk": (10, 11)}, 1, 1)
    assert "head has 1 batch that the branch has not followed" in asleep.unknown()
    assert results(awake) == {"puk": (10, 11), "both": (30, 31)}
    assert (awake.behind, awake.uncomputed, awake.unknown()) == (0, 0, "")


async def test_the_commands_and_the_page_have_a_sleeping_branch_follow_head(
    deployment: Deployment,
) -> None:
    daemon = await started(deployment)
    shop, branch = await regions(deployment)
    await branch.ids()
    commands = Commands(deployment)
    effects = {"puk": ("10", "11"), "both": ("30", "31")}

    async def shown() -> dict[str, Any]:
        query = "&".join(f"{key}={value}" for key, value in target(await branch.ids()).items())
        _, body = await get(f"{url_of(daemon)}change-set/difference?{query}")
        return json.loads(body)

    async def page_shows(expected: dict[str, tuple[str, str]]) -> bool:
        answer = await shown()
        rows = {row["name"]: (row["head"], row["branch"]) for row in answer["computed"]}
        assert rows.items() <= expected.items()
        assert bool(answer["unknown"]) == (rows != expected)
        return rows == expected

    await eventually(lambda: page_shows(effects))
    await deployment.at_rest()
    async with shop.edit() as g:
        g.source("us", 30)
    await deployment.at_rest()
    said = await commands.tell("diff", "s/b", "--all")
    assert [line.split() for line in said.splitlines()[2:-1]] == [
        ["computed", "head", "branch", "change"],
        ["both", "40", "41", "+2.5", "%"],
        ["puk", "10", "11", "+10", "%"],
    ]
    table = list(csv.reader(io.StringIO(await commands.tell("diff", "s/b", "--csv"))))
    assert [(name, *sides) for name, _, *sides in table[1:]] == [
        ("both", "40", "41"),
        ("puk", "10", "11"),
    ]
    assert await page_shows({"puk": ("10", "11"), "both": ("40", "41")})


async def test_without_a_rebaser_what_is_not_known_is_counted_and_not_guessed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = await deployment.start()
    await regions(deployment)
    daemon.kill()
    monkeypatch.setattr(change_sets, "_BRING_UP_WITHIN", 0.1)

    said = await Commands(deployment).tell("diff", "s/b")

    [unknown] = [line for line in said.splitlines() if "not known yet" in line]
    assert unknown.startswith("1 computed value is not known yet: head has 1 batch")
    assert "pus" not in said


async def test_what_was_reviewed_is_refused_once_head_changed_what_it_replaces(team: Team) -> None:
    """Also if the branch's edit is the same: it would overwrite what was not seen."""
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])
    reader = team.client.change_set(*branch)
    reviewed = (await reader.difference()).digest
    await team.send(team.head, [set_to(team.sum.tax, 5)])
    assert (await reader.difference()).digest == reviewed

    await team.send(team.head, [set_to(team.sum.net, 60)])

    with pytest.raises(RequestRefused, match="not the one that was reviewed"):
        await team.client.change_set(*branch).apply(reviewed=reviewed)
    await team.client.change_set(*branch).apply(reviewed=(await reader.difference()).digest)
    await team.becomes(team.head, team.sum.net, 40)


async def test_a_commit_is_undone_by_the_batch_that_a_rebaser_plans(team: Team) -> None:
    values = team.sum
    _, reply = await team.client.enqueue_updates_with_reply(
        *team.head, [set_to(values.net, 40), set_to(values.tax, 7)]
    )
    commit = (await reply).status.success.commit
    await team.send(team.head, [set_to(values.tax, 8)])
    reader = team.client.change_set(*team.head)

    careful, forced = await reader.plan_revert(commit), await reader.plan_revert(commit, force=True)

    loader = team.deployment.archive(team.head)
    assert careful == await plan_revert(loader, commit)
    assert forced == await plan_revert(loader, commit, force=True)
    assert careful.skipped == [values.tax]
    assert len(forced.updates) == 2
    await team.send(team.head, careful.updates)
    await team.becomes(team.head, values.net, 1)


async def test_what_cannot_be_compared_or_undone_is_refused_with_the_reason(team: Team) -> None:
    reader = team.client.change_set(*team.head)

    with pytest.raises(ReadRefused, match="is no branch"):
        await reader.difference()
    with pytest.raises(ReadRefused, match="the log ends at commit"):
        await reader.plan_revert(10**6)


async def test_a_difference_that_is_too_large_for_an_answer_is_refused(
    deployment: Deployment,
) -> None:
    daemon = await deployment.start()
    team = await Team(deployment).begin()
    branch = await team.fork()
    await team.send(branch, [put(new_id(), "x" * 600_000) for _ in range(2)])
    await deployment.at_rest()
    daemon.kill()

    async with deployment.answering(QueryBounds(answer_bytes=1 << 20)).serve():
        with pytest.raises(ReadRefused, match="more than 1,048,576 bytes"):
            await team.client.change_set(*branch).difference()
