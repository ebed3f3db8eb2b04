"""A change set that has nothing to do costs the server no consumer, and misses no request."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlparse

import pytest

from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_server.processor import request_queue
from rebaser_server.processor.request_queue import RequestQueue
from rebaser_server.runtime.ports import free_port
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import restart

LONG = 60.0


@pytest.fixture
async def queue(deployment: Deployment) -> AsyncIterator[RequestQueue]:
    [change_set] = new_change_sets(1)
    queue = RequestQueue(deployment.streams, change_set, idle=0.05)
    async with queue:
        yield queue


async def consumers(deployment: Deployment) -> int:
    info = await deployment.js.stream_info(deployment.streams.requests_stream)
    return int(info.state.consumer_count)


async def store(deployment: Deployment, queue: RequestQueue) -> int:
    return (await deployment.js.publish(queue._subject, b"a request")).sequence


async def at_rest(deployment: Deployment) -> None:
    async def no_consumer() -> bool:
        return await consumers(deployment) == 0

    await eventually(no_consumer)


async def test_requests_come_in_order_however_long_it_was_idle_between_them(
    deployment: Deployment, queue: RequestQueue
) -> None:
    for _ in range(3):
        waiting = asyncio.create_task(queue.next(LONG))
        await at_rest(deployment)
        stored = [await store(deployment, queue) for _ in range(3)]

        found = [await waiting, await queue.next(LONG), await queue.next(LONG)]

        assert [each.stream_sequence for each in found if each] == stored
        assert await consumers(deployment) == 1


async def test_a_request_that_comes_while_it_goes_to_rest_is_found(
    deployment: Deployment, queue: RequestQueue
) -> None:
    """At any moment: before the consumer is gone, while it goes, and before news is heard."""
    for number in range(60):
        waiting = asyncio.create_task(queue.next(LONG))
        await asyncio.sleep(0.04 + 0.0005 * number)  # to another moment each time
        stored = await store(deployment, queue)

        found = await asyncio.wait_for(waiting, 60)

        assert found is not None
        assert found.stream_sequence == stored


async def test_a_request_that_comes_before_it_listens_for_news_is_found(
    deployment: Deployment, queue: RequestQueue
) -> None:
    """The leader is asked, since no news comes of it."""
    stored = await store(deployment, queue)

    end = asyncio.get_running_loop().time() + LONG
    assert await asyncio.wait_for(queue._wait_for_message(end), 60)

    found = await queue.next(LONG)
    assert found is not None
    assert found.stream_sequence == stored


async def test_it_is_quiet_after_the_whole_time_and_then_there_is_no_consumer(
    deployment: Deployment, queue: RequestQueue
) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()

    assert await queue.next(0.5) is None

    assert clock() - began >= 0.5
    assert await consumers(deployment) == 0


async def test_a_wait_given_up_loses_nothing(deployment: Deployment, queue: RequestQueue) -> None:
    waiting = asyncio.create_task(queue.next(LONG))
    await at_rest(deployment)
    stored = await store(deployment, queue)
    waiting.cancel()
    await asyncio.wait([waiting])

    # The request may have come before the confirmation that it is stored.
    found = await queue.next(0) if waiting.cancelled() else waiting.result()

    assert found is not None
    assert found.stream_sequence == stored


async def test_it_is_heard_of_after_the_server_was_away(
    deployment: Deployment, queue: RequestQueue
) -> None:
    waiting = asyncio.create_task(queue.next(LONG))
    await at_rest(deployment)
    await restart(deployment.nats, deployment.js.connection)
    stored = await store(deployment, queue)

    found = await asyncio.wait_for(waiting, 60)

    assert found is not None
    assert found.stream_sequence == stored


async def test_a_request_stored_while_it_was_not_connected_is_found_soon(
    deployment: Deployment, queue: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W3: no message woke it, and its next look is far away."""
    monkeypatch.setattr(request_queue, "_FIRST_CHECKS", (600.0, 600.0))
    monkeypatch.setattr(request_queue, "_RECONNECT_SPREAD", 0.1)
    waiting = asyncio.create_task(queue.next(10 * LONG))
    await at_rest(deployment)
    async with connected(ConnectOptions(servers=(deployment.nats.url,))) as other:
        nc = deployment.nc
        nc.options["reconnect_time_wait"] = 0.1
        [server] = nc._server_pool
        sound, server.uri = server.uri, urlparse(f"nats://127.0.0.1:{free_port()}")
        assert nc._transport is not None
        nc._transport.close()
        await eventually(lambda: not nc.is_connected)
        stored = await JetStream(other).publish(queue._subject, b"a request")
        assert not nc.is_connected
        server.uri = sound

    found = await asyncio.wait_for(waiting, 60)

    assert found is not None
    assert found.stream_sequence == stored.sequence
