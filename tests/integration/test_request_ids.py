"""A request's id is its own change set's: no other request under it takes its place."""

import asyncio
import json
from pathlib import Path

import pytest

from rebaser_client import RequestIdUsed, RequestRefused
from rebaser_client.outcomes import committed
from rebaser_core.commits import RequestOutcome
from rebaser_core.ids import RequestId
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    InlineBatch,
    OutcomeQueryV1,
    RequestState,
    SuccessStatusV3,
)
from rebaser_core.records import PauseScope
from rebaser_core.requests import INLINE_UPDATES, ensure_task, request_digest
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.cluster.pauses import PauseStore
from rebaser_server.processor.outcomes import OutcomeLookup
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment, new_change_sets, recording
from tests.helpers.eventually import eventually

OTHERS = 1_100
"""Requests behind one that is sent again: more than are remembered without regard to time."""


async def test_requests_of_one_id_to_two_change_sets_are_both_applied(
    deployment: Deployment,
) -> None:
    request, change_sets, values = RequestId(), new_change_sets(2), ExampleGraph()
    for change_set in change_sets:
        await deployment.client.enqueue_updates(
            *change_set, values.define(1, 2), request_id=request
        )
    await deployment.start()
    await deployment.at_rest()

    for change_set in change_sets:
        assert (await deployment.graph(change_set)).values[values.gross].value == 3
        outcome = await deployment.client.change_set(*change_set).outcome(request)
        assert outcome.state is RequestState.SETTLED


async def test_each_of_two_requests_of_one_id_gets_its_own_reply(deployment: Deployment) -> None:
    """Both are awaited by one client, which has one inbox for all."""
    request, change_sets = RequestId(), new_change_sets(2)
    replies = []
    for change_set in change_sets:
        batch = ExampleGraph().define(1, 2)
        _, reply = await deployment.client.enqueue_updates_with_reply(
            *change_set, batch, request_id=request
        )
        replies.append(asyncio.ensure_future(reply))
    await deployment.start()

    responses = await asyncio.gather(*replies)

    assert [(r.workspace_id, r.change_set_id) for r in responses] == list(change_sets)


async def test_two_change_sets_may_have_the_same_large_batch_under_one_id(
    deployment: Deployment,
) -> None:
    """The second one takes it when the first one has dropped it from store and log."""
    request, [first, second] = RequestId(), new_change_sets(2)
    values = [new_id() for _ in range(INLINE_UPDATES + 1)]
    pauses = PauseStore(deployment.streams)
    daemon = await deployment.start(CHECKPOINT_EVERY="2", HISTORY__MAX_COMMITS="0")
    await pauses.pause(PauseScope(*second))
    await eventually(lambda: bool(daemon.said("pauses changed")))
    for change_set in (first, second):
        batch = [put(value, 1) for value in values]
        await deployment.client.enqueue_updates(*change_set, batch, request_id=request)
    for number in range(8):
        _, reply = await deployment.client.enqueue_updates_with_reply(
            *first, [set_to(values[0], number)]
        )
        await reply

    await pauses.resume(PauseScope(*second))
    await deployment.at_rest()

    assert not await deployment.dead_letters(second)
    assert (await deployment.graph(second)).values[values[-1]].value == 1


async def test_a_request_id_used_elsewhere_does_not_suppress_a_request(
    deployment: Deployment,
) -> None:
    request, values = RequestId(), ExampleGraph()
    own, victim = new_change_sets(2)
    await deployment.js.publish(deployment.streams.requests(own), b"", message_id=str(request))

    _, reply = await deployment.client.enqueue_updates_with_reply(
        *victim, values.define(1, 2), request_id=request
    )
    await deployment.start()

    assert isinstance((await reply).status, SuccessStatusV3)
    assert (await deployment.graph(victim)).values[values.net].value == 1


async def test_a_request_that_is_sent_again_is_stored_once(deployment: Deployment) -> None:
    [change_set], request, values = new_change_sets(1), RequestId(), ExampleGraph()
    for _ in range(2):
        await deployment.client.enqueue_updates(
            *change_set, values.define(1, 2), request_id=request
        )

    state = (await deployment.js.stream_info(deployment.streams.requests_stream)).state
    assert state.messages == 1


