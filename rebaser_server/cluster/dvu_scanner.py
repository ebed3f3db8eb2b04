"""Find the change sets whose DVU is due: read the commit logs, a few commits at a time (X2)."""

import random
from collections.abc import Callable, Mapping
from typing import Final

from rebaser_core.jetstream import JetStream, ordered_reader
from rebaser_server.commit_log.log import UNFINISHED, UNSAVED

MAX_ENTRIES: Final = 10_000
"""Commits read in one scan: about a quarter of a second of processor time."""


class UnfinishedScanner:
    """Goes round through the logs of all change sets; each scan begins where the last one ended.

    So a scan costs the same for any number of change sets; only the time of a whole round grows
    with them. Each Rebaser begins at random, so several find more than one does.
    """

    def __init__(
        self, js: JetStream, stream: str, has_room: Callable[[], bool] = lambda: False
    ) -> None:
        """`has_room`: whether those that only lack a checkpoint count as unfinished, too."""
        self._js = js
        self._stream = stream
        self._has_room = has_room
        self._next = 0

    async def scan(self, limit: int = MAX_ENTRIES) -> set[str]:
        """Return the subjects whose last commit among up to `limit` next ones is unfinished.

        Later commits may say otherwise: see `is_unfinished`.
        """
        state = (await self._js.stream_info(self._stream)).state
        if not state.messages:
            return set()
        first, last = state.first_seq, state.last_seq
        if not first <= self._next <= last:
            self._next = random.randint(first, last)
        start = self._next
        unfinished, left = await self._read(last, limit)
        if self._next > last:  # a round is over; older commits do not overrule later ones
            self._next = first
            unfinished |= (await self._read(start - 1, left))[0]
        return unfinished

    async def _read(self, last: int, limit: int) -> tuple[set[str], int]:
        """Read on up to commit `last`; return the unfinished subjects and the rest of `limit`."""
        unfinished = set[str]()
        if self._next > last:
            return unfinished, limit
        reader = ordered_reader(self._js, self._stream, opt_start_seq=self._next, headers_only=True)
        async with reader:
            while limit and self._next <= last:
                message = await reader.next(idle_timeout=0)
                if message is None:
                    self._next = last + 1
                    break
                limit -= 1
                self._next = message.stream_sequence + 1
                if self._tells_of_work(message.headers):
                    unfinished.add(message.subject)
                else:
                    unfinished.discard(message.subject)
        return unfinished, limit

    async def is_unfinished(self, subject: str) -> bool:
        """Whether the last commit on `subject` is unfinished, as the stream's leader has it."""
        message = await self._js.get_message(self._stream, last_by_subject=subject)
        return message is not None and self._tells_of_work(message.headers)

    def _tells_of_work(self, headers: Mapping[str, str]) -> bool:
        return UNFINISHED in headers or (UNSAVED in headers and self._has_room())
