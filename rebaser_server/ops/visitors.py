"""Connections of visitors to the endpoint, bounded before it is known who they are.

Each costs a descriptor of the process, and NATS, store and Spark need some, too. If there are too
many, the longest silent connection is closed, so that a visitor who asks is answered.
"""

import asyncio
import ipaddress
import logging
import resource
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Never, cast

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError

from rebaser_core.jetstream import deadlines
from rebaser_server.runtime.tasks import TaskGroup, background

log: Final = structlog.get_logger()

_MOST: Final = 2_000
"""Maximum number of connections, for any number of descriptors."""
_SHARE: Final = 4
"""Reciprocal of the part of the descriptors that visitors get."""
_PACE: Final = 0.001
"""Seconds between two connections: a thousand in a second leave the loop its time."""
_PENDING: Final = 1024
"""Maximum number of connections that wait in the kernel to be accepted."""
_AGAIN: Final = 0.1
"""Seconds until another try if there is no descriptor for a connection."""
_SWEEP_EVERY: Final = 1.0
"""Maximum number of seconds by which a late visitor may go unseen."""
_IPV6_SITE: Final = 64
"""Bits of an IPv6 address that several machines of one visitor have in common."""


@dataclass(frozen=True, slots=True)
class Bounds:
    connections: int
    per_address: int
    headers: float = 10.0
    """Seconds from the beginning of a connection, or of its next request, to the end of its
    headers; also for the handshake of TLS."""
    body: float = 30.0
    """Seconds from the end of the headers to the end of the body."""
    answer: float = 60.0
    """Seconds in which all of a sent answer is read, or some of a stream of events."""
    idle: float = 75.0
    """Seconds from an answer to the next request."""

    @classmethod
    def of_process(cls) -> "Bounds":
        """Limits that this process's number of descriptors allows."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        connections = min(limit // _SHARE, _MOST) if limit > 0 else _MOST
        return cls(connections, max(connections // 2, 1))


class Visitors:
    """All connections of one endpoint."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._by_origin: dict[str, _Origin] = {}
        self._by_handler: dict[object, _Visitor] = {}
        self._count = 0

    def middleware(self) -> Any:
        """Middleware for aiohttp: for requests that are admitted, which it reads whole."""

        @web.middleware
        async def read(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            visitor = self._by_handler.get(request.protocol)
            if visitor is None:  # it has gone
                raise web.HTTPServiceUnavailable
            visitor.begin_answer()
            try:
                if await self._has_body(request):
                    return await handler(request)
            finally:
                visitor.end_answer()
            late = web.HTTPRequestTimeout(text=f"The body took over {self._bounds.body:g} s.\n")
            late.force_close()
            raise late

        return read

    async def _has_body(self, request: web.Request) -> bool:
        """Read the body, which aiohttp keeps with the request; False if that takes too long."""
        try:
            async with deadlines.within(self._bounds.body):
                await request.read()
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def served(
        self, app: web.Application, host: str, ports: Sequence[int], tls: ssl.SSLContext | None
    ) -> AsyncIterator[tuple[str, int]]:
        """Serve visitors by `app` on the first free port; 0 is any.

        Yields address and port. Connections are accepted while the body runs.

        Raises:
            OSError: none of the ports can be listened on.
        """
        try:
            async with _running(app, self._bounds.idle) as server:
                with ExitStack() as stack:
                    listeners = [stack.enter_context(each) for each in await _listen(host, ports)]
                    async with background(self._receive(listeners, server, tls)):
                        yield listeners[0].getsockname()[:2]
        finally:
            for visitor in self._all():
                visitor.end()

    async def _receive(
        self,
        listeners: Sequence[socket.socket],
        server: web.Server,
        tls: ssl.SSLContext | None,
    ) -> Never:
        async with TaskGroup() as group:
            for listener in listeners:
                group.create_task(self._accept(listener, server, tls, group))
            group.create_task(self._sweep())
        raise AssertionError("they end with a cancellation")

    async def _accept(
        self,
        listener: socket.socket,
        server: web.Server,
        tls: ssl.SSLContext | None,
        group: TaskGroup,
    ) -> Never:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except ConnectionError:  # the visitor has gone
                await asyncio.sleep(_PACE)
                continue
            except OSError as error:
                log.warning("visitor not accepted", error=str(error), visitors=self._count)
                self._make_room()
                await asyncio.sleep(_AGAIN)
                continue
            visitor = self._admit(_origin(address), server)
            connecting = group.create_task(self._connect(visitor, connection, tls))
            visitor.connects(connecting, connection)
            await asyncio.sleep(_PACE)

    async def _connect(
        self, visitor: "_Visitor", connection: socket.socket, tls: ssl.SSLContext | None
    ) -> None:
        within = None if tls is None else self._bounds.headers
        with suppress(OSError, ValueError):  # an `SSLError` is one of these
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: visitor, connection, ssl=tls, ssl_handshake_timeout=within
            )

    def _admit(self, origin: str, server: web.Server) -> "_Visitor":
        bounds = self._bounds
        of_origin = self._by_origin.get(origin)
        if of_origin is not None and len(of_origin) >= bounds.per_address:
            self._turn_away(of_origin, f"{bounds.per_address} connections of its address")
        if self._count >= bounds.connections:
            self._make_room()
        visitor = _Visitor(self, self._by_origin.setdefault(origin, _Origin(origin)), server)
        self._count += 1
        return visitor

    def _make_room(self) -> None:
        """Close a connection of the address that has most of them."""
        if self._by_origin:
            most = max(self._by_origin.values(), key=len)
            self._turn_away(most, f"{self._count} connections in all")

    def _turn_away(self, origin: "_Origin", why: str) -> None:
        """Close the connection of this address that has been silent longest."""
        log.warning("visitor turned away", address=origin.address, reason=f"there were {why}")
        origin.silent_longest().end()

    def _all(self) -> list["_Visitor"]:
        return [visitor for origin in self._by_origin.values() for visitor in origin.all()]

    def begin(self, visitor: "_Visitor", handler: object) -> None:
        """Note that the connection is one for HTTP now."""
        self._by_handler[handler] = visitor

    def forget(self, origin: "_Origin", handler: object) -> None:
        """Note that the connection is closed."""
        self._count -= 1
        self._by_handler.pop(handler, None)
        if not len(origin):
            self._by_origin.pop(origin.address, None)

    async def _sweep(self) -> Never:
        """Close connections that take longer than they may, until cancelled."""
        bounds = self._bounds
        while True:
            await asyncio.sleep(min(_SWEEP_EVERY, bounds.headers, bounds.answer))
            now = asyncio.get_running_loop().time()
            for visitor in self._all():
                if visitor.is_late(now, bounds):
                    visitor.end()


