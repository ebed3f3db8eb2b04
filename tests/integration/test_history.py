"""`rebaser log`, `values --at` and `revert`: the past of a change set, shown and taken back."""

import io
import re
import sys
from pathlib import Path

import pytest

from rebaser_client import Draft, builtin
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.errors import NotRetained, NotRevertible
from rebaser_server.graph_application.content import graph_of
from rebaser_server.queries.reverts import plan_revert
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.scripted_owner import NOTHING, Owner


async def test_a_commit_is_found_in_the_log_looked_at_and_taken_back(
    deployment: Deployment,
) -> None:
    """What a user does who finds a value wrong."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    commands = Commands(deployment)
    await deployment.start()
    for batch in (values.define(1, 2), [set_to(values.net, 40)], [set_to(values.tax, 3)]):
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, batch)
        await reply
    await deployment.at_rest()

    log = await commands.read("log", *change_set)
    asked = [entry for entry in log if not entry["computed"]]
    assert [entry["updates"] for entry in asked[1:]] == [{"setValue": 1}] * 2
    assert asked[0]["by"] == "daemon-0"
    wrong = asked[1]["commit"]
    at = asked[0]["commit"]
    [before] = await commands.read("values", *change_set, values.net, "--at", at)
    assert before["value"] == 1

    dry = await commands.read("revert", *change_set, wrong, "--dry-run")
    assert (dry["updates"], dry["response"]) == ([set_to(values.net, 1)], None)
    done = await commands.read("revert", *change_set, wrong)
    assert "success" in done["response"]["status"]
    await deployment.at_rest()
    assert (await deployment.graph(change_set)).values[values.gross].value == 4

    again = await commands.read("revert", *change_set, wrong)
    assert (again["updates"], again["left"], again["response"]) == ([], [], None)


async def test_the_log_tells_a_command_from_a_large_batch(deployment: Deployment) -> None:
    [change_set] = new_change_sets(1)
    await deployment.start()
    large = [put(new_id(), number) for number in range(600)]
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, large)
    await reply
    await Commands(deployment).tell("checkpoint", *change_set)

    log = await Commands(deployment).read("log", *change_set)
    assert [entry["updates"] for entry in log] == [None, {}]


async def test_an_impossible_revert_or_past_state_is_explained(deployment: Deployment) -> None:
    change_set, other = new_change_sets(2)
    owner = await Owner.of(deployment, change_set, NOTHING)
    stranger = await Owner.of(deployment, other)
    value = new_id()
    purged = await owner.commit([put(value, 1)])
    for number in range(3):
        strangers = await stranger.commit([put(new_id(), number)])
        await owner.commit([set_to(value, number)])
        await owner.checkpoint()

    for command, *past in (("values", "--at", purged), ("revert", purged)):
        refused = await Commands(deployment).tell(command, *change_set, *past, code=1)
        assert "is not kept any more" in refused
    with pytest.raises(NotRevertible, match="no commit of this change set"):
        await plan_revert(owner.archive, strangers)
    with pytest.raises(NotRetained, match="is not kept any more"):  # the past begins behind it
        await plan_revert(owner.archive, await owner.archive.earliest_commit())


async def test_an_owners_line_is_nothing_to_take_back(deployment: Deployment) -> None:
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)

    with pytest.raises(NotRevertible, match="applied no batch"):
        await plan_revert(owner.archive, owner.own.state.commit)
    with pytest.raises(NotRetained, match="ends at commit"):
        await plan_revert(owner.archive, 99)


async def test_a_large_commit_is_taken_back_and_a_later_edit_stays(deployment: Deployment) -> None:
    """Also across checkpoints in between."""
    [change_set], ids = new_change_sets(1), [new_id() for _ in range(600)]
    owner = await Owner.of(deployment, change_set)
    await owner.commit([put(i, "first") for i in ids])
    await owner.checkpoint()
    wrong = await owner.commit([set_to(i, "wrong") for i in ids])
    await owner.checkpoint()
    await owner.commit([set_to(ids[0], "later")])

    found = await plan_revert(owner.archive, wrong)
    await owner.commit([update.to_wire() for update in found.updates])

    values = graph_of(owner.own.state).values
    assert found.skipped == [ids[0]]
    assert values[ids[0]].value == "later"
    assert {values[i].value for i in ids[1:]} == {"first"}


async def test_the_last_change_of_a_branch_is_its_own(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Commits of head that the branch merged since then stay."""
    commands, graph = Commands(deployment), tmp_path / "graph.yaml"
    await deployment.start()
    await commands.tell("workspaces", "create", "shop")
    graph.write_text("sources: {net: 1, tax: 1}")
    await commands.tell("load", "shop", graph, "--yes")
    await commands.tell("change-sets", "fork", "shop", "b")
    await commands.tell("values", "set", "shop/b", "net", "2")
    await commands.tell("values", "set", "shop", "tax", "2")
    await commands.tell("change-sets", "refresh", "shop/b")

    undone = await commands.tell("revert", "shop/b", "last", "--dry-run")

    assert undone == "net is 1 again\nnot sent (--dry-run)\n"


