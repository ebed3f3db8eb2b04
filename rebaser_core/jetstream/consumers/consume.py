"""Continuous reading of a consumer with a buffer (ADR-37, consume)."""

from rebaser_core.jetstream.consumers.message_reader import MessageReader
from rebaser_core.jetstream.consumers.pull_engine import PullEngine
from rebaser_core.jetstream.consumers.read_buffer import ReadBuffer
from rebaser_core.jetstream.messages.delivery import Delivery


class Messages(MessageReader):
    """A consumer's messages, one after the other, with more of them ready.

    An async context manager, to be iterated or given a handler (`for_each`). One task at a
    time may read; another one may call `drain` or `stop`.
    """

    def __init__(self, pulling: PullEngine, buffering: ReadBuffer) -> None:
        self._engine = pulling
        self._buffer = buffering

    async def next(self) -> Delivery | None:
        """Return the next message, or None when drained or stopped; errors as of `consume`.

        May be cancelled at any time: a message that comes meanwhile is the next call's.
        """
        return await self._engine.next(self._buffer.refill)

    async def drain(self) -> None:
        """Ask for nothing more. The reading ends after what has come by then."""
        await self._engine.stop()

    async def stop(self) -> None:
        """End it now. What has come and was not handed out is given back."""
        await self._engine.close()

    async def close(self) -> None:
        await self.stop()
