"""What answers a delivery, and when no answer is given (ADR-15)."""

import asyncio
import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.jetstream import AckSubject, Delivery, JetStream, NatsUnreachable, NotJetStream
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.jetstream.steps import consumers, durable, filled, spied, state

NUMBERS = st.integers(min_value=0, max_value=2**64 - 1)
NAMES = st.text("abcXYZ_-09", min_size=1)


@given(NAMES, NAMES, st.tuples(*[NUMBERS] * 5))
def test_version_1_is_read(stream, consumer, numbers) -> None:
    subject = ".".join(["$JS.ACK", stream, consumer, *map(str, numbers)])

    assert AckSubject.parse(subject) == ("", "", stream, consumer, *numbers)


@given(NAMES, NAMES, NAMES, NUMBERS, st.lists(NAMES))
def test_version_2_is_read_with_whatever_follows(domain, stream, consumer, number, more) -> None:
    numbers = [number, 2, 3, 4, 5]
    subject = ".".join(["$JS.ACK", domain, "hash", stream, consumer, *map(str, numbers), *more])

    shown = "" if domain == "_" else domain
    assert AckSubject.parse(subject) == (shown, "hash", stream, consumer, *numbers)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "_INBOX.a",
        "$JS.ACK",
        "$JS.ACK.S.d.1.2.3.4",
        "$JS.ACK._.S.d.1.2.3.4.5",
        "$JS.ACK.S.d.1.x.3.4.5",
        "$JS.ACK.S.d.1.-2.3.4.5",
        "$JS.ACK.S.d.1.2_0.3.4.5",
        "$JS.ACK.S.d.1. 2.3.4.5",
        "$JS.ACK.S.d.1.².3.4.5",
        "$JS.ACK._.hash.S.d.x.2.3.4.5.r",
        "$XX.ACK.S.d.1.2.3.4.5",
        "$JS.ACK..d.1.2.3.4.5",
        "$JS.ACK.S..1.2.3.4.5",
    ],
)
def test_anything_else_is_an_error(subject: str) -> None:
    with pytest.raises(NotJetStream):
        AckSubject.parse(subject)


async def one(js: JetStream, **config: object) -> Delivery:
    await filled(js, "s.a", retention="workqueue")
    await durable(js, **config)
    delivery = await (await js.stream("S").consumer("d")).next()
    assert delivery is not None
    return delivery


async def test_a_delivery_tells_where_it_is_from(either_js: JetStream) -> None:
    delivery = await one(either_js)

    assert (delivery.stream, delivery.consumer, delivery.domain) == ("S", "d", "")
    assert (delivery.stream_sequence, delivery.consumer_sequence) == (1, 1)
    assert (delivery.delivered, delivery.pending, delivery.payload) == (1, 0, b"1")
    assert abs(delivery.timestamp.timestamp() - time.time()) < 60
    assert "1 of s.a 1 from S/d" in repr(delivery)


async def test_an_ack_settles_it(either_js: JetStream) -> None:
    delivery = await one(either_js)

    await delivery.ack(confirm=True)

    await eventually(lambda: empty(either_js))  # the consumer confirms before the stream deletes


async def test_an_unconfirmed_ack_settles_it_soon(either_js: JetStream) -> None:
    await (await one(either_js)).ack()

    await eventually(lambda: empty(either_js))


@pytest.mark.parametrize("confirm", [False, True], ids=["", "confirmed"])
async def test_a_nak_has_it_delivered_again(either_js: JetStream, confirm: bool) -> None:
    await (await one(either_js)).nak(confirm=confirm)

    again = await (await either_js.stream("S").consumer("d")).next(expires=30)

    assert again is not None
    assert again.delivered == 2


async def test_a_nak_can_have_it_delayed(js: JetStream) -> None:
    delivery = await one(js)
    started = time.monotonic()
    await delivery.nak(0.3)

    again = await (await js.stream("S").consumer("d")).next(expires=30)

    assert again is not None
    assert time.monotonic() - started > 0.2


async def test_a_term_ends_it_and_tells_why(either_js: JetStream) -> None:
    delivery = await one(either_js)
    async with spied(either_js, "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>") as advisories:
        await delivery.term("poison", confirm=True)
        await eventually(lambda: len(advisories) == 1)

    assert advisories[0]["reason"] == "poison"
    await eventually(lambda: empty(either_js))


async def test_progress_puts_off_the_redelivery(either_js: JetStream) -> None:
    delivery = await one(either_js, ack_wait=timedelta(seconds=3))
    consumer = await either_js.stream("S").consumer("d")
    for confirm in (True, False, True, False):
        assert await consumer.next(expires=1) is None
        await delivery.in_progress(confirm=confirm)

    again = await consumer.next(expires=30)
    assert again is not None
    assert again.delivered == 2


async def test_after_the_last_word_nothing_more_is_said(js: JetStream) -> None:
    delivery = await one(js)
    async with spied(js, "$JS.ACK.>") as said:
        await delivery.in_progress()
        await delivery.ack()
        for word in (delivery.ack, delivery.nak, delivery.term, delivery.in_progress):
            await word()
            await word(confirm=True)
        await js.connection.ping(30)

    assert said == [b"+WPI", b"+ACK"]
    assert delivery.settled


async def test_of_two_last_words_at_once_one_is_said(js: JetStream) -> None:
    delivery = await one(js)
    async with spied(js, "$JS.ACK.>") as said:
        await asyncio.gather(delivery.ack(confirm=True), delivery.nak(), delivery.term())

    assert said == [b"+ACK"]


async def test_an_unconfirmed_word_can_be_said_again(js: JetStream, server: NatsServer) -> None:
    delivery = await one(js)
    server.freeze()
    with pytest.raises(NatsUnreachable):
        await delivery.ack(confirm=True, timeout=0.1)
    server.thaw()

    assert not delivery.settled
    await delivery.ack(confirm=True)


async def test_a_word_that_was_cancelled_can_be_said_again(
    js: JetStream, server: NatsServer
) -> None:
    delivery = await one(js)
    server.freeze()
    saying = asyncio.ensure_future(delivery.ack(confirm=True, timeout=60))
    await eventually(lambda: delivery.settled)
    saying.cancel()
    await asyncio.wait([saying])
    server.thaw()

    assert not delivery.settled
    await delivery.ack(confirm=True)


async def test_a_confirmation_without_a_responder_is_unreachable_at_once(js: JetStream) -> None:
    delivery = await one(js)
    await js.delete_consumer("S", "d")
    assert await consumers(js) == []

    with pytest.raises(NatsUnreachable, match="no responders"):
        async with asyncio.timeout(30):
            await delivery.ack(confirm=True, timeout=60)
    await delivery.ack()


async def test_a_word_said_offline_is_said_after_the_reconnect(
    js: JetStream, server: NatsServer
) -> None:
    delivery = await one(js)
    server.stop()
    await eventually(lambda: not js.connection.is_connected)
    await delivery.ack()
    await asyncio.to_thread(server.start)

    await eventually(lambda: empty(js))


async def test_a_confirmed_word_is_never_said_after_it_was_given_up(
    js: JetStream, server: NatsServer
) -> None:
    """A lease that ran out must not be settled by a word that was kept back."""
    delivery = await one(js)
    server.stop()
    await eventually(lambda: not js.connection.is_connected)
    with pytest.raises(NatsUnreachable):
        await delivery.ack(confirm=True, timeout=0.1)
    await asyncio.to_thread(server.start)
    await js.connection.wait_connected()

    assert (await state(js)).num_ack_pending == 1


async def empty(js: JetStream) -> bool:
    return bool((await js.stream_info("S")).state.messages == 0)