async def test_a_revert_says_what_of_it_does_not_fit_any_more(deployment: Deployment) -> None:
    """The command names what it leaves: taken names, and inputs that would close a cycle."""
    commands = Commands(deployment)
    await deployment.start()
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit(wait="committed") as g:
        g.source("net", 1)
        g.value("a", builtin("sum"), "net")
        g.value("b", builtin("sum"), "net", "a")
    net = (await shop.values("net"))["net"].id
    renaming = {"putValue": {"valueId": net, "name": "price", "value": 1}}
    renamed = await shop.enqueue([renaming])
    async with shop.edit(wait="committed") as g:
        g.source("net", 5)
    b_alone = Draft()
    b_alone.value("b", builtin("sum"), "price")
    rewired = await shop.load(b_alone, wait="committed")
    async with shop.edit(wait="committed") as g:
        g.value("a", builtin("sum"), "b")

    named = await commands.tell("revert", "shop", renamed.commit, "--yes")
    cyclic = await commands.tell("revert", "shop", rewired.commit, "--yes")

    assert f"not undone, because a later commit changed or uses it: {net}" in named
    assert (await shop.values("price"))["price"].id == net
    assert "not all of it: cycle: " in cyclic


class Terminal(io.StringIO):
    """What a person at a terminal types."""

    def isatty(self) -> bool:
        return True


async def test_what_undoes_or_closes_is_asked_at_a_terminal_and_said_in_words(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--yes` and a program's empty hands are not asked; `--json` alone prints the wire's JSON."""
    commands, graph = Commands(deployment), tmp_path / "graph.yaml"
    await deployment.start()
    await commands.tell("workspaces", "create", "shop")
    graph.write_text("sources: {rate: 1}\nvalues: {twice: {function: sum, inputs: [rate, rate]}}")
    nothing = await commands.tell("revert", "shop", "last", code=Exit.FAILED)
    await commands.tell("load", "shop", graph, "--yes", "--wait")
    await commands.tell("values", "set", "shop", "rate", "2", "--wait")
    settled = await commands.read("log", "shop")
    commit = next(each["commit"] for each in reversed(settled) if not each["computed"])
    await commands.tell("change-sets", "fork", "shop", "b")

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    kept = await commands.give("revert", "shop", commit)
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    still_open = await commands.give("change-sets", "abandon", "shop/b")
    dry = await commands.tell("revert", "shop", "last", "--dry-run")
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    done = await commands.give("revert", "shop", commit)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    again = await commands.tell("revert", "shop", commit, "--yes")
    abandoned = await commands.tell("change-sets", "abandon", "shop/b", "--yes")

    assert "no request has changed it" in nothing
    assert settled[-1]["computed"], "the results of an update came later"
    assert (kept.code, still_open.code) == (Exit.FAILED, Exit.FAILED)
    assert f"Undo commit {commit} by this? [y/N]" in kept.err
    assert kept.out == "rate is 1 again\n"
    assert "Abandon b? It takes no more requests [y/N]" in still_open.err
    assert dry == "rate is 1 again\nnot sent (--dry-run)\n"
    assert re.search(rf"request \w{{26}} undoes commit {commit} and is commit \d+", done.out)
    assert f"nothing of commit {commit} is left to undo" in again
    assert "abandoned" in abandoned
