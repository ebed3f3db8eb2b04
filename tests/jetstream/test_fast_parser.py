"""What clients put into subjects and headers neither forges an answer nor ends the reading."""

import asyncio
import random
from collections.abc import AsyncIterator

import nats.errors
import pytest
from nats.aio.msg import Msg

from rebaser_core.jetstream import JetStream, NatsUnreachable, PullConsumer, is_sendable
from rebaser_core.jetstream.connection import Connection
from rebaser_core.jetstream.fast_client import FastClient
from rebaser_core.jetstream.ordered import OrderedPushConsumer
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.helpers.raw_client import RawClient
from tests.jetstream import random_frames
from tests.jetstream.steps import durable, filled, numbers

BLOCKS = (
    b"abc", b"NATS/1.0", b"NATS/1.0\r\n\r\n", b"NATS/1.0 \xff\xff\xff\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0\r\n\xff\xfe: v\r\na(b): v\r\nq\x22: v\r\na;b: 1\r\n: v\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\n" + b"n" * 60_000 + b": v\r\n\r\n",
)  # fmt: skip


@pytest.fixture
async def stranger(server: NatsServer) -> AsyncIterator[RawClient]:
    async with RawClient(server.port) as stranger:
        yield stranger


def test_random_frames_are_heard_as_they_were_sent() -> None:
    for seed in range(150):
        asyncio.run(random_frames.check(seed))


@pytest.mark.parametrize("line", [b"MSG a 1 x", b"MSG\ta 1 0", b"HMSG a 1 2", b"?"])
async def test_reading_ends_where_the_next_frame_cannot_be_found(line: bytes) -> None:
    """Then the connection is made anew."""
    client = random_frames.offline(FastClient())
    with pytest.raises(nats.errors.ProtocolError):
        await client._ps.parse(line + b"\r\n")


@pytest.mark.parametrize("blank", [b"\x0b", b"\x0c", b"\x1c", b"\x85", b"\xa0"])
async def test_only_the_server_that_was_asked_can_answer(
    js: JetStream, stranger: RawClient, blank: bytes
) -> None:
    """To a parser that takes them for blanks it is a message for the answers' subscription."""
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    await js.nc.subscribe("question", cb=hear)
    await js.nc.subscribe("anything.>", cb=hear)
    answer = await js.connection.send_request("question")
    await eventually(lambda: heard == ["question"])

    [token] = js.connection.pending_replies._futures
    for sid in (b"1", b"2", b"3"):
        stranger.publish(b"anything." + token.encode() + blank + sid, b'{"seq": 1, "stream": "S"}')
    await stranger.arrived()
    await eventually(lambda: len(heard) == 4)

    assert not answer.done()


async def test_an_answer_on_another_subject_is_none(js: JetStream) -> None:
    answer = await js.connection.send_request("nobody")
    [token] = js.connection.pending_replies._futures
    js.connection._on_reply(Msg(js.nc, f"anything.{token}"))

    assert token in js.connection.pending_replies
    assert not answer.done()


async def test_inboxes_tell_nothing_of_one_another(js: JetStream) -> None:
    inboxes = [js.connection.new_inbox() for _ in range(100)]

    assert len({inbox[:20] for inbox in inboxes}) == 100
    assert all(inbox.startswith("_INBOX.") for inbox in inboxes)


async def test_whatever_is_stored_is_delivered_and_can_be_settled(
    js: JetStream, stranger: RawClient
) -> None:
    await filled(js)
    await durable(js)
    subjects = [
        b"s.\xff\xfe",
        *(b"s.a" + bytes([octet]) for octet in random_frames.ODD if octet != 0x2E),
    ]
    for subject in subjects:
        stranger.publish(subject)
    for block in BLOCKS:
        stranger.publish(b"s.b", b"payload", block=block)
        stranger.publish(b"s.b", block=block)
    await stranger.arrived()
    await js.publish("s.end")

    async with PullConsumer(js, "S", "d") as consumer:
        found = []
        while not found or found[-1].subject != "s.end":
            delivery = await consumer.take()
            await delivery.term("is nothing")
            found.append(delivery)

    stored = [delivery.subject.encode(errors="surrogateescape") for delivery in found]
    assert [subject for subject in subjects if subject not in stored] == []
    assert js.connection.reconnects == 0


async def test_an_ordered_reader_reads_past_whatever_is_stored(
    js: JetStream, stranger: RawClient
) -> None:
    await filled(js)
    async with OrderedPushConsumer(js, "S") as reader:
        for number in range(200):
            chance = random.Random(number)
            name = random_frames.odd(chance).translate(None, b".*>")
            block = random_frames.headers(chance)
            stranger.publish(b"s." + name + b"x", b"%d" % number, block=block)
        await stranger.arrived()
        await js.publish("s.end", b"200")
        found = [await anext(reader)]
        while found[-1].subject != "s.end":
            found.append(await anext(reader))
        assert reader.resets == 0

    assert numbers(found) == sorted(numbers(found))
    assert len(found) > 100
    assert js.connection.reconnects == 0


async def test_headers_are_read_without_loss_of_their_names(
    js: JetStream, stranger: RawClient
) -> None:
    await filled(js)
    names = [b"\xff\xfe", b"a(b)", b'"q"', b"a b", b"X-A"]
    block = b"NATS/1.0\r\n" + b"".join(name + b": v\xff\r\n" for name in names) + b"\r\n"
    stranger.publish(b"s.a", block=block)
    await stranger.arrived()

    async with OrderedPushConsumer(js, "S") as reader:
        delivered = (await anext(reader)).headers  # waits until it is stored
    stored = await js.get_message("S", sequence=1)
    assert stored is not None
    assert stored.headers == delivered
    assert [name.encode(errors="surrogateescape") for name in delivered] == names
    assert set(delivered.values()) == {"v\ufffd"}
    assert [name for name in delivered if is_sendable(name)] == ["X-A"]


@pytest.mark.parametrize(
    "command",
    [b"PUB x 99999999\r\n", b"PUB " + b"x" * 5000 + b" 0\r\n\r\n", b"what is this?\r\n"],
    ids=["payload", "line", "unknown"],
)
async def test_a_connection_that_is_closed_for_one_message_is_made_anew(
    js: JetStream, command: bytes
) -> None:
    await filled(js)
    await js.nc._send_command(command)
    await js.nc._flush_pending()

    await eventually(lambda: Connection.of(js.nc).reconnects == 1 and js.connection.is_connected)
    assert (await js.publish("s.a")).sequence == 1


async def test_unfetched_answers_are_bounded(js: JetStream, monkeypatch) -> None:
    monkeypatch.setattr("rebaser_core.jetstream.connection.MIN_SWEEP", 10)
    monkeypatch.setattr("rebaser_core.jetstream.connection.MAX_PENDING", 20)
    js.connection.pending_replies._sweep_threshold = 10
    await js.nc.subscribe("question")
    asked = []

    async def ask() -> None:
        while len(asked) < 100:
            asked.append(await js.connection.send_request("question"))

    with pytest.raises(NatsUnreachable, match="not answered"):
        await ask()
    assert len(js.connection.pending_replies) < 30

    for answer in asked:
        answer.cancel()
    await js.connection.send_request("question")
