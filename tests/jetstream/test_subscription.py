"""Plain subscriptions end with their body, and a request reaches all who reply in time."""

import asyncio

from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.jetstream.connection import request_all, subscribed


async def test_a_subscription_ends_with_its_body(nc: Client) -> None:
    """Messages arrive inside the body; the client knows no subscription after it."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(message: Msg) -> None:
        arrived.put_nowait(message.data)

    async with subscribed(nc, "a.*", receive):
        await nc.publish("a.b", b"1")
        assert await arrived.get() == b"1"

    assert not nc._subs


async def test_a_body_reads_from_a_subscription_without_a_callback(nc: Client) -> None:
    """Who waits for one reply at a time needs no callback."""
    async with subscribed(nc, "a") as subscription:
        await nc.publish("a", b"1")

        assert (await subscription.next_msg()).data == b"1"


async def test_a_connection_that_was_closed_in_the_body_is_no_error(nc: Client) -> None:
    """The server has forgotten the subscription by then."""
    async with subscribed(nc, "a"):
        await nc.close()


async def test_a_request_to_all_ends_with_the_reply_that_completes_it(nc: Client) -> None:
    """Each of several services replies; the requester decides how many replies it needs."""
    replies = []

    def read(reply: Msg) -> bool:
        replies.append(reply.data)
        return len(replies) == 2

    async def reply(message: Msg) -> None:
        await message.respond(b"here")

    async with subscribed(nc, "who", reply), subscribed(nc, "who", reply):
        await request_all(nc, "who", b"", read, 60)

    assert replies == [b"here", b"here"]


async def test_a_request_to_all_ends_when_time_is_up(nc: Client) -> None:
    """A service that does not reply keeps nobody waiting."""

    async def be_silent(_: Msg) -> None:
        pass

    async with subscribed(nc, "who", be_silent):
        await request_all(nc, "who", b"", lambda _: True, 0.01)


async def test_a_request_to_nothing_gets_the_notice_of_the_server(nc: Client) -> None:
    """Its payload is empty, so the requester need not wait until time is up."""
    await request_all(nc, "who", b"", lambda reply: not reply.data, 60)
