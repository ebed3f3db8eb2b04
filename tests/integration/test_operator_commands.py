"""Pause, resume, updates, checkpoints and values by command, on real daemons."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_server.graph_application.content import content_of
from rebaser_server.store.checkpoints import Checkpoints
from tests.helpers.batches import ExampleGraph, new_id, put
from tests.helpers.blocking_function import Gate
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Daemon, Deployment, new_change_sets
from tests.helpers.eventually import eventually


@pytest.fixture
def operator(deployment: Deployment) -> Commands:
    return Commands(deployment)


@pytest.fixture
def change_set() -> ChangeSet:
    [change_set] = new_change_sets(1)
    return change_set


async def value_of(deployment: Deployment, change_set: ChangeSet, value_id: str) -> Any:
    found = (await deployment.graph(change_set)).values.get(value_id)
    return None if found is None else (found.status.value, found.value)


async def test_a_pause_is_listed_shown_where_it_matters_and_taken_back(
    deployment: Deployment, operator: Commands, change_set: ChangeSet
) -> None:
    daemon = await deployment.start()
    paused = await operator.read("pause", *change_set, "--reason", "a look")
    await operator.tell("pause", change_set.workspace_id)
    await eventually(
        lambda: any(len(said["paused"]) == 2 for said in daemon.said("pauses changed"))
    )
    await deployment.client.enqueue_updates(*change_set, [put(new_id(), 1)])

    [first, second] = await operator.read("pause")
    [queued] = await operator.read("queue")
    resumed = await operator.read("resume", *change_set)
    said = await operator.tell("resume", change_set.workspace_id)
    await deployment.at_rest()

    assert (first, first["reason"]) == (paused, "a look")
    assert (second["workspace"], second["changeSet"]) == (str(change_set.workspace_id), None)
    assert queued["paused"] == first["since"]
    assert (resumed["resumed"], resumed["stillPaused"]) == (True, [second])
    assert "is resumed; change sets with work: 1" in said
    assert await operator.read("pause") == []


async def test_a_second_pause_says_whose_it_stands_in_place_of(
    operator: Commands, deployment: Deployment
) -> None:
    """The next resume ends both pauses, so the operator must know of the first."""
    [change_set] = new_change_sets(1)
    first = await operator.read("pause", *change_set, "--reason", "a look")

    second = (await operator.give("pause", *change_set, "--reason", "a release")).err

    assert f"it was paused since {first['since']} by " in second
    assert "a look; `resume` ends both" in second


async def test_a_resume_says_which_narrower_pauses_stay(
    operator: Commands, change_set: ChangeSet
) -> None:
    """Who resumes all may believe that all is worked on."""
    await operator.tell("pause", *change_set)
    await operator.tell("pause", "--all")

    first = await operator.give("resume", "--all")
    again = await operator.read("resume", "--all")
    await operator.tell("resume", *change_set)

    assert "everything is resumed" in first.out
    assert "a part of it still waits: 1 narrower pause in force" in first.err
    assert [each["changeSet"] for each in again["stillPaused"]] == [str(change_set.change_set_id)]
    assert (await operator.read("resume", "--all"))["stillPaused"] == []


async def test_without_a_scope_nothing_is_paused_or_resumed(operator: Commands) -> None:
    listed = await operator.read("pause")
    said = [
        await operator.tell(*words, code=2)
        for words in (("resume",), ("pause", "--reason", "a look"), ("pause", "shop", "--all"))
    ]

    assert listed == await operator.read("pause") == []
    assert all("or --all" in each for each in said)


async def test_an_update_is_shown_while_it_runs_and_cancelled_and_run_again_at_once(
    deployment: Deployment, operator: Commands, gate: Gate, change_set: ChangeSet
) -> None:
    daemon = await deployment.start_with_lease()
    gate.close()
    await deployment.client.enqueue_updates(*change_set, gate.define(1))
    await eventually(gate.seen, within=60)

    running = await shown(operator, "running")
    await cancel(operator, daemon, change_set)
    await eventually(lambda: bool(daemon.said("dvu cancelled")))
    cancelled = await shown(operator, "claimed, not running")
    gate.open()
    said = await operator.tell("dvu", "run", *change_set, "gated", "--wait")
    await deployment.at_rest()

    async def nobody_holds_it() -> bool:  # a run acknowledges its task before it ends
        nothing = await operator.tell("dvu", "cancel", *change_set, code=1)
        return "no Rebaser works on this change set" in nothing

    await eventually(nobody_holds_it)
    assert (running["affected"], running["done"]) == (1, 0)
    assert running["instance"].startswith(daemon.name)
    assert cancelled["failures"] == 0
    assert "the values are computed" in said
    assert await value_of(deployment, change_set, gate.value) == ("ok", 1)


async def shown(operator: Commands, state: str) -> dict[str, Any]:
    """The only update, once the command shows it in this state.

    It waits for answers a third of a second, within which a busy machine may send none.
    """
    rows: list[dict[str, Any]] = []

    async def is_shown() -> bool:
        rows[:] = await operator.read("dvu", "status")
        return [row["state"] for row in rows] == [state]

    await eventually(is_shown)
    return rows[0]


async def cancel(operator: Commands, daemon: Daemon, change_set: ChangeSet) -> None:
    """Cancel its update; on a busy machine the daemon may answer too late."""

    async def is_cancelled() -> bool:
        done = await operator.give("dvu", "cancel", *change_set)
        return done.code == 0 or bool(daemon.said("dvu cancelled"))

    await eventually(is_cancelled)


async def test_a_dvu_cancelled_with_a_pause_waits_for_the_resume(
    deployment: Deployment, operator: Commands, gate: Gate, change_set: ChangeSet
) -> None:
    daemon = await deployment.start_with_lease()
    gate.close()
    await deployment.client.enqueue_updates(*change_set, gate.define(1))
    await eventually(gate.seen, within=60)

    await operator.tell("pause", *change_set)
    await cancel(operator, daemon, change_set)
    await eventually(lambda: bool(daemon.said("paused")))
    await shown(operator, "paused")
    gate.open()
    await operator.tell("resume", *change_set)

    async def computed() -> bool:  # no request tells of it, and the task may be made twice (P2)
        return await value_of(deployment, change_set, gate.value) == ("ok", 1)

    await eventually(computed, within=60)


async def test_failed_values_are_listed_and_recomputed_on_request(
    deployment: Deployment, operator: Commands, gate: Gate, change_set: ChangeSet
) -> None:
    await deployment.start()
    gate.broken(broken=True)
    behind = new_id()
    batch = gate.define(5)
    batch.append(
        {
            "putValue": {
                "valueId": behind,
                "funcId": gate.func,
                "inputs": {"value": gate.value, "gate": gate.gate},
            }
        }
    )
    await deployment.client.enqueue_updates(*change_set, batch)
    await deployment.at_rest()

    found = await operator.read("dvu", "status", *change_set)
    gate.broken(broken=False)
    await operator.tell("dvu", "run", *change_set, "--failed", "--wait")
    nobody = await operator.tell("dvu", "run", *change_set, "nobody", code=1)
    source = await operator.tell("dvu", "run", *change_set, gate.source, code=1)

    assert "no value is called 'nobody'" in nobody
    assert "is not computed; set it instead" in source
    assert (found["failed"], found["blocked"], found["updates"]) == (1, 1, [])
    assert [value["name"] for value in found["values"]] == ["gated"]
    assert "broken" in found["values"][0]["message"]
    assert await value_of(deployment, change_set, behind) == ("ok", 5)


async def test_a_given_up_dvu_is_recomputed_on_request(
    deployment: Deployment, operator: Commands, gate: Gate, change_set: ChangeSet
) -> None:
    """D6: after too many updates that failed its values are, until somebody asks."""
    gate.close()
    hasty = await deployment.start(DVU_DEADLINE="0.01", DVU_MAX_ATTEMPTS="1")
    await deployment.client.enqueue_updates(*change_set, gate.define(5))
    await deployment.at_rest()
    hasty.kill()
    gate.open()

    found = await operator.read("dvu", "status", *change_set)
    await deployment.start()
    await operator.tell("dvu", "run", *change_set, "--failed", "--wait")

    assert "not computed, 1 update failed" in found["values"][0]["message"]
    assert await value_of(deployment, change_set, gate.value) == ("ok", 5)


async def test_a_branch_whose_values_are_computed_again_differs_from_head_no_more_than_before(
    deployment: Deployment, gate: Gate
) -> None:
    await deployment.start()
    client = deployment.client
    workspace, head = await client.workspaces.create("w")
    gate.broken(broken=True)
    where = (workspace.workspace_id, head.change_set_id)
    _, reply = await client.enqueue_updates_with_reply(*where, gate.define(5))
    await asyncio.wait_for(reply, 60)
    await deployment.at_rest()  # the value has failed
    branch = await client.workspaces.fork(workspace.workspace_id, "b")
    await client.change_set(workspace.workspace_id, branch.change_set_id).refresh()
    gate.broken(broken=False)

    await client.change_set(workspace.workspace_id, branch.change_set_id).recompute()
    await deployment.at_rest()

    change_set = ChangeSet(workspace.workspace_id, branch.change_set_id)
    restored = content_of(await deployment.archive(change_set).load())
    assert restored.edits is not None
    assert restored.edits.values == {}  # else the branch would keep them when head has others
    assert restored.edits.difference(restored.graph) == []
    assert await value_of(deployment, change_set, gate.value) == ("ok", 5)


async def test_a_checkpoint_is_in_the_store_when_the_command_says_so(
    deployment: Deployment, operator: Commands, change_set: ChangeSet
) -> None:
    daemon = await deployment.start_with_lease(QUIET_PERIOD="600", CHECKPOINT_EVERY="1000000")
    values = ExampleGraph()
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, values.define(1, 2))
    await asyncio.wait_for(reply, 60)

    stored = await operator.read("checkpoint", *change_set)

    checkpoint = Checkpoints(deployment.settings.store.root).load(change_set)
    assert checkpoint is not None
    assert checkpoint.commit >= stored["commit"] > 0
    assert stored["stored"] == checkpoint.commit
    assert values.net in checkpoint.graph.values

    await operator.tell("pause", "--all")
    await eventually(lambda: bool(daemon.said("paused")))
    said = await operator.tell("checkpoint", *change_set, "--timeout", 4, code=7)
    assert "everything is paused: the request waits for `rebaser resume --all`" in said
    assert "timeout of 4 s is over" in said


async def test_a_tree_has_every_value_however_many_slashes_its_name_has(
    deployment: Deployment, operator: Commands
) -> None:
    await deployment.start()
    names = ["a/b", "a//b", "a", "a/", "/a"]
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit(wait="committed") as g:
        for number, name in enumerate(names, 1):
            g.source(name, number)

    whole = await operator.read("values", "--tree", "shop")
    below = await operator.read("values", "--tree", "shop", "a")
    one = await operator.read("values", "--tree", "shop", "a/")

    assert [*values_in(whole)] == [5, 3, 4, 2, 1]
    assert [*values_in(below)] == [3, 4, 2, 1]
    assert [*values_in(one)] == [4, 2, 1]


def values_in(node: dict[str, Any]) -> Iterator[int]:
    if node["value"] is not None:
        yield node["value"]["value"]
    for below in node["below"].values():
        yield from values_in(below)


async def test_a_value_is_set_by_name_and_shown_in_the_tree_with_what_depends_on_it(
    deployment: Deployment, operator: Commands, change_set: ChangeSet
) -> None:
    await deployment.start()
    values = ExampleGraph()
    *first, total = values.define(1, 2)
    first[1]["putValue"]["name"] = "prices/net"
    total["putValue"]["name"] = "prices/gross"
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, [*first, total])
    await asyncio.wait_for(reply, 60)

    said = await operator.tell("values", "set", *change_set, "prices/net", "40", "--wait")
    tree = await operator.tell("values", "--tree", *change_set, "prices")
    plain = await operator.read("values", "--tree", *change_set)
    [listed] = await operator.read("values", *change_set, "prices/gross")
    computed = await operator.tell("values", "set", *change_set, "prices/gross", "1", code=1)
    nonsense = await operator.tell("values", "set", *change_set, "prices/net", "{", code=1)

    assert "its values are up to date" in said
    assert f"gross = 42  from prices/net, {values.tax}" in tree
    assert plain["below"]["prices"]["below"]["net"]["value"]["value"] == 40
    assert listed["value"] == 42
    assert f"is computed; set its inputs instead: prices/net, {values.tax}" in computed
    assert "--text" in nonsense
    workspace, this = change_set
    for words in (
        ("values", "--json", workspace, this, values.net),
        ("values", "get", workspace, "--json", this, values.net),
    ):
        [shown] = json.loads(await operator.tell(*words))  # options stand anywhere
        assert shown["value"] == 40
