"""Pulling for a service: what it takes, what it gives back, and what it survives."""

import asyncio
import contextlib
from datetime import timedelta

import pytest

from rebaser_core.jetstream import ConsumerGone, Delivery, JetStream, PullConsumer
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, restart
from tests.jetstream.steps import (
    durable,
    filled,
    numbers,
    spied,
    state,
    waiting_pulls,
)

QUICK = 0.1  # seconds: a heartbeat for tests that wait for missed ones


async def test_messages_are_taken_and_settled(either_js: JetStream) -> None:
    await filled(either_js, "s.a", "s.b", retention="workqueue")
    await durable(either_js)

    async with PullConsumer(either_js, "S", "d") as pull:
        for number in (1, 2):
            delivery = await pull.take()
            assert int(delivery.payload) == number
            assert delivery.subject == ("s.a", "s.b")[number - 1]
            assert delivery.delivered == 1
            await delivery.ack(confirm=True)

    async def is_empty() -> bool:
        return (await either_js.stream_info("S")).state.messages == 0

    await eventually(is_empty)  # the consumer confirms before the stream deletes


async def test_a_consumer_without_acks_gets_none(js: JetStream) -> None:
    """ADR-15; the server is asked which it is."""
    await filled(js, "s.a", "s.a")
    await durable(js, ack_policy="none")
    async with spied(js, "$JS.ACK.>") as acks, PullConsumer(js, "S", "d") as pull:
        delivery = await pull.take(2)
        await delivery.ack(confirm=True)
        await pull.close()
        await js.connection.ping(30)

    assert (acks, delivery.settled) == ([], True)


async def test_never_more_is_asked_for_than_can_be_started(js: JetStream) -> None:
    await filled(js, *["s.a"] * 10)
    await durable(js)

    async with PullConsumer(js, "S", "d") as pull:
        for free in (3, 2, 1):
            await pull.take(free)

        info = await state(js)
        assert (info.num_ack_pending, info.num_pending, info.num_waiting) == (3, 7, 0)


@pytest.mark.parametrize("acks", [None, True], ids=["asked", "told"])
async def test_more_is_taken_than_the_consumer_lets_one_pull_ask_for(
    js: JetStream, acks: bool | None
) -> None:
    """Its `max_batch`, `max_expires` and `max_waiting` are kept; it is asked for them."""
    await filled(js, *["s.a"] * 10)
    expires = timedelta(milliseconds=300)
    await durable(js, max_batch=2, max_expires=expires, max_waiting=2)

    async with PullConsumer(js, "S", "d", acks=acks) as pull, asyncio.timeout(30):
        assert numbers([await pull.take(5) for _ in range(10)]) == list(range(1, 11))


async def test_pulls_made_one_after_the_other_end_together_and_one_takes_their_place(
    js: JetStream,
) -> None:
    """So a service whose slots become free one by one has few pulls waiting.

    Pulls end twice a second, so that there may be one for each end until the last one's.
    """
    await filled(js)
    await durable(js)

    async with PullConsumer(js, "S", "d", expires=3, idle_heartbeat=0.5) as pull:
        for free in range(1, 21):
            taking = asyncio.create_task(pull.take(free))
            await eventually(lambda free=free: pull._engine.budget.messages == free)
            taking.cancel()
            await asyncio.wait([taking])
        assert (await state(js)).num_waiting > 8

        async def few() -> bool:
            return (await state(js)).num_waiting <= 3 / 0.5 + 1

        taking = asyncio.create_task(pull.take(20))
        await eventually(few)
        taking.cancel()


async def test_closing_gives_back_what_was_not_taken(js: JetStream) -> None:
    await filled(js, "s.a", "s.a", "s.a")
    await durable(js)
    async with PullConsumer(js, "S", "d") as pull, PullConsumer(js, "S", "d") as other:
        first = await pull.take(3)
        await eventually(lambda: len(pull._engine._inbox.queue) == 2)
        await pull.close()

        async with asyncio.timeout(30):
            again = [await other.take(2), await other.take(1)]

    assert int(first.payload) == 1
    assert numbers(again) == [2, 3]
    assert [delivery.delivered for delivery in again] == [2, 2]


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_restart_of_the_server_is_not_noticed(
    js: JetStream, server: NatsServer, how: str
) -> None:
    await filled(js)
    await durable(js)
    async with PullConsumer(js, "S", "d", idle_heartbeat=QUICK) as pull:
        taking = asyncio.create_task(pull.take())
        await eventually(lambda: pull._engine.budget.messages == 1)
        await restart(server, js.connection, how)
        await js.publish("s.a", b"1")

        async with asyncio.timeout(30):
            assert int((await taking).payload) == 1


async def test_a_deleted_consumer_ends_it_at_once(js: JetStream) -> None:
    await filled(js)
    await durable(js)
    async with PullConsumer(js, "S", "d", idle_heartbeat=60, expires=600) as pull:
        taking = asyncio.create_task(pull.take())
        await eventually(lambda: waiting_pulls(js))

        await js.delete_consumer("S", "d")

        with pytest.raises(ConsumerGone):
            async with asyncio.timeout(30):
                await taking
        with pytest.raises(ConsumerGone):
            await pull.take()


async def test_a_frozen_server_is_asked_again(js: JetStream, server: NatsServer) -> None:
    await filled(js)
    await durable(js)
    async with PullConsumer(js, "S", "d", idle_heartbeat=QUICK) as pull:
        taking = asyncio.create_task(pull.take())
        await eventually(lambda: pull._engine.budget.messages == 1)
        inbox = pull._engine._inbox.subject
        server.freeze()
        await eventually(lambda: pull._engine._inbox.subject != inbox)
        server.thaw()
        await js.publish("s.a", b"1")

        assert int((await taking).payload) == 1


async def test_impatient_callers_notice_a_lost_pull_too(js: JetStream, server: NatsServer) -> None:
    """Each call is shorter than the heartbeats that must be missed."""
    await filled(js)
    await durable(js)
    async with PullConsumer(js, "S", "d", idle_heartbeat=QUICK) as pull:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(QUICK / 2):
                await pull.take()
        inbox = pull._engine._inbox.subject
        server.freeze()

        async def asked_anew() -> bool:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUICK / 2):
                    await pull.take()
            return pull._engine._stale or pull._engine._inbox.subject != inbox

        await eventually(asked_anew)
        server.thaw()


async def test_cancelling_take_loses_nothing(js: JetStream) -> None:
    """Each message is delivered once, to the take that was cancelled or to the next one."""
    await filled(js)
    await durable(js, ack_wait=timedelta(minutes=10))  # none is acked
    taken: list[Delivery] = []
    async with PullConsumer(js, "S", "d") as pull:
        for number in range(1000):
            taking = asyncio.create_task(pull.take())
            await js.publish("s.a", b"%d" % number)
            for _ in range(number % 4):
                await asyncio.sleep(0)
            taking.cancel()
            try:
                taken.append(await taking)
            except asyncio.CancelledError:
                continue
        while len(taken) < 1000:
            taken.append(await pull.take())

    assert numbers(taken) == list(range(1000))
    assert {delivery.delivered for delivery in taken} == {1}
