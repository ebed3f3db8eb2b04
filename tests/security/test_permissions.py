"""The accounts of deploy/nats: each role can do its work, and nothing that is another's."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rebaser_client.client import RebaserClient
from rebaser_client.outcomes import watching
from rebaser_core.activities import ActivityKind
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import JetStream, NatsUnreachable
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    InlineBatch,
    RequestState,
    SuccessStatusV3,
)
from rebaser_core.requests import publish_request
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import announced_id
from rebaser_server.commands.cli import main
from rebaser_server.processor.request_queue import RequestQueue
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.batches import Batch, ExampleGraph, new_id, put
from tests.helpers.deployment import SCALED, Daemon, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.security.roles import client_of, connected_as, variables, violations, with_accounts

SUBJECTS = Subjects()


def many(count: int) -> Batch:
    return [put(new_id(), number) for number in range(count)]


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with with_accounts(tmp_path / "nats") as server:
        yield server


@asynccontextmanager
async def serving(
    server: NatsServer, directory: Path, *names: str, **more: str
) -> AsyncIterator[list[Daemon]]:
    """Rebasers in the server's role, ready."""
    common = SCALED | variables(server, "server") | {"OPS__PORT": "0"} | more
    common |= {"STORE__ROOT": str(directory / "store"), "STORE__ORPHAN_RETENTION": "2"}
    daemons = [Daemon(name, directory, common | {"INSTANCE_ID": name}) for name in names]
    try:
        for daemon in daemons:
            await daemon.ready()
        yield daemons
    finally:
        for daemon in daemons:
            daemon.kill()


