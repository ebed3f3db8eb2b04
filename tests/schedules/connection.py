"""The client's end of a simulated connection: what the product uses of nats-py's `Client`."""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
from nats.aio.client import ServerVersion
from nats.aio.msg import Msg

from rebaser_core.jetstream.connection import Connection
from tests.schedules.broker import Broker, Session
from tests.schedules.loop import Process


class Ordered(dict):
    """A set in the order of insertion: a real one's would be that of memory addresses."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class Subscription:
    """Calls back with one message after another, in a task of its own."""

    def __init__(
        self, client: "Client", sid: int, subject: str, queue: str, cb: Callable[[Msg], Awaitable]
    ) -> None:
        self._client = client
        self._id = sid
        self.subject = subject
        self.queue = queue
        self._cb = cb
        self._waiting: deque[Msg] = deque()
        self._task: asyncio.Task | None = None

    def receive(self, message: Msg) -> None:
        self._waiting.append(message)
        if self._task is None:
            self._task = self._client.process.start(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._cb(self._waiting.popleft())
                except Exception as error:  # noqa: BLE001 - as nats-py does
                    await self._client.callbacks["error_cb"](error)
        finally:
            self._task = None

    async def unsubscribe(self) -> None:
        if self._client.is_closed:
            raise nats.errors.ConnectionClosedError
        if self._client.subscriptions.pop(self._id, None) is None:
            raise nats.errors.BadSubscriptionError
        self._waiting.clear()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        await self._client._send_unsubscribe(self._id)


class Client:
    """A connection of the process that makes it; lost, it is made again."""

    max_payload = 1024 * 1024
    last_error = None
    connected_server_version = ServerVersion("2.15.1")

    def __init__(self, broker: Broker) -> None:
        self.process = Process.current()
        self.context = self.process.context
        self.stats = {"reconnects": 0}
        self.subscriptions: dict[int, Subscription] = {}
        self.session: Session | None = None
        self._broker = broker
        self._sids = itertools.count(1)
        self._unsent: list[tuple[Any, ...]] = []
        self._reconnecting: asyncio.Task | None = None
        self.callbacks: dict[str, Any] = {}
        self.is_closed = False
        self._transport = None
        """Nothing waits to be sent: what is published is on its way at once."""
        Connection.of(self)._listeners = Ordered()

    @property
    def is_connected(self) -> bool:
        return self.session is not None and not self.is_closed

    async def connect(self, **options: Any) -> None:
        self.callbacks = options
        await self._make()

    async def _make(self) -> None:
        while self._broker.down:  # noqa: ASYNC110 - as nats-py does
            await asyncio.sleep(self.callbacks["reconnect_time_wait"])
        await asyncio.sleep(self._broker.weather.moment())
        session = self._broker.connect(self, self.process.name)
        for sid, subscription in self.subscriptions.items():
            session.up.send(session.subscribe, sid, subscription.subject, subscription.queue)
        for publish in self._unsent:
            session.up.send(self._broker.published, session, *publish)
        self._unsent.clear()
        self.session = session

    def lost(self, session: Session) -> None:
        """Notice that the connection is gone."""
        if session is self.session:
            session.sever()
            self.session = None
            self._reconnecting = self.process.start(self._reconnect())

    async def _reconnect(self) -> None:
        await self.callbacks["disconnected_cb"]()
        await asyncio.sleep(self.callbacks["reconnect_time_wait"])
        self.stats["reconnects"] += 1
        await self._make()
        await self.callbacks["reconnected_cb"]()

    async def force_reconnect(self) -> None:
        if self.session is not None:
            self.session.end()
            self.lost(self.session)

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        message = (subject, reply, headers or {}, payload)
        if self.session is None:
            self._unsent.append(message)
        else:
            self.session.up.send(self._broker.published, self.session, *message)
        if self._broker.weather.random.random() < 0.1:
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Messages are in order here, so that subscriptions arrive before what follows them."""

    async def subscribe(
        self,
        subject: str,
        queue: str = "",
        cb: Any = None,
        pending_msgs_limit: int = 0,
        pending_bytes_limit: int = 0,
    ) -> Subscription:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        sid = next(self._sids)
        subscription = self.subscriptions[sid] = Subscription(self, sid, subject, queue, cb)
        if self.session is not None:
            self.session.up.send(self.session.subscribe, sid, subject, queue)
        return subscription

    async def _send_unsubscribe(self, sid: int, limit: int = 0) -> None:
        if self.session is not None:
            self.session.up.send(self.session.unsubscribe, sid)

    async def _send_ping(self, pong: asyncio.Future) -> None:
        if self.session is not None:
            answer = lambda: pong.done() or pong.set_result(True)  # noqa: E731 - one expression
            self.session.up.send(self.session.ping, answer)

    def received(
        self,
        session: Session,
        sid: int,
        subject: str,
        payload: bytes,
        reply: str,
        headers: dict[str, str] | None,
    ) -> None:
        """A message has arrived."""
        subscription = self.subscriptions.get(sid)
        if session is self.session and subscription is not None:
            subscription.receive(Msg(self, subject, reply, payload, headers))

    def new_inbox(self) -> str:
        return f"_INBOX.{self.process.name}.{next(self._broker.numbers)}"

    async def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        session, self.session = self.session, None
        if session is not None:
            session.up.send(session.end)
        await self.callbacks["closed_cb"]()
