"""`rebaser why` and the client's `why`: from a value back to the edits that made it."""

import json
from typing import Any

import pytest

from rebaser_client import NoSuchValue, builtin, cel
from rebaser_client.change_set import WorkspaceHandle
from rebaser_server.commands.support.arguments import Exit
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually


async def shop_of(deployment: Deployment) -> WorkspaceHandle:
    """`gross` of `net` and `rate`, each from an edit of its own."""
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        net, rate = g.source("net", 100), g.source("rate", 0.19)
        g.source("note", "unused")
    async with shop.edit() as g:
        g.value("gross", cel("double(net) * (1.0 + rate)"), net=net, rate=rate)
    return shop


@pytest.mark.long
async def test_edits_are_named_with_what_they_did_and_the_way_to_the_value(
    deployment: Deployment,
) -> None:
    await deployment.start(HISTORY__MAX_COMMITS="0")
    shop = await shop_of(deployment)
    for name, value in (("note", "other"), ("rate", 0.07), ("rate", 0.07), ("net", 50)):
        async with shop.edit() as g:
            g.source(name, value)
    commits = {entry.commit: entry for entry in await shop_log(deployment, shop)}

    why = await shop.why("gross")

    assert why.value is not None
    assert why.value.value == pytest.approx(53.5)
    net, rate, graph, sources = why.edits
    [change] = net.changes
    assert (change.what, change.path) == ("value", ["net", "gross"])
    assert (change.before, change.after) == ("100", "50")
    assert [each.path for each in rate.changes] == [["rate", "gross"]]
    assert {each.what for each in graph.changes} == {"function", "definition"}
    assert [each.path[0] for each in sources.changes] == ["net", "rate"]
    assert net.commit == max(commits)
    assert all(commits[edit.commit].request == edit.request for edit in why.edits)
    assert (why.failed, why.waits, why.older, why.kept_from) == ((), None, 0, 0)

    before = await shop.why("gross", at=net.commit - 1)
    assert [edit.commit for edit in before.edits] == [e.commit for e in (rate, graph, sources)]

    await require_known_edits_of_a_branch(deployment, shop)
    await require_older_edits_to_be_counted(deployment, shop)


async def require_known_edits_of_a_branch(deployment: Deployment, shop: WorkspaceHandle) -> None:
    """Its own, those before the fork, and head's that reached it since, each in its own log."""
    branch = await shop.fork("sale")
    async with shop.edit() as g:
        g.source("rate", 0.16)
    async with branch.edit() as g:
        g.source("net", 80)
    await branch.refresh()
    head, own = (await shop.ids()).change_set_id, (await branch.ids()).change_set_id
    newest = (await shop_log(deployment, shop))[-1]

    why = await branch.why("gross")

    changed = {edit.changes[0].path[0]: edit for edit in why.edits[:2]}
    assert changed["net"].change_set_id == own
    assert (changed["rate"].change_set_id, changed["rate"].commit) == (head, newest.commit)
    assert [edit.change_set_id for edit in why.edits[2:]] == [head, head]
    assert why.older == 0


async def require_older_edits_to_be_counted(deployment: Deployment, shop: WorkspaceHandle) -> None:
    ids, saved = await shop.ids(), []
    for _ in range(2):
        await deployment.client.change_set(*ids).checkpoint()
        async with shop.edit() as g:
            g.source("net", len(saved))
        saved.append((await shop.why("net")).edits[0].commit)

    async def is_forgotten() -> bool:  # soon after the checkpoint is stored
        return [edit.commit for edit in (await shop.why("gross")).edits] == saved[-1:]

    await eventually(is_forgotten)
    why = await shop.why("gross")

    assert 0 < why.kept_from < saved[-1]
    assert why.older == 4


async def shop_log(deployment: Deployment, shop: WorkspaceHandle) -> list[Any]:
    log = await shop.log()
    return [entry for entry in log if not entry.computed]


async def test_the_command_names_edits_and_what_keeps_a_value_back(
    deployment: Deployment,
) -> None:
    given = Commands(deployment)
    await deployment.start()
    shop = await shop_of(deployment)
    async with shop.edit() as g:
        g.value("total", builtin("sum"), "gross")
        g.remove("rate")

    blocked = await shop.why("total")
    told = await given.tell("why", "shop", "gross")
    plain = json.loads(await given.tell("why", "shop", "gross", "--json"))
    gone = await given.tell("why", "shop", "rate")
    unknown = await given.tell("why", "shop", "gros", code=Exit.FAILED)
    none = await given.tell("why", "shop", code=Exit.BAD_SETTINGS)

    assert [each.path for each in blocked.failed] == [["gross", "total"]]
    assert "rate" in blocked.failed[0].message
    first, heads, *rows = told.splitlines()
    assert first.startswith("gross is failed as of commit ")
    assert heads.split() == ["commit", "time", "author", "what", "path"]
    assert "gross lost an input, now" in rows[0]
    assert "net=net, rate=rate" in plain["edits"][0]["changes"][0]["before"]
    assert "net → gross" in told
    assert plain["value"]["status"] == "failed"
    assert plain["edits"][0]["changes"][0]["what"] == "input"
    assert "rate does not exist" in gone
    assert "rate removed" in gone
    assert "there is no value 'gros'; there is 'gross'" in unknown
    assert "rebaser why ADDRESS NAME" in none
    with pytest.raises(NoSuchValue):
        await shop.why("gros")


async def test_a_value_that_a_branch_removed_is_known_by_the_name_that_it_had_in_head(
    deployment: Deployment,
) -> None:
    await deployment.start()
    shop = await shop_of(deployment)
    branch = await shop.fork("sale")
    async with branch.edit() as g:
        g.remove("rate")

    gone = await Commands(deployment).tell("why", "shop/sale", "rate")

    assert "rate removed" in gone