async def test_a_waiting_request_is_found_by_its_id(deployment: Deployment) -> None:
    [change_set] = new_change_sets(1)
    request = await deployment.client.enqueue_updates(*change_set, ExampleGraph().define(1, 2))
    archive = deployment.archive(change_set)
    outcomes = OutcomeLookup(deployment.streams, archive.machine)

    query = OutcomeQueryV1(
        id=request,
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
    )

    assert (await outcomes.find(query)).state is RequestState.WAITING


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(1, id="inline"),
        pytest.param(INLINE_UPDATES + 1, id="in the bucket", marks=pytest.mark.long),
    ],
)
async def test_another_batch_under_an_id_is_refused_and_the_same_one_answered(
    deployment: Deployment, count: int
) -> None:
    """Also by a Rebaser that knows the first one from the log, or from a checkpoint alone."""
    [change_set], request, client = new_change_sets(1), RequestId(), deployment.client
    values = [new_id() for _ in range(count)]
    first = [put(value, 1) for value in values]
    daemon = await deployment.start()
    applied = await client.change_set(*change_set).enqueue(first, request_id=request)

    async def look() -> None:
        with pytest.raises(RequestIdUsed, match=f"commit {applied.commit} .*id of its own") as used:
            await client.change_set(*change_set).enqueue([put(values[0], 2)], request_id=request)
        assert isinstance(used.value, RequestRefused)
        again = await client.change_set(*change_set).enqueue(first, request_id=request)
        assert again.commit == applied.commit
        outcome = await client.change_set(*change_set).outcome(request)
        assert isinstance(outcome.response.status, SuccessStatusV3)
        assert outcome.response.status.success.commit == applied.commit

    await look()
    daemon.kill()
    await client.change_set(*change_set).enqueue([set_to(values[0], 3)], wait="stored")
    second = await deployment.start("second", CHECKPOINT_EVERY="1")
    await look()
    await deployment.at_rest()
    second.kill()
    await deployment.start("third")
    await look()

    assert (await deployment.graph(change_set)).values[values[0]].value == 3
    assert not await deployment.dead_letters(change_set)


async def test_two_batches_of_one_id_that_wait_together_get_each_its_own_answer(
    deployment: Deployment,
) -> None:
    """One is applied, the other refused, though one client awaits both, in one group of commits."""
    [change_set], request, value = new_change_sets(1), RequestId(), new_id()
    batches = [[put(value, 1)], [put(value, 2)], [put(value, 1)]]
    replies = []
    for batch in batches:
        _, reply = await deployment.client.enqueue_updates_with_reply(
            *change_set, batch, request_id=request
        )
        replies.append(asyncio.ensure_future(reply))
    await deployment.start()

    applied, refused, again = await asyncio.gather(*replies)

    assert isinstance(applied.status, SuccessStatusV3)
    assert again == applied
    with pytest.raises(RequestIdUsed, match="Nothing of this one was applied"):
        committed(refused)
    assert (await deployment.graph(change_set)).values[value].value == 1


async def test_a_command_shows_that_its_request_id_was_another_batchs(
    deployment: Deployment, tmp_path: Path
) -> None:
    [change_set], request, value = new_change_sets(1), RequestId(), new_id()
    await deployment.start()
    commands = Commands(deployment)
    await deployment.client.change_set(*change_set).enqueue([put(value, 1)], request_id=request)
    files = [tmp_path / "same.json", tmp_path / "other.json"]
    for number, file in enumerate(files, 1):
        file.write_text(json.dumps([put(value, number)]))

    same = await commands.give("enqueue", *change_set, files[0], "--request-id", request, "--wait")
    other = await commands.give("enqueue", *change_set, files[1], "--request-id", request, "--wait")

    assert same.code == 0
    assert other.code != 0
    assert "the id was another request's" in other.out + other.err


