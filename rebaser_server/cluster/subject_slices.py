"""The subjects of a stream: all of them while they are few, else of one slice after the other."""

import asyncio
import random
from collections.abc import Collection
from typing import Final

from rebaser_core.jetstream import JetStream, ordered_reader

FEW: Final = 20_000
"""Subjects that NATS lists in a few hundredths of a second. A list of more costs it as much again
for each 100,000, and this process's loop the time to decode it."""

SLICE: Final = 20_000
"""Messages that are read at a time, without their payloads: half a second of processor time."""

_TURN: Final = 200
"""Messages after which others have a turn on the loop."""


class SubjectSlices:
    """Goes round through a stream whose subjects are many; each slice begins where one ended.

    So a look costs the same however many messages there are; only the time of a whole round grows
    with them. Each Rebaser begins at random, so several find more than one does.
    """

    def __init__(self, js: JetStream, stream: str, *, few: int = FEW, size: int = SLICE) -> None:
        """`few`: subjects that are listed at once; `size`: messages of a slice."""
        self._js = js
        self._stream = stream
        self._few = few
        self._size = size
        self._next = 0

    async def next(self) -> Collection[str]:
        """The subjects of all messages, or of the next slice of them."""
        state = (await self._js.stream_info(self._stream)).state
        if state.num_subjects <= self._few:
            return await self._js.stream_subjects(self._stream)
        if not state.first_seq <= self._next <= state.last_seq:
            self._next = random.randint(state.first_seq, state.last_seq)
        return await self._read(state.first_seq)

    async def _read(self, first: int) -> set[str]:
        subjects = set[str]()
        reader = ordered_reader(self._js, self._stream, opt_start_seq=self._next, headers_only=True)
        async with reader:
            for number in range(self._size):
                if number % _TURN == 0:
                    await asyncio.sleep(0)
                message = await reader.next(idle_timeout=0)
                if message is None:
                    self._next = first
                    break
                subjects.add(message.subject)
                self._next = message.stream_sequence + 1
        return subjects
