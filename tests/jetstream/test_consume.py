"""Continuous reading with a buffer: what is asked for when, what ends it, what is given back."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from nats.aio.msg import Msg

from rebaser_core.jetstream import (
    ConsumerConfig,
    ConsumerGone,
    ConsumerNotFound,
    HeartbeatsMissed,
    JetStream,
    Misconfigured,
    StatusError,
)
from rebaser_core.jetstream.handles import Consumer
from rebaser_core.jetstream.pull import UNLIMITED, PullBudget, ReadBuffer, message_size
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, restart
from tests.jetstream.steps import (
    consumers,
    durable,
    filled,
    numbers,
    publish_many,
    send_status,
    spied,
    state,
    waiting_pulls,
)

PULLS = "$JS.API.CONSUMER.MSG.NEXT.>"
QUICK = {"idle_heartbeat": 0.1, "expires": 1.0}


async def looked_up(js: JetStream, **config: object) -> Consumer:
    await filled(js)
    await durable(js, **config)
    return await js.stream("S").consumer("d")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_messages": 1, "max_bytes": 1},
        {"max_messages": 10, "threshold_messages": 11},
        {"max_bytes": 10, "threshold_bytes": 11},
        {"max_messages": 0},
        {"idle_heartbeat": 20.0, "expires": 30.0},
    ],
    ids=str,
)
def test_limits_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"either|limit|heartbeat"):
        ReadBuffer(**wrong)


def test_the_defaults_are_those_of_the_two_editions() -> None:
    assert (ReadBuffer().limit, ReadBuffer().threshold) == (1000, 500)
    assert ReadBuffer(resilient=False).threshold == 250
    assert ReadBuffer(max_messages=1, resilient=False).threshold == 1


def test_a_pull_fills_the_buffer_once_the_threshold_is_used_up() -> None:
    buffering, pending = ReadBuffer(max_messages=10, threshold_messages=4), PullBudget()
    assert buffering.refill(pending) == {"batch": 10}

    pending.on_request({"batch": 7})
    assert buffering.refill(pending) is None
    pending.on_end(1, 0)
    assert buffering.refill(pending) == {"batch": 4}


def test_octets_are_counted_instead_of_messages() -> None:
    buffering, pending = ReadBuffer(max_bytes=1000), PullBudget()
    pull = buffering.refill(pending)
    assert pull == {"batch": UNLIMITED, "max_bytes": 1000}

    pending.on_request({"batch": UNLIMITED, "max_bytes": 400})
    pending.on_request({"batch": UNLIMITED, "max_bytes": 600})
    pending.on_end(UNLIMITED, 400)
    assert buffering.refill(pending) is None
    pending.on_message(Msg(None, subject="abc", data=bytes(100)))
    assert buffering.refill(pending) == {"batch": UNLIMITED, "max_bytes": 503}
    pending.on_end(UNLIMITED - 1, 10)
    assert pending.octets == 0, "no pull is left that could bring any"


def test_a_message_counts_as_the_server_counts_it() -> None:
    """Headers are a version line, a line each, and an empty one."""
    bare = Msg(None, subject="abc", reply="r", data=bytes(100))
    headed = Msg(None, subject="abc", reply="r", data=bytes(100), headers={"A": "b"})

    assert message_size(bare) == 104
    assert message_size(headed) == 104 + len("NATS/1.0\r\nA: b\r\n\r\n")


async def test_messages_come_one_by_one_with_more_of_them_ready(either_js: JetStream) -> None:
    consumer = await looked_up(either_js)
    await publish_many(either_js, range(100))
    found = []

    async with consumer.messages(max_messages=20) as messages:
        async for delivery in messages:
            await delivery.ack()
            found.append(delivery)
            if len(found) == 100:
                break

    assert numbers(found) == list(range(100))


async def test_more_is_asked_for_at_the_threshold_over_one_inbox(js: JetStream) -> None:
    consumer = await looked_up(js)
    await publish_many(js, range(30))
    async with spied(js, PULLS) as pulls, consumer.messages(max_messages=10) as messages:
        inboxes = set()
        for _ in range(20):
            await anext(messages)
            inboxes.add(messages._engine._inbox.subject)
        await eventually(lambda: len(pulls) == 4)

    assert [pull["batch"] for pull in pulls] == [10, 5, 5, 5]
    assert {pull["idle_heartbeat"] for pull in pulls} == {5 * 10**9}
    assert len(inboxes) == 1


@pytest.mark.parametrize("headers", [None, {"A": "b", "Long": "c" * 100}], ids=["bare", "headers"])
async def test_a_buffer_of_octets_never_stalls(js: JetStream, headers: dict[str, str]) -> None:
    consumer = await looked_up(js, max_ack_pending=-1)
    async with asyncio.TaskGroup() as group:
        for number in range(500):
            group.create_task(js.publish("s.a", b"%3d" % number, headers=headers))

    async with consumer.messages(max_bytes=2000) as messages, asyncio.timeout(30):
        for _ in range(500):
            await anext(messages)


async def test_pulls_that_expire_are_made_again(js: JetStream) -> None:
    consumer = await looked_up(js)
    async with (
        spied(js, PULLS) as pulls,
        consumer.messages(max_messages=10, expires=0.2, idle_heartbeat=0.1) as messages,
    ):
        waiting = asyncio.ensure_future(anext(messages))
        await eventually(lambda: len(pulls) >= 3)
        assert {pull["batch"] for pull in pulls} == {10}
        await js.publish("s.a", b"1")
        assert int((await waiting).payload) == 1


async def test_draining_ends_the_iteration_after_what_has_come(js: JetStream) -> None:
    consumer = await looked_up(js)
    await publish_many(js, range(10))
    found = []

    async with consumer.messages(max_messages=10) as messages:
        async for delivery in messages:
            found.append(delivery)
            if len(found) == 1:
                await eventually(lambda: len(messages._engine._inbox.queue) == 9)
                await messages.drain()
    await js.publish("s.a", b"late")

    assert numbers(found) == list(range(10))
    await eventually(lambda: waiting_pulls(js, 0))


async def test_draining_wakes_who_waits(js: JetStream) -> None:
    consumer = await looked_up(js)
    # No heartbeat that fails to come wakes it in this time.
    async with consumer.messages(expires=600, idle_heartbeat=200) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await eventually(lambda: messages._engine.budget.messages > 0)
        await messages.drain()

        with pytest.raises(StopAsyncIteration):
            async with asyncio.timeout(30):
                await waiting


async def test_stopping_gives_back_what_was_not_handed_out(js: JetStream) -> None:
    consumer = await looked_up(js)
    await publish_many(js, range(10))
    async with consumer.messages(max_messages=10) as messages:
        await anext(messages)
        await eventually(lambda: len(messages._engine._inbox.queue) == 9)

    async with asyncio.timeout(30):
        again = await consumer.fetch(9)

    assert sorted(numbers(again)) == list(range(1, 10))


async def test_consuming_calls_the_handler_until_cancelled(js: JetStream) -> None:
    consumer = await looked_up(js)
    handled = []

    async def handler(delivery) -> None:
        handled.append(delivery)
        await delivery.ack()

    consuming = asyncio.create_task(consumer.consume(handler))
    await publish_many(js, range(100))
    await eventually(lambda: len(handled) == 100)
    consuming.cancel()
    await asyncio.wait([consuming])

    assert numbers(handled) == list(range(100))
    await eventually(lambda: nothing_left(js))


async def test_a_handler_gets_what_has_come_when_it_is_drained(js: JetStream) -> None:
    consumer = await looked_up(js)
    await publish_many(js, range(10))
    handled = []

    async with consumer.messages(max_messages=10) as messages:

        async def handler(delivery) -> None:
            handled.append(delivery)
            if len(handled) == 1:
                await eventually(lambda: len(messages._engine._inbox.queue) == 9)
                await messages.drain()

        await messages.for_each(handler)

    assert numbers(handled) == list(range(10))


async def test_what_the_handler_raises_ends_consuming(js: JetStream) -> None:
    consumer = await looked_up(js)
    await publish_many(js, range(2))

    async def handler(_) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await consumer.consume(handler)


@pytest.mark.parametrize("resilient", [True, False], ids=["newest", "first-edition"])
async def test_a_silent_server_is_asked_again_or_is_the_end(
    js: JetStream, server: NatsServer, resilient: bool
) -> None:
    consumer = await looked_up(js)
    async with consumer.messages(resilient=resilient, **QUICK) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await eventually(lambda: messages._engine.budget.messages > 0)
        inbox = messages._engine._inbox.subject
        server.freeze()
        await eventually(lambda: waiting.done() or messages._engine._inbox.subject != inbox)
        server.thaw()
        if resilient:
            await js.publish("s.a", b"1")
            assert int((await waiting).payload) == 1
        else:
            with pytest.raises(HeartbeatsMissed, match=r"for 0\.2 s"):
                await waiting
            async with asyncio.timeout(30):
                assert await messages.next() is None, "it has ended"


@pytest.mark.parametrize("resilient", [True, False], ids=["newest", "first-edition"])
async def test_a_restart_is_not_noticed_while_the_consumer_is_there(
    js: JetStream, server: NatsServer, resilient: bool
) -> None:
    consumer = await looked_up(js)
    async with consumer.messages(resilient=resilient, idle_heartbeat=60, expires=600) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await eventually(lambda: messages._engine.budget.messages > 0)
        await restart(server, js.connection)
        await js.publish("s.a", b"1")

        async with asyncio.timeout(30):
            assert int((await waiting).payload) == 1


@pytest.mark.parametrize("resilient", [True, False], ids=["newest", "first-edition"])
async def test_a_consumer_that_did_not_survive_a_restart_is_the_end(
    js: JetStream, server: NatsServer, resilient: bool
) -> None:
    consumer = await looked_up(js, mem_storage=True)
    async with consumer.messages(resilient=resilient) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await eventually(lambda: messages._engine.budget.messages > 0)
        server.kill()
        shut_away = server._directory / "jetstream" / "$G" / "streams" / "S" / "obs"
        for path in sorted(shut_away.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        await asyncio.to_thread(server.start)

        with pytest.raises(ConsumerGone):
            async with asyncio.timeout(30):
                await waiting


async def test_a_pull_that_is_refused_for_ever_is_an_error(js: JetStream) -> None:
    consumer = await looked_up(js)
    async with consumer.messages() as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await eventually(lambda: waiting_pulls(js))
        await send_status(js, messages._engine._inbox.subject, "400 Bad Request")

        with pytest.raises(StatusError, match="Bad Request"):
            async with asyncio.timeout(30):
                await waiting


LIMITS = [
    {"max_batch": 3},
    {"max_expires": timedelta(seconds=4)},
    {"max_bytes": 500},
    {"max_waiting": 1},
    {
        "max_batch": 1,
        "max_expires": timedelta(seconds=4),
        "max_bytes": 500,
        "max_waiting": 1,
    },
]


@pytest.mark.parametrize("options", [{}, {"max_messages": 10}, {"max_bytes": 900}], ids=str)
@pytest.mark.parametrize("limits", LIMITS, ids=" ".join)
async def test_the_consumers_limits_of_a_pull_are_kept(
    js: JetStream, limits: dict[str, Any], options: dict[str, int]
) -> None:
    """Pulls ask for less, and others follow: also where more is to be ready than one may bring."""
    consumer = await looked_up(js, **limits)
    await publish_many(js, range(8))
    async with consumer.messages(resilient=False, **options) as messages, asyncio.timeout(30):
        found = [await anext(messages) for _ in range(8)]
        late = asyncio.ensure_future(anext(messages))
        await publish_many(js, range(8, 10))
        found += [await late, await anext(messages)]

    assert numbers(found) == list(range(10))


async def test_limits_that_were_set_meanwhile_are_learned(js: JetStream) -> None:
    """The consumer was looked up before; a pull that is refused by them is made again, smaller."""
    consumer = await looked_up(js)
    wanted = await js.consumer_config("S", "d") | ConsumerConfig(max_batch=2)
    update = {"stream_name": "S", "config": wanted.to_json(), "action": "update"}
    await js.request("CONSUMER.CREATE.S.d", update)
    await publish_many(js, range(5))

    async with consumer.messages() as messages, asyncio.timeout(30):
        assert numbers([await anext(messages) for _ in range(5)]) == list(range(5))


@pytest.mark.parametrize("resilient", [True, False], ids=["newest", "first-edition"])
async def test_an_error_without_counts_ends_the_first_edition_only(
    js: JetStream, resilient: bool
) -> None:
    consumer = await looked_up(js)
    async with consumer.messages(resilient=resilient) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await eventually(lambda: messages._engine.budget.messages > 0)
        await send_status(js, messages._engine._inbox.subject, "409 Leadership Change")
        if resilient:
            await js.publish("s.a", b"1")
            assert int((await waiting).payload) == 1
        else:
            with pytest.raises(StatusError, match="Leadership Change"):
                async with asyncio.timeout(30):
                    await waiting
            async with asyncio.timeout(30):
                assert await messages.next() is None, "it has ended"


async def test_a_pull_refused_for_now_is_made_again(js: JetStream) -> None:
    """Too many waiting pulls, which the server tells or not: no end for the newest edition."""
    consumer = await looked_up(js, max_waiting=1)
    async with consumer.messages(max_messages=1) as first, consumer.messages(**QUICK) as second:
        held = asyncio.ensure_future(anext(first))
        await eventually(lambda: waiting_pulls(js, 1))
        late = asyncio.ensure_future(anext(second))
        await publish_many(js, range(2))

        async with asyncio.timeout(30):
            assert sorted(numbers([await held, await late])) == [0, 1]


async def test_what_no_ack_is_wanted_for_is_not_acked(js: JetStream) -> None:
    await filled(js, "s.a")
    consumer = await js.stream("S").create_consumer(
        ConsumerConfig(durable_name="n", ack_policy="none")
    )
    async with spied(js, "$JS.ACK.>") as acks:
        [delivery] = await consumer.fetch(1)
        await delivery.ack(confirm=True)
        await delivery.in_progress(confirm=True)
        await delivery.nak()
        await js.connection.ping(30)

    assert acks == []


async def test_acks_are_explicit_unless_a_consumer_is_created_otherwise(js: JetStream) -> None:
    """The server's own default is none, with which a crash loses what was delivered."""
    await filled(js, "s.a")
    consumer = await js.stream("S").create_consumer(ConsumerConfig(durable_name="d"))

    await (await consumer.fetch(1))[0].ack(confirm=True)

    assert consumer.config.ack_policy == "explicit"
    assert (await state(js)).ack_floor.stream_seq == 1


