"""Asking the API: streams, their messages, and receipts."""

import contextlib
from datetime import timedelta
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from rebaser_core.jetstream import (
    AlreadyExists,
    ApiError,
    ConnectOptions,
    ConsumerConfig,
    Drift,
    JetStream,
    JetStreamError,
    KeyValue,
    NatsUnreachable,
    NotJetStream,
    ObjectStore,
    StoredMessage,
    StreamConfig,
    StreamFull,
    StreamNotFound,
    SubjectFull,
    Unsendable,
    WrongLastSequence,
    connected,
    subscribe,
)
from tests.helpers.nats_process import NatsServer, running
from tests.jetstream.steps import durable, filled, stored

S = StreamConfig(name="S", subjects=["s.>"], storage="file")
ONE_EACH = S | StreamConfig(max_msgs_per_subject=1, discard="new", discard_new_per_subject=True)


async def test_a_published_message_is_stored_with_its_headers(js: JetStream) -> None:
    await js.create_stream(S)

    receipt = await js.publish("s.a", b"\x00 payload", headers={"Shade": "grün"}, message_id="1")

    message = await js.get_message("S", sequence=receipt.sequence)
    assert message is not None
    assert (message.subject, message.sequence, message.payload) == ("s.a", 1, b"\x00 payload")
    assert message.headers == {"Shade": "grün", "Nats-Msg-Id": "1"}
    assert message.time.tzinfo is not None


async def test_a_repeated_message_id_is_stored_once(js: JetStream) -> None:
    await js.create_stream(S)
    first = await js.publish("s.a", message_id="1")

    second = await js.publish("s.a", message_id="1")

    assert (first.duplicate, second.duplicate) == (False, True)
    assert second.sequence == first.sequence


async def test_a_lost_compare_and_swap_differs_from_other_errors(js: JetStream) -> None:
    await js.create_stream(S)
    await js.publish("s.a", expected_last_subject_sequence=0)

    with pytest.raises(WrongLastSequence):
        await js.publish("s.a", expected_last_subject_sequence=0)


async def test_a_full_subject_differs_from_a_full_stream(js: JetStream) -> None:
    await js.create_stream(ONE_EACH)
    await js.publish("s.a")

    with pytest.raises(SubjectFull):
        await js.publish("s.a")


@pytest.mark.parametrize("limit", [StreamConfig(max_msgs=1), StreamConfig(max_bytes=300)], ids=str)
async def test_a_full_stream_differs_from_a_server_that_cannot_answer_now(
    js: JetStream, limit: StreamConfig
) -> None:
    """Both come with code 503, but trying this one again at once is of no use."""
    await js.create_stream(S | StreamConfig(discard="new") | limit)
    await js.publish("s.a", bytes(200))

    with pytest.raises(StreamFull):
        await js.publish("s.b", bytes(200))


async def test_an_account_without_room_is_a_full_stream(tmp_path: Path) -> None:
    accounts = "accounts { A { jetstream { max_file: 10KB }, users: [{user: a, password: a}] } }"
    with running(NatsServer(tmp_path / "small", accounts)) as server:
        options = ConnectOptions(servers=(server.url,), user="a", password="a")
        async with connected(options) as nc:
            js = JetStream(nc)
            await js.create_stream(S)

            with pytest.raises(StreamFull, match="resource limits exceeded"):
                await fill(js)


async def fill(js: JetStream) -> None:
    for _ in range(20):
        await js.publish("s.a", bytes(1_000))


async def test_a_subject_without_stream_is_unreachable_at_once(js: JetStream) -> None:
    with pytest.raises(NatsUnreachable, match="no responders"):
        await js.publish("nowhere", timeout=60)


async def test_what_is_too_large_is_never_sent(js: JetStream) -> None:
    await js.create_stream(S)

    with pytest.raises(Unsendable):
        await js.publish("s.a", bytes(2_000_000))


async def test_a_message_is_found_by_sequence_and_by_subject(js: JetStream) -> None:
    await filled(js, "s.a", "s.b", "s.a")

    assert await stored(js, sequence=2) == ("s.b", 2)
    assert await stored(js, last_by_subject="s.a") == ("s.a", 3)
    assert await stored(js, next_by_subject="s.a", sequence=2) == ("s.a", 3)
    assert await stored(js, next_by_subject="s.*", sequence=2) == ("s.b", 2)
    assert await stored(js, next_by_subject="s.b", sequence=3) is None
    assert await stored(js, sequence=4) is None


@pytest.mark.parametrize("erase", [False, True])
async def test_deleting_what_is_gone_is_success(js: JetStream, erase: bool) -> None:
    await filled(js, "s.a", "s.b")

    for _ in range(2):
        await js.delete_message("S", 1, erase=erase)
    await js.delete_message("S", 77)

    assert await stored(js, sequence=1) is None
    assert await stored(js, sequence=2) is not None


async def test_deleting_from_no_stream_is_an_error(js: JetStream) -> None:
    with pytest.raises(StreamNotFound):
        await js.delete_message("S", 1)


async def test_a_purge_deletes_what_is_meant_and_counts_it(js: JetStream) -> None:
    await filled(js, "s.a", "s.b", "s.a", "s.a")

    assert await js.purge("S", subject="s.a", keep=2) == 1
    assert await js.purge("S", subject="s.a", below_sequence=4) == 1
    assert await js.purge("S") == 2


