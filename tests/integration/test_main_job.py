"""From a client's batch to the values recomputed, through a real broker and a real daemon."""

import asyncio

from rebaser_client.client import RebaserClient
from rebaser_core import codecs
from rebaser_core.ids import RequestId
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    EnqueueUpdatesResponse,
    Inline,
    InlineBatch,
)
from rebaser_core.requests import publish_request
from rebaser_core.versioning import CONTENT_TYPE, MESSAGE_VERSION, REPLY_INBOX
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.processor.dead_letters import REASON
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.deployment import Deployment, deployed, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer


async def test_a_batch_is_applied_answered_and_what_depends_on_it_recomputed(
    deployment: Deployment,
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.start()

    request_id, reply = await deployment.client.enqueue_updates_with_reply(
        *change_set, values.define(1, 2)
    )
    response = await reply
    await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 40)])
    await deployment.at_rest()

    graph = await deployment.graph(change_set)
    assert response.id == request_id
    assert response.status.success.corrections == ()
    assert graph.values[values.gross].value == 42
    assert graph.roots == {}


async def test_a_large_batch_travels_by_address_and_is_gone_once_no_line_needs_it(
    deployment: Deployment,
) -> None:
    [change_set] = new_change_sets(1)
    await deployment.start(HISTORY__MAX_COMMITS="0")
    ids = [new_id() for _ in range(2_000)]

    await deployment.client.enqueue_updates(*change_set, [put(i, n) for n, i in enumerate(ids)])
    await deployment.at_rest()
    await deployment.client.enqueue_updates(*change_set, [set_to(ids[0], 0)])
    await deployment.at_rest()  # with a checkpoint beyond the one that covers it

    graph = await deployment.graph(change_set)
    assert [graph.values[i].value for i in ids[1:]] == list(range(1, 2_000))
    bucket = f"OBJ_{deployment.streams.batches_bucket}"

    async def no_chunks() -> bool:
        subjects = await deployment.js.stream_subjects(bucket)
        return not any(".C." in subject for subject in subjects)

    await eventually(no_chunks)


async def test_a_json_client_is_answered(nats_server: NatsServer, deployment: Deployment) -> None:
    [change_set] = new_change_sets(1)
    await deployment.start()

    async with RebaserClient.on(deployment.nc, deployment.js, content_type=codecs.JSON) as client:
        _, reply = await client.enqueue_updates_with_reply(*change_set, [put(new_id(), "é")])
        response = await reply

    assert response.status.success.commit > 0


async def test_everything_works_behind_a_prefix(nats_server: NatsServer, tmp_path) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    async with deployed(nats_server, tmp_path, prefix="P") as deployment:
        await deployment.start()

        await deployment.client.enqueue_updates(*change_set, values.define(2, 3))
        await deployment.at_rest()

        assert (await deployment.graph(change_set)).values[values.gross].value == 5
        assert "P_REBASER_REQUESTS" in await deployment.js.stream_names()
        assert "REBASER_REQUESTS" not in await deployment.js.stream_names()


async def test_a_request_is_read_and_answered_whatever_the_case_of_its_headers(
    deployment: Deployment,
) -> None:
    """And with a media type as MIME has it; the answer is in the encoding of the request."""
    [change_set], value, request_id = new_change_sets(1), new_id(), RequestId()
    request = EnqueueUpdatesRequestV1(
        id=request_id,
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=Inline(inline=InlineBatch.model_validate({"updates": [put(value, 1)]})),
    )
    headers, payload = EnqueueUpdatesRequest.encode(request, codecs.JSON)
    headers |= {CONTENT_TYPE: "Application/JSON; charset=utf-8", REPLY_INBOX: "answers.mine"}
    headers = {name.title(): text for name, text in headers.items()} | {"x-author": "me"}
    answers = await deployment.nc.subscribe("answers.mine")
    await deployment.js.publish(deployment.streams.requests(change_set), payload, headers=headers)

    await deployment.start()
    answer = await answers.next_msg(timeout=60)

    assert (answer.headers or {})[CONTENT_TYPE] == codecs.JSON
    assert EnqueueUpdatesResponse.decode(answer.headers or {}, answer.data).id == request_id
    log = CommitLog(deployment.streams, change_set)
    commits = [commit async for _, commit in log.entries(0, (await log.last())[0])]
    assert [c.settled.author for c in commits if c.settled and c.settled.id == request_id] == ["me"]
    await answers.unsubscribe()


