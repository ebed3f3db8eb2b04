"""Comments on a change set by client, command and page; and who looks at it."""

import asyncio
import json
from typing import Any

import pytest

from rebaser_core.errors import MalformedMessage, NoSuchChangeSet, QuotaExceeded
from rebaser_core.ids import ChangeSet, ChangeSetId
from rebaser_core.registry import Registry
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Daemon, Deployment
from tests.helpers.eventually import eventually
from tests.integration.test_action_service import TOKENS, act, bearer, target
from tests.integration.test_ops_endpoint import get, started, url_of


async def sale_of(deployment: Deployment) -> ChangeSet:
    """A branch, as it is registered: no Rebaser has to know it."""
    workspaces = deployment.client.workspaces
    workspace, _ = await workspaces.create("shop")
    sale = await workspaces.fork(workspace.workspace_id, "sale")
    return ChangeSet(sale.workspace_id, sale.change_set_id)


async def test_comments_lie_beside_the_record_and_go_with_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No list of workspaces or change sets has them; they are never changed."""
    monkeypatch.setattr("rebaser_client.change_set.MAX_COMMENTS", 2)
    workspaces = deployment.client.workspaces
    where = await sale_of(deployment)
    sale = deployment.client.change_set(*where)
    registry = Registry(deployment.streams)
    assert (await sale.comments(), await registry.last_comment(where)) == ([], 0)

    one = await sale.comment(" why?\n")
    await registry.create_comment(one)  # repeated
    two = await sale.comment("x" * 2_000)

    assert await sale.comments() == [one, two]
    assert one.text == "why?"
    assert await registry.last_comment(where) != 0
    assert [each.name for each in await workspaces.all()] == ["shop"]
    assert len(await workspaces.change_sets(where.workspace_id, closed=True)) == 2
    for text in ("", " ", "x" * 2_001):
        with pytest.raises((MalformedMessage, QuotaExceeded)):
            await sale.comment(text)
    with pytest.raises(QuotaExceeded, match="sale has 2 comments"):
        await sale.comment("a third")
    with pytest.raises(NoSuchChangeSet):
        await deployment.client.change_set(where.workspace_id, ChangeSetId()).comment("to nobody")

    await registry.delete(where)

    assert await sale.comments() == []


async def test_a_command_shows_comments_and_adds_one(deployment: Deployment) -> None:
    sale, commands = await sale_of(deployment), Commands(deployment)
    await deployment.client.change_set(*sale).comment("first\nof \x1b[1mtwo")

    told = await commands.read("change-sets", "describe", "shop/sale", "--comment", "ok")
    shown = await commands.tell("change-sets", "describe", "shop/sale")
    [first, second] = told["comments"]

    assert (first["text"], second["text"]) == ("first\nof \x1b[1mtwo", "ok")
    assert "first\\nof \\x1b[1mtwo" in shown
    refused = await commands.tell("change-sets", "describe", "shop/sale", "--comment", "", code=1)
    assert "setValue" not in refused, "a comment is no update"
    assert "at least 1 character" in refused


async def asked(daemon: Daemon, change_set: ChangeSet, token: str, known: str = "") -> Any:
    query = "&".join(f"{k}={v}" for k, v in {**target(change_set), "known": known}.items())
    code, body = await get(f"{url_of(daemon)}change-set/discussion?{query}", **bearer(token))
    assert code == 200, body
    return json.loads(body)


@pytest.mark.long
async def test_editors_comment_and_each_hears_who_else_looks_on(deployment: Deployment) -> None:
    """Also of those whose page another Rebaser serves."""
    one, other = await asyncio.gather(
        started(deployment, "one", OPS__TOKENS=TOKENS),
        started(deployment, "two", OPS__TOKENS=TOKENS),
    )
    sale = await sale_of(deployment)
    await asked(one, sale, "e1")
    empty = await asked(one, sale, "v1")
    assert empty == {"onlookers": ["eve"], "last": 0, "count": 0, "comments": []}

    async def hears(token: str, names: list[str]) -> bool:
        return bool((await asked(other, sale, token))["onlookers"] == names)

    await eventually(lambda: hears("a1", ["eve", "vic"]))  # once the members know each other

    said = target(sale) | {"text": "why?"}
    assert (await act(one, "comment", said, "v1"))[0] == 403
    assert (await act(one, "comment", said | {"text": " "}, "e1"))[0] == 400
    assert (await act(one, "comment", said | {"changeSet": str(ChangeSetId())}, "e1"))[0] == 404
    assert (await act(one, "comment", said, "e1"))[0] == 200
    heard = await asked(other, sale, "v1", "0")
    [comment] = heard["comments"]
    assert (comment["by"], comment["text"]) == ("eve", "why?")
    assert (await asked(other, sale, "v1", str(heard["last"])))["comments"] is None
    query = f"{url_of(one)}change-set/discussion?workspace=x"
    assert (await get(query, **bearer("v1")))[0] == 400