async def test_subjects_are_listed_to_the_last_page(js: JetStream) -> None:
    """The server tells 100,000 at once; nats-py stops there without a word."""
    await js.create_stream(S | StreamConfig(storage="memory"))
    for start in range(0, 100_050, 50):
        commands = (b"PUB s.%d 0\r\n\r\n" % number for number in range(start, start + 50))
        await js.nc._send_command(b"".join(commands))
    await js.publish("s.last", timeout=60)

    subjects = await js.stream_subjects("S", "s.*")

    assert len(subjects) == 100_051
    assert set(subjects.values()) == {1}


async def test_no_subjects_is_no_error(js: JetStream) -> None:
    await js.create_stream(S)

    assert await js.stream_subjects("S") == {}
    assert await js.stream_names("s.a") == ["S"]
    assert await js.stream_names("t.a") == []


async def test_ensuring_creates_and_then_names_what_differs(js: JetStream) -> None:
    assert (
        await js.ensure_stream(ONE_EACH | StreamConfig(max_age=timedelta(), metadata={"a": "b"}))
        == []
    )
    assert await js.ensure_stream(StreamConfig(name="S", subjects=["s.>"])) == []

    drifts = await js.ensure_stream(
        ONE_EACH | StreamConfig(max_age=timedelta(seconds=1), metadata={"a": "c"})
    )

    assert drifts == [
        Drift("stream S", "max_age", 10**9, 0),
        Drift("stream S", "metadata.a", "c", "b"),
    ]
    assert (await js.stream_config("S")).max_age == timedelta(), "never silently changed"


async def test_ensuring_a_consumer_names_what_differs_and_keeps_it(js: JetStream) -> None:
    await js.create_stream(S)
    config = ConsumerConfig(durable_name="d", ack_policy="explicit", max_deliver=-1)
    assert await js.ensure_consumer("S", config) == []
    assert await js.ensure_consumer("S", config) == []

    [drift] = await js.ensure_consumer("S", config | ConsumerConfig(ack_wait=timedelta(seconds=1)))

    assert str(drift) == "consumer S/d: ack_wait is 30000000000, not 1000000000"
    assert (await js.consumer_config("S", "d")).ack_wait == timedelta(seconds=30)


async def test_creating_a_consumer_changes_none(js: JetStream) -> None:
    await js.create_stream(S)
    config = ConsumerConfig(durable_name="d", ack_policy="explicit")
    await js.create_consumer("S", config)
    await js.create_consumer("S", config)

    with pytest.raises(AlreadyExists):
        await js.create_consumer("S", config | ConsumerConfig(ack_wait=timedelta(seconds=1)))

    assert (await js.consumer_config("S", "d")).ack_wait == timedelta(seconds=30)


async def test_deleting_streams_and_consumers_that_are_gone_is_success(js: JetStream) -> None:
    await js.create_stream(S)
    for _ in range(2):
        await js.delete_consumer("S", "none")
    for _ in range(2):
        await js.delete_stream("S")


async def test_without_jetstream_everything_is_unreachable(tmp_path) -> None:
    server = NatsServer(tmp_path, jetstream=False)
    server.start()
    try:
        async with connected(ConnectOptions(servers=(server.url,))) as nc:
            with pytest.raises(NatsUnreachable):
                await JetStream(nc).stream_info("S")
    finally:
        server.kill()


@pytest.mark.parametrize("said", [b"{}", b"[]", b"\xff", b"7", b'{"error": "no"}', b'{"seq": 1}'])
async def test_an_answer_that_is_none_of_jetstream_is_an_error_of_ours(
    js: JetStream, said: bytes
) -> None:
    """As of a program that answers on a subject that no stream has."""

    async def answer(message: Msg) -> None:
        await js.nc.publish(message.reply, said)

    await js.nc.subscribe("x", cb=answer)
    with pytest.raises(JetStreamError):
        await js.publish("x")


@pytest.mark.parametrize("message", [{}, {"subject": "s", "seq": 1, "time": "soon"}, []])
def test_a_stored_message_that_is_none_is_an_error_of_ours(message) -> None:
    with pytest.raises(NotJetStream):
        StoredMessage.of(message)


ODD = [
    "",
    " ",
    ">",
    "*",
    "a..b",
    "a b",
    "\x00",
    "a\x0bb",
    "a\r\nb",
    "é",
    "\udc80",
    "\ud800",
    "x" * 5000,
]
"""Subjects, names of headers and objects, keys: they may come from other programs."""


async def test_no_text_raises_anything_but_an_error_of_ours(js: JetStream) -> None:
    await filled(js, *["s.a"] * len(ODD))
    await durable(js)
    bucket, store = KeyValue(js, "b"), ObjectStore(js, "b")
    pulled = await (await js.stream("S").consumer("d")).fetch(len(ODD))
    js.timeout = 0.5
    for odd, delivery in zip(ODD, pulled, strict=True):
        reader = js.stream("S").ordered_consumer(odd)
        for attempt in (
            js.publish(f"s.{odd}", headers={odd: odd}),
            js.publish(odd, message_id=odd),
            js.get_message("S", last_by_subject=odd),
            js.purge("S", subject=odd),
            js.stream_names(odd),
            js.request("STREAM.INFO.S", {odd: odd}),
            subscribe(js, odd),
            reader.fetch(1, expires=0.2, no_wait=True),
            delivery.term(odd),
            bucket.put(odd, b""),
            bucket.get(odd),
            store.put(odd, b""),
            store.info(odd),
        ):
            with contextlib.suppress(JetStreamError):
                await attempt
        await reader.close()


@pytest.mark.parametrize("error", [{"code": "x"}, {"code": None, "err_code": "7"}, {}], ids=str)
def test_an_error_that_is_told_oddly_is_one_of_ours(error: dict[str, object]) -> None:
    assert ApiError.of(error).code == 500
