"""Who may pause, resume, stop updates, have values computed again and states saved, and who not."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ApiError, ObjectNotFound, ObjectStore, StreamConfig
from rebaser_core.messages import StoreRef
from rebaser_core.records import PauseScope
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.pauses import PauseStore
from rebaser_server.commands.cli import main
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.batches import ExampleGraph, new_id, put
from tests.helpers.deployment import new_change_sets
from tests.helpers.nats_process import NatsServer
from tests.security.roles import (
    API_PREFIX,
    client_of,
    connected_as,
    variables,
    violations,
    with_accounts,
)
from tests.security.test_permissions import serving

SUBJECTS = Subjects()

Run = Callable[..., Awaitable[tuple[int, str]]]

OPERATING = (
    ("pause", "--reason", "a look"),
    ("resume",),
    ("dvu", "status"),
    ("dvu", "cancel"),
    ("dvu", "run", "total"),
    ("checkpoint",),
)
"""Each goes on with a workspace and a change set."""


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with with_accounts(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def run(
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """A command as one role gives it: its exit code, and all that it says."""

    async def run(role: str, *words: object) -> tuple[int, str]:
        told = variables(nats_server, role) | {"STORE__ROOT": str(tmp_path / "store")}
        told |= {"NATS__API_PREFIX": API_PREFIX} if role == "client" else {}
        for name, value in told.items():
            monkeypatch.setenv(f"REBASER_{name}", value)
        code = await asyncio.to_thread(main, [str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def given(words: tuple[str, ...], change_set: ChangeSet) -> list[str]:
    """The command for that change set."""
    verbs = 2 if words[0] == "dvu" else 1
    return [*words[:verbs], *map(str, change_set), *words[verbs:]]


async def test_an_operator_may_operate(nats_server: NatsServer, tmp_path: Path, run: Run) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    batch = values.define()
    batch[-1]["putValue"]["name"] = "total"
    async with serving(nats_server, tmp_path, "one"), client_of(nats_server) as client:
        _, reply = await client.enqueue_updates_with_reply(*change_set, batch)
        await reply
        for words in OPERATING:
            code, said = await run("operator", *given(words, change_set))
            nothing_there = code == Exit.FAILED and words[1:] == ("cancel",)
            assert code == Exit.OK or nothing_there, said
            assert "NATS does not let" not in said
        _, said = await run("operator", "doctor")
        assert "nottried" not in "".join(said.split()), "the Rebaser tries what it may not"

    assert violations(nats_server) == []


async def test_an_operator_learns_which_right_a_repair_takes(
    nats_server: NatsServer, run: Run
) -> None:
    """The one that updates streams is nobody's: it could have NATS drop what is in them."""
    config = StreamConfig(
        name=SUBJECTS.commits_stream,
        subjects=[SUBJECTS.join("rebaser.commits.>")],
        max_age=timedelta(hours=1),
    )
    async with connected_as(nats_server, "server") as js:
        await js.create_stream(config)
        await prepare(js, Settings())

    code, said = await run("operator", "doctor", "--repair")

    assert code == Exit.DAMAGED
    assert "$JS.API.STREAM.UPDATE.REBASER_COMMITS" in "".join(said.split())
    assert violations(nats_server) == []


async def test_clients_and_rebasers_may_not_and_learn_why(
    nats_server: NatsServer, tmp_path: Path, run: Run
) -> None:
    [change_set] = new_change_sets(1)
    refused = [words for words in OPERATING if words[0] in ("pause", "resume", "dvu")]
    async with serving(nats_server, tmp_path, "one"):
        code, said = await run("client", "queue")
        assert code == Exit.FAILED
        assert "NATS does not let user 'client' publish to " in said
        for role, commands in (("client", refused), ("server", refused[:2])):
            for words in commands:
                code, said = await run(role, *given(words, change_set))
                assert code == Exit.FAILED, said
                assert f"NATS does not let user '{role}'" in said, words
                assert "set REBASER_NATS__USER" in said
        async with connected_as(nats_server, "operator") as js:
            book = PauseStore(Streams(js=js))
            assert await book.of(PauseScope(*change_set)) is None


async def test_a_client_has_its_values_computed_again_and_saved(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """They are requests in line like any other, of which it may make as many as it likes."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    async with serving(nats_server, tmp_path, "one"), client_of(nats_server) as client:
        _, reply = await client.enqueue_updates_with_reply(*change_set, values.define())
        first = (await reply).status.success.commit

        assert await client.change_set(*change_set).recompute([values.gross]) > first
        assert await client.change_set(*change_set).checkpoint() > first

    assert violations(nats_server) == []


async def test_a_bucket_without_rollups_takes_large_batches_and_cannot_be_wiped(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Batches are put, used and thrown away; a client's own is all that it can spoil."""
    [change_set], bucket = new_change_sets(1), Subjects().batches_bucket
    wiping = {"Nats-Rollup": "all"}
    async with (
        serving(nats_server, tmp_path, "one", NATS__BATCHES_ROLLUP="false") as daemons,
        client_of(nats_server) as client,
        connected_as(nats_server, "server") as server,
    ):
        others = ObjectStore(server, bucket)
        await others.put_once("another's", b"batch")
        for options in (wiping, {"Nats-Rollup": "sub"}):
            with pytest.raises(ApiError, match="rollup not permitted"):
                await client._streams.js.publish(
                    f"js.rebaser.$O.{bucket}.M.YQ==", b"{}", headers=options
                )
        batch = [put(new_id(), number) for number in range(600)]
        _, reply = await client.enqueue_updates_with_reply(*change_set, batch)
        address = (await reply).status.success.updates_performed
        assert len(await client.change_set(*change_set).values()) == 600
        assert await others.get("another's") == b"batch"
        await others.delete("another's")
        with pytest.raises(ObjectNotFound):
            await others.get("another's")
        assert isinstance(address, StoreRef), "copied to where no client can write"
        assert not [line for each in daemons for line in each.said("configuration differs")]