async def test_a_push_consumer_is_not_created_for_pulling(js: JetStream) -> None:
    await filled(js)

    with pytest.raises(Misconfigured, match="push consumer"):
        await js.stream("S").create_consumer(ConsumerConfig(durable_name="d", deliver_subject="x"))
    assert await consumers(js) == []


async def test_a_message_larger_than_the_buffer_is_a_warning(
    js: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    """Another worker may take it, and then those behind it come."""
    consumer = await looked_up(js)
    await js.publish("s.a", bytes(1000))
    await js.publish("s.a", b"2")
    async with consumer.messages(max_bytes=500) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await eventually(lambda: "Message Size Exceeds MaxBytes" in caplog.text)
        await consumer.fetch(1)

        async with asyncio.timeout(30):
            assert int((await waiting).payload) == 2


async def test_a_consumer_is_looked_up_described_and_deleted(js: JetStream) -> None:
    consumer = await looked_up(js)
    assert (await consumer.info()).name == "d"
    assert (await js.stream("S").config()).name == "S"

    await consumer.delete()
    await js.stream("S").create_consumer(ConsumerConfig(durable_name="e"))
    assert await consumers(js) == ["e"]
    await js.stream("S").delete_consumer("e")

    assert await consumers(js) == []
    with pytest.raises(ConsumerNotFound):
        await js.stream("S").consumer("d")


async def test_a_push_consumer_is_not_for_pulling(js: JetStream) -> None:
    await filled(js)
    await durable(js, "p", deliver_subject="elsewhere")

    with pytest.raises(Misconfigured):
        await js.stream("S").consumer("p")


async def nothing_left(js: JetStream) -> bool:
    info = await state(js)
    return info.num_pending + info.num_ack_pending == 0


async def test_a_handler_that_takes_longer_than_heartbeats_ends_nothing(js: JetStream) -> None:
    """ADR-37: while nothing is asked for, the server has no reason for signs of life."""
    consumer = await looked_up(js)
    await js.publish("s.a", b"1")
    clock, seldom = asyncio.get_running_loop().time, {"idle_heartbeat": 1.0, "expires": 10.0}
    async with consumer.messages(max_messages=1, resilient=False, **seldom) as messages:
        await anext(messages)
        since = clock()
        await eventually(lambda: clock() > since + 3 * seldom["idle_heartbeat"])

        waiting = asyncio.ensure_future(anext(messages))
        await eventually(lambda: waiting_pulls(js))
        await js.publish("s.a", b"2")

        assert int((await waiting).payload) == 2
