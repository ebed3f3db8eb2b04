"""Streams and consumers as things to hold on to (ADR-37)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Unpack

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.consumers.consume import ConsumeOptions, Messages, for_each
from rebaser_core.jetstream.consumers.fetch import Fetcher
from rebaser_core.jetstream.consumers.ordered_consumers import ordered_reader
from rebaser_core.jetstream.consumers.ordered_reader import OrderedReader, ReaderOptions
from rebaser_core.jetstream.consumers.pull_engine import PullEngine, PullOptions
from rebaser_core.jetstream.errors import Misconfigured
from rebaser_core.jetstream.messages.delivery import Delivery


class Stream:
    """One stream, by name."""

    def __init__(self, js: JetStreamApi, name: str) -> None:
        self._js = js
        self.name = name

    async def info(self) -> dict[str, Any]:
        return await self._js.stream_info(self.name)

    async def consumer(self, name: str) -> "Consumer":
        """Look an existing pull consumer up.

        Raises:
            ConsumerNotFound: there is none of that name.
            Misconfigured: it is a push consumer.
        """
        return Consumer(self._js, await self._js.consumer_info(self.name, name))

    async def create_consumer(self, config: Mapping[str, Any]) -> "Consumer":
        """Create a pull consumer, or return the one that is just like it.

        Raises:
            AlreadyExists: with another configuration, which stays as it is.
        """
        return Consumer(self._js, await self._js.create_consumer(self.name, config))

    async def delete_consumer(self, name: str) -> None:
        await self._js.delete_consumer(self.name, name)

    def ordered_consumer(
        self, filter_subject: str | Sequence[str] = ">", **options: Unpack[ReaderOptions]
    ) -> OrderedReader:
        """Return a reader whose consumer comes and goes with it; see `ordered_reader`."""
        return ordered_reader(self._js, self.name, filter_subject, **options)


class Consumer:
    """One existing pull consumer, as it was when it was looked up."""

    def __init__(self, js: JetStreamApi, info: Mapping[str, Any]) -> None:
        self.config: Mapping[str, Any] = info["config"]
        self.stream: str = info["stream_name"]
        self.name: str = info["name"]
        if self.config.get("deliver_subject"):
            raise Misconfigured(f"{self.stream}/{self.name} is a push consumer, not for pulling")
        self._js = js
        self._acks = self.config.get("ack_policy", "none") != "none"
        self._fetcher = Fetcher(js, self.stream, self.name, acks=self._acks)

    async def info(self) -> dict[str, Any]:
        return await self._js.consumer_info(self.stream, self.name)

    async def delete(self) -> None:
        """Have no such consumer; that there is none already is success."""
        await self._js.delete_consumer(self.stream, self.name)

    async def fetch(
        self,
        batch: int = 1,
        *,
        timeout: float = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        heartbeat: float | None = None,
    ) -> list[Delivery]:
        """Return up to `batch` messages, none if none came; see `Fetcher.fetch`."""
        return await self._fetcher.fetch(
            batch, timeout=timeout, max_bytes=max_bytes, no_wait=no_wait, heartbeat=heartbeat
        )

    async def next(self, *, timeout: float = 5.0) -> Delivery | None:
        """Return the next message, or None if none came."""
        found = await self.fetch(1, timeout=timeout)
        return found[0] if found else None

    def messages(self, **buffering: Any) -> Messages:
        """Return the messages as they come, for `async with` and `async for`.

        Options are those of `ConsumeOptions`.
        """
        how = ConsumeOptions(**buffering)
        pulls = PullOptions(
            expires=how.expires,
            heartbeat=how.heartbeat,
            acks=self._acks,
            resilient=how.resilient,
        )
        return Messages(PullEngine(self._js, self.stream, self.name, pulls), how)

    async def consume(
        self, handler: Callable[[Delivery], Awaitable[None]], **buffering: Any
    ) -> None:
        """Call the handler with one message after the other until cancelled.

        What has come and was not handled is then given back. What the handler
        raises ends it, too.

        Raises:
            ConsumerGone: the consumer was deleted.
            StatusError: the server refuses such pulls.
            HeartbeatsMissed: the server is silent. Not if resilient.
        """
        await for_each(self.messages(**buffering), handler)

    async def close(self) -> None:
        """End the subscription that `fetch` keeps. The consumer stays."""
        await self._fetcher.close()
