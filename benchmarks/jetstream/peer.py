"""What the clients under comparison have in common, each used as its own documents say."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

STREAM = "S"


class Taken(NamedTuple):
    """A message of a pull consumer."""

    payload: bytes
    ack: Callable[[], Awaitable[object]]


class Puller(ABC):
    """A pull consumer in use."""

    @abstractmethod
    async def fetch(self, count: int, expires: float) -> Sequence[Taken]:
        """Ask for so many messages, for so many seconds."""

    @abstractmethod
    async def consume(self, count: int) -> None:
        """Read so many messages the client's fastest way, and ack each."""


Receive = Callable[[], Awaitable[bytes]]
"""Returns the next message's payload."""


class Peer(ABC):
    """A client with a connection of its own."""

    name: str

    @abstractmethod
    async def publish(self, subject: str, payload: bytes) -> None:
        """Have the message stored."""

    @abstractmethod
    async def say(self, subject: str, payload: bytes) -> None:
        """Publish without an answer."""

    @abstractmethod
    async def stream_info(self) -> object:
        """Ask the server one question."""

    @abstractmethod
    def ordered(self, subject: str) -> AbstractAsyncContextManager[Receive]:
        """Read the stream in order, by an ordered consumer."""

    @abstractmethod
    async def handle_slowly(self, subject: str, pause: Callable[[], Awaitable[Any]]) -> int:
        """Read everything by a handler that stands still at the first message; return the number.

        A second without a message is the end.
        """

    @abstractmethod
    def pull(self, consumer: str) -> AbstractAsyncContextManager[Puller]:
        """Use the stream's pull consumer of that name."""

    @abstractmethod
    async def create_consumer(self, name: str, **config: Any) -> None:
        """Create a durable pull consumer of `STREAM`, with what the client adds by itself."""

    @abstractmethod
    def received(self) -> int:
        """Bytes that came over the connection."""
