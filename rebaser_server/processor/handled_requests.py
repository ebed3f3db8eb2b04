"""The requests of one run that are handled and not yet known to be deleted (W9)."""

import asyncio
from collections import deque
from typing import Any, Final, NamedTuple

from rebaser_client.requests import retry
from rebaser_core.jetstream import JetStream, JetStreamError, PendingReply

MAX_TOGETHER: Final = 64
"""Most requests that one purge deletes."""

MAX_DELAY: Final = 0.25
"""Seconds after which a handled request is not held back for a purge together with later ones."""

_MAX_UNANSWERED: Final = 64
"""Most calls that are unanswered at any time."""

_RETRY_FOR: Final = 20.0  # seconds in which the requests of an unanswered call are deleted again


class _Call(NamedTuple):
    sequences: list[int]
    reply: PendingReply[Any]


class HandledRequests:
    """Deletes them: one by its sequence; several by one purge of their subject up to the last.

    The server has as much to do for one as for the other, above all where it syncs always.
    A purge takes no request but handled ones, because a change set's requests are handled in
    the order of the stream.
    """

    def __init__(self, js: JetStream, stream: str, subject: str) -> None:
        self._js = js
        self._stream = stream
        self._subject = subject
        self._held_back: list[int] = []
        """Sequences for which no call was sent; in the order of the stream."""
        self._held_back_since = 0.0
        self._calls: deque[_Call] = deque()
        """Those that may be unanswered, the oldest first."""
        self._left: deque[int] = deque()
        """Sequences whose call failed; each is deleted by itself."""

    async def add(self, sequence: int) -> None:
        """Take a request whose commit is stored; it must follow those added before.

        It is deleted at the next `send`, or once enough follow or enough time has passed.

        Raises:
            NatsUnreachable: an earlier delete failed, see `wait`.
        """
        now = asyncio.get_running_loop().time()
        if not self._held_back:
            self._held_back_since = now
        self._held_back.append(sequence)
        if len(self._held_back) >= MAX_TOGETHER or now >= self._held_back_since + MAX_DELAY:
            await self.send()

    async def send(self) -> None:
        """Ask the server to delete all that were added; `wait` awaits its answer.

        It waits only while too many calls are unanswered. A cancellation forgets none.

        Raises:
            NatsUnreachable: an earlier delete failed, see `wait`.
        """
        if not self._held_back:
            return
        last, body = self._held_back[-1], dict[str, Any]()
        if len(self._held_back) == 1:
            verb, body = "MSG.DELETE", {"seq": last, "no_erase": True}
        else:
            verb, body = "PURGE", {"filter": self._subject, "seq": last + 1}
        reply = await self._js.request_async(f"STREAM.{verb}.{self._stream}", body)
        self._calls.append(_Call(self._held_back, reply))
        self._held_back = []
        while self._calls and (self._calls[0].reply.done or len(self._calls) > _MAX_UNANSWERED):
            await self._await_oldest()

    async def wait(self) -> None:
        """Return once every request that was added is gone.

        Raises:
            NatsUnreachable: some may be left. They will be delivered again, and skipped.
        """
        await self.send()
        while self._calls:
            await self._await_oldest()
        await self._delete_left()

    def cancel(self) -> None:
        """Wait for no answer any more."""
        for call in self._calls:
            call.reply.cancel()

    def __bool__(self) -> bool:
        return bool(self._held_back or self._calls or self._left)

    async def _await_oldest(self) -> None:
        call = self._calls[0]
        try:
            await call.reply.result(self._js.timeout)
        except JetStreamError:  # also if one is gone already, which `delete_message` handles
            self._left += call.sequences
        self._calls.popleft()
        await self._delete_left()

    async def _delete_left(self) -> None:
        while self._left:
            await retry(self._delete_first_left, _RETRY_FOR)
            self._left.popleft()

    async def _delete_first_left(self) -> None:
        await self._js.delete_message(self._stream, self._left[0])
