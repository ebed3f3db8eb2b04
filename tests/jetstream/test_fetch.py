"""Batches: what is there at once, what is waited for, and what never gets to the user."""

import asyncio
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest

from rebaser_core.jetstream import ConsumerGone, HeartbeatsMissed, JetStream, StatusError
from rebaser_core.jetstream.errors import NoResponders
from rebaser_core.jetstream.handles import Consumer
from rebaser_core.jetstream.inbox import Inbox
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, restart
from tests.jetstream.steps import (
    durable,
    filled,
    has_pending,
    numbers,
    publish_many,
    spied,
    waiting_pulls,
)


async def looked_up(js: JetStream, *subjects: str, **config: object) -> Consumer:
    await filled(js, *subjects)
    await durable(js, **config)
    return await js.stream("S").consumer("d")


async def test_what_is_there_is_returned_at_once(either_js: JetStream) -> None:
    consumer = await looked_up(either_js, "s.a", "s.a", "s.a")

    async with asyncio.timeout(30):
        assert numbers(await consumer.fetch(2, expires=60)) == [1, 2]
        assert numbers(await consumer.fetch(2, expires=60, no_wait=True)) == [3]


async def test_a_batch_is_filled_by_what_comes_later(js: JetStream) -> None:
    """ADR-37: it ends once the number requested is provided, or the request expires."""
    consumer = await looked_up(js, "s.a", "s.a")
    async with spied(js, "$JS.API.CONSUMER.MSG.NEXT.>") as pulls:
        fetching = asyncio.create_task(consumer.fetch(4, expires=60))
        await eventually(lambda: waiting_pulls(js))
        await publish_many(js, range(3, 5))

        async with asyncio.timeout(30):
            assert numbers(await fetching) == [1, 2, 3, 4]
        await eventually(lambda: len(pulls) == 2)

    assert [pull["batch"] for pull in pulls] == [4, 2]


@pytest.mark.parametrize(
    "wrong",
    [{}, {"max_messages": 0}, {"max_messages": -1}, {"max_bytes": 0}],
    ids=str,
)
async def test_a_batch_has_a_positive_limit(js: JetStream, wrong: dict[str, int]) -> None:
    consumer = await looked_up(js)
    async with spied(js, "$JS.API.CONSUMER.MSG.NEXT.>") as pulls:
        with pytest.raises(ValueError, match="max_messages"):
            await consumer.fetch(**wrong)
        await js.connection.ping(30)

    assert pulls == []


async def test_a_batch_is_asked_for_without_waiting_and_then_with(js: JetStream) -> None:
    """ADR-13, Pull(n): `no_wait`, then `expires` 100 ms before our own end."""
    consumer = await looked_up(js)
    async with spied(js, "$JS.API.CONSUMER.MSG.NEXT.>") as pulls:
        fetching = asyncio.create_task(consumer.fetch(5, expires=60))
        await eventually(lambda: len(pulls) == 2)
        fetching.cancel()
        await asyncio.wait([fetching])

    assert pulls[0] == {"batch": 5, "no_wait": True}
    assert pulls[1]["batch"] == 5
    assert 30e9 < pulls[1]["expires"] < 59.9e9


async def test_what_comes_while_waiting_is_returned_when_the_batch_is_full(js: JetStream) -> None:
    consumer = await looked_up(js)
    fetching = asyncio.create_task(consumer.fetch(2, expires=60))
    await eventually(lambda: waiting_pulls(js))
    await publish_many(js, range(2))

    async with asyncio.timeout(30):
        assert numbers(await fetching) == [0, 1]


async def test_a_partial_batch_is_returned_at_the_end_and_leaves_no_pull(js: JetStream) -> None:
    consumer = await looked_up(js)
    fetching = asyncio.create_task(consumer.fetch(2, expires=5))
    await eventually(lambda: waiting_pulls(js))
    await js.publish("s.a", b"1")

    assert numbers(await fetching) == [1]
    await eventually(lambda: waiting_pulls(js, 0))


