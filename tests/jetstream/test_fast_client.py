"""Messages by the shorter way: the same octets and the same messages as by nats-py's own."""

import asyncio
import itertools

import nats.errors
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from rebaser_core.jetstream.fast_client import FastClient, inline_callback

WORDS = st.text(st.sampled_from("abc.ABC$_-"), min_size=1, max_size=20)
VALUES = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
HEADERS = st.dictionaries(st.sampled_from(["Nats-Msg-Id", "X-A", "x"]), VALUES, min_size=1)
STATUS = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n"
LINES = st.sampled_from([b"PONG\r\n", b"+OK\r\n"])


def lines_of(message: tuple[str, str, bytes, bytes]) -> bytes:
    subject, reply, block, payload = message
    words = f"{subject} 1 {reply}".strip()
    if not block:
        return f"MSG {words} {len(payload)}\r\n".encode() + payload + b"\r\n"
    sizes = f"{len(block)} {len(block) + len(payload)}"
    return f"HMSG {words} {sizes}\r\n".encode() + block + payload + b"\r\n"


def block_of(headers: dict[str, str]) -> bytes:
    lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
    return b"NATS/1.0\r\n" + b"".join(lines) + b"\r\n"


BLOCKS = st.one_of(st.just(b""), st.just(STATUS), HEADERS.map(block_of))
MESSAGES = st.tuples(WORDS, st.one_of(st.just(""), WORDS), BLOCKS, st.binary(max_size=40))
STREAMS = st.lists(st.one_of(MESSAGES.map(lines_of), LINES), max_size=8).map(b"".join)


def offline(client: Client) -> Client:
    """As after `connect`, but nothing is ever written: what is published stays to be seen."""
    client._status = Client.CONNECTED
    client._max_payload = 1_000
    client._flush_queue = asyncio.Queue()
    client._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
    return client


async def heard(
    client: Client, pieces: list[bytes], pauses: list[bool] | None = None
) -> list[tuple]:
    """What is received of `pieces`; with `pauses` as a connection reads them, which waits there."""
    found = []

    def receive(message: Msg) -> None:
        found.append((message.subject, message.reply, message.data, message.headers))

    callback = inline_callback(receive)
    client._subs[1] = Subscription(client, 1, ">", cb=callback)
    client._subs[1]._start(None)
    if pauses is None:
        for piece in pieces:
            await client._ps.parse(piece)
    else:
        await read(client, pieces, pauses)
    await client._subs[1]._pending_queue.join()
    client._subs[1]._stop_processing()
    return found


async def read(client: Client, pieces: list[bytes], pauses: list[bool]) -> None:
    client._transport = TcpTransport()
    client._transport._io_reader = reader = asyncio.StreamReader()
    client._transport._io_writer = client
    reading = asyncio.create_task(client._read_loop())
    await asyncio.sleep(0)
    for piece, pause in zip(pieces, itertools.chain(pauses, itertools.repeat(False)), strict=False):
        reader.feed_data(piece)
        if pause:
            await asyncio.sleep(0)
    for _ in range(5):  # turns of the loop, more than it takes
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(stream) + 1) for place in places})
    return [stream[a:b] for a, b in zip([0, *ends], [*ends, len(stream)], strict=True)]


@settings(deadline=None)
@given(STREAMS, st.lists(st.integers(0, 2_000), max_size=6))
def test_what_is_read_is_the_same_however_it_is_cut(stream, places):
    async def both() -> None:
        expected = await heard(offline(Client()), [stream])
        assert await heard(offline(FastClient()), cut(stream, places)) == expected

    asyncio.run(both())


@settings(deadline=None)
@given(STREAMS, st.lists(st.integers(0, 2_000), max_size=6), st.lists(st.booleans(), max_size=6))
def test_messages_keep_their_order_whatever_has_to_wait_for_its_turn(stream, places, pauses):
    """Most are handed over as soon as they come, and lines and statuses wait for a task."""

    async def both() -> None:
        expected = await heard(offline(Client()), [stream])
        assert await heard(offline(FastClient()), cut(stream, places), pauses) == expected

    asyncio.run(both())


@settings(deadline=None)
@given(WORDS, st.one_of(st.just(""), WORDS), st.binary(max_size=40), st.none() | HEADERS)
def test_what_is_published_means_the_same(subject, reply, payload, headers):
    async def both() -> None:
        sent = []
        for client in (offline(Client()), offline(FastClient())):
            await client.publish(subject, payload, reply, headers)
            [command] = client._pending
            head, _, body = command.partition(b"\r\n")
            parsed = Client._parse_header_lines(body[: len(body) - len(payload)])
            sent.append((head.split()[:-2], parsed, body.endswith(payload + b"\r\n")))
        assert sent[0] == sent[1]

    asyncio.run(both())


async def test_what_nats_py_refuses_is_refused():
    client = offline(FastClient())
    for subject, reply, payload, headers, error in (
        ("", "", b"", None, nats.errors.BadSubjectError),
        ("a b", "", b"", None, nats.errors.BadSubjectError),
        ("a", "b\r\nc", b"", None, nats.errors.BadSubjectError),
        ("a", "", bytes(1_001), None, nats.errors.MaxPayloadError),
        ("a", "", b"", {"a b": "c"}, nats.errors.BadHeaderError),
    ):
        with pytest.raises(error):
            await client.publish(subject, payload, reply, headers)
    assert not client._pending


async def test_a_line_that_is_no_message_ends_the_reading():
    for line in (
        b"MSG a\r\n",
        b"MSG a 1 x\r\n",
        b"MSGS\r\n",
        b"MSG\ta 1 0\r\n",
        b"what\r\n",
        b"HMSG a 1 2\r\n",
    ):
        with pytest.raises(nats.errors.ProtocolError):
            await offline(FastClient())._ps.parse(line)


async def test_an_error_of_whoever_receives_is_reported_and_the_next_message_comes():
    client, errors, found = offline(FastClient()), [], []

    def report(_: object, told: dict[str, object]) -> None:
        errors.append(told["exception"])

    def receive(message: Msg) -> None:
        found.append(message.data)
        if message.data == b"1":
            raise ValueError("not this one")

    asyncio.get_running_loop().set_exception_handler(report)
    client._subs[1] = Subscription(client, 1, ">", cb=inline_callback(receive))
    await client._ps.parse(b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\n")

    assert found == [b"1", b"2"]
    assert [str(error) for error in errors] == ["not this one"]


async def test_what_is_left_of_a_connection_that_was_given_up_is_not_read_into_the_next():
    client, found = offline(FastClient()), []

    def receive(message: Msg) -> None:
        found.append(message.data)
        client._ps.reset()  # as `force_reconnect` does

    client._subs[1] = Subscription(client, 1, ">", cb=inline_callback(receive))
    await client._ps.parse(b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\nMSG a 1")
    assert found == [b"1"]

    await client._ps.parse(b"MSG a 1 1\r\n3\r\n")
    assert found == [b"1", b"3"]


async def test_late_messages_of_an_abandoned_connection_are_dropped():
    client, found = offline(FastClient()), []
    client._subs[1] = Subscription(
        client, 1, ">", cb=inline_callback(lambda m: found.append(m.data))
    )
    client._transport = TcpTransport()
    client._transport._io_reader = reader = asyncio.StreamReader()
    client._fast_parser.attach(reader)
    reader.feed_data(b"MSG a 1 1\r\n1\r\nMSG a")
    client._ps.reset()
    reader.feed_data(b" 1 1\r\n2\r\n")

    await client._ps.parse(b"MSG a 1 1\r\n3\r\n")
    assert found == [b"1", b"3"]
