"""A request that was sent and whose reply is awaited later; many may be pending at once."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from nats.aio.msg import Msg

from rebaser_core.jetstream.errors import NatsUnreachable, NoResponders

T = TypeVar("T")


class PendingReply(Generic[T]):
    """The caller awaits `result` once, or calls `cancel`. No task runs meanwhile."""

    __slots__ = ("_future", "_read", "_subject")

    def __init__(
        self, subject: str, future: "asyncio.Future[Msg | None]", read: Callable[[Msg], T]
    ) -> None:
        self._subject = subject
        self._future = future
        self._read = read

    @property
    def done(self) -> bool:
        """Whether `result` would return without waiting."""
        return self._future.done()

    async def result(self, timeout: float) -> T:
        """Return the reply.

        May be cancelled; the answer is then lost, and whether the server did it unknown.

        Raises:
            NatsUnreachable: no responders, `timeout` seconds passed, or the connection went down.
            ApiError: as the question is read.
        """
        if not self._future.done():
            await asyncio.wait([self._future], timeout=timeout)
        if not self._future.done():
            self.cancel()
            raise NatsUnreachable(f"no answer on {self._subject} within {timeout} s")
        return self._read(check_reply(self._subject, self._future.result()))

    def cancel(self) -> None:
        """Stop waiting for it."""
        self._future.cancel()


def check_reply(subject: str, message: Msg | None) -> Msg:
    """Return the reply; `message` is None if the connection went down before it came.

    Raises:
        NatsUnreachable: there is no reply.
        NoResponders: nothing listens on the subject.
    """
    if message is None:
        raise NatsUnreachable(f"connection lost before an answer on {subject}")
    if not message.data and (message.headers or {}).get("Status") == "503":
        raise NoResponders(f"no responders on {subject}")
    return message