async def test_what_is_under_way_at_the_end_is_not_lost(js: JetStream, server: NatsServer) -> None:
    """A server that was late with the end of the pull, and had a message for it before."""
    consumer = await looked_up(js)
    fetching = asyncio.create_task(consumer.fetch(1, expires=1.5))
    await eventually(lambda: waiting_pulls(js))
    server.freeze()
    await js.connection.publish("s.a", b"1")
    await asyncio.sleep(1.6)  # the pull ends meanwhile
    server.thaw()

    found = await fetching
    if not found:  # it was published after the pull's end
        found = await consumer.fetch(1)
    assert [(int(one.payload), one.delivered) for one in found] == [(1, 1)]


@pytest.mark.parametrize(
    "limits",
    [{"max_batch": 3}, {"max_expires": timedelta(milliseconds=100)}, {"max_bytes": 300}],
    ids=" ".join,
)
async def test_a_batch_may_be_more_than_one_pull_may_ask_for(
    js: JetStream, limits: dict[str, Any]
) -> None:
    """It is made by several pulls, and waits for as long as it is to wait."""
    consumer = await looked_up(js, *["s.a"] * 8, **limits)
    for options in ({"max_messages": 100}, {"max_bytes": 10_000}):
        fetching = asyncio.ensure_future(consumer.fetch(**options, expires=3))
        await eventually(lambda: waiting_pulls(js))
        await js.publish("s.a", b"9")
        async with asyncio.timeout(30):
            found = await fetching
        assert numbers(found)[-1] == 9
        for delivery in found:
            await delivery.ack(confirm=True)

    assert await consumer.next(expires=0.3) is None


async def test_no_wait_does_not_wait(js: JetStream) -> None:
    consumer = await looked_up(js)

    async with asyncio.timeout(30):
        assert await consumer.fetch(5, expires=60, no_wait=True) == []


async def test_octets_limit_a_batch(js: JetStream) -> None:
    consumer = await looked_up(js)
    for _ in range(6):
        await js.publish("s.a", bytes(1000))
    await eventually(lambda: has_pending(js, 6))

    async with asyncio.timeout(30):
        assert len(await consumer.fetch(3, max_bytes=2500, expires=60)) == 2
        assert len(await consumer.fetch(max_bytes=3500, expires=60)) == 3
    with pytest.raises(StatusError, match="Message Size Exceeds MaxBytes"):
        await consumer.fetch(3, max_bytes=10)


async def test_octets_that_came_count_while_the_rest_is_waited_for(js: JetStream) -> None:
    consumer = await looked_up(js)
    await js.publish("s.a", bytes(1000))
    await eventually(lambda: has_pending(js, 1))
    async with spied(js, "$JS.API.CONSUMER.MSG.NEXT.>") as pulls:
        fetching = asyncio.create_task(consumer.fetch(max_bytes=3500, expires=60))
        await eventually(lambda: waiting_pulls(js))
        for _ in range(3):
            await js.publish("s.a", bytes(1000))

        async with asyncio.timeout(30):
            assert len(await fetching) == 3

    assert pulls[0]["max_bytes"] == 3500
    assert pulls[1]["max_bytes"] < 2500


async def test_a_cancelled_fetch_gives_back_what_had_come(js: JetStream) -> None:
    consumer = await looked_up(js)
    fetching = asyncio.create_task(consumer.fetch(2, expires=60))
    await eventually(lambda: waiting_pulls(js))
    await js.publish("s.a", b"1")
    fetching.cancel()
    await asyncio.wait([fetching])

    async with asyncio.timeout(30):
        [again] = await consumer.fetch(1)
    assert int(again.payload) == 1
    await eventually(lambda: waiting_pulls(js, 0))


async def test_fetches_at_the_same_time_share_the_messages(js: JetStream) -> None:
    consumer = await looked_up(js, *["s.a"] * 20)
    another = await js.stream("S").consumer("d")

    found = await asyncio.gather(
        *(puller.fetch(5, expires=30) for puller in (consumer, another, consumer, another))
    )

    assert sorted(numbers([*chain(*found)])) == list(range(1, 21))


async def test_a_deleted_consumer_ends_the_wait(js: JetStream) -> None:
    consumer = await looked_up(js)
    fetching = asyncio.create_task(consumer.fetch(2, expires=60))
    await eventually(lambda: waiting_pulls(js))
    await consumer.delete()

    with pytest.raises(ConsumerGone):
        async with asyncio.timeout(30):
            await fetching
    with pytest.raises(ConsumerGone):
        await consumer.fetch(1)


