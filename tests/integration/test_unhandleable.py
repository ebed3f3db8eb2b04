"""Requests that can never be handled: buried or refused, and those behind them go on."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg

from rebaser_core import codecs
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import StreamConfig
from rebaser_core.messages import (
    MAX_INLINE_CORRECTIONS,
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    InlineBatch,
    omitted,
)
from rebaser_core.requests import ensure_task
from rebaser_server.ops.dead_letters import DeadLetter, load
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually

Send = Callable[[Deployment, str], Awaitable[None]]


async def that_expects_a_stream(deployment: Deployment, subject: str) -> None:
    stream = deployment.streams.requests_stream
    await deployment.js.publish(subject, b"?", expected_stream=stream)


async def with_odd_header_names(deployment: Deployment, subject: str) -> None:
    odd = b'a(b): one\r\n"q": two\r\na;b: three\r\na/b: four\r\nX-Dead-Reason: five\r\n'
    block = b"NATS/1.0\r\n" + odd + b"\r\n"
    size = len(block)
    nc = deployment.nc
    line = f"HPUB {subject} {size} {size + 1}\r\n".encode()
    await nc._send_command(line + block + b"?\r\n")
    await nc._flush_pending()
    await nc.flush()


async def with_an_inbox_of_5_000_characters(deployment: Deployment, subject: str) -> None:
    await deployment.js.publish(subject, b"?", headers={"X-Reply-Inbox": "a" * 5_000})


SENDERS: Sequence[Send] = (
    that_expects_a_stream,
    with_odd_header_names,
    with_an_inbox_of_5_000_characters,
)


async def test_a_request_is_buried_whatever_its_headers_are(deployment: Deployment) -> None:
    """An unreadable request becomes a dead letter; the request behind it is applied."""
    change_sets, values = new_change_sets(len(SENDERS)), ExampleGraph()
    daemon = await deployment.start()

    for send, change_set in zip(SENDERS, change_sets, strict=True):
        await send(deployment, deployment.streams.requests(change_set))
        await deployment.client.enqueue_updates(*change_set, values.define(3, 4))
    await deployment.at_rest()

    for send, change_set in zip(SENDERS, change_sets, strict=True):
        [dead] = await deployment.dead_letters(change_set)
        assert dead.payload == b"?", send
        assert (await deployment.graph(change_set)).values[values.gross].value == 7, send
    assert not daemon.said("retry scheduled")


async def test_headers_that_a_letter_cannot_have_come_back_with_it(deployment: Deployment) -> None:
    [change_set] = new_change_sets(1)
    await deployment.start()

    await with_odd_header_names(deployment, deployment.streams.requests(change_set))
    await ensure_task(deployment.streams, change_set)
    await deployment.at_rest()

    [dead] = await deployment.dead_letters(change_set)
    found = await shown(deployment, change_set, dead.stream_sequence)
    assert [found.headers[name] for name in ("a(b)", '"q"', "a;b", "a/b")] == [
        "one",
        "two",
        "three",
        "four",
    ]
    assert found.summary()["reason"].startswith("MalformedMessage")


async def test_sizes_at_the_edge_hold_nothing_up(deployment: Deployment) -> None:
    """Many corrections, JSON that is larger as CBOR, and a letter larger than its request."""
    change_sets = corrected, floats, unreadable = new_change_sets(3)
    values = ExampleGraph()
    daemon = await deployment.start()
    unknown = [{"removeValue": {"valueId": str(RequestId())}} for _ in range(20_000)]
    _, reply = await deployment.client.enqueue_updates_with_reply(*corrected, unknown)
    await short_floats_in_json(deployment, floats, values)
    largest = deployment.nc.max_payload - 200
    subject = deployment.streams.requests(unreadable)
    await deployment.js.publish(subject, b"?" * largest, headers={"X-Any": "thing"})
    for change_set in change_sets:
        await deployment.client.enqueue_updates(*change_set, values.define(3, 4))
    await deployment.at_rest()

    told = (await reply).status.success.corrections
    assert len(told) == MAX_INLINE_CORRECTIONS + 1
    assert omitted(told).counts == {"missing-value": 20_000}
    everything = await deployment.client.corrections(told)
    assert [correction.index for correction in everything] == list(range(20_000))
    for change_set in change_sets:
        assert (await deployment.graph(change_set)).values[values.gross].value == 7
    [dead] = await deployment.dead_letters(unreadable)
    assert len(dead.payload) < 1_000
    found = await shown(deployment, unreadable, dead.stream_sequence)
    assert found.payload == b"?" * largest
    assert found.headers["X-Any"] == "thing"
    assert daemon.process.poll() is None
    assert not daemon.said("retry scheduled")


async def short_floats_in_json(
    deployment: Deployment, change_set: ChangeSet, values: ExampleGraph
) -> None:
    """An inline batch of 700 kB, of another make than our client's, which would store it."""
    update = {"putValue": {"valueId": values.net, "value": [0.5] * 175_000}}
    request = EnqueueUpdatesRequestV1(
        id=RequestId(),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=Inline(inline=InlineBatch.model_validate({"updates": [update]})),
    )
    headers, payload = EnqueueUpdatesRequest.encode(request, codecs.JSON)
    subject = deployment.streams.requests(change_set)
    await deployment.js.publish(subject, payload, headers=headers)


