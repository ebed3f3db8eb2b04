"""Readers are closed by leaving them and read by iterating; here is how, once."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.errors import JetStreamError
from rebaser_core.jetstream.messages.delivery import Delivery


class AsyncCloseable(ABC):
    """An async context manager that closes itself, however the body ends."""

    @abstractmethod
    async def close(self) -> None:
        """End it and leave nothing behind. May be called again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class MessageReader(AsyncCloseable):
    """One that is also iterated. Leaving the loop loses nothing; the next one goes on."""

    @abstractmethod
    async def next(self) -> Delivery | None:
        """Return the next message, or None at the end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        delivery = await self.next()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def for_each(self, handler: Callable[[Delivery], Awaitable[None]]) -> None:
        """Call the handler with one message after the other until they end.

        Another task may drain or stop the reader. What the handler raises ends it, too; a
        message whose handler is cancelled has been handed out.
        """
        async for delivery in self:
            await handler(delivery)


@contextlib.asynccontextmanager
async def best_effort(seconds: float) -> AsyncIterator[None]:
    """Run a last word on the way out: at most so long, and without a word if it fails."""
    # Whatever was raised before, a cancellation among it, must not be replaced by what it says.
    with contextlib.suppress(TimeoutError, JetStreamError):
        async with deadlines.within(seconds):
            yield