async def test_a_restart_while_waiting_is_not_noticed(js: JetStream, server: NatsServer) -> None:
    consumer = await looked_up(js)
    fetching = asyncio.create_task(consumer.fetch(1, expires=60))
    await eventually(lambda: waiting_pulls(js))
    await restart(server, js.connection)
    await js.publish("s.a", b"1")

    async with asyncio.timeout(30):
        assert numbers(await fetching) == [1]


async def test_a_fetch_made_while_the_server_is_away_gets_each_message_once(
    js: JetStream, server: NatsServer
) -> None:
    """The fetch sends no pull meanwhile, since NATS would answer to an inbox that is closed."""
    consumer = await looked_up(js, "s.a")
    before = js.connection.reconnects
    await asyncio.to_thread(server.kill)
    await eventually(lambda: not js.connection.is_connected)
    fetching = asyncio.create_task(consumer.fetch(1, expires=60))
    await asyncio.sleep(0.5)  # some attempts
    await asyncio.to_thread(server.start)

    [delivery] = await fetching

    assert js.connection.reconnects > before
    assert delivery.delivered == 1


async def test_an_inbox_that_is_opened_and_closed_while_the_server_is_away_leaves_nothing(
    js: JetStream, server: NatsServer
) -> None:
    link = js.connection
    await asyncio.to_thread(server.kill)
    await eventually(lambda: not link.is_connected)
    inbox = Inbox(link)
    await inbox.open("left.behind")
    await inbox.close()
    await asyncio.to_thread(server.start)
    await link.wait_connected()

    with pytest.raises(NoResponders):
        await link.request("left.behind", timeout=2)


async def test_a_silent_server_is_an_alarm_if_heartbeats_were_asked_for(
    js: JetStream, server: NatsServer
) -> None:
    consumer = await looked_up(js)
    fetching = asyncio.create_task(consumer.fetch(1, expires=30, idle_heartbeat=0.5))
    await eventually(lambda: waiting_pulls(js))
    server.freeze()

    with pytest.raises(HeartbeatsMissed, match=r"nothing for 1 s"):
        await fetching
    server.thaw()


@pytest.mark.parametrize("batch", [1, 10])
async def test_a_fetch_right_after_an_empty_one_is_not_held_up(js: JetStream, batch: int) -> None:
    """No orphaned pull of an earlier fetch takes the message to where nobody listens."""
    consumer = await looked_up(js)
    for number in range(10):
        assert await consumer.fetch(batch, expires=0.05) == []
        await js.publish("s.a", b"%d" % number)
        async with asyncio.timeout(30):
            [delivery] = await consumer.fetch(1, expires=60)
        assert int(delivery.payload) == number
        assert delivery.delivered == 1


async def test_what_is_there_is_asked_for_over_one_standing_subscription(js: JetStream) -> None:
    """ADR-13, Pull(1): a handler of the puller's own, not a subscription for each request."""
    async with await looked_up(js, *["s.a"] * 10) as consumer:
        before = set(js.nc._subs)
        await consumer.next()
        subscriptions = set(js.nc._subs)
        assert len(subscriptions) == len(before) + 1

        for _ in range(5):
            await consumer.next()
        assert set(js.nc._subs) == subscriptions

    assert set(js.nc._subs) == before


async def test_consumers_that_are_looked_up_leave_no_subscription(js: JetStream) -> None:
    await looked_up(js, *["s.a"] * 10)
    before = set(js.nc._subs)

    for _ in range(5):
        await (await js.stream("S").consumer("d")).next()
    consumer = await js.stream("S").consumer("d")
    await asyncio.gather(*(consumer.next() for _ in range(5)))

    assert set(js.nc._subs) == before


async def test_a_pull_that_gets_no_answer_ends_with_its_fetch(js: JetStream) -> None:
    """The server answers nothing while no more may be unacked; it must not answer later."""
    consumer = await looked_up(js, "s.a", "s.a", max_ack_pending=1)
    async with consumer:
        [first] = await consumer.fetch(1)
        assert await consumer.fetch(1, expires=0.3, no_wait=True) == []
        await first.ack(confirm=True)

        another = await js.stream("S").consumer("d")
        [second] = await another.fetch(1)
    assert (int(second.payload), second.delivered) == (2, 1)
