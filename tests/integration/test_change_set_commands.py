"""The commands for workspaces and change sets, as a person types them."""

import asyncio
import json
import subprocess

from rebaser_core.errors import NoSuchChangeSet
from rebaser_core.records import PauseScope
from rebaser_server.cluster.pauses import PauseStore
from rebaser_server.commands.support.execution import hint_for
from tests.helpers import fork_server
from tests.helpers.batches import ExampleGraph
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually


async def run(
    deployment: Deployment, *arguments: str, says: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        "REBASER_NATS__URL": deployment.nats.url,
        "REBASER_STORE__ROOT": deployment.settings.store.root,
        "LOGNAME": "ada",
        **variables,
    }
    return await asyncio.to_thread(
        fork_server.rebaser,
        *arguments,
        environment=environment,
        says=says,
        timeout=120,
    )


async def test_from_a_workspace_to_an_applied_branch(deployment: Deployment) -> None:
    await deployment.start()
    values = ExampleGraph()

    async def done(*arguments: str, says: str = "") -> str:
        ended = await run(deployment, *arguments, says=says)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    made = json.loads(await done("workspaces", "create", "prices", "--json"))
    [workspace] = [record["workspaceId"] for record in made]
    head = made[0]["head"]
    batch = deployment.directory / "batch.json"
    await asyncio.to_thread(batch.write_text, json.dumps(values.define(1, 2)))
    await done("enqueue", workspace, head, str(batch), "--wait")
    forked = json.loads(await done("change-sets", "fork", workspace, "what if", "--json"))
    edit = [{"setValue": {"valueId": values.net, "value": 40}}]
    await asyncio.to_thread(batch.write_text, json.dumps(edit))
    await done("enqueue", workspace, forked["changeSetId"], str(batch), "--wait")

    edit_of_head = [{"setValue": {"valueId": values.tax, "value": 3}}]
    await asyncio.to_thread(batch.write_text, json.dumps(edit_of_head))
    await done("enqueue", workspace, head, str(batch), "--wait")
    listed = await done("change-sets", "list", workspace)
    diff = await done("diff", workspace, "what if")
    as_batch = json.loads(await done("diff", workspace, "what if", "--json"))["updates"]
    refused = await run(deployment, "change-sets", "apply", workspace, "what if", says="n\n")
    unasked = await run(deployment, "change-sets", "apply", workspace, "what if", "--json")
    applied = await done("change-sets", "apply", workspace, "what if", says="y\n")
    described = json.loads(
        await done("change-sets", "describe", workspace, forked["changeSetId"], "--json")
    )
    log = await done("log", workspace, forked["changeSetId"])
    again = await run(deployment, "change-sets", "abandon", workspace, forked["changeSetId"])
    kept = await run(deployment, "workspaces", "delete", workspace, says="\n")
    deleted = json.loads(await done("workspaces", "delete", workspace, "--yes", "--json"))

    assert [line.split()[-2:] for line in listed.splitlines()[1:]] == [
        [made[0]["createdAt"], "ada"],
        [forked["createdAt"], "ada"],
    ]
    assert "what if" in listed
    assert f"{values.net}" in diff
    assert as_batch == edit
    assert refused.returncode == 1
    assert refused.stdout.splitlines()[-2:] == [
        f"{values.gross}: 4 → 43",
        "If anything changes this meanwhile, nothing is applied.",
    ]
    asked = "Apply 1 edit to head? 1 computed value differs."
    assert refused.stderr == f"{asked} [y/N] not applied\n"
    assert (unasked.returncode, unasked.stdout) == (2, "")
    assert "give --yes or --reviewed DIGEST" in unasked.stderr
    assert "head's commit" in applied
    assert described["status"] == "applied"
    assert "head's changes up to" in log
    assert "the change set is being applied" in log.splitlines()[-1]
    assert "1 setValue" in log
    assert "results of an update" in log
    assert again.returncode == 1
    assert again.stderr.startswith("rebaser: change set is applied\n")
    assert (kept.returncode, "Delete 'prices' and its 2 change sets?" in kept.stderr) == (1, True)
    assert [record["status"] for record in deleted] == ["deleted", "deleted"]


async def test_an_unregistered_change_set_is_named_in_the_error(deployment: Deployment) -> None:
    workspace = "01JZ8M3Q7V0000000000000003"

    ended = await run(deployment, "change-sets", "fork", workspace, "x")

    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        f"rebaser: there is no workspace {workspace!r}",
        f"  {hint_for(NoSuchChangeSet())}",
    ]


async def test_a_command_that_waits_for_the_end_of_a_pause_says_so(deployment: Deployment) -> None:
    """A command without that line stands still for as long as the pause lasts."""
    await deployment.start()
    operator = Commands(deployment)
    await operator.tell("workspaces", "create", "shop")
    shop = await deployment.client.workspace("shop").ids()
    scope, book = PauseScope(shop.workspace_id), PauseStore(deployment.streams)

    async def waits() -> bool:
        return bool(await deployment.js.stream_subjects(deployment.streams.requests_stream))

    async def none_waits() -> bool:
        return not await waits()

    async def paused(*words: str) -> str:
        await eventually(none_waits)  # the one before goes behind its reply
        await book.pause(scope)
        giving = asyncio.create_task(operator.give(*words))
        await eventually(waits)
        await book.resume(scope)
        done = await giving
        assert done.code == 0, done.err
        return done.err

    waiting = "workspace 'shop' is paused: {} waits for `rebaser resume shop`\n"
    request = waiting.format("the request")
    forked = await paused("change-sets", "fork", "shop", "july")
    assert forked == waiting.format("the new branch, which is registered,")
    assert await paused("change-sets", "refresh", "shop/july") == request
    assert await paused("change-sets", "apply", "shop/july", "--yes") == request
    await operator.tell("change-sets", "fork", "shop", "august")
    assert await paused("change-sets", "abandon", "shop/august", "--yes") == request
    deleted = await paused("workspaces", "delete", "shop", "--yes")
    assert deleted == waiting.format("the deletion")


async def test_a_branch_of_a_commit_that_is_not_there_is_not_made(deployment: Deployment) -> None:
    """Such a branch would wait for that commit, and be in all lists."""
    operator = Commands(deployment)
    await operator.tell("workspaces", "create", "shop")

    for commit in (7, 10**20):
        said = await operator.tell("change-sets", "fork", "shop", "x", "--commit", commit, code=1)
        assert f"the log ends at commit 0, before {commit}" in said

    assert len(await operator.read("change-sets", "list", "shop")) == 1
    assert await operator.read("log", "shop", "--last", 10**20) == []


async def test_a_comment_that_is_refused_comes_with_no_new_name(deployment: Deployment) -> None:
    """An error says that nothing was done."""
    operator = Commands(deployment)
    await operator.tell("workspaces", "create", "shop")

    said = await operator.tell(
        "change-sets", "describe", "shop", "--rename", "august", "--comment", "", code=1
    )

    assert "comment: " in said
    [head] = await operator.read("change-sets", "list", "shop")
    assert head["name"] == "head"
