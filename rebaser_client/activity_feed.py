"""Follow the activities that Rebasers publish while they work on a change set."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from nats.aio.msg import Msg

from rebaser_core.activities import Activity, ActivityV1
from rebaser_core.errors import MessageError
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_core.jetstream.connection import Connection, subscribed
from rebaser_core.subjects import Subjects

SUBSCRIBE_TIMEOUT: Final = 5.0
"""Seconds for the server to hear of a watch; without an answer it begins all the same."""


class ActivityFeed:
    """The activities since the watch began, in order of arrival. One task may read them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._arrived: deque[ActivityV1] = deque()
        self._arrival: asyncio.Future[None] | None = None
        """Done once something arrives for the one who waits."""

    def __aiter__(self) -> AsyncIterator[ActivityV1]:
        return self

    async def __anext__(self) -> ActivityV1:
        """Return the next activity. Never ends by itself; a cancellation loses none.

        Raises:
            ClientClosed, NatsUnreachable: the connection is closed, and all that came is read.
        """
        while not self._arrived:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._connection.wait(self._arrival)
        return self._arrived.popleft()

    async def receive(self, message: Msg) -> None:
        """Take a message, unless it is of a newer version or malformed."""
        with suppress(MessageError):
            self._arrived.append(Activity.decode(message.headers or {}, message.data))
            if self._arrival is not None and not self._arrival.done():
                self._arrival.set_result(None)


@asynccontextmanager
async def watching(
    js: JetStream, subjects: Subjects, change_set: ChangeSet
) -> AsyncIterator[ActivityFeed]:
    """Watch a change set while the body runs.

    Plain NATS: activities that are published while the connection is down are lost.
    """
    activities = ActivityFeed(js.connection)
    async with subscribed(js.nc, subjects.activities(change_set), activities.receive):
        await js.connection.ping(SUBSCRIBE_TIMEOUT)  # nothing published from now on is missed
        yield activities
