"""What the ordered readers make of each status, and of what is no status."""

import asyncio
from typing import Any
from unittest import mock

import pytest

from rebaser_core.jetstream import JetStream, OrderedPullConsumer, StatusError
from rebaser_core.jetstream.messages import StatusMessage
from rebaser_core.jetstream.ordered import OrderedPushConsumer, OrderedReader
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.jetstream.steps import (
    consumers,
    filled,
    has_consumers,
    numbers,
    publish_many,
    send_status,
    spied,
)

KINDS = pytest.mark.parametrize("kind", [OrderedPushConsumer, OrderedPullConsumer])


@KINDS
async def test_both_kinds_read_everything_in_order(
    either_js: JetStream, kind: type[OrderedReader]
) -> None:
    await filled(either_js)
    await publish_many(either_js, range(2000))

    async with kind(either_js, "S", "s.a") as reader:
        found = [await anext(reader) for _ in range(2000)]
        assert await reader.next(idle_timeout=0) is None
        assert reader.resets == 0

    assert numbers(found) == list(range(2000))
    assert await consumers(either_js) == []


@KINDS
async def test_a_gap_is_read_again(js: JetStream, kind: type[OrderedReader]) -> None:
    await filled(js, *["s.a"] * 5)
    async with kind(js, "S", idle_heartbeat=1) as reader:
        await reader.next()
        await eventually(lambda: len(reader._inbox.queue) == 4)
        reader._inbox.queue.popleft()

        async with asyncio.timeout(30):
            assert numbers([await anext(reader) for _ in range(4)]) == [2, 3, 4, 5]
        assert reader.resets == 1


async def test_a_gap_that_only_a_heartbeat_tells_is_read_again(js: JetStream) -> None:
    await filled(js, *["s.a"] * 3)
    async with OrderedPushConsumer(js, "S", idle_heartbeat=0.1) as reader:
        await reader.next()
        await eventually(lambda: len(reader._inbox.queue) == 2)
        reader._inbox.queue.clear()

        async with asyncio.timeout(30):
            assert numbers([await anext(reader) for _ in range(2)]) == [2, 3]


def test_the_end_of_a_pull_tells_what_it_did_not_bring() -> None:
    headers = {"Nats-Pending-Messages": "3", "Nats-Pending-Bytes": "700"}

    assert StatusMessage(408, "", "", headers).pending == (3, 700)
    assert StatusMessage(408, "", "", {}).pending is None


@KINDS
def test_silence_is_believed_after_three_heartbeats(kind: type[OrderedReader]) -> None:
    """ADR-15, as of push subscriptions."""
    reader = kind(mock.Mock(single_reply=False), "S", idle_heartbeat=0.1)

    assert reader._heartbeat_timeout == pytest.approx(0.3)


@KINDS
async def test_a_frozen_server_is_waited_for(
    js: JetStream, server: NatsServer, kind: type[OrderedReader]
) -> None:
    await filled(js)
    await publish_many(js, range(100))
    async with kind(js, "S", idle_heartbeat=0.1) as reader:
        found = [await anext(reader)]
        server.freeze()
        while len(found) < 100:
            reading = asyncio.ensure_future(anext(reader))
            await asyncio.wait([reading], timeout=0.5)
            server.thaw()
            found.append(await reading)
        assert await reader.next(idle_timeout=0) is None
        await eventually(lambda: has_consumers(js, 1))

    assert numbers(found) == list(range(100))


async def test_flow_control_is_answered_when_it_is_reached(js: JetStream) -> None:
    await filled(js, "s.a")
    async with OrderedPushConsumer(js, "S", idle_heartbeat=5) as reader:
        await require_flow_control_answered(js, reader)
        assert reader.resets == 0


async def require_flow_control_answered(js: JetStream, reader: Any) -> None:
    """Each request for it, once the message before it was handed out."""
    inbox = reader._inbox
    async with spied(js, "fc.>") as answers:
        await eventually(lambda: len(inbox.queue) == 1)
        await send_status(js, inbox.subject, "100 FlowControl Request", "fc.1")
        for subject in ("fc.1", "fc.2"):
            stalled = {"Nats-Consumer-Stalled": subject}
            await send_status(js, inbox.subject, "100 Idle Heartbeat", **stalled)
        await eventually(lambda: len(inbox.queue) == 4)
        await js.connection.ping(30)
        assert answers == [], "the message in front was not handed out yet"

        assert int((await anext(reader)).payload) == 1
        await js.publish("s.a", b"2")
        assert int((await anext(reader)).payload) == 2
        await eventually(lambda: len(answers) == 3)


async def test_unheard_flow_control_does_not_hold_it_up(js: JetStream) -> None:
    """As under a prefix whose account exports no flow control: it goes on behind the cursor."""
    await filled(js, storage="memory")
    for _ in range(400):
        await js.connection.publish("s.a", bytes(50_000))
    await js.publish("s.a")
    async with OrderedPushConsumer(js, "S", idle_heartbeat=0.1) as reader:
        reader._flow_control._connection = Silent()
        count = 0
        async with asyncio.timeout(60):
            while count < 401:
                await anext(reader)
                reader._flow_control._connection = Silent()
                count += 1

    assert reader.resets > 0


class Silent:
    """A link over which nothing is heard."""

    async def publish(self, subject: str) -> None:
        pass


@pytest.mark.parametrize("line", ["409 Consumer is push based", "400 Bad Request"])
async def test_a_pull_that_is_refused_for_ever_is_an_error(js: JetStream, line: str) -> None:
    await filled(js)
    async with OrderedPullConsumer(js, "S") as reader:
        await send_status(js, reader._inbox.subject, line)
        with pytest.raises(StatusError, match=line):
            async with asyncio.timeout(30):
                await anext(reader)


@KINDS
async def test_an_unknown_status_is_a_reason_to_start_anew(
    js: JetStream, kind: type[OrderedReader]
) -> None:
    await filled(js)
    async with kind(js, "S") as reader:
        await send_status(js, reader._inbox.subject, "799 Never Heard Of")
        await js.publish("s.a", b"1")
        assert int((await anext(reader)).payload) == 1
        assert reader.resets == 1


@KINDS
async def test_a_foreign_message_is_dropped_and_loses_nothing(
    js: JetStream, kind: type[OrderedReader]
) -> None:
    await filled(js)
    async with kind(js, "S") as reader:
        await js.nc.publish(reader._inbox.subject, b"stray")
        await send_status(js, reader._inbox.subject, "²³¹ no number")
        await js.publish("s.a", b"1", headers={"Status": "100"})
        assert int((await anext(reader)).payload) == 1
