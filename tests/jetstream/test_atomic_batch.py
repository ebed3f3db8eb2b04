"""Atomic batches (ADR-50): all messages, one right behind the other, or none."""

import pytest
from nats.aio.msg import Msg

from rebaser_core.jetstream import (
    ApiError,
    BatchMessage,
    BatchNotAtomic,
    JetStream,
    Oversized,
    StreamConfig,
    WrongLastSequence,
)

STREAM = StreamConfig(name="S", subjects=["s.>"], allow_atomic=True)


async def count(js: JetStream) -> int:
    return (await js.stream_info("S")).state.messages


async def test_a_batch_is_stored_whole_in_its_order(js: JetStream) -> None:
    await js.create_stream(STREAM)
    messages = [
        BatchMessage(f"s.{number % 2}", f"{number}".encode(), {"N": f"{number}"}, f"id {number}")
        for number in range(100)
    ]

    ack = await js.publish_batch(messages)

    assert ack.sequence == 100
    for sequence in (1, 2, 100):
        found = await js.get_message("S", sequence=sequence)
        assert found is not None
        assert (found.payload, found.headers["N"]) == (
            str(sequence - 1).encode(),
            f"{sequence - 1}",
        )


async def test_a_batch_behind_another_message_than_expected_is_refused_whole(
    js: JetStream,
) -> None:
    await js.create_stream(STREAM)
    await js.publish("s.a")

    with pytest.raises(WrongLastSequence):
        await js.publish_batch([BatchMessage("s.a")] * 3, expected_last_subject_sequence=0)

    assert await count(js) == 1


async def test_of_a_batch_with_a_message_too_large_nothing_is_sent(js: JetStream) -> None:
    await js.create_stream(STREAM)
    huge = BatchMessage("s.a", bytes(js.message_limits.max_payload_for("s.a") + 1))

    before = js.nc.stats["out_msgs"]

    with pytest.raises(Oversized):
        await js.publish_batch([BatchMessage("s.a"), huge])

    assert js.nc.stats["out_msgs"] == before


async def test_a_stream_that_takes_no_batches_stores_nothing(js: JetStream) -> None:
    await js.create_stream(STREAM | StreamConfig(allow_atomic=False))

    with pytest.raises(ApiError):
        await js.publish_batch([BatchMessage("s.a")] * 3)

    assert await count(js) == 0


async def test_a_batch_has_one_to_a_thousand_messages(js: JetStream) -> None:
    await js.create_stream(STREAM)

    with pytest.raises(ValueError, match="at least one message"):
        await js.publish_batch([])
    with pytest.raises(ApiError, match="too large"):
        await js.publish_batch([BatchMessage("s.a")] * 1001)
    assert await count(js) == 0
    assert (await js.publish_batch([BatchMessage("s.a")] * 1000)).sequence == 1000


async def test_a_batch_with_a_gap_is_refused_whole(js: JetStream) -> None:
    """Where one message is another stream's, this one does not get it."""
    await js.create_stream(STREAM)

    with pytest.raises(ApiError, match="incomplete"):
        await js.publish_batch([BatchMessage(subject) for subject in ("s.a", "elsewhere", "s.a")])

    assert await count(js) == 0


@pytest.mark.parametrize("ids", [("stored", "new"), ("new", "new")])
async def test_a_batch_with_a_known_message_id_is_refused_whole(
    js: JetStream, ids: tuple[str, str]
) -> None:
    await js.create_stream(STREAM)
    await js.publish("s.a", message_id="stored")

    with pytest.raises(ApiError, match="duplicate"):
        await js.publish_batch([BatchMessage("s.a", message_id=each) for each in ids])

    assert await count(js) == 1


async def test_a_server_that_stores_each_message_by_itself_is_noticed(js: JetStream) -> None:
    """One older than 2.12, which gives the receipt of the last message alone."""

    async def answer(message: Msg) -> None:
        if message.reply:
            await js.nc.publish(message.reply, b'{"stream": "S", "seq": 2}')

    await js.nc.subscribe("elsewhere", cb=answer)

    with pytest.raises(BatchNotAtomic):
        await js.publish_batch([BatchMessage("elsewhere")] * 2)
