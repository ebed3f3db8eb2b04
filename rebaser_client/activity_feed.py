"""Follow what Rebasers tell of a change set while they work on it."""

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
    """What was told since the watch began, in the order it came. One task may read it."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[ActivityV1] = asyncio.Queue()

    def __aiter__(self) -> AsyncIterator[ActivityV1]:
        return self

    async def __anext__(self) -> ActivityV1:
        """The next one. Never ends by itself; may be cancelled without losing any."""
        return await self._queue.get()

    async def receive(self, message: Msg) -> None:
        """Take what came, unless it is of a newer version or nonsense."""
        with suppress(MessageError):
            self._queue.put_nowait(Activity.decode(message.headers or {}, message.data))


@asynccontextmanager
async def watching(
    js: JetStream, subjects: Subjects, change_set: ChangeSet
) -> AsyncIterator[ActivityFeed]:
    """Watch a change set for as long as the body runs.

    Plain NATS: what is told while the connection is down is lost, and nothing harmed.
    """
    activities = ActivityFeed()
    async with subscribed(js.nc, subjects.activities(change_set), activities.receive):
        await js.connection.ping(SUBSCRIBE_TIMEOUT)  # nothing published from now on is missed
        yield activities
