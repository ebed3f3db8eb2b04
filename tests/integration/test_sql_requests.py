"""Requests that put SQL: it is judged before they are applied, and may be a workspace's alone."""

import textwrap
from pathlib import Path

import pytest

from rebaser_client import Draft, WorkspaceHandle, sql
from rebaser_client.errors import RequestRefused
from rebaser_core.ids import WorkspaceId
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment

NO_SPARK = {"SPARK__MASTER": "sc://127.0.0.1:1"}
"""A server for all updates that is not there."""


async def put_query(shop: WorkspaceHandle, code: str, sources: int = 1) -> None:
    draft = Draft()
    for number in range(sources):
        draft.source(f"rate/{number}", number)
    draft.value("most", sql(code, name="most of all"), rate=draft.source("rate", 2))
    await shop.load(draft, wait="committed")


@pytest.mark.parametrize("sources", [1, 100])
async def test_a_request_that_puts_sql_which_cannot_run_is_refused_whole(
    deployment: Deployment, sources: int
) -> None:
    """With the place in the query, for a batch of any size; the next request takes effect."""
    await deployment.start(**NO_SPARK)
    shop = await deployment.client.workspace("shop").create()

    with pytest.raises(
        RequestRefused,
        match=r"function 'most of all' cannot be run: line 2, column \d+: .*a relation is",
    ):
        await put_query(shop, "SELECT :rate\nFROM text.`/etc/passwd`", sources)
    with pytest.raises(RequestRefused, match="neither `table` nor `value`"):
        await put_query(shop, "-- returns: rows\nSELECT :rate AS rate", sources)
    refused = await shop.values()
    await put_query(shop, "SELECT :rate AS rate", sources)

    assert refused == {}
    assert (await shop.values("most"))["most"].status == "pending"


async def test_sql_is_put_in_the_workspaces_alone_that_an_operator_names(
    deployment: Deployment,
) -> None:
    """Whose requests these are is for NATS to say, by their subjects."""
    named = WorkspaceId()
    await deployment.start(**NO_SPARK, FUNCTIONS__SQL_WORKSPACES=f"{WorkspaceId()},{named}")
    await deployment.client.workspaces.create("analysts", workspace_id=named)
    analysts = deployment.client.workspace("analysts")
    shop = await deployment.client.workspace("shop").create()

    await put_query(analysts, "SELECT :rate AS rate")
    with pytest.raises(
        RequestRefused, match="is SQL, which no request to this workspace may put: have an operator"
    ):
        await put_query(shop, "SELECT :rate AS rate")
    draft = Draft()
    draft.source("rate", 3)
    await shop.load(draft, wait="committed")

    assert (await analysts.values("most"))["most"].status == "pending"
    assert len(await shop.values()) == 1


async def test_plan_and_load_refuse_sql_before_anything_is_sent(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Also for what shows only with the names of a value's inputs."""
    await deployment.start(**NO_SPARK)
    await deployment.client.workspace("shop").create()
    commands, file = Commands(deployment), tmp_path / "graph.yaml"
    file.write_text(
        textwrap.dedent("""\
            functions:
              most: {sql: "SELECT max(day) AS day FROM days"}
            sources: {orders: 1}
            values:
              latest: {function: most, inputs: {orders: orders}}
            """)
    )

    done = [
        await commands.give(*words, "shop", file)
        for words in (["load", "--dry-run"], ["load", "--yes"])
    ]

    for each in done:
        assert each.code != 0
        assert "'latest': line 1, column " in each.err
        assert "'days' is neither an argument nor" in each.err
    assert await deployment.client.workspace("shop").log() == []
