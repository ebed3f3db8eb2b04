"""Readers are closed by leaving them and read by iterating; here is how, once."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rebaser_core.jetstream.deliveries import Delivery


class Closing(ABC):
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


class Reader(Closing):
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
