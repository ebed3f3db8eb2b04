"""Plain subscriptions for as long as a body runs, and requests that several may reply to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import DEFAULT_SUB_PENDING_BYTES_LIMIT, Subscription

from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.connection.connection import Connection
from rebaser_core.jetstream.connection.fast_client import Callback


@asynccontextmanager
async def subscribed(
    nc: Client,
    subject: str,
    receive: Callback | None = None,
    *,
    queue: str = "",
    pending_bytes: int = DEFAULT_SUB_PENDING_BYTES_LIMIT,
) -> AsyncIterator[Subscription]:
    """Subscribe for as long as the body runs; a connection that is closed by then is no error.

    `receive` gets each message; without it the body reads them from the subscription.
    Messages beyond `pending_bytes` octets that wait for `receive` are dropped.
    """
    Connection.of(nc).guard()
    subscription = await nc.subscribe(
        subject, queue=queue, cb=receive, pending_bytes_limit=pending_bytes
    )
    try:
        yield subscription
    finally:
        with suppress(nats.errors.Error):
            await subscription.unsubscribe()


async def await_subscriptions(nc: Client) -> None:
    """Return once the server has the connection's subscriptions, or did not answer for 10 s."""
    with suppress(nats.errors.Error):
        await nc.flush()


async def request_all(
    nc: Client, subject: str, payload: bytes, read: Callable[[Msg], bool], seconds: float
) -> None:
    """Send a request and have `read` get each reply, until it returns true or time is up.

    The server's notice that nothing listens on the subject is a reply, too; its payload is empty.
    """
    inbox, is_complete = nc.new_inbox(), asyncio.Event()

    async def receive(reply: Msg) -> None:
        if read(reply):
            is_complete.set()

    async with subscribed(nc, inbox, receive):
        await nc.publish(subject, payload, reply=inbox)
        with suppress(TimeoutError):
            async with deadlines.within(seconds):
                await is_complete.wait()
