"""Subscriptions of a `FastClient` whose messages are handed over as they are read.

nats-py makes a task and wakes another one for each, which takes longer than all else where one is
made for a few milliseconds.
"""

import asyncio
from collections.abc import Callable

import nats.errors
from nats.aio.client import _validate_subject
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol.command import sub_cmd, unsub_cmd

from rebaser_core.jetstream.connection.fast_client import FastClient, inline_callback


def subscribe_inline(
    nc: FastClient, subject: str, queue: str, receive: Callable[[Msg], None]
) -> Subscription:
    """As `nc.subscribe` with `receive` as an `inline_callback`; raises what that does."""
    _validate_subject(subject, strict=True)
    if nc.is_closed:
        raise nats.errors.ConnectionClosedError
    if nc.is_draining:
        raise nats.errors.ConnectionDrainingError
    nc._sid += 1
    subscription = Subscription(nc, nc._sid, subject, queue, inline_callback(receive))
    nc._subs[nc._sid] = subscription
    _send(nc, sub_cmd(subject, queue, nc._sid))
    return subscription


def unsubscribe_inline(nc: FastClient, subscription: Subscription) -> None:
    """End it; the server learns of it soon, or with the connection."""
    subscription._closed = True
    nc._subs.pop(subscription._id, None)
    if not nc.is_reconnecting:
        _send(nc, unsub_cmd(subscription._id, 0))


def _send(nc: FastClient, command: bytes) -> None:
    nc._pending.append(command)
    nc._pending_data_size += len(command)
    if not nc._flush_scheduled:
        nc._flush_scheduled = True
        asyncio.get_running_loop().call_soon(nc._flush)
