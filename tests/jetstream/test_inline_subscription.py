"""Subscriptions without a task: the same messages as by nats-py's own."""

import asyncio

import nats.errors
import pytest

from rebaser_core.jetstream import ConnectOptions, connected
from rebaser_core.jetstream.connection import Connection, subscribe_inline, unsubscribe_inline
from rebaser_core.jetstream.fast_client import FastClient
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer


async def test_messages_come_until_it_is_ended(nc: FastClient) -> None:
    """And no task runs for it."""
    heard: list[bytes] = []
    tasks = asyncio.all_tasks()
    subscription = subscribe_inline(nc, "a.*", "", lambda message: heard.append(message.data))
    assert asyncio.all_tasks() == tasks

    await nc.publish("a.b", b"1")
    await Connection.of(nc).ping(30)
    unsubscribe_inline(nc, subscription)
    await nc.publish("a.b", b"2")
    await Connection.of(nc).ping(30)

    assert heard == [b"1"]
    assert subscription._id not in nc._subs


async def test_it_outlives_a_reconnect(server: NatsServer) -> None:
    """As nats-py's own, which it sends again to the server."""
    heard: list[bytes] = []
    async with connected(ConnectOptions(servers=(server.url,))) as nc:
        assert isinstance(nc, FastClient)
        subscribe_inline(nc, "a", "", lambda message: heard.append(message.data))
        server.kill()
        server.start()
        await eventually(lambda: Connection.of(nc).reconnects == 1)

        await nc.publish("a", b"1")
        await eventually(lambda: heard == [b"1"])


@pytest.mark.parametrize("subject", ["", "a b", "a..b", "a\r\nPUB"])
async def test_a_bad_subject_is_refused(nc: FastClient, subject: str) -> None:
    """Before anything is sent."""
    with pytest.raises(nats.errors.BadSubjectError):
        subscribe_inline(nc, subject, "", print)

    assert subject not in {each.subject for each in nc._subs.values()}


async def test_a_closed_connection_has_none(nc: FastClient) -> None:
    """It would never hear anything."""
    await nc.close()

    with pytest.raises(nats.errors.ConnectionClosedError):
        subscribe_inline(nc, "a", "", print)