async def test_an_unreadable_message_is_dead_lettered_with_its_reason_and_the_rest_goes_on(
    deployment: Deployment,
) -> None:
    [change_set], value = new_change_sets(1), new_id()
    await deployment.client.enqueue_updates(*change_set, [put(value, 1)])
    subject = deployment.streams.requests(change_set)
    await deployment.js.publish(subject, b"\xff", headers={CONTENT_TYPE: "application/cbor"})
    await deployment.client.enqueue_updates(*change_set, [set_to(value, 2)])

    await deployment.start()
    await deployment.at_rest()

    [letter] = await deployment.dead_letters(change_set)
    assert letter.payload == b"\xff"
    assert "headers missing: X-MESSAGE-TYPE, X-MESSAGE-VERSION" in letter.headers[REASON]
    assert (await deployment.graph(change_set)).values[value].value == 2


async def test_the_caller_of_a_dead_request_gets_the_reason(deployment: Deployment) -> None:
    one, other = new_change_sets(2)
    request = EnqueueUpdatesRequestV1(
        id=RequestId(),
        workspace_id=other.workspace_id,
        change_set_id=other.change_set_id,
        updates_address=Inline(inline=InlineBatch(updates=[])),
    )
    headers, payload = EnqueueUpdatesRequest.encode(request)
    inbox = deployment.nc.new_inbox()
    answers = await deployment.nc.subscribe(inbox)
    headers[REPLY_INBOX] = inbox
    await publish_request(deployment.streams, one, headers, payload)

    await deployment.start()
    answer = await answers.next_msg(timeout=60)

    assert f"but is for {other}".encode() in answer.data


async def test_a_request_of_a_newer_version_waits_first_in_line_without_spinning(
    deployment: Deployment,
) -> None:
    [change_set] = new_change_sets(1)
    request = EnqueueUpdatesRequestV1(
        id=RequestId(),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=Inline(inline=InlineBatch(updates=[])),
    )
    headers, payload = EnqueueUpdatesRequest.encode(request)
    headers[MESSAGE_VERSION] = "2"
    await publish_request(deployment.streams, change_set, headers, payload)

    daemon = await deployment.start()

    async def put_off() -> bool:
        return bool(daemon.said("retry scheduled"))

    await eventually(put_off)
    await asyncio.sleep(2)  # several reconciler periods: time in which it must not spin
    assert len(daemon.said("taken")) <= 4  # offered again after 1 s, 2 s, 4 s
    assert await deployment.js.stream_subjects(deployment.streams.requests_stream)
    assert not await deployment.dead_letters(change_set)


async def test_a_function_that_fails_fails_its_value_and_blocks_what_depends_on_it(
    deployment: Deployment,
) -> None:
    [change_set], values, after = new_change_sets(1), ExampleGraph(), new_id()
    await deployment.start()

    inputs = {"values": [values.gross]}
    await deployment.client.enqueue_updates(
        *change_set,
        [
            *values.define(1, "no number"),
            {"putValue": {"valueId": after, "funcId": values.add, "inputs": inputs}},
        ],
    )
    await deployment.at_rest()

    graph = await deployment.graph(change_set)
    assert graph.values[values.gross].status == "failed"
    assert graph.values[values.gross].message
    assert graph.values[after].status == "blocked"
    assert graph.values[after].message == values.gross


async def test_a_caller_that_missed_the_reply_can_ask_for_the_outcome(
    deployment: Deployment,
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    first = await deployment.client.enqueue_updates(*change_set, values.define())
    daemon = await deployment.start()
    await deployment.at_rest()

    settled = await deployment.client.change_set(*change_set).outcome(first)
    unknown = await deployment.client.change_set(*change_set).outcome(RequestId())

    assert settled.state == "settled"
    assert settled.response.status.success.commit > 0
    assert (unknown.state, unknown.response) == ("unknown", None)
    assert daemon.process.poll() is None


async def test_asked_again_with_the_same_id_a_handled_request_is_answered_again(
    deployment: Deployment,
) -> None:
    """The server stores no second copy while it remembers the id, so nobody would reply."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.start()
    request_id, first = await deployment.client.enqueue_updates_with_reply(
        *change_set, values.define()
    )
    before = await first

    _, again = await deployment.client.enqueue_updates_with_reply(
        *change_set, values.define(), request_id=request_id
    )

    assert await again == before


async def test_the_outcome_is_known_after_its_line_was_purged(deployment: Deployment) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.start(HISTORY__MAX_COMMITS="0")
    first = await deployment.client.enqueue_updates(*change_set, values.define())
    await deployment.at_rest()
    for number in range(2):  # checkpoints beyond the one that covers it
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, number)])
        await deployment.at_rest()
    assert await deployment.archive(change_set).earliest_commit() > 0, "its line was purged"

    known = await deployment.client.change_set(*change_set).outcome(first)

    assert known.state == "settled"
    assert known.response.status.success.commit > 0
