"""What waits has a limit, and whoever is refused is told so."""

import pytest

from rebaser_core.errors import QueueFull
from rebaser_core.ids import RequestId
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Deployment, new_change_sets


async def limit(deployment: Deployment, **queue: int) -> None:
    """Streams as a deployment with these settings has them."""
    stream = deployment.streams.requests_stream
    await deployment.js.delete_stream(stream)
    nats = {"url": deployment.nats.url}
    settings = Settings.model_validate({"nats": nats, "queue": queue, "ack_wait": 2})
    assert await prepare(deployment.js, settings) == []


@pytest.mark.parametrize(
    ("queue", "sent"),
    [({"change_set_requests": 10}, 10), ({"requests": 100}, 100)],
    ids=["of one change set", "of all"],
)
async def test_a_request_beyond_the_limit_is_refused_at_once(
    deployment: Deployment, queue: dict[str, int], sent: int
) -> None:
    await limit(deployment, **queue)
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.client.enqueue_updates(*change_set, values.define())
    for number in range(sent - 1):
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, number)])

    with pytest.raises(QueueFull, match="not stored"):
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 99)])

    info = await deployment.js.stream_info(deployment.streams.requests_stream)
    assert info.state.messages == sent


async def test_a_refused_request_is_applied_on_retry_and_a_stored_one_stays(
    deployment: Deployment,
) -> None:
    """The same id throughout: a full queue never makes a stored request look refused."""
    await limit(deployment, change_set_requests=10)
    [change_set], values = new_change_sets(1), ExampleGraph()
    stored = await deployment.client.enqueue_updates(*change_set, values.define())
    for number in range(9):
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, number)])
    refused = RequestId()
    last = [set_to(values.net, 41)]
    with pytest.raises(QueueFull):
        await deployment.client.enqueue_updates(*change_set, last, request_id=refused)

    await deployment.client.enqueue_updates(*change_set, values.define(), request_id=stored)
    await deployment.start(QUEUE__CHANGE_SET_REQUESTS="10")
    await deployment.at_rest()
    await deployment.client.enqueue_updates(*change_set, last, request_id=refused)
    await deployment.at_rest()

    assert (await deployment.graph(change_set)).values[values.net].value == 41


async def test_another_change_set_is_not_refused(deployment: Deployment) -> None:
    await limit(deployment, change_set_requests=10)
    [full, other], values = new_change_sets(2), ExampleGraph()
    for _ in range(10):
        await deployment.client.enqueue_updates(*full, [set_to(values.net, 1)])

    await deployment.client.enqueue_updates(*other, [set_to(values.net, 1)])

    with pytest.raises(QueueFull, match=str(full.change_set_id)):
        await deployment.client.enqueue_updates(*full, [set_to(values.net, 1)])


async def test_results_find_room_in_a_full_queue(deployment: Deployment) -> None:
    """The result of a DVU waits in the same line; its own change set's requests make the room."""
    await limit(deployment, change_set_requests=10)
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.client.enqueue_updates(*change_set, values.define(1, 2))
    for number in range(9):
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, number)])

    await deployment.start(QUEUE__CHANGE_SET_REQUESTS="10")
    await deployment.at_rest()

    assert (await deployment.graph(change_set)).values[values.gross].value == 8 + 2


async def test_limits_that_differ_from_the_streams_are_reported(deployment: Deployment) -> None:
    """Streams that are there are never changed: a person has to."""
    nats = {"url": deployment.nats.url}
    settings = Settings.model_validate({"nats": nats, "queue": {"requests": 500}, "ack_wait": 2})

    [drift] = await prepare(deployment.js, settings)

    assert (drift.field, drift.expected, drift.actual) == ("max_msgs", 500, 1_000_000)
