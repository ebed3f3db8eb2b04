"""Dependent values updates that are due, found in the commit logs a few lines at a time (X2)."""

import random
from typing import Final

from rebaser_core.jetstream import JetStream, ordered_reader
from rebaser_server.commit_log.log import UNFINISHED

MAX_ENTRIES: Final = 10_000
"""Lines read in one look: about a quarter of a second of processor time."""


class UnfinishedScanner:
    """Goes round and round through the logs of all change sets, each look where the last ended.

    So a look costs the same however many change sets are known; what grows with them is
    the time of one round. Rebasers begin anywhere, so several find more than one does.
    """

    def __init__(self, js: JetStream, stream: str) -> None:
        self._js = js
        self._stream = stream
        self._next = 0

    async def scan(self, limit: int = MAX_ENTRIES) -> set[str]:
        """Subjects of which a line says that an update is due and no later line read contradicts.

        Their heads may say otherwise: see `is_due`. All of them, if there are no more `lines`.
        """
        state = (await self._js.stream_info(self._stream))["state"]
        if not state["messages"]:
            return set()
        first, last = state["first_seq"], state["last_seq"]
        if not first <= self._next <= last:
            self._next = random.randint(first, last)
        start = self._next
        unfinished, left = await self._read(last, limit)
        if self._next > last:  # round; what older lines say does not contradict
            self._next = first
            unfinished |= (await self._read(start - 1, left))[0]
        return unfinished

    async def _read(self, last: int, limit: int) -> tuple[set[str], int]:
        """Read on up to line `last`: who is due, and how many of `lines` are left."""
        unfinished = set[str]()
        if self._next > last:
            return unfinished, limit
        reader = ordered_reader(
            self._js, self._stream, start_sequence=self._next, headers_only=True
        )
        async with reader:
            while limit and self._next <= last:
                message = await reader.next(idle_timeout=0)
                if message is None:
                    self._next = last + 1
                    break
                limit -= 1
                self._next = message.stream_sequence + 1
                if UNFINISHED in message.headers:
                    unfinished.add(message.subject)
                else:
                    unfinished.discard(message.subject)
        return unfinished, limit

    async def is_unfinished(self, subject: str) -> bool:
        """Whether the last line on `subject` says so, as the stream's leader has it."""
        message = await self._js.get_message(self._stream, last_by_subject=subject)
        return message is not None and UNFINISHED in message.headers