class _Origin:
    """The connections from one address; in each group the latest heard are last."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.waiting: _Group = OrderedDict()
        self.answered: _Group = OrderedDict()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.answered)

    def all(self) -> list["_Visitor"]:
        return [*self.waiting, *self.answered]

    def silent_longest(self) -> "_Visitor":
        """Connection that has been silent longest; those that are being answered come last."""
        return next(iter(self.waiting or self.answered))


class _Visitor(asyncio.Protocol):
    """A connection: hands data to aiohttp's protocol, and notes when it came."""

    def __init__(self, visitors: Visitors, origin: _Origin, server: web.Server) -> None:
        self._visitors = visitors
        self._origin = origin
        self._server = server
        self._handler: web.RequestHandler | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._is_gone = False
        self._is_answered = False
        self._asking_since: float | None = asyncio.get_running_loop().time()
        self._unread_since: float | None = None
        origin.waiting[self] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._is_gone:
            self._transport.abort()
            return
        self._handler = self._server()
        self._visitors.begin(self, self._handler)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._handler is None:
            return
        if not self._is_gone:
            group = self._origin.answered if self._is_answered else self._origin.waiting
            group.move_to_end(self)
        if self._asking_since is None and not self._is_answered:
            self._asking_since = asyncio.get_running_loop().time()
        self._handler.data_received(data)

    def eof_received(self) -> None:
        if self._handler is not None:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        if self._handler is not None:
            self._handler.connection_lost(exc)

    def begin_answer(self) -> None:
        """Note that an admitted request is in hand."""
        self._is_answered, self._asking_since = True, None
        self._move(self._origin.waiting, self._origin.answered)

    def end_answer(self) -> None:
        """Note that another request may come."""
        self._is_answered = False
        self._move(self._origin.answered, self._origin.waiting)

    def _move(self, before: "_Group", after: "_Group") -> None:
        if not self._is_gone:
            before.pop(self, None)
            after[self] = None

    def is_late(self, now: float, bounds: Bounds) -> bool:
        """Whether its headers, or the reading of its answer, take longer than they may."""
        transport = self._transport
        if transport is None:  # the handshake has another limit
            return False
        if not (transport.get_write_buffer_size() or transport.is_closing()):
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        return any(
            since is not None and now - since > limit
            for since, limit in (
                (self._asking_since, bounds.headers),
                (self._unread_since, bounds.answer),
            )
        )

    def connects(self, connecting: asyncio.Task[None], connection: socket.socket) -> None:
        """Take over the socket of a new connection, with a handshake or without."""

        def close_unless_connected(_: object) -> None:
            if self._transport is None:  # a cancelled task may not even have begun
                connection.close()
                self.forget()

        self._connecting = connecting
        connecting.add_done_callback(close_unless_connected)

    def end(self) -> None:
        """Take all resources of ours back, in any state."""
        self.forget()
        if self._transport is not None:
            self._transport.abort()
        elif self._connecting is not None:
            self._connecting.cancel()

    def forget(self) -> None:
        """Note that the connection is closed, or as good as that."""
        if self._is_gone:
            return
        self._is_gone = True
        self._origin.waiting.pop(self, None)
        self._origin.answered.pop(self, None)
        self._visitors.forget(self._origin, self._handler)


_Group = OrderedDict[_Visitor, None]


def _origin(address: Any) -> str:
    """Group of an address: for IPv6, all addresses that one visitor may choose from."""
    with suppress(ValueError):
        ip = ipaddress.ip_address(address[0].partition("%")[0])
        mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
        if isinstance(ip, ipaddress.IPv6Address) and mapped is None and not ip.is_loopback:
            return str(ipaddress.ip_network((ip, _IPV6_SITE), strict=False))
        return str(mapped or ip)
    return str(address[0])


async def _listen(host: str, ports: Sequence[int]) -> list[socket.socket]:
    for port in ports:
        try:
            return await _bind(host, port)
        except OSError:
            if port == ports[-1]:
                raise
    raise ValueError("no port")


async def _bind(host: str, port: int) -> list[socket.socket]:
    """A socket that listens for each address of the host."""
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with ExitStack() as stack:
        bound = []
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.settimeout(0)
            listener.bind(address)
            listener.listen(_PENDING)
            bound.append(listener)
        stack.pop_all()
        return bound


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether the error is a fault of ours; a visitor's is answered, and not worth a line."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


@asynccontextmanager
async def _running(app: web.Application, idle: float) -> AsyncIterator[web.Server]:
    logging.getLogger("aiohttp.server").addFilter(_is_ours)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, keepalive_timeout=idle)
    await runner.setup()
    try:
        yield cast("web.Server", runner.server)  # the server exists from now on
    finally:
        await runner.cleanup()
