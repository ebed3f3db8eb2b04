"""From a client's batch to the values recomputed, through a real broker and a real daemon."""

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
from rebaser_core.versioning import CONTENT_TYPE, REPLY_INBOX
from rebaser_server.commit_log.log import CommitLog
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually


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
    unknown = await deployment.client.change_set(*change_set).outcome(RequestId())

    assert (unknown.state, unknown.response) == ("unknown", None)
    assert known.state == "settled"
    assert known.response.status.success.commit > 0
