"""Where and how long a client may be used, and what its methods take for ids."""

import asyncio
import gc
import inspect
import os
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from nats.aio.msg import Msg

from rebaser_client import (
    ClientClosed,
    ClientError,
    ClientForked,
    Draft,
    LoadPlan,
    MalformedId,
    RebaserClient,
    RebaserError,
    Unreachable,
    WrongEventLoop,
    connect,
    outcomes,
    sync,
)
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.messages import Correction, abbreviate
from rebaser_core.queries import RevertReply, RevertReplyV1
from rebaser_core.query_protocol import RETRY_AFTER
from rebaser_server.processor.ownership import acquire_ownership
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually

IDS = ("workspace_id", "change_set_id", "from_change_set_id", "request_id", "base", "head")
"""Arguments that are ids wherever they occur."""

OTHERS = {
    "updates": [],
    "table": "nowhere.parquet",
    "name": "name",
    "text": "text",
    "commit": 1,
    "draft": Draft(),
    "address": "/".join(["01JZ3Y7Q8M4T2V9K6X5B0N1CDE"] * 2),
    "name_or_id": "name",
    "workspace": str(RequestId()),
    "change_set": (str(RequestId()), str(RequestId())),
    "corrections": [],
    "plan": LoadPlan((), (), 0),
    "service": "orders",
    "value": 1,
}
"""What the other arguments may be."""
OTHERS["draft"].source("net", 1)

TOO_MANY = abbreviate([Correction(index=0, code="unused", detail="")] * 101, "0" * 64)

OFFLINE = {"enqueue_table", "corrections", "workspace", "ids", "edit", "upload", "service"}
"""They read a file first, or ask nothing by themselves."""


def methods_of(client: Any) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Each public method with arguments that it takes, ids as text."""
    handle = client.change_set(str(RequestId()), str(RequestId()))
    for part in (client, handle, client.workspaces, client.addresses):
        for name, method in inspect.getmembers(part, inspect.ismethod):
            if name.startswith("_") or name in ("on", "close", "change_set"):
                continue
            wanted = inspect.signature(method).parameters
            given = {
                each: str(RequestId()) if each in IDS else OTHERS[each]
                for each, parameter in wanted.items()
                if each in IDS or (parameter.default is parameter.empty and each != "names")
            }
            yield f"{type(part).__name__}.{name}", method, given


async def called(method: Callable[..., Any], given: dict[str, Any]) -> Any:
    result = method(**given)
    if inspect.isasyncgen(result):
        return [each async for each in result]
    return await result if inspect.isawaitable(result) else result


async def closed_client(deployment: Deployment) -> RebaserClient:
    async with connect(deployment.nats.url) as client:
        pass
    return client


async def test_every_method_takes_ids_as_text_and_refuses_a_malformed_one_by_its_name(
    deployment: Deployment,
) -> None:
    """The client is closed: what is refused for that alone has taken its arguments."""
    client = await closed_client(deployment)
    seen = set()
    for name, method, given in methods_of(client):
        for each in [key for key in given if key in IDS or (key == "workspace")]:
            with pytest.raises(MalformedId, match=rf"{each} is .*an id is a ULID, 26 digits"):
                await called(method, given | {each: "shop"})
            seen.add(each)
        if name.rpartition(".")[2] not in OFFLINE:
            with pytest.raises(ClientClosed):
                await called(method, given)

    with pytest.raises(MalformedId, match="workspace_id is"):
        client.change_set("shop", str(RequestId()))
    with pytest.raises(MalformedId, match="change_set_id is"):
        client.change_set(str(RequestId()), "shop")
    assert seen == {*IDS, "workspace"}


async def test_ids_as_text_name_the_same_change_set_and_request(deployment: Deployment) -> None:
    [change_set], request, values = new_change_sets(1), RequestId(), ExampleGraph()
    where = tuple(map(str, change_set))
    await deployment.start()

    outcome = await deployment.client.change_set(*where).enqueue(
        values.define(1, 2), wait="computed", request_id=str(request)
    )
    read = await deployment.client.change_set(*where).values()

    assert outcome.request_id == request
    assert read[values.gross].value == 3


async def test_a_closed_client_says_so_in_everything_that_it_made(deployment: Deployment) -> None:
    [change_set] = new_change_sets(1)
    async with connect(deployment.nats.url) as client:
        by_ids, shop = client.change_set(*change_set), client.workspace("shop")
        _, reply = await client.enqueue_updates_with_reply(*change_set, ExampleGraph().define(1, 2))
        waiting = asyncio.ensure_future(reply)
        await asyncio.sleep(0)

    for late in (
        waiting, by_ids.values(), by_ids.log(), by_ids.why("a"), by_ids.difference(),
        shop.values(), shop.create(), shop.settled(), shop.fork("winter"), shop.apply(),
    ):  # fmt: skip
        with pytest.raises(ClientClosed, match="this client is closed"):
            await late


async def test_what_waits_for_an_answer_ends_when_its_client_is_closed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, also what would look again only after a while."""
    monkeypatch.setattr(outcomes, "POLL_INTERVAL", 1e6)
    [change_set], asked = new_change_sets(1), set[str]()
    own = await acquire_ownership(deployment.archive(change_set), "owner")
    await own.write(dirty_sequence=1)
    streams = deployment.streams

    async def ask_later(question: Msg) -> None:
        reply = RevertReplyV1(id=RequestId(), now=0, error="too many queries wait")
        headers, payload = RevertReply.encode(reply)
        headers[RETRY_AFTER] = "20"
        await deployment.nc.publish(question.reply, payload, headers=headers)
        asked.add(question.subject)

    async def answer_nothing(question: Msg) -> None:
        asked.add(question.subject)

    mute = {streams.queries(change_set, "values"), streams.queries(change_set, "provenance")}
    mute |= {streams.queries(change_set, "differences"), streams.outcomes(change_set)}
    for subject in mute:
        await deployment.nc.subscribe(subject, cb=answer_nothing)
    await deployment.nc.subscribe(streams.queries(change_set, "reverts"), cb=ask_later)
    await deployment.js.connection.ping(30)  # another connection must not ask before
    async with connect(deployment.nats.url) as client:
        reader, steps = client.change_set(*change_set), client.change_set(*change_set).progress()
        await anext(steps)
        waiting = started(
            anext(steps),
            client.change_set(*change_set).settled(),
            client.change_set(*change_set).enqueue(ExampleGraph().define(1, 2)),
            client.change_set(*change_set).checkpoint(),
            client.change_set(*change_set).outcome(RequestId()),
            reader.values(),
            reader.why("a"),
            reader.difference(),
            reader.plan_revert(1),
        )
        await eventually(lambda: asked == {*mute, streams.queries(change_set, "reverts")})

    await eventually(lambda: all(each.done() for each in waiting))
    assert ends(waiting) == [ClientClosed] * len(waiting)


