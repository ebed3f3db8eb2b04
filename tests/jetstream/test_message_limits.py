"""Nothing is sent that the server would close the connection for, and what just fits is sent."""

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client

from rebaser_core.jetstream import JetStream, Oversized, Unsendable
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.jetstream.steps import filled, spied

HEADERS = {"Nats-Msg-Id": "ä" * 50, "X-A": " b\r\nc "}


@pytest.fixture(params=["connected", "nats-py"])
async def any_js(
    request: pytest.FixtureRequest, js: JetStream, server: NatsServer
) -> AsyncIterator[JetStream]:
    """Over a connection of ours, and over one that is nats-py's own."""
    if request.param == "connected":
        yield js
        return
    nc = await nats.connect(server.url)
    try:
        yield JetStream(nc)
    finally:
        await nc.close()


@pytest.mark.parametrize("headers", [None, {}, HEADERS])
async def test_the_largest_message_is_sent_and_no_larger_one(
    any_js: JetStream, headers: dict[str, str] | None
) -> None:
    room = any_js.message_limits.max_payload_for("x", headers)
    async with spied(any_js, "x") as seen:
        with pytest.raises(Oversized):
            await any_js.connection.publish("x", bytes(room + 1), headers=headers)
        await any_js.connection.publish("x", bytes(room), headers=headers)
        await eventually(lambda: len(seen) == 1)

    assert await any_js.connection.ping(30)
    assert any_js.connection.reconnects == 0


@pytest.mark.parametrize("headers", [None, HEADERS])
async def test_the_longest_subjects_are_sent_and_no_longer_ones(
    any_js: JetStream, headers: dict[str, str] | None
) -> None:
    numbers = len(" 0") if headers is None else len(" 134 134")
    most = any_js.message_limits.max_control_line - len("x  ") - numbers + 1
    async with spied(any_js, "x") as seen:
        with pytest.raises(Oversized):
            await any_js.connection.publish("x", reply="r" * (most + 1), headers=headers)
        await any_js.connection.publish("x", reply="r" * most, headers=headers)
        await eventually(lambda: len(seen) == 1)

    assert any_js.message_limits.max_payload_for("x", headers, "r" * (most + 100)) < 0
    assert await any_js.connection.ping(30)
    assert any_js.connection.reconnects == 0


async def test_a_request_that_does_not_fit_is_refused_and_the_next_is_answered(
    any_js: JetStream,
) -> None:
    await filled(any_js)
    headers = {"X-A": "a" * 1000}
    with pytest.raises(Oversized):
        await any_js.publish("s.a", bytes(any_js.message_limits.max_payload), headers=headers)

    receipt = await any_js.publish(
        "s.a", bytes(any_js.message_limits.max_payload_for("s.a", headers)), headers=headers
    )
    assert receipt.sequence == 1
    assert any_js.connection.reconnects == 0


async def test_what_does_not_fit_is_refused_while_the_connection_is_down_too(
    js: JetStream, nc: Client, server: NatsServer
) -> None:
    server.kill()
    await eventually(lambda: not nc.is_connected)

    with pytest.raises(Oversized):
        await js.connection.publish("x", bytes(js.message_limits.max_payload), headers={"X-A": "a"})


@pytest.mark.parametrize("headers", [{"a(b)": "v"}, {"": "v"}, {"a": 1}, {1: "a"}, {"a": "\ud800"}])
async def test_headers_that_no_message_may_have_are_refused(any_js: JetStream, headers) -> None:
    with pytest.raises(Unsendable):
        await any_js.connection.publish("x", headers=headers)
    with pytest.raises(Unsendable):
        any_js.message_limits.max_payload_for("x", headers)


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB b 0", "\ud800"])
async def test_subjects_that_no_message_may_have_are_refused(any_js: JetStream, subject) -> None:
    with pytest.raises(Unsendable):
        await any_js.connection.publish(subject)
