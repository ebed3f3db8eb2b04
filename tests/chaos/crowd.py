"""A client that sends a request again behind more others than are remembered by their number."""

import asyncio
import time
from collections import deque
from contextlib import suppress

from rebaser_core.ids import ChangeSet
from tests.chaos.clients import ChaosClient, SentRequest

OTHERS = 1_100
"""Requests between a request and its repetition: an id is remembered for at least 1,000."""
AT_ONCE = 100
"""Requests on their way at a time."""
PAUSE = 20.0
"""Seconds between two crowds, each of which is as much work as the rest of a short round."""
BEYOND = 125.0
"""Seconds after which an id may be forgotten, with some to spare: repeated then, a request may take
effect once more, which only long rounds see."""


class Crowd:
    """Floods one change set."""

    def __init__(self, client: ChaosClient, change_set: ChangeSet) -> None:
        self._client = client
        self._change_set = change_set
        self._sent: deque[tuple[float, SentRequest]] = deque()

    async def act(self, until: asyncio.Event) -> None:
        """Now and then a crowd until the event is set; the one in hand is sent whole."""
        while not until.is_set():
            first = await self._client.ask_for_little(self._change_set)
            self._sent.append((time.monotonic(), first))
            for _ in range(0, OTHERS, AT_ONCE):
                ask = self._client.ask_for_little
                await asyncio.gather(*(ask(self._change_set) for _ in range(AT_ONCE)))
            await self._client.repeat_unrecognised(first)
            at, earliest = self._sent[0]
            if time.monotonic() - at > BEYOND:
                self._sent.popleft()
                await self._client.repeat_unrecognised(earliest)
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE):
                    await until.wait()