async def test_who_missed_the_reply_to_another_batch_of_an_id_is_told_that_it_was_refused(
    deployment: Deployment,
) -> None:
    """While it waits it may still be applied, if the id is forgotten until then."""
    [change_set], request, value = new_change_sets(1), RequestId(), new_id()
    client, archive = deployment.client, deployment.archive(change_set)
    daemon = await deployment.start()
    await client.change_set(*change_set).enqueue([put(value, 1)], request_id=request)
    await deployment.at_rest()
    daemon.kill()
    await client.enqueue_updates(*change_set, [put(value, 2)], request_id=request)
    stored = await deployment.js.get_message(
        deployment.streams.requests_stream,
        last_by_subject=deployment.streams.requests(change_set),
    )
    assert stored is not None
    digest = request_digest(stored.payload)
    outcomes = OutcomeLookup(deployment.streams, archive.machine)
    query = OutcomeQueryV1(
        id=request,
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
    )

    waiting = await outcomes.find(query, digest)
    await deployment.start("second")
    await deployment.at_rest()
    refused = await outcomes.find(query, digest)
    asked = await client._sender.outcome(change_set, request, digest)

    assert waiting.state is RequestState.WAITING
    assert refused.response == asked.response
    with pytest.raises(RequestIdUsed):
        committed(refused.response)


@pytest.mark.long
async def test_a_repetition_is_recognised_behind_more_than_a_thousand_others(
    deployment: Deployment,
) -> None:
    """Its client sends it again within the retry horizon; NATS has forgotten its message id.

    The Rebaser that handled it is dead: what it knew comes from the checkpoint and the log.
    """
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.client.enqueue_updates(*change_set, values.define(1, 2))
    batch, request = [set_to(values.net, 7)], RequestId()
    await deployment.client.enqueue_updates(*change_set, batch, request_id=request)
    stored = await deployment.js.get_message(
        deployment.streams.requests_stream,
        last_by_subject=deployment.streams.requests(change_set),
    )
    assert stored is not None
    others = [
        deployment.client.enqueue_updates(*change_set, [set_to(values.net, 8)])
        for _ in range(OTHERS)
    ]
    await asyncio.gather(*others)
    first = await deployment.start()
    await deployment.at_rest()
    first.kill()
    await deployment.start("second")

    headers = {name: text for name, text in stored.headers.items() if name != MESSAGE_ID}
    await deployment.js.publish(
        stored.subject, stored.payload, headers=headers, message_id=f"{request}.forgotten"
    )
    await ensure_task(deployment.streams, change_set)
    await deployment.at_rest()

    assert (await deployment.graph(change_set)).values[values.net].value == 8


async def test_an_id_that_comes_twice_within_a_group_of_commits_takes_effect_once(
    deployment: Deployment,
) -> None:
    """W7: each repetition is recognised although the commit before it is not stored yet."""
    [change_set], value = new_change_sets(1), new_id()
    requests = [RequestId() for _ in range(60)]
    subject = deployment.streams.requests(change_set)
    for number, request_id in enumerate(requests):
        batch = InlineBatch.model_validate({"updates": [put(value, number)]})
        request = EnqueueUpdatesRequestV1(
            id=request_id,
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
            updates_address=Inline(inline=batch),
        )
        headers, payload = EnqueueUpdatesRequest.encode(request)
        for again in range(2):
            own = headers | {MESSAGE_ID: f"{request_id}.{again}"}
            await deployment.js.publish(subject, payload, headers=own, message_id=own[MESSAGE_ID])
    await ensure_task(deployment.streams, change_set)

    async with recording(deployment) as recorder:
        await deployment.start()
        await deployment.at_rest()
        await eventually(lambda: len(recorder.settled(change_set)) == 2 * len(requests))

    settled = [line.settled for line in recorder.lines[change_set] if line.settled is not None]
    outcomes = (RequestOutcome.APPLIED, RequestOutcome.DUPLICATE)
    assert [(each.id, each.outcome) for each in settled] == [
        (request_id, outcome) for request_id in requests for outcome in outcomes
    ]
