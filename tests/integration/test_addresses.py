"""Every command takes names: of workspaces, branches and values; and the address in use."""

import json
from pathlib import Path

import pytest

from tests.helpers.batches import ExampleGraph
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment


@pytest.fixture
def commands(deployment: Deployment) -> Commands:
    return Commands(deployment)


async def test_a_persons_hour_takes_no_id(
    deployment: Deployment, commands: Commands, tmp_path: Path
) -> None:
    """From a workspace to an applied branch, by names alone."""
    await deployment.start()
    graph, file = ExampleGraph(), tmp_path / "batch.json"
    define = graph.define(100, 19)
    for update, name in zip(define[1:], ("net", "tax", "gross"), strict=False):
        update["putValue"]["name"] = name
    file.write_text(json.dumps(define))

    made = await commands.tell("workspaces", "create", "shop")
    taken = await commands.tell("workspaces", "create", "shop", code=1)
    await commands.tell("enqueue", "shop", file, "--wait")
    [gross] = await commands.read("values", "get", "shop", "gross")
    forked = await commands.tell("change-sets", "fork", "shop", "winter sale")
    twice = await commands.tell("change-sets", "fork", "shop/winter sale", code=1)
    await commands.tell("values", "set", "shop/winter sale", "net", "80", "--wait")
    await commands.tell("values", "set", "shop", "winter sale", "tax", "20", "--wait")
    listed = await commands.tell("change-sets", "list", "shop")
    tree = await commands.tell("values", "--tree", "shop/winter sale", "gross")
    diff = await commands.tell("diff", "shop/winter sale")
    paused = await commands.tell("pause", "shop/winter sale")
    pauses = await commands.tell("pause")
    resumed = await commands.tell("resume", "shop/winter sale")
    ran = await commands.tell("dvu", "run", "shop", "gross", "--wait")
    part = await commands.read("values", "get", "shop", f"…{graph.gross[-6:]}")
    applied = await commands.tell("change-sets", "apply", "shop/winter sale", "--yes")
    gone = await commands.tell("values", "set", "shop/winter sale", "net", "1", code=1)
    then = await commands.give("values", "shop/winter sale", "net")
    log = await commands.tell("log", "shop")

    ids = [gross["id"], *(row["workspaceId"] for row in await commands.read("workspaces", "list"))]
    for shown in (made, forked, listed, tree, diff, paused, pauses, resumed, ran, applied):
        assert not any(each in shown for each in ids), shown
    assert gross["value"] == 119
    assert [(value["id"], value["value"]) for value in part] == [(graph.gross, 119)]
    assert "a workspace is called 'shop'" in taken
    assert "Go on with the one that has the name, or choose another." in taken
    assert "an open change set is called 'winter sale'" in twice
    assert "set 'shop/winter sale' is paused" in paused
    assert "shop/winter sale" in pauses
    assert "'shop/winter sale' was applied as commit " in gone
    assert (then.code, "80" in then.out, "was applied as commit" in then.err) == (0, True, True)
    assert log.splitlines()[1].split()[1].endswith("Z")


async def test_the_address_in_use_is_taken_and_named(
    deployment: Deployment, commands: Commands, tmp_path: Path
) -> None:
    """Commands without an address take it, and say so on stderr; a shell completes names."""
    await deployment.start()
    graph, file = ExampleGraph(), tmp_path / "batch.json"
    file.write_text(json.dumps(graph.define(1, 2)))
    missing = await commands.tell("log", code=1)
    await commands.tell("workspaces", "create", "shop")
    wrong = await Commands(deployment, ADDRESS="shpo").tell("log", code=1)
    commands = Commands(deployment, ADDRESS="shop")
    await commands.tell("enqueue", file, "--wait")
    await commands.tell("change-sets", "fork", "sale")

    got = await commands.give("values", "get", graph.gross)
    also = await commands.give("values", "get", ".", graph.gross)
    alone = await commands.give("values")
    set_too = await commands.give("values", "set", graph.net, "40")
    unknown = await commands.tell("values", "get", "nothing", code=1)
    first = await commands.tell("completion", "names", "values", "get", "sh")
    branch = await commands.tell("completion", "names", "log", "shop/")
    nothing = await commands.tell("completion", "names", "values", "get", "shop", "zebra")
    asked = await commands.tell("revert", "a", "b", "c", "1", code=2)

    assert "give the ADDRESS of a change set" in missing
    assert "there is no workspace 'shpo'; there is 'shop'" in wrong
    assert (got.code, got.err) == (0, "in shop (REBASER_ADDRESS)\n")
    assert (alone.code, alone.err, graph.gross in alone.out) == (0, got.err, True)
    assert (also.out, set_too.code) == (got.out, 0)
    assert "there is no value 'nothing'" in unknown
    assert first.split() == ["shop", "shop/sale"]
    assert branch == "shop/sale\n"
    assert nothing == ""
    assert "give one ADDRESS" in asked