async def test_a_client_and_a_rebaser_work_without_a_single_violation(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    async with (
        serving(nats_server, tmp_path, "one", "two"),
        client_of(nats_server) as client,
        watching(client._streams, change_set) as activities,
    ):
        request, reply = await client.enqueue_updates_with_reply(*change_set, values.define())
        assert isinstance((await reply).status, SuccessStatusV3)
        _, reply = await client.enqueue_updates_with_reply(*change_set, many(2_000))
        assert isinstance((await reply).status, SuccessStatusV3), "too large for a message"

        assert (await client.change_set(*change_set).outcome(request)).state is RequestState.SETTLED
        assert len(await client.change_set(*change_set).values()) == 2_003
        [edit] = (await client.change_set(*change_set).why(values.gross)).edits
        assert edit.request == request
        assert (await anext(activities)).kind is ActivityKind.TAKEN

    assert violations(nats_server) == []


async def test_background_work_of_rebasers_is_allowed(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Dead letters, a takeover from one that died, forks applied, garbage collected."""
    async with (
        serving(nats_server, tmp_path, "one", "two") as (one, _),
        client_of(nats_server) as client,
        connected_as(nats_server, "operator") as operator,
    ):
        async with RebaserClient.on(operator.nc, operator) as trusted:
            workspace = (await trusted.workspaces.create("w")).record
            head = ChangeSet(workspace.workspace_id, workspace.head)
            branch = await trusted.workspaces.fork(workspace.workspace_id, "branch")
        await client.enqueue_updates(*head, many(600))
        on_branch = ChangeSet(workspace.workspace_id, branch.change_set_id)
        _, reply = await client.enqueue_updates_with_reply(*on_branch, ExampleGraph().define())
        await reply
        await client.change_set(*on_branch).apply()
        await client._streams.js.publish(SUBJECTS.requests(head), b"\xff")  # will be a dead letter
        one.kill()
        _, reply = await client.enqueue_updates_with_reply(*head, many(3))
        await reply

        async def one_dead() -> bool:
            return len(await operator.stream_subjects(SUBJECTS.dead_letters_stream)) == 1

        await eventually(one_dead)
        await at_rest(operator)

    assert violations(nats_server) == []


async def test_a_rebaser_hears_at_once_of_a_request_to_a_change_set_that_was_idle(
    nats_server: NatsServer,
) -> None:
    """Which has no consumer then: of a request that is not heard nobody knows until it is quiet."""
    [change_set] = new_change_sets(1)
    async with connected_as(nats_server, "server") as server:
        await prepare(server, Settings())
        async with RequestQueue(Streams(js=server), change_set, idle=0.05) as queue:
            waiting = asyncio.create_task(queue.next(60))

            async def is_idle() -> bool:
                found = await server.stream_info(SUBJECTS.requests_stream)
                return queue._consumer is not None and not found.state.consumer_count

            await eventually(is_idle)
            async with client_of(nats_server) as client:
                request = await client.enqueue_updates(*change_set, many(1))
            heard = await asyncio.wait_for(waiting, 30)

    assert heard is not None
    assert announced_id(heard.headers) == str(request)
    assert violations(nats_server) == []


async def enqueue_where_it_does_not_belong(js: JetStream, change_set: ChangeSet) -> None:
    """It ends in the dead letters, and can be replayed."""
    request = EnqueueUpdatesRequestV1(
        id=RequestId(),
        workspace_id=change_set.workspace_id,
        change_set_id=ChangeSetId(),
        updates_address=Inline(inline=InlineBatch(updates=[])),
    )
    await publish_request(Streams(js=js), change_set, *EnqueueUpdatesRequest.encode(request))


async def at_rest(js: JetStream) -> None:
    async def nothing_left() -> bool:
        streams = (SUBJECTS.requests_stream, SUBJECTS.tasks_stream)
        return not any([(await js.stream_info(s)).state.messages for s in streams])

    await eventually(nothing_left, within=60)


async def test_operators_do_their_work_without_a_single_violation(
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [change_set] = new_change_sets(1)
    ids = [str(each) for each in change_set]
    (tmp_path / "batch.json").write_text(json.dumps(ExampleGraph().define()))
    told = SCALED | variables(nats_server, "operator") | {"STORE__ROOT": str(tmp_path / "store")}
    for name, value in told.items():
        monkeypatch.setenv(f"REBASER_{name}", value)

    async def run(*arguments: str) -> str:
        code = await asyncio.to_thread(main, arguments)  # it has an event loop of its own
        printed = capsys.readouterr()
        assert code == 0, f"{arguments}: {printed.err}"
        return printed.out

    async with serving(nats_server, tmp_path, "one"), client_of(nats_server) as client:
        await run("enqueue", *ids, str(tmp_path / "batch.json"), "--wait", "--unregistered")
        await enqueue_where_it_does_not_belong(client._streams.js, change_set)
        await client.enqueue_updates(*change_set, many(600))
        async with connected_as(nats_server, "operator") as operator:
            await at_rest(operator)
        [letter] = json.loads(await run("dead-letters", "--json"))
        [line, *_] = json.loads(await run("log", *ids, "--json"))
        for command in (
            ("queue",), ("queue", "--tasks"), ("doctor",), ("values", *ids),
            ("revert", *ids, str(line["commit"])),
            ("dead-letters", "show", str(letter["sequence"])),
            ("dead-letters", "replay", str(letter["sequence"])),
            ("dead-letters", "purge", "--all"),
            ("workspaces", "create", "w"), ("workspaces", "list"),
        ):  # fmt: skip
            await run(*command)

    assert violations(nats_server) == []


CHANGE_SET = ChangeSet(WorkspaceId(), ChangeSetId())
API = ("js.rebaser", "$JS.API")
NOT_FOR_CLIENTS = [
    *(f"{api}.STREAM.MSG.GET.REBASER_REQUESTS" for api in API),
    *(f"{api}.STREAM.MSG.GET.REBASER_COMMITS" for api in API),
    *(f"{api}.STREAM.MSG.GET.OBJ_REBASER_BATCHES" for api in API),
    *(f"{api}.STREAM.MSG.GET.KV_REBASER_CHANGE_SETS" for api in API),
    *(f"{api}.DIRECT.GET.KV_REBASER_CHANGE_SETS" for api in API),
    *(f"{api}.DIRECT.GET.REBASER_REQUESTS" for api in API),
    *(f"{api}.CONSUMER.CREATE.REBASER_REQUESTS.mine" for api in API),
    *(f"{api}.CONSUMER.CREATE.KV_REBASER_CHANGE_SETS.mine" for api in API),
    *(f"{api}.CONSUMER.MSG.NEXT.REBASER_TASKS.rebaser-tasks" for api in API),
    *(f"{api}.CONSUMER.DELETE.REBASER_TASKS.rebaser-tasks" for api in API),
    *(f"{api}.STREAM.MSG.DELETE.REBASER_REQUESTS" for api in API),
    *(f"{api}.STREAM.PURGE.REBASER_REQUESTS" for api in API),
    *(f"{api}.STREAM.DELETE.REBASER_REQUESTS" for api in API),
    *(f"{api}.STREAM.CREATE.MINE" for api in API),
    *(f"{api}.STREAM.NAMES" for api in API),
    "$JS.ACK.REBASER_TASKS.rebaser-tasks.1.1.1.1.0",
    "js.rebaser.$KV.REBASER_CHANGE_SETS.x",
    "$KV.REBASER_CHANGE_SETS.x",
    SUBJECTS.commits(CHANGE_SET),
    SUBJECTS.dead_letters(CHANGE_SET),
    SUBJECTS.activities(CHANGE_SET),
    "rebaser.members.impostor",
    "rebaser.status",
    "_INBOX.server.x",
    "_R_.x",
]
HEARD_BY_OTHERS = [
    "rebaser.requests.>", "rebaser.tasks.>", "rebaser.commits.>", "rebaser.dead-letters.>",
    "rebaser.outcomes.>", "rebaser.values.>", "rebaser.provenance.>", "rebaser.members.>",
    "rebaser.tables.>", "rebaser.table-differences.>",
    "rebaser.differences.>", "rebaser.reverts.>", "rebaser.states.>",
    "$O.>", "$KV.>", "$JS.>", "_INBOX.>", "_INBOX.server.>", ">",
]  # fmt: skip


@pytest.fixture
async def prepared(nats_server: NatsServer) -> NatsServer:
    """Streams as a Rebaser makes them, a request and a commit in them, and nobody at work."""
    async with connected_as(nats_server, "server") as server:
        await prepare(server, Settings())
        await server.publish(SUBJECTS.requests(CHANGE_SET), b"another's request")
        await server.publish(SUBJECTS.commits(CHANGE_SET), b"line")
    return nats_server


async def stored(server: NatsServer) -> dict[str, dict[str, int]]:
    """How much is in each stream, and who reads there."""
    async with connected_as(server, "operator") as js:
        found = {}
        for name in await js.stream_names():
            state = (await js.stream_info(name)).state.to_json()
            found[name] = {key: state[key] for key in ("messages", "last_seq", "consumer_count")}
        return found


async def test_clients_have_no_other_permissions(prepared: NatsServer) -> None:
    before = await stored(prepared)
    async with connected_as(prepared, "client") as client:
        for subject in NOT_FOR_CLIENTS:
            with pytest.raises(NatsUnreachable):
                await client.connection.request(subject, b'{"seq": 1}', timeout=0.15)
        await client.connection.ping(30)  # the server has logged what it had read before

    assert await stored(prepared) == before
    assert len(violations(prepared)) == len(NOT_FOR_CLIENTS)


async def test_a_client_hears_nothing_that_is_not_meant_for_it(prepared: NatsServer) -> None:
    heard = []

    async def hear(message: object) -> None:
        heard.append(message)

    async with connected_as(prepared, "client") as client:
        for subject in HEARD_BY_OTHERS:
            await client.nc.subscribe(subject, cb=hear)
        async with connected_as(prepared, "server") as server:
            await server.publish(SUBJECTS.requests(CHANGE_SET), b"another's request")
            await server.publish(SUBJECTS.commits(CHANGE_SET), b"line")
        await client.connection.ping(30)

    assert heard == []
    assert len(violations(prepared)) == len(HEARD_BY_OTHERS)


@pytest.mark.parametrize(
    "target",
    [SUBJECTS.commits(CHANGE_SET), SUBJECTS.dead_letters(CHANGE_SET), "rebaser.members.impostor",
     "$JS.ACK.REBASER_TASKS.rebaser-tasks.1.1.1.1.0", "$JS.API.STREAM.DELETE.REBASER_COMMITS"],
    ids=["commits", "dead letters", "members", "ack", "delete"],
)  # fmt: skip
async def test_the_answer_to_a_client_goes_nowhere_but_to_its_account(
    prepared: NatsServer, target: str
) -> None:
    """NATS does not ask whether one may publish what one names as the subject of an answer.

    In one account the receipt of a request would be a line of a commit log by this.
    """
    before = await stored(prepared)
    async with connected_as(prepared, "client") as client:
        await client.nc.publish(SUBJECTS.task(CHANGE_SET), b"", reply=target)
        await client.connection.ping(30)
        await client.publish(SUBJECTS.requests(CHANGE_SET), b"x")  # what was before it is done

    after = await stored(prepared)
    assert {n for n in after if after[n] != before[n]} <= {"REBASER_TASKS", "REBASER_REQUESTS"}


NOT_FOR_OPERATORS = [
    "$JS.API.STREAM.DELETE.REBASER_REQUESTS",
    "$JS.API.STREAM.UPDATE.REBASER_REQUESTS",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.STREAM.PURGE.REBASER_REQUESTS",
    "$JS.API.STREAM.PURGE.REBASER_COMMITS",
    "$JS.API.STREAM.MSG.DELETE.REBASER_COMMITS",
    "$JS.API.CONSUMER.DELETE.REBASER_TASKS.rebaser-tasks",
    "$JS.API.CONSUMER.MSG.NEXT.REBASER_TASKS.rebaser-tasks",
    "$JS.ACK.REBASER_TASKS.rebaser-tasks.1.1.1.1.0",
    SUBJECTS.commits(CHANGE_SET),
    SUBJECTS.dead_letters(CHANGE_SET),
]
NOT_FOR_SERVERS = [
    "$JS.API.STREAM.DELETE.REBASER_REQUESTS",
    "$JS.API.STREAM.UPDATE.REBASER_REQUESTS",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.STREAM.MSG.DELETE.REBASER_COMMITS",
    "$JS.API.CONSUMER.DELETE.REBASER_TASKS.rebaser-tasks",
    "$JS.API.ACCOUNT.PURGE.REBASER",
]


@pytest.mark.parametrize(
    ("role", "subjects"), [("operator", NOT_FOR_OPERATORS), ("server", NOT_FOR_SERVERS)]
)
async def test_no_user_has_more_permissions_than_the_work_takes(
    prepared: NatsServer, role: str, subjects: list[str]
) -> None:
    before = await stored(prepared)
    async with connected_as(prepared, role) as js:
        for subject in subjects:
            with pytest.raises(NatsUnreachable):
                await js.connection.request(subject, b"{}", timeout=0.15)
        await js.connection.ping(30)  # the server has logged what it had read before

    assert await stored(prepared) == before
    assert len(violations(prepared)) == len(subjects)
