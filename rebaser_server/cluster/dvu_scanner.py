"""Dependent values updates that are due, found in the commit logs a few lines at a time (X2)."""

import random
from typing import Final

from rebaser_core.jetstream import JetStream, OrderedPushConsumer
from rebaser_server.commit_log.log import DVU_DUE

LINES: Final = 10_000
"""Lines read in one look: about a quarter of a second of processor time."""


class Unfinished:
    """Goes round and round through the logs of all change sets, each look where the last ended.

    So a look costs the same however many change sets are known; what grows with them is
    the time of one round. Rebasers begin anywhere, so several find more than one does.
    """

    def __init__(self, js: JetStream, stream: str) -> None:
        self._js = js
        self._stream = stream
        self._next = 0

    async def look(self, lines: int = LINES) -> set[str]:
        """Subjects of which a line says that an update is due and no later line read contradicts.

        Their heads may say otherwise: see `is_due`. All of them, if there are no more `lines`.
        """
        state = (await self._js.stream_info(self._stream))["state"]
        if not state["messages"]:
            return set()
        first, last = state["first_seq"], state["last_seq"]
        if not first <= self._next <= last:
            self._next = random.randint(first, last)  # noqa: S311 - to spread
        began = self._next
        due, left = await self._read(last, lines)
        if self._next > last:  # round; what older lines say does not contradict
            self._next = first
            due |= (await self._read(began - 1, left))[0]
        return due

    async def _read(self, last: int, lines: int) -> tuple[set[str], int]:
        """Read on up to line `last`: who is due, and how many of `lines` are left."""
        due = set[str]()
        if self._next > last:
            return due, lines
        reader = OrderedPushConsumer(
            self._js, self._stream, start_sequence=self._next, headers_only=True
        )
        async with reader:
            while lines and self._next <= last:
                line = await reader.next(idle_timeout=0)
                if line is None:
                    self._next = last + 1
                    break
                lines -= 1
                self._next = line.stream_sequence + 1
                if DVU_DUE in line.headers:
                    due.add(line.subject)
                else:
                    due.discard(line.subject)
        return due, lines

    async def is_due(self, subject: str) -> bool:
        """Whether the last line on `subject` says so, as the stream's leader has it."""
        line = await self._js.get_message(self._stream, last_by_subject=subject)
        return line is not None and DVU_DUE in line.headers
