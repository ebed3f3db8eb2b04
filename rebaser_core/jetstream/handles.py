"""Streams and consumers as objects to hold on to (ADR-37)."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Self, Unpack

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.configs import ConsumerConfig, ConsumerInfo, StreamConfig, StreamInfo
from rebaser_core.jetstream.errors import Misconfigured
from rebaser_core.jetstream.fetch import FetchBatch, Fetcher
from rebaser_core.jetstream.inbox import AsyncCloseable
from rebaser_core.jetstream.messages import Delivery
from rebaser_core.jetstream.ordered import OrderedReader, ordered_reader
from rebaser_core.jetstream.pull import (
    FETCH_EXPIRES,
    ConsumeOptions,
    Messages,
    Pin,
    PriorityGroup,
    PullEngine,
    PullLimits,
    PullOptions,
    ReadBuffer,
    ReaderOptions,
    join_group,
)


class Stream:
    """One stream, by name."""

    def __init__(self, js: JetStreamApi, name: str) -> None:
        self._js = js
        self.name = name

    async def info(self) -> StreamInfo:
        return await self._js.stream_info(self.name)

    async def config(self) -> StreamConfig:
        return await self._js.stream_config(self.name)

    async def consumer(self, name: str) -> "Consumer":
        """Look an existing pull consumer up.

        Raises:
            ConsumerNotFound: there is none of that name.
            Misconfigured: it is a push consumer.
        """
        info = await self._js.consumer_info(self.name, name)
        return Consumer(self._js, self.name, name, info.config)

    async def create_consumer(self, config: ConsumerConfig) -> "Consumer":
        """Create a pull consumer, or return the existing one if it is just like it.

        Its ack policy is `explicit` unless `config` has another; the server's own default is none.

        Raises:
            AlreadyExists: with another configuration, which stays as it is.
            Misconfigured: it would be a push consumer; nothing was created.
        """
        if config.deliver_subject:
            raise Misconfigured("deliver_subject makes a push consumer: see subscribe")
        wanted = ConsumerConfig(ack_policy="explicit") | config
        info = await self._js.create_consumer(self.name, wanted)
        return Consumer(self._js, self.name, info.name, info.config)

    async def delete_consumer(self, name: str) -> None:
        await self._js.delete_consumer(self.name, name)

    def ordered_consumer(
        self, filter_subject: str | Sequence[str] = ">", **options: Unpack[ReaderOptions]
    ) -> OrderedReader:
        """Return a reader whose consumer lives as long as it is open; see `ordered_reader`."""
        return ordered_reader(self._js, self.name, filter_subject, **options)


class Consumer(AsyncCloseable):
    """One existing pull consumer, as it was when it was looked up.

    Inside `async with` it keeps the subscription that `fetch` needs from one batch to the next;
    otherwise each batch makes one.
    """

    def __init__(
        self,
        js: JetStreamApi,
        stream: str,
        name: str,
        config: ConsumerConfig,
        *,
        created: bool = False,
    ) -> None:
        self.stream = stream
        self.name = name
        self.config = config
        self.created = created
        """Whether the consumer was made for this object, and ends with it."""
        if self.config.deliver_subject:
            raise Misconfigured(f"{self.stream}/{self.name} is a push consumer, not for pulling")
        self._js = js
        self._acks = self.config.is_acked
        self._pin = Pin()
        self._fetcher = Fetcher(js, self.stream, self.name, acks=self._acks)

    async def __aenter__(self) -> Self:
        self._fetcher.keep = True
        return self

    async def info(self) -> ConsumerInfo:
        return await self._js.consumer_info(self.stream, self.name)

    async def delete(self) -> None:
        """Delete the consumer; success if there is none."""
        await self._js.delete_consumer(self.stream, self.name)

    async def fetch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: float = FETCH_EXPIRES,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
        group: PriorityGroup | None = None,
    ) -> list[Delivery]:
        """Return a batch once it is full, or what it has after `expires` seconds.

        Messages that have come wait for the rest: let `expires` be less than the consumer's
        `ack_wait`. With `no_wait` it returns what is there. If cancelled, it gives them back.

        Args:
            max_messages: how many messages at most; more than the consumer's `max_batch` are asked
                for by several pulls, and so is what takes longer than its `max_expires`.
            max_bytes: bytes at most, as the server counts them; one of the two is required. A
                message that does not fit ends the batch.
            expires: seconds.
            no_wait: return what is there at once.
            idle_heartbeat: seconds between signs of life, at most half of `expires`.
            group: the priority group that the batch is for, if the consumer has groups. A pin is
                kept from one batch to the next if no `priority_timeout` passes between their pulls.

        Raises:
            ConsumerGone: there is no such consumer.
            StatusError: the server refuses such a pull.
            HeartbeatsMissed: the server was silent for two heartbeats.
            Misconfigured: the group is not what the consumer has; nothing was asked for.
            NatsUnreachable: there was no connection, or no answer, to the end.
            ValueError: no limit, or one that is not positive.

        Once a message came, an error ends the batch and is not raised.
        """
        return await self._fetcher.fetch(
            FetchBatch(
                max_messages,
                max_bytes,
                join_group(group, self.config, self._pin),
                PullLimits.of(self.config),
            ),
            expires=expires,
            no_wait=no_wait,
            idle_heartbeat=idle_heartbeat,
        )

    async def next(
        self, *, expires: float = FETCH_EXPIRES, group: PriorityGroup | None = None
    ) -> Delivery | None:
        """Return the next message, or None if none came within `expires` seconds."""
        found = await self.fetch(1, expires=expires, group=group)
        return found[0] if found else None

    def messages(
        self, *, group: PriorityGroup | None = None, **options: Unpack[ConsumeOptions]
    ) -> Messages:
        """Return the messages as they come, for `async with` and `async for` or `for_each`.

        Raises:
            Misconfigured: the `group` is not what the consumer has.
            ValueError: the options exclude each other.
        """
        buffer = ReadBuffer(**options).fitted(self.config)
        join_group(group, self.config, self._pin)  # a contradiction is an error now, not later
        pulls = PullOptions(
            expires=buffer.expires,
            idle_heartbeat=buffer.idle_heartbeat,
            acks=self._acks,
            resilient=buffer.resilient,
            group=group,
            pin=self._pin,
        ).fitted(self.config)
        return Messages(PullEngine(self._js, self.stream, self.name, pulls), buffer)

    async def consume(
        self,
        handler: Callable[[Delivery], Awaitable[None]],
        *,
        group: PriorityGroup | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> None:
        """Call the handler with one message after the other until cancelled.

        Messages that have come and were not handled are then given back. An error of the handler
        ends it, too. To drain or stop it, use `messages` and its `for_each`.

        Raises:
            ConsumerGone: the consumer was deleted.
            StatusError: the server refuses such pulls.
            HeartbeatsMissed: the server is silent. Not if resilient.
            Misconfigured: the `group` is not what the consumer has.
            ValueError: the options exclude each other.
        """
        async with self.messages(group=group, **options) as messages:
            await messages.for_each(handler)

    async def close(self) -> None:
        """End the subscription that `fetch` keeps, and the consumer if it was made for this.

        Raises:
            ApiError, NatsUnreachable: the consumer may still be there.
        """
        self._fetcher.keep = False
        await self._fetcher.close()
        if self.created:
            await self.delete()
        self.created = False
