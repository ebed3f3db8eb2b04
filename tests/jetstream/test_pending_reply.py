"""Many questions under way at once, whose answers are awaited later or not at all."""

import pytest

from rebaser_core.jetstream import (
    JetStream,
    NatsUnreachable,
    StreamConfig,
    WrongLastSequence,
)
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer

STREAM = StreamConfig(name="S", subjects=["s.>"], storage="file")


async def nothing_expected(js: JetStream) -> None:
    """No answer is waited for any more, and nothing of a question is left."""

    async def empty() -> bool:
        return not js.connection.pending_replies

    await eventually(empty)


async def test_receipts_may_be_awaited_in_any_order(js: JetStream) -> None:
    await js.create_stream(STREAM)

    asked = [await js.publish_async("s.a", b"%d" % number) for number in range(100)]
    sequences = [(await one.result(30)).sequence for one in reversed(asked)]

    assert sequences == list(range(100, 0, -1))
    await nothing_expected(js)


async def test_each_is_stored_only_behind_the_one_it_names(js: JetStream) -> None:
    """By its id: the sequence need not be known."""
    await js.create_stream(STREAM)
    first = await js.publish_async("s.a", message_id="1", expected_last_subject_sequence=0)
    second = await js.publish_async("s.a", message_id="2", expected_last_message_id="1")
    astray = await js.publish_async("s.a", message_id="3", expected_last_subject_sequence=7)

    assert [(await first.result(30)).sequence, (await second.result(30)).sequence] == [1, 2]
    with pytest.raises(WrongLastSequence):
        await astray.result(30)


async def test_an_unanswered_reply_is_given_up(js: JetStream) -> None:
    await js.nc.subscribe("deaf")
    asked = await js.publish_async("deaf")

    with pytest.raises(NatsUnreachable, match=r"within 0\.01 s"):
        await asked.result(0.01)


async def test_those_that_are_forgotten_do_not_pile_up(js: JetStream) -> None:
    """They are let go now and then, not one by one."""
    await js.nc.subscribe("deaf")

    most = 0
    for _ in range(5_000):
        (await js.publish_async("deaf")).cancel()
        most = max(most, len(js.connection.pending_replies))

    assert most < 2_000


async def test_all_are_over_when_the_connection_goes_down(
    js: JetStream, server: NatsServer
) -> None:
    await js.nc.subscribe("deaf")
    asked = [await js.publish_async("deaf") for _ in range(10)]

    server.kill()

    for one in asked:
        with pytest.raises(NatsUnreachable, match="connection lost"):
            await one.result(30)
        assert one.done