async def test_what_waits_for_nats_ends_when_its_client_is_closed(deployment: Deployment) -> None:
    """At once, whether it waits for an answer or to ask again."""
    [change_set] = new_change_sets(1)
    async with connect(deployment.nats.url) as client:
        assert await client.workspaces.all() == []
        reader = client.change_set(*change_set)
        deployment.nats.freeze()
        waiting = started(
            client.change_set(*change_set).enqueue([]),
            client.workspaces.all(),
            client.workspaces.create("shop"),
            client.change_set("shop").ids(),
            client.change_set(*change_set).settled(),
            client.workspace("shop").values(),
            client.corrections(TOO_MANY),
            reader.log(),
        )
        await asyncio.wait(waiting, timeout=0.1)
    deployment.nats.thaw()

    await eventually(lambda: all(each.done() for each in waiting))
    assert ends(waiting) == [ClientClosed] * len(waiting)


async def test_what_fails_without_nats_fails_with_an_error_of_rebaser(
    deployment: Deployment,
) -> None:
    """The others wait until it is back, or a minute."""
    js = JetStream(deployment.nc, timeout=0.2)
    async with RebaserClient.on(deployment.nc, js, retry_for=0.2) as client:
        deployment.nats.freeze()
        online = [call for call in methods_of(client) if call[0].rpartition(".")[2] not in OFFLINE]
        calls = started(*(called(method, given) for _, method, given in online))
        await eventually(lambda: sum(call.done() for call in calls) > len(calls) / 2)
        failed = [call.exception() for call in calls if call.done()]
        deployment.nats.thaw()
        for call in calls:
            call.cancel()

    assert [error for error in failed if not isinstance(error, RebaserError)] == []
    assert any(isinstance(error, JetStreamError) for error in failed)


