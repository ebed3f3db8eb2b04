"""A workspace and a change set that do not belong together are refused before anything is sent."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rebaser_client.client import RebaserClient
from rebaser_core.errors import NotInWorkspace
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import JetStream
from rebaser_core.messages import ErrorStatus
from rebaser_core.records import ChangeSetStatus
from tests.helpers.batches import ExampleGraph, new_id, put
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment, new_change_sets


async def created(client: RebaserClient, name: str) -> ChangeSet:
    workspace, head = await client.workspaces.create(name)
    return ChangeSet(workspace.workspace_id, head.change_set_id)


def swapped(change_set: ChangeSet) -> ChangeSet:
    workspace_id, change_set_id = change_set
    return ChangeSet(
        WorkspaceId.from_bytes(change_set_id.bytes), ChangeSetId.from_bytes(workspace_id.bytes)
    )


async def stored(deployment: Deployment) -> int:
    streams = (deployment.streams.requests_stream, "OBJ_REBASER_BATCHES")
    states = [(await deployment.js.stream_info(stream)).state for stream in streams]
    return sum(state.messages for state in states)


async def test_the_client_refuses_pairs_that_are_known_not_to_belong_together(
    deployment: Deployment,
) -> None:
    client = deployment.client
    mine, other = await created(client, "mine"), await created(client, "other")
    as_change_set = ChangeSetId.from_bytes(mine.workspace_id.bytes)
    large = [put(new_id(), n) for n in range(600)]
    pairs = {
        ChangeSet(other.workspace_id, mine.change_set_id): f"belongs to workspace {mine[0]}, not",
        swapped(mine): "these are swapped",
        ChangeSet(WorkspaceId(), as_change_set): "is a workspace, not a change set",
    }

    for pair, why in pairs.items():
        with pytest.raises(NotInWorkspace, match=why):
            await client.enqueue_updates(*pair, large)
        with pytest.raises(NotInWorkspace, match=why):
            await client.enqueue_updates_with_reply(*pair, [])
        with pytest.raises(NotInWorkspace, match=why):
            await client.change_set(*pair).checkpoint()

    assert await stored(deployment) == 0


async def test_an_unregistered_change_set_is_accepted_and_looked_up_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, registered = deployment.client, await created(deployment.client, "mine")
    [new] = new_change_sets(1)
    asked: list[str] = []
    request = JetStream.request

    async def counted(self: JetStream, verb: str, *arguments: Any, **named: Any) -> Any:
        asked.append(verb)
        return await request(self, verb, *arguments, **named)

    monkeypatch.setattr(JetStream, "request", counted)

    for change_set in (registered, new):
        for _ in range(3):
            await client.enqueue_updates(*change_set, [put(new_id(), 1)])

    assert asked == ["STREAM.MSG.GET.KV_REBASER_CHANGE_SETS"] * 3
    assert await stored(deployment) == 6


async def test_an_unreachable_registry_blocks_no_request(deployment: Deployment) -> None:
    mine, other = [await created(deployment.client, name) for name in ("mine", "other")]
    await deployment.js.delete_stream("KV_REBASER_CHANGE_SETS")

    await deployment.client.enqueue_updates(other[0], mine[1], [put(new_id(), 1)])

    assert await stored(deployment) == 1


async def test_a_request_of_a_client_that_does_not_look_is_refused_by_the_rebaser(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = [await created(deployment.client, name) for name in ("mine", "other")]
    daemon = await deployment.start()

    async def looks_at_nothing(*_: Any) -> None:
        pass

    monkeypatch.setattr(deployment.client.workspace_check, "check", looks_at_nothing)
    pairs = {
        ChangeSet(other.workspace_id, mine.change_set_id): "it belongs to another workspace",
        swapped(mine): "it is a workspace",
    }
    async with asyncio.timeout(60):
        for pair, why in [*pairs.items()] * 2:
            _, reply = await deployment.client.enqueue_updates_with_reply(*pair, [put(new_id(), 1)])
            status = (await reply).status
            assert isinstance(status, ErrorStatus)
            assert status.error.message.startswith("refused: ")
            assert why in status.error.message
            assert str(mine.workspace_id) not in status.error.message
        _, reply = await deployment.client.enqueue_updates_with_reply(*mine, [put(new_id(), 1)])
        assert not isinstance((await reply).status, ErrorStatus)
    await deployment.at_rest()

    record = await deployment.client.change_set(*mine).describe()
    assert (record.status, daemon.process.poll()) == (ChangeSetStatus.OPEN, None)


@pytest.fixture
def commands(deployment: Deployment) -> Commands:
    return Commands(deployment)


async def test_every_command_refuses_a_pair_that_does_not_belong_together(
    deployment: Deployment, commands: Commands, tmp_path: Path
) -> None:
    mine, other = [await created(deployment.client, name) for name in ("mine", "other")]
    wrong = ChangeSet(other.workspace_id, mine.change_set_id)
    batch = tmp_path / "batch.json"
    batch.write_text("[]")
    given = {
        ("enqueue",): [batch],
        ("values",): [],
        ("values", "--tree"): [],
        ("values", "set"): ["a", "1"],
        ("log",): [],
        ("revert",): [1],
        ("dvu", "status"): [],
        ("dvu", "run"): ["--failed"],
        ("dvu", "cancel"): [],
        ("checkpoint",): [],
        ("pause",): [],
        ("log", "--follow"): [],
    }

    for words, rest in given.items():
        said = await commands.tell(*words, *wrong, *rest, code=1)
        assert f"belongs to workspace {mine.workspace_id}, not {other.workspace_id}" in said, words
        said = await commands.tell(*words, *swapped(mine), *rest, code=1)
        assert "these are swapped" in said, words

    assert await stored(deployment) == 0


async def test_a_change_set_that_never_was_is_no_empty_one(
    deployment: Deployment, commands: Commands, tmp_path: Path
) -> None:
    [change_set] = new_change_sets(1)
    batch = tmp_path / "batch.json"
    batch.write_text(json.dumps(ExampleGraph().define()))

    for words in (("values",), ("values", "--tree"), ("log",), ("dvu", "status"), ("checkpoint",)):
        said = await commands.tell(*words, *change_set, code=1)
        assert f"there is no change set {change_set.change_set_id} in workspace" in said, words
    refused = await commands.tell("enqueue", *change_set, batch, code=1)
    assert await stored(deployment) == 0
    await commands.tell("enqueue", *change_set, batch, "--unregistered")
    await commands.tell("enqueue", *change_set, batch)

    assert "--unregistered starts one" in refused
    assert await stored(deployment) == 2


async def test_a_value_that_is_not_there_is_an_error_with_names_that_are_like_it(
    deployment: Deployment, commands: Commands
) -> None:
    change_set = await created(deployment.client, "mine")
    await deployment.start()
    batch = [
        {"putValue": {"valueId": new_id(), "name": name, "value": 1}}
        for name in ("net/apples", "net/pears", "rate")
    ]
    async with asyncio.timeout(60):
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, batch)
        await reply

    said = await commands.tell("values", *change_set, "net/appels", code=1)
    within = await commands.tell("values", *change_set, "rate", "PEARS", code=1)
    tree = await commands.tell("values", "--tree", *change_set, "nett", code=1)
    as_json = await commands.tell("values", *change_set, "nope", "--json", code=1)

    assert "there is no value 'net/appels'; there is 'net/apples'" in said
    assert "there is no value 'PEARS'; there is 'net/pears'" in within
    assert "no value is called 'nett'" in tree
    assert "there is no value 'nope'" in as_json