async def test_a_store_that_fails_for_longer_than_all_attempts_buries_nothing(
    deployment: Deployment,
) -> None:
    """A file where there should be a directory: nothing can be stored, as on a full disk."""
    [change_set] = new_change_sets(1)
    values = ExampleGraph()
    wall = Path(deployment.settings.store.root) / "results"
    wall.parent.mkdir(parents=True, exist_ok=True)
    wall.write_text("")
    daemon = await deployment.start(MAX_ATTEMPTS="1")
    await deployment.client.enqueue_updates(
        *change_set, [*values.define(3, 4), *a_correction_and_600_more(values)]
    )

    await eventually(lambda: len(daemon.said("retry scheduled")) >= 2, within=60)
    wall.unlink()
    await deployment.at_rest()

    assert not await deployment.dead_letters(change_set)
    assert (await deployment.graph(change_set)).values[values.gross].value == 600 + 4


async def test_a_request_stays_until_its_copy_is_stored(deployment: Deployment) -> None:
    """L2: first the copy, then the commit that it is dead, then its end."""
    [change_set, other], js, streams = new_change_sets(2), deployment.js, deployment.streams
    daemon, letters = await deployment.start(), streams.dead_letters_stream
    config = await js.stream_config(letters)
    await js.update_stream(config | StreamConfig(max_msgs=1))
    await js.publish(streams.dead_letters(other), b"the only one that there is room for")
    await js.publish(streams.requests(change_set), b"?")
    await ensure_task(streams, change_set)

    await eventually(lambda: bool(daemon.said("retry scheduled")), within=60)
    assert await js.stream_subjects(streams.requests_stream)
    await js.update_stream(config)
    await deployment.at_rest()

    assert len(await deployment.dead_letters(change_set)) == 1


async def shown(deployment: Deployment, change_set: ChangeSet, sequence: int) -> DeadLetter:
    batches = deployment.archive(change_set).batches
    return await load(deployment.streams, batches, sequence)


def a_correction_and_600_more(values: ExampleGraph) -> list[dict[str, Any]]:
    """A batch that is corrected, and large without what is corrected: it is stored anew."""
    unknown = {"removeValue": {"valueId": str(RequestId())}}
    return [unknown, *(set_to(values.net, number) for number in range(601))]


async def test_no_reply_goes_where_it_would_command_nats_or_make_work(
    deployment: Deployment,
) -> None:
    """W8: not to the API of JetStream, nor into a stream of ours."""
    [change_set], heard = new_change_sets(1), []
    purge = "$JS.API.STREAM.PURGE.ANOTHER"
    inboxes = [purge, "$KV.a.b", deployment.streams.task(new_change_sets(1)[0])]

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    for inbox in inboxes:
        await deployment.nc.subscribe(inbox, cb=hear)
        headers = {"X-Reply-Inbox": inbox}
        subject = deployment.streams.requests(change_set)
        await deployment.js.publish(subject, b"?", headers=headers)
    daemon = await deployment.start()
    await ensure_task(deployment.streams, change_set)

    await eventually(lambda: len(daemon.said("reply inbox rejected")) >= len(inboxes))
    await deployment.nc.flush()

    assert heard == []