async def test_a_wait_outlives_a_nats_that_does_not_answer_for_a_while(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS is silent while it is started again; what is waited for was stored before."""
    monkeypatch.setattr(outcomes, "POLL_INTERVAL", 0.05)
    [change_set] = new_change_sets(1)
    own = await acquire_ownership(deployment.archive(change_set), "owner")
    await own.write(dirty_sequence=1)
    shop = await deployment.client.workspaces.create("shop")
    async with connect(deployment.nats.url) as client:
        client.workspaces.registry._streams.js.timeout = 0.2
        steps = client.change_set(*change_set).progress()
        await anext(steps)
        renamed = client.workspaces.registry.change_set_once(
            ChangeSet(shop.record.workspace_id, shop.record.head), lambda one: one.name == "first"
        )
        waiting = started(anext(steps, None), renamed)
        deployment.nats.freeze()
        await asyncio.wait(waiting, timeout=1)
        deployment.nats.thaw()
        await own.write(clean_sequence=1)
        await deployment.client.workspace("shop").rename("first")

        last, record = await asyncio.gather(*waiting)
        while last is not None:
            last = await anext(steps, None)
    assert record.name == "first"


def started(*calls: Awaitable[Any]) -> list[asyncio.Task[Any]]:
    async def end_of(call: Awaitable[Any]) -> Any:
        return await call

    return [asyncio.create_task(end_of(each)) for each in calls]


def ends(tasks: list[asyncio.Task[Any]]) -> list[type | None]:
    return [type(each.exception()) for each in tasks]


async def test_a_client_in_another_event_loop_says_so_and_goes_on_in_its_own(
    deployment: Deployment,
) -> None:
    [change_set], said = new_change_sets(1), []

    async def use() -> None:
        for late in (
            deployment.client.change_set(*change_set).enqueue(ExampleGraph().define(1, 2)),
            deployment.client.change_set(*change_set).values(),
            deployment.client.workspaces.all(),
        ):
            try:
                await late
            except ClientError as error:
                said.append(type(error))

    await asyncio.to_thread(asyncio.run, use())

    assert said == [WrongEventLoop] * 3
    assert await deployment.client.workspaces.all() == []


def in_child(use: Callable[[], Any]) -> type | str:
    """Which error a forked process meets."""
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            use()
            os.write(sending, b"none")
        except BaseException as error:  # noqa: BLE001 - the parent looks at it
            os.write(sending, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


async def test_a_forked_process_is_told_to_connect_itself(deployment: Deployment) -> None:
    """The connection stays the parent's, which goes on with it."""
    [change_set] = new_change_sets(1)

    def use(client: RebaserClient) -> None:
        asyncio.events._set_running_loop(None)  # as in a child that begins anew
        asyncio.run(client.change_set(*change_set).values())

    said = in_child(lambda: use(deployment.client))

    assert said == ClientForked.__name__
    assert await deployment.client.workspaces.all() == []


async def test_a_sync_client_names_the_fork_and_its_parent_goes_on(deployment: Deployment) -> None:
    def script() -> tuple[Any, ...]:
        with sync.connect(deployment.nats.url) as client:
            shop = client.workspace("shop")
            said = in_child(client.workspaces.all), in_child(shop.values), in_child(client.close)
            return (*said, client.workspaces.all())

    assert await asyncio.to_thread(script) == ("ClientForked", "ClientForked", "none", [])


async def test_a_closed_sync_client_says_so_and_leaves_no_coroutine_behind(
    deployment: Deployment, recwarn: pytest.WarningsRecorder
) -> None:
    [change_set] = new_change_sets(1)

    def script() -> None:
        with sync.connect(deployment.nats.url) as client:
            shop, by_ids = client.workspace("shop"), client.change_set(*change_set)
        client.close()
        for late in (
            client.workspaces.all, shop.values, by_ids.values, shop.create, shop.edit().__enter__,
            lambda: shop.fork("winter"), lambda: next(by_ids.progress()),
        ):  # fmt: skip
            with pytest.raises(ClientClosed):
                late()

    await asyncio.to_thread(script)
    gc.collect()

    assert not [each for each in recwarn if "never awaited" in str(each.message)]


async def test_a_thread_that_waits_while_another_closes_the_client_is_woken(
    deployment: Deployment,
) -> None:
    [change_set], said = new_change_sets(1), list[object]()

    def wait_for_commit(client: sync.SyncClient) -> None:
        try:
            client.change_set(*change_set).enqueue(ExampleGraph().define(1, 2))
        except ClientError as error:
            said.append(type(error))

    async def is_stored() -> bool:
        info = await deployment.js.stream_info(deployment.streams.requests_stream)
        return info.state.messages == 1

    client = await asyncio.to_thread(sync.connect, deployment.nats.url)
    waiting = threading.Thread(target=wait_for_commit, args=(client,))
    waiting.start()
    await eventually(is_stored)
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(waiting.join)

    assert said == [ClientClosed]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:4222", "a URL of one begins with nats, tls, ws, wss"),
        ("nats://127.0.0.1:99999", "a port from 1 to 65535"),
        ("nats://", "one has a host"),
        (
            "nats://127.0.0.1:1",
            "no NATS server at nats://127.0.0.1:1: .*refused|Connect call failed",
        ),
        ("nats://nowhere.invalid:4222", "no NATS server at nats://nowhere.invalid:4222: gaierror"),
    ],
)
async def test_a_server_that_cannot_be_there_is_refused_with_the_reason(
    url: str, says: str
) -> None:
    """Long before the time for the first connection is over."""
    with pytest.raises(Unreachable, match=says) as refused:
        async with connect(url, connect_timeout=3600):
            pass

    assert "within" not in str(refused.value)


async def test_one_server_of_several_that_answers_is_enough(deployment: Deployment) -> None:
    async with connect("nats://127.0.0.1:1", deployment.nats.url) as client:
        assert await client.workspaces.all() == []
