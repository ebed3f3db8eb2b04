"""A server whose `max_payload` is lowered under connected clients takes what fits, and tells."""

from collections.abc import AsyncIterator

import pytest

from rebaser_client import RebaserClient, TooLarge
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually

LOWERED = 20_000  # bytes; below the size of an object's chunks


@pytest.fixture
async def lowered(deployment: Deployment) -> AsyncIterator[RebaserClient]:
    """A client that was connected before the limit became smaller, and does not know it."""
    async with RebaserClient.on(deployment.nc, deployment.js, retry_for=20) as client:
        await lower(deployment)
        yield client


async def lower(deployment: Deployment) -> None:
    deployment.nats.reload(f"max_payload: {LOWERED}")
    await eventually(lambda: "Reloaded: max_payload" in deployment.nats.log)


async def test_a_stored_batch_is_uploaded_in_messages_that_fit(
    lowered: RebaserClient, deployment: Deployment
) -> None:
    [change_set] = new_change_sets(1)
    updates = [put(new_id(), n) for n in range(3_000)]

    await lowered.enqueue_updates(*change_set, updates)

    assert (await deployment.js.stream_info(deployment.streams.requests_stream)).state.messages == 1


async def test_a_request_that_fits_no_longer_is_refused_for_good(
    lowered: RebaserClient, deployment: Deployment
) -> None:
    [change_set] = new_change_sets(1)

    with pytest.raises(TooLarge, match=f"{LOWERED} allowed"):
        await lowered.enqueue_updates(*change_set, [put(new_id(), "v" * 2 * LOWERED)])

    assert (await deployment.js.stream_info(deployment.streams.requests_stream)).state.messages == 0


async def test_a_daemon_goes_on_with_what_fits(deployment: Deployment) -> None:
    """Its commits, results, checkpoints and answers are cut to the new limit."""
    [change_set], graph, texts = new_change_sets(1), ExampleGraph(), [new_id() for _ in range(30)]
    daemon = await deployment.start()
    await deployment.client.enqueue_updates(*change_set, graph.define())
    await deployment.at_rest()
    await lower(deployment)

    for text in texts:
        updates = [put(text, text + "v" * 15_000)]
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, updates)
        assert not (await reply).status.success.corrections
    many = [{"removeValue": {"valueId": new_id()}} for _ in range(3_000)]
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, many)
    await deployment.client.enqueue_updates(*change_set, [set_to(graph.net, 5)])
    await deployment.at_rest()

    assert (
        len(await deployment.client.corrections((await reply).status.success.corrections)) == 3000
    )
    values = (await deployment.graph(change_set)).values
    assert all(values[text].value.startswith(text) for text in texts)
    daemon.kill()
    await deployment.start()
    await deployment.client.enqueue_updates(*change_set, [set_to(graph.net, 6)])
    await deployment.at_rest()
    assert await deployment.dead_letters(change_set) == []
