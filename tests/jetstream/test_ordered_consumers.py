"""The ordered consumer: everything, in order, once, and quiet only when it is."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest

from rebaser_core.jetstream import (
    JetStream,
    NatsUnreachable,
    OrderedPullConsumer,
    OrderedPushConsumer,
    OrderedReader,
    ReaderOptions,
    StreamNotFound,
    ordered,
    ordered_reader,
)
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, restart
from tests.jetstream.steps import (
    STREAM,
    consumers,
    filled,
    has_consumers,
    numbers,
    publish_many,
    spied,
)

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

    second = await js.get_message("S", sequence=2)
    options: list[ReaderOptions] = [
        {"opt_start_seq": 2},
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 2},
        {"deliver_policy": "by_start_time", "opt_start_time": second.time},
    ]

    for start in options:
        async with OrderedPushConsumer(js, "S", ["s.a", "s.b"], **start) as reader:
            assert await read_all(reader) == [2, 3]


async def test_start_options_that_contradict_each_other_are_refused(js: JetStream) -> None:
    """One of them would be ignored without a word."""
    time = datetime(2026, 1, 1, tzinfo=UTC)
    options: list[ReaderOptions] = [
        {"deliver_policy": "new", "opt_start_seq": 2},
        {"deliver_policy": "all", "opt_start_time": time},
        {"opt_start_time": time},
        {"deliver_policy": "by_start_time"},
        {"deliver_policy": "by_start_time", "opt_start_seq": 2, "opt_start_time": time},
    ]

    for start in options:
        with pytest.raises(ValueError, match="by_start_"):
            js.stream("S").ordered_consumer(**start)


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
        js, "S", "s.>", deliver_policy=policy, idle_heartbeat=QUICK
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
    await eventually(lambda: has_consumers(js, 0))


async def test_a_deleted_consumer_is_replaced_and_nothing_lost(js: JetStream) -> None:
    await filled(js, "s.a")
    async with OrderedPushConsumer(js, "S", idle_heartbeat=QUICK) as reader:
        assert await read_all(reader) == [1]
        [name] = await consumers(js)
        await js.delete_consumer("S", name)
        await publish_many(js, range(2, 5))

        assert numbers([await reader.next() for _ in range(3)]) == [2, 3, 4]
        await eventually(lambda: has_consumers(js, 1))


async def test_a_pulled_consumer_that_was_deleted_is_replaced_at_once(js: JetStream) -> None:
    """The server ends the pull; three heartbeats would take three minutes."""
    await filled(js, "s.a")
    async with OrderedPullConsumer(js, "S", idle_heartbeat=60) as reader:
        assert numbers([await reader.next()]) == [1]
        [name] = await consumers(js)
        await js.delete_consumer("S", name)
        await js.publish("s.a", b"2")

        async with asyncio.timeout(30):
            assert numbers([await reader.next()]) == [2]


async def test_it_is_not_quiet_while_a_stored_message_is_not_delivered(js: JetStream) -> None:
    """Nothing comes from a consumer that is gone; that proves nothing about the stream."""
    await filled(js)
    async with OrderedPushConsumer(js, "S", idle_heartbeat=1) as reader:
        [name] = await consumers(js)
        await js.delete_consumer("S", name)
        await js.publish("s.a", b"1")

        delivery = await reader.next(idle_timeout=0)

        assert delivery is not None


@pytest.mark.parametrize("kind", [OrderedPushConsumer, OrderedPullConsumer])
async def test_a_message_that_a_living_consumer_does_not_deliver_is_missed(
    js: JetStream, monkeypatch: pytest.MonkeyPatch, kind: type[OrderedReader]
) -> None:
    """A paused consumer sends heartbeats alone, as one whose server has lost the message."""
    monkeypatch.setattr(ordered, "CONFIRM_EVERY", QUICK)
    await filled(js)
    async with kind(js, "S") as reader:
        asked = asyncio.ensure_future(reader.next())
        await eventually(lambda: consumers(js))
        [name] = await consumers(js)
        until = datetime.now(UTC) + timedelta(hours=1)
        await js.request(f"CONSUMER.PAUSE.S.{name}", {"pause_until": until.isoformat()})
        await js.publish("s.a", b"1")

        async with asyncio.timeout(60):
            assert numbers([await asked]) == [1]


async def test_impatient_callers_notice_a_deleted_consumer_too(js: JetStream) -> None:
    """Each call is shorter than the heartbeats that must be missed."""
    await filled(js)
    async with OrderedPushConsumer(js, "S", idle_heartbeat=QUICK) as reader:
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
    async with OrderedPushConsumer(js, "S", idle_heartbeat=QUICK) as reader:
        await reader.next()
        await restart(server, js.connection, how)
        await js.publish("s.c", b"3")

        assert await read_all(reader) == [2, 3]
        await eventually(lambda: has_consumers(js, 1))


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
    async with OrderedPushConsumer(js, "S", idle_heartbeat=QUICK) as reader:
        server.kill()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.next(idle_timeout=0)
        await asyncio.to_thread(server.start)
        await eventually(lambda: js.connection.is_connected)
        assert await reader.next(idle_timeout=0) is None


READERS = pytest.mark.parametrize("kind", [OrderedPushConsumer, OrderedPullConsumer])


@READERS
async def test_a_batch_is_filled_or_lasts_until_it_expires(
    js: JetStream, kind: type[OrderedReader]
) -> None:
    await filled(js, "s.a", "s.a", "s.a")
    async with kind(js, "S") as reader:
        assert numbers(await reader.fetch(2)) == [1, 2]
        async with asyncio.timeout(30):
            assert numbers(await reader.fetch(2, expires=60, no_wait=True)) == [3]
        assert await reader.fetch(2, expires=0.05) == []
        fetching = asyncio.ensure_future(reader.fetch(2, expires=60))
        await publish_many(js, range(4, 6))

        assert numbers(await fetching) == [4, 5]
        assert reader.cursor == 5


async def test_a_batch_of_none_is_refused(js: JetStream) -> None:
    for number in (0, -1):
        with pytest.raises(ValueError, match="positive"):
            await js.stream("S").ordered_consumer().fetch(number)


async def test_a_batch_that_was_given_up_comes_again(js: JetStream) -> None:
    await filled(js, "s.a", "s.a")
    async with OrderedPushConsumer(js, "S") as reader:
        fetching = asyncio.ensure_future(reader.fetch(3, expires=60))
        await eventually(lambda: reader.cursor == 2)
        fetching.cancel()
        await asyncio.wait([fetching])

        assert numbers(await reader.fetch(2)) == [1, 2]


async def test_the_servers_consumer_is_described(js: JetStream) -> None:
    await filled(js)
    async with js.stream("S").ordered_consumer("s.a") as reader:
        info = await reader.info()

    assert info.config.filter_subject == "s.a"
    assert info.config.ack_policy == "none"


async def test_a_buffer_that_is_bounded_is_filled_by_pulls(js: JetStream) -> None:
    """ADR-37: buffering options; flow control has no such bound."""
    await filled(js)
    await publish_many(js, range(30))
    async with spied(js, "$JS.API.CONSUMER.MSG.NEXT.>") as pulls:
        reader = js.stream("S").ordered_consumer(max_messages=10, threshold_messages=4)
        async with reader:
            found = [await anext(reader) for _ in range(30)]
        await js.connection.ping(30)

    assert numbers(found) == list(range(30))
    assert [pull["batch"] for pull in pulls][:3] == [10, 4, 4]


async def test_a_reader_of_bounded_octets_never_stalls(js: JetStream) -> None:
    await filled(js)
    await publish_many(js, range(200))
    async with spied(js, "$JS.API.CONSUMER.MSG.NEXT.>") as pulls, asyncio.timeout(30):
        async with OrderedPullConsumer(js, "S", max_bytes=2000, idle_heartbeat=60) as reader:
            found = [await anext(reader) for _ in range(200)]
        await js.connection.ping(30)

    assert numbers(found) == list(range(200))
    assert min(pull["max_bytes"] for pull in pulls) < 2000, "filled before it was empty"


def test_buffering_options_that_exclude_each_other_are_refused() -> None:
    js = mock.Mock(is_remote=False, single_reply=False)
    with pytest.raises(ValueError, match="either"):
        ordered_reader(js, "S", max_messages=1, max_bytes=1)


@READERS
async def test_a_drained_reader_ends_after_what_has_come(
    js: JetStream, kind: type[OrderedReader]
) -> None:
    await filled(js, "s.a", "s.a", "s.a")
    handled = []
    async with kind(js, "S") as reader:

        async def handler(delivery) -> None:
            handled.append(delivery)
            if len(handled) == 1:
                await eventually(lambda: len(reader._inbox.queue) == 2)
                await reader.drain()

        await reader.for_each(handler)

    assert numbers(handled) == [1, 2, 3]
    assert await consumers(js) == []


async def test_stopping_ends_the_reading_of_who_waits(js: JetStream) -> None:
    await filled(js)
    # It waits: nothing is stored, and no heartbeat that fails to come wakes it in this time.
    async with OrderedPushConsumer(js, "S", idle_heartbeat=60) as reader:
        waiting = asyncio.ensure_future(reader.next())
        await eventually(lambda: bool(reader._inbox._changed._waiters))
        await reader.stop()

        async with asyncio.timeout(30):
            assert await waiting is None
        assert await consumers(js) == []
