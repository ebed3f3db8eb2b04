"""The ordered consumer: everything, in order, once, and quiet only when it is."""

import asyncio
import contextlib

import pytest

from rebaser_core.jetstream import (
    JetStream,
    NatsUnreachable,
    OrderedPushConsumer,
    StreamNotFound,
)
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.jetstream.steps import STREAM, consumers, filled, numbers, publish_many

QUICK = 0.1  # seconds: a heartbeat for tests that wait for missed ones


async def read_all(reader: OrderedPushConsumer) -> list[int]:
    """Return the numbers from here on, until it is quiet."""
    found = []
    while (delivery := await reader.next(idle_timeout=0)) is not None:
        found.append(delivery)
    return numbers(found)


async def test_messages_come_in_order_and_then_it_is_quiet(either_js: JetStream) -> None:
    await filled(either_js, "s.a", "s.b", "s.a")

    async with OrderedPushConsumer(either_js, "S", "s.a") as reader:
        first = await reader.next()
        assert first is not None
        assert (first.subject, first.stream_sequence, first.payload) == ("s.a", 1, b"1")
        assert reader.pending == 1
        assert await read_all(reader) == [3]
        assert await reader.next(idle_timeout=0.01) is None


async def test_it_starts_at_the_given_position(js: JetStream) -> None:
    await filled(js, "s.a", "s.b", "s.a")

    async with OrderedPushConsumer(js, "S", ["s.a", "s.b"], start_sequence=2) as reader:
        assert await read_all(reader) == [2, 3]


async def test_headers_only_leaves_the_payloads_out(js: JetStream) -> None:
    await filled(js, "s.a")

    async with OrderedPushConsumer(js, "S", "s.a", headers_only=True) as reader:
        delivery = await reader.next()

    assert delivery is not None
    assert (delivery.payload, delivery.headers) == (b"", {"Nats-Msg-Size": "1"})


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("all", [1, 2, 3, 4]), ("new", [4]), ("last", [3, 4]), ("last_per_subject", [2, 3, 4])],
)
async def test_the_policy_holds_through_a_reset_before_the_first_message(
    js: JetStream, policy: str, expected: list[int]
) -> None:
    """What is published between two openings is neither lost nor are old messages given."""
    await filled(js, "s.a", "s.b", "s.a")

    async with OrderedPushConsumer(
        js, "S", "s.>", deliver_policy=policy, heartbeat=QUICK
    ) as reader:
        [name] = await consumers(js)
        await js.delete_consumer("S", name)

        reader._reset("by the test")
        await js.publish("s.c", b"4")

        assert await read_all(reader) == expected


async def test_closing_leaves_no_consumer(js: JetStream) -> None:
    await filled(js)
    async with OrderedPushConsumer(js, "S") as reader:
        assert len(await consumers(js)) == 1

    assert await consumers(js) == []
    with pytest.raises(NatsUnreachable):
        await reader.next()


async def test_giving_up_while_opening_leaves_nothing(js: JetStream, server: NatsServer) -> None:
    await filled(js)
    subscriptions = set(js.nc._subs)
    server.freeze()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), OrderedPushConsumer(js, "S"):
            pass
    server.thaw()

    assert set(js.nc._subs) == subscriptions
    await eventually(lambda: none_left(js))


async def none_left(js: JetStream) -> bool:
    return await consumers(js) == []


async def test_a_deleted_consumer_is_replaced_and_nothing_lost(js: JetStream) -> None:
    await filled(js, "s.a")
    async with OrderedPushConsumer(js, "S", heartbeat=QUICK) as reader:
        assert await read_all(reader) == [1]
        [name] = await consumers(js)
        await js.delete_consumer("S", name)
        await publish_many(js, range(2, 5))

        assert numbers([await reader.next() for _ in range(3)]) == [2, 3, 4]
        assert len(await consumers(js)) == 1


async def test_it_is_not_quiet_while_a_stored_message_is_not_delivered(js: JetStream) -> None:
    """Nothing comes from a consumer that is gone; that proves nothing about the stream."""
    await filled(js)
    async with OrderedPushConsumer(js, "S", heartbeat=1) as reader:
        [name] = await consumers(js)
        await js.delete_consumer("S", name)
        await js.publish("s.a", b"1")

        delivery = await reader.next(idle_timeout=0)

        assert delivery is not None


async def test_impatient_callers_notice_a_deleted_consumer_too(js: JetStream) -> None:
    """Each call is shorter than the heartbeats that must be missed."""
    await filled(js)
    async with OrderedPushConsumer(js, "S", heartbeat=QUICK) as reader:
        [name] = await consumers(js)
        await js.delete_consumer("S", name)
        await js.publish("s.a", b"1")
        found: list[object] = []

        async def read() -> bool:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUICK / 2):
                    found.append(await reader.next())
            return bool(found)

        await eventually(read)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_restarted_server_is_read_on_from_the_same_place(
    js: JetStream, server: NatsServer, how: str
) -> None:
    await filled(js, "s.a", "s.b")
    async with OrderedPushConsumer(js, "S", heartbeat=QUICK) as reader:
        await reader.next()
        getattr(server, how)()
        await asyncio.to_thread(server.start)
        await js.connection.wait_connected()
        await js.publish("s.c", b"3")

        assert await read_all(reader) == [2, 3]
        assert len(await consumers(js)) == 1


async def test_a_stream_that_is_not_there_is_an_error(js: JetStream) -> None:
    with pytest.raises(StreamNotFound):
        async with OrderedPushConsumer(js, "S"):
            pass


async def test_cancelling_next_loses_nothing(js: JetStream) -> None:
    """Cancelled in the very moment in which a message comes, and in others."""
    await js.create_stream(STREAM)
    found = []
    async with OrderedPushConsumer(js, "S") as reader:
        for number in range(1000):
            taking = asyncio.create_task(reader.next())
            await js.publish("s.a", b"%d" % number)
            for _ in range(number % 4):
                await asyncio.sleep(0)
            taking.cancel()
            try:
                found.append(await taking)
            except asyncio.CancelledError:
                continue
        assert numbers(found) + await read_all(reader) == list(range(1000))


async def test_without_connection_nothing_is_quiet(js: JetStream, server: NatsServer) -> None:
    await filled(js)
    async with OrderedPushConsumer(js, "S", heartbeat=QUICK) as reader:
        server.kill()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.next(idle_timeout=0)
        await asyncio.to_thread(server.start)
        await eventually(lambda: js.connection.is_connected)
        assert await reader.next(idle_timeout=0) is None
