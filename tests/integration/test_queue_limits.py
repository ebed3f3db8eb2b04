"""What waits has a limit, and whoever is refused is told so."""

import pytest

from rebaser_core.errors import QueueFull
from rebaser_core.ids import RequestId
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Deployment, new_change_sets

LIMIT = 100
"""Requests of all change sets."""


async def limit(deployment: Deployment) -> None:
    """Streams as a deployment with this limit has them."""
    stream = deployment.streams.requests_stream
    await deployment.js.delete_stream(stream)
    nats = {"url": deployment.nats.url}
    settings = Settings.model_validate({"nats": nats, "queue": {"requests": LIMIT}, "ack_wait": 2})
    assert await prepare(deployment.js, settings) == []


@pytest.mark.parametrize("sent", [10, 100], ids=["of one change set", "of all"])
async def test_a_request_beyond_the_limit_is_refused_at_once(
    deployment: Deployment, sent: int
) -> None:
    """One change set may have a tenth of all that wait."""
    await limit(deployment)
    change_sets, values = new_change_sets(sent // 10), ExampleGraph()
    for change_set in change_sets:
        for number in range(10):
            await deployment.client.enqueue_updates(*change_set, [set_to(values.net, number)])

    refused = change_sets[0] if sent < LIMIT else new_change_sets(1)[0]
    with pytest.raises(QueueFull, match="not stored"):
        await deployment.client.enqueue_updates(*refused, [set_to(values.net, 99)])

    info = await deployment.js.stream_info(deployment.streams.requests_stream)
    assert info.state.messages == sent


async def test_a_refused_request_is_applied_on_retry_and_a_stored_one_stays(
    deployment: Deployment,
) -> None:
    """The same id throughout: a full queue never makes a stored request look refused."""
    await limit(deployment)
    [change_set], values = new_change_sets(1), ExampleGraph()
    stored = await deployment.client.enqueue_updates(*change_set, values.define())
    for number in range(9):
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, number)])
    refused = RequestId()
    last = [set_to(values.net, 41)]
    with pytest.raises(QueueFull):
        await deployment.client.enqueue_updates(*change_set, last, request_id=refused)

    await deployment.client.enqueue_updates(*change_set, values.define(), request_id=stored)
    await deployment.start(QUEUE__REQUESTS=str(LIMIT))
    await deployment.at_rest()
    await deployment.client.enqueue_updates(*change_set, last, request_id=refused)
    await deployment.at_rest()

    assert (await deployment.graph(change_set)).values[values.net].value == 41


async def test_another_change_set_is_not_refused(deployment: Deployment) -> None:
    await limit(deployment)
    [full, other], values = new_change_sets(2), ExampleGraph()
    for _ in range(10):
        await deployment.client.enqueue_updates(*full, [set_to(values.net, 1)])

    await deployment.client.enqueue_updates(*other, [set_to(values.net, 1)])

    with pytest.raises(QueueFull, match=str(full.change_set_id)):
        await deployment.client.enqueue_updates(*full, [set_to(values.net, 1)])


async def test_results_find_room_in_a_full_queue(deployment: Deployment) -> None:
    """The result of a DVU waits in the same line; its own change set's requests make the room."""
    await limit(deployment)
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.client.enqueue_updates(*change_set, values.define(1, 2))
    for number in range(9):
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, number)])

    await deployment.start(QUEUE__REQUESTS=str(LIMIT))
    await deployment.at_rest()

    assert (await deployment.graph(change_set)).values[values.gross].value == 8 + 2


async def test_limits_that_differ_from_the_streams_are_reported(deployment: Deployment) -> None:
    """Streams that are there are never changed: a person has to."""
    nats = {"url": deployment.nats.url}
    settings = Settings.model_validate({"nats": nats, "queue": {"requests": 500}, "ack_wait": 2})

    drifts = await prepare(deployment.js, settings)

    assert [(each.field, each.expected, each.actual) for each in drifts] == [
        ("max_msgs", 500, 1_000_000), ("max_msgs_per_subject", 50, 100_000)
    ]  # fmt: skip
