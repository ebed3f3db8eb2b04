"""Continuous reading of a consumer with a buffer (ADR-37, consume)."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from rebaser_core.jetstream.consumers.message_reader import MessageReader
from rebaser_core.jetstream.consumers.pull_engine import PullEngine
from rebaser_core.jetstream.consumers.pull_request import UNLIMITED, PullBudget
from rebaser_core.jetstream.messages.delivery import Delivery

DEFAULT_MESSAGES: Final = 1000
_DEFAULT_THRESHOLD: Final = 0.5  # of the buffer, when it is filled again
_FIRST_EDITION_THRESHOLD: Final = 0.25  # the same in the first edition of the ADR


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions:
    """How much to have ready, and when to ask for more; durations in seconds.

    Of `max_messages` and `max_bytes` only one. The threshold is how much of it
    must have been used up until more is asked for. `resilient` chooses between
    the newest ADR-37 (ask again, whatever happens, while there is a consumer)
    and its first edition (missed heartbeats, or a consumer that is not there
    after a reconnect, are the end).

    Raises:
        ValueError: these exclude each other.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    threshold_messages: int | None = None
    threshold_bytes: int | None = None
    expires: float = 30.0
    heartbeat: float = 5.0
    resilient: bool = True

    def __post_init__(self) -> None:
        if self.max_messages is not None and self.max_bytes is not None:
            raise ValueError("either max_messages or max_bytes")
        if 0 in (self.max_messages, self.max_bytes) or not 0 < self.threshold <= self.limit:
            raise ValueError("the limit must be positive and the threshold within it")
        if not 0 < 2 * self.heartbeat <= self.expires:
            raise ValueError("the heartbeat must be at most half of expires")

    @property
    def limit(self) -> int:
        return self.max_bytes or self.max_messages or DEFAULT_MESSAGES

    @property
    def threshold(self) -> int:
        given = self.threshold_bytes if self.max_bytes else self.threshold_messages
        if given is not None:
            return given
        return math.ceil(
            self.limit * (_DEFAULT_THRESHOLD if self.resilient else _FIRST_EDITION_THRESHOLD)
        )

    def refill(self, pending: PullBudget) -> dict[str, int] | None:
        """Return the pull that fills the buffer, once the threshold is used up."""
        free = self.limit - (pending.octets if self.max_bytes else pending.messages)
        if free < self.threshold:
            return None
        return {"batch": UNLIMITED, "max_bytes": free} if self.max_bytes else {"batch": free}


class Messages(MessageReader):
    """A consumer's messages, one after the other, with more of them ready.

    An async context manager and iterator. One task at a time may iterate; another
    one may call `drain` or `stop`.
    """

    def __init__(self, pulling: PullEngine, buffering: ConsumeOptions) -> None:
        self._engine = pulling
        self._options = buffering

    async def next(self) -> Delivery | None:
        """Return the next message, or None when drained or stopped; errors as of `consume`.

        May be cancelled at any time: a message that comes meanwhile is the next call's.
        """
        return await self._engine.next(self._options.refill)

    async def drain(self) -> None:
        """Ask for nothing more. The iteration ends after what has come by then."""
        await self._engine.stop()

    async def stop(self) -> None:
        """End it now. What has come and was not handed out is given back."""
        await self._engine.close()

    async def close(self) -> None:
        await self.stop()


async def for_each(messages: Messages, handler: Callable[[Delivery], Awaitable[None]]) -> None:
    """Call the handler with one message after the other until the messages end."""
    async with messages:
        async for delivery in messages:
            await handler(delivery)
