"""Visitors over real sockets, within bounds that are smaller than the product's."""

import asyncio
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from rebaser_server.ops.visitors import Bounds, Visitors, _origin
from tests.helpers.eventually import eventually

HOST = "127.0.0.1"
ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = 32 << 20
"""Bytes of an answer that no buffer of a socket holds."""
_ROOM = Bounds(100, 100)


@asynccontextmanager
async def _served(
    bounds: Bounds, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[int, asyncio.Barrier]]:
    """The port, and what an answer under /slow waits at: first when it begins, then to end."""
    visitors, gate = Visitors(bounds), asyncio.Barrier(2)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{len(await request.read())}")

    async def slow(_: web.Request) -> web.Response:
        await gate.wait()
        await gate.wait()
        return web.Response(text="at last")

    async def much(_: web.Request) -> web.Response:
        return web.Response(body=bytes(LONG))

    app = web.Application(middlewares=[visitors.middleware()])
    app.router.add_routes(
        [
            web.get("/", answer),
            web.post("/", answer),
            web.get("/slow", slow),
            web.get("/much", much),
        ]
    )
    async with visitors.served(app, HOST, [0], tls) as (_, port):
        yield port, gate


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self, question: bytes = ASK) -> bytes:
        """The headers of the answer; nothing if there is none."""
        with suppress(OSError, asyncio.IncompleteReadError):
            self.writer.write(question)
            return await self.reader.readuntil(b"\r\n\r\n")
        return b""

    async def is_ended(self) -> bool:
        """Return once the other end has ended it."""
        with suppress(OSError):
            while await self.reader.read(1 << 16):
                pass
        return True


@asynccontextmanager
async def _connected(
    port: int, count: int = 1, origin: str = HOST
) -> AsyncIterator[list[_Connection]]:
    held = [
        _Connection(*await asyncio.open_connection(HOST, port, local_addr=(origin, 0)))
        for _ in range(count)
    ]
    try:
        yield held
    finally:
        for each in held:
            each.writer.transport.abort()


async def test_the_connection_that_was_silent_longest_makes_room() -> None:
    """Within one address; the one that has just asked stays."""
    async with _served(Bounds(10, 3)) as (port, _), _connected(port, 3) as [first, second, third]:
        for each in (second, third, first):
            assert b"200" in await each.answer()

        async with _connected(port) as [fourth]:
            assert b"200" in await fourth.answer()

        await asyncio.wait_for(second.is_ended(), 60)
        assert b"200" in await first.answer()
        assert b"200" in await third.answer()


async def test_who_has_just_said_something_does_not_make_room() -> None:
    """Also if it is no request yet."""
    async with (
        _served(Bounds(10, 2)) as (port, _),
        _connected(port, 2) as [first, second],
        _connected(port, 1, "127.0.0.2") as [other],
    ):
        await second.answer()
        first.writer.write(ASK[:4])
        await other.answer()

        async with _connected(port):
            ends = {asyncio.create_task(each.is_ended()): each for each in (first, second)}
            [end], _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            assert ends[end] is second


async def test_connections_of_all_addresses_together_are_bounded() -> None:
    """The address that has most of them makes room."""
    async with (
        _served(Bounds(3, 3)) as (port, _),
        _connected(port, 1) as [single],
        _connected(port, 2, "127.0.0.2") as [first, second],
        _connected(port, 1, "127.0.0.3") as [last],
    ):
        await asyncio.wait_for(first.is_ended(), 60)

        for each in (single, second, last):
            assert b" 200 " in await each.answer()


def test_addresses_that_a_visitor_may_choose_from_are_one() -> None:
    one, other, else_where = "2001:db8:0:1::1", "2001:db8:0:1:ffff::2%eth0", "2001:db8:0:2::1"

    assert _origin((one, 1)) == _origin((other, 2)) != _origin((else_where, 1))
    assert _origin(("::ffff:10.0.0.1", 1)) == _origin(("10.0.0.1", 2)) != _origin(("10.0.0.2", 1))


async def test_an_answer_in_hand_goes_after_connections_that_wait() -> None:
    async with _served(Bounds(3, 3)) as (port, gate), _connected(port) as [asked]:
        answer = asyncio.create_task(asked.answer(ASK.replace(b"/ ", b"/slow ", 1)))
        await gate.wait()
        async with _connected(port, 20) as held:
            await asyncio.wait_for(held[0].is_ended(), 60)
            assert b"200" in await held[-1].answer()
            await gate.wait()

            assert b"200" in await answer


@pytest.mark.parametrize(
    ("said", "bounds"),
    [
        (b"", Bounds(100, 100, headers=0.6)),
        (ASK[:-4], Bounds(100, 100, headers=0.6)),
        (ASK, Bounds(100, 100, idle=0.6)),
    ],
    ids=["nothing", "half a header", "nothing more"],
)
async def test_a_connection_ends_that_takes_too_long_for(said: bytes, bounds: Bounds) -> None:
    async with _served(bounds) as (port, _), _connected(port) as [slow]:
        slow.writer.write(said)
        await asyncio.wait_for(slow.is_ended(), 60)

        async with _connected(port) as [quick]:
            assert b"200" in await quick.answer()


async def test_who_does_not_read_an_answer_is_let_go() -> None:
    """Long before another is who asks nothing."""
    bounds = Bounds(100, 100, headers=3, answer=0.5)
    async with _served(bounds) as (port, _), _connected(port, 2) as [slow, silent]:
        await slow.answer(ASK.replace(b"/ ", b"/much ", 1))
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]

        await asyncio.wait_for(silent.is_ended(), 60)

        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await slow.reader.readexactly(LONG)


async def test_a_body_that_takes_too_long_is_answered_with_408() -> None:
    post = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n"
    async with _served(Bounds(100, 100, body=0.6)) as (port, _), _connected(port, 2) as both:
        late = await both[0].answer(post + b"ab")
        assert b" 408 " in late

        assert b" 200 " in await both[1].answer(post + b"abcde")


async def test_a_request_after_a_pause_is_answered_on_the_same_connection() -> None:
    """The seconds for headers begin anew with each request."""
    async with _served(Bounds(100, 100, headers=3)) as (port, _), _connected(port) as [steady]:
        for _ in range(3):
            assert b" 200 " in await steady.answer()
            await steady.reader.readexactly(1)
            over = time.monotonic() + 1.6
            await eventually(lambda over=over: time.monotonic() > over)  # type: ignore[misc]


async def test_a_handshake_that_is_never_ended_makes_room(tmp_path: Path) -> None:
    """Of TLS: connections that have not got as far as HTTP count, too."""
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    await asyncio.to_thread(
        subprocess.run,
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    trust = ssl.create_default_context(cafile=certificate)
    async with _served(Bounds(5, 5), context) as (port, _), _connected(port, 20) as held:
        await asyncio.wait_for(held[0].is_ended(), 60)

        secure = _Connection(
            *await asyncio.open_connection(HOST, port, ssl=trust, server_hostname="localhost")
        )
        assert b" 200 " in await secure.answer()
        secure.writer.transport.abort()


async def test_listeners_end_with_what_they_were_made_for() -> None:
    async with _served(_ROOM) as (port, _), _connected(port) as [held]:
        assert b" 200 " in await held.answer()

    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection(HOST, port)
