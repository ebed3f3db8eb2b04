"""Follow the activities that Rebasers publish while they work on a change set."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from nats.aio.msg import Msg

from rebaser_core.activities import Activity, ActivityV1
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_core.jetstream.connection.subscription import subscribed
from rebaser_core.subjects import Subjects

SUBSCRIBE_TIMEOUT: Final = 5.0
"""Seconds for the server to hear of a watch; without an answer it begins all the same."""


class ActivityFeed:
    """The activities since the watch began, in order of arrival. One task may read them."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[ActivityV1] = asyncio.Queue()

    def __aiter__(self) -> AsyncIterator[ActivityV1]:
        return self

    async def __anext__(self) -> ActivityV1:
        """Return the next activity. Never ends by itself; a cancellation loses none."""
        return await self._queue.get()

    async def receive(self, message: Msg) -> None:
        """Take a message, unless it is of a newer version or malformed."""
        with suppress(MessageError):
            self._queue.put_nowait(Activity.decode(message.headers or {}, message.data))


@asynccontextmanager
async def watching(
    js: JetStream, subjects: Subjects, change_set: ChangeSet
) -> AsyncIterator[ActivityFeed]:
    """Watch a change set while the body runs.

    Plain NATS: activities that are published while the connection is down are lost.
    """
    activities = ActivityFeed()
    async with subscribed(js.nc, subjects.activities(change_set), activities.receive):
        await js.connection.ping(SUBSCRIBE_TIMEOUT)  # nothing published from now on is missed
        yield activities
