"""A connection that comes back by itself, whatever happened to it, and closes in time."""

import asyncio
import json
import socket
from collections.abc import Awaitable

import nats
import pytest

from rebaser_core.jetstream import (
    ConnectOptions,
    ConsumerConfig,
    JetStream,
    NatsUnreachable,
    connected,
)
from rebaser_core.jetstream.connection import Connection
from rebaser_core.jetstream.errors import LoginRefused
from tests.helpers.eventually import eventually
from tests.helpers.listener import listening
from tests.helpers.nats_process import NatsServer, running
from tests.jetstream.stalling_proxy import DeafProxy
from tests.jetstream.steps import filled, spied


def options(server: NatsServer, **more) -> ConnectOptions:
    return ConnectOptions(servers=(server.url,), **more)


async def test_a_first_connection_has_a_deadline_and_tells_why() -> None:
    """Of a server that accepts connections, and says nothing."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host, port = silent.getsockname()
        nowhere = ConnectOptions(servers=(f"nats://{host}:{port}",), connect_timeout=0.3)

        with pytest.raises(NatsUnreachable, match=rf"127\.0\.0\.1:{port} within 0\.3 s"):
            async with connected(nowhere):
                pass


async def test_a_refused_first_connection_is_reported_at_once() -> None:
    nowhere = ConnectOptions(servers=("nats://127.0.0.1:1",), connect_timeout=3600)

    with pytest.raises(
        NatsUnreachable, match=r"no NATS server at nats://127\.0\.0\.1:1: .*Refused"
    ):
        async with connected(nowhere):
            pass


def test_servers_are_several_urls_and_no_text() -> None:
    with pytest.raises(TypeError, match="must be a tuple"):
        ConnectOptions(servers="nats://127.0.0.1:4222")


async def test_a_wrong_password_is_reported(tmp_path) -> None:
    config = "authorization { user: a, password: right }"
    with running(NatsServer(tmp_path, config)) as server:
        with pytest.raises(NatsUnreachable, match=r"(?i)authorization"):
            async with connected(options(server, user="a", password="wrong", connect_timeout=4)):
                pass
        async with connected(options(server, user="a", password="right")) as nc:
            assert nc.is_connected


async def test_a_refusal_is_reported_even_if_later_tries_only_see_the_connection_reset() -> None:
    """As happens when the server's word and its reset arrive together."""
    tries = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            writer.write(b'INFO {"auth_required": true}\r\n')
            await reader.readline()
            writer.write(b"-ERR 'Authorization Violation'\r\n")
            await writer.drain()
        else:
            writer.transport.abort()

    async with listening(refuse) as port:
        refused = ConnectOptions(servers=(f"nats://127.0.0.1:{port}",), connect_timeout=3)

        with pytest.raises(NatsUnreachable, match=r"(?i)authorization violation.*; \w+"):
            async with connected(refused):
                pass

    assert tries > 1


async def test_an_attempt_that_came_to_nothing_leaves_no_socket_open() -> None:
    """As when the server is there and not ready: nothing of a failed attempt may pile up."""
    left, attempts = 0, 0
    greeting = {"max_payload": 1 << 20, "headers": True}

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left, attempts
        attempts += 1
        left += 1
        if attempts == 1:
            writer.write(b"INFO " + json.dumps(greeting).encode() + b"\r\n")
            while (line := await reader.readline()) != b"PING\r\n":
                assert line
            writer.write(b"PONG\r\n")
        else:
            writer.write(b"no greeting\r\n")
        if attempts > 1:
            await reader.read()
        left -= 1

    async with listening(greet) as port:
        async with connected(ConnectOptions(servers=(f"nats://127.0.0.1:{port}",))):
            await eventually(lambda: attempts > 4 and left <= 1)
        await eventually(lambda: left == 0)


original_wait_for = asyncio.wait_for


async def wait_forgetfully(answer: Awaitable[bytes], _: float) -> bytes:
    """Python 3.11's `wait_for` where an answer comes with a cancellation: it forgets that one."""
    waiting = asyncio.ensure_future(answer)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        return await original_wait_for(waiting, 1)


async def test_reconnecting_ends_with_the_connection_where_an_answer_comes_at_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts, asked, answer = 0, asyncio.Event(), asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.write(b'INFO {"max_payload": 1048576, "headers": true}\r\n')
        await reader.readuntil(b"PING\r\n")
        if attempts > 1:
            asked.set()
            await answer.wait()
        writer.write(b"PONG\r\n")
        if attempts > 1:
            await reader.read()

    monkeypatch.setattr(asyncio, "wait_for", wait_forgetfully)
    async with listening(greet) as port:
        async with connected(ConnectOptions(servers=(f"nats://127.0.0.1:{port}",))) as nc:
            await asked.wait()
            asyncio.get_running_loop().call_later(0.1, answer.set)
        assert nc.is_closed
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await eventually(lambda: all(task.done() for task in others))


async def test_a_first_connection_keeps_its_deadline_where_an_answer_comes_at_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"auth_required": true}\r\n')
        await reader.readline()
        await asyncio.sleep(1.5)  # the deadline passes meanwhile
        writer.write(b"-ERR 'Authorization Violation'\r\n")

    async with listening(refuse) as port:
        refused = ConnectOptions(servers=(f"nats://127.0.0.1:{port}",), connect_timeout=1)
        monkeypatch.setattr(asyncio, "wait_for", wait_forgetfully)

        async def connect() -> None:
            async with connected(refused):
                pass

        ended, _ = await asyncio.wait([asyncio.create_task(connect())], timeout=30)

    assert [type(task.exception()) for task in ended] == [LoginRefused]


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(ConnectOptions(password="hush", token="hush", nkeys_seed="hush"))


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_it_comes_back_soon_after_the_server(server: NatsServer, how: str) -> None:
    async with connected(options(server)) as nc:
        getattr(server, how)()
        await eventually(lambda: not nc.is_connected)
        await asyncio.sleep(0.3)  # attempts to reconnect fail meanwhile
        await asyncio.to_thread(server.start)

        async with asyncio.timeout(30):
            await Connection.of(nc).wait_connected()


async def test_a_reader_that_died_is_found_and_replaced(server: NatsServer) -> None:
    """As of nats-py when anything raises in it: nothing shows but that no answer comes."""
    async with connected(options(server, probe_interval=0.2, probe_timeout=1)) as nc:
        nc._reading_task.cancel()
        await asyncio.wait([nc._reading_task])
        assert nc.is_connected

        await eventually(lambda: Connection.of(nc).reconnects > 0)
        assert await Connection.of(nc).ping(30)


async def test_a_connection_that_the_server_ends_for_one_message_is_made_anew(tmp_path) -> None:
    """The server does not announce how long a line may be. nats-py would be closed for good."""
    errors: list[Exception] = []
    with running(NatsServer(tmp_path, "max_control_line: 512")) as server:
        async with connected(options(server), on_error=errors.append) as nc:
            connection = Connection.of(nc)
            await connection.publish("x", reply="r" * 600)

            await eventually(lambda: connection.reconnects == 1)
            assert await connection.ping(30)

    assert "maximum control line" in str(errors[0]).lower()


async def test_a_link_that_went_deaf_is_found_and_replaced(server: NatsServer) -> None:
    async with DeafProxy(server.port) as proxy:
        reached = ConnectOptions(servers=(proxy.url,), probe_interval=0.2, probe_timeout=1)
        async with connected(reached) as nc:
            proxy.deaf = True
            proxy.hear_new_connections()

            await eventually(lambda: Connection.of(nc).reconnects > 0)
            await JetStream(nc).stream_names()


async def test_a_round_trip_that_was_given_up_harms_nothing(server: NatsServer) -> None:
    """The late answer to `rtt` or `flush` of nats-py ends its reader."""
    async with connected(options(server)) as nc:
        link = Connection.of(nc)
        server.freeze()
        assert not await link.ping(0.05)
        server.thaw()

        assert await link.ping(30)
        assert not nc._reading_task.done()


async def test_a_round_trip_overtakes_nothing_that_was_sent_before(js: JetStream) -> None:
    async with spied(js, "x") as seen:
        for number in range(20):
            await js.connection.publish("x", json.dumps([number, "-" * 100_000]).encode())
        assert await js.connection.ping(30)

        assert [number for number, _ in seen] == list(range(20))


async def test_requests_under_way_fail_when_the_connection_does(js: JetStream, server) -> None:
    await filled(js)
    server.freeze()
    sent = js.nc.stats["out_msgs"]
    asking = asyncio.create_task(js.request("STREAM.INFO.S", timeout=60))
    await eventually(lambda: js.nc.stats["out_msgs"] > sent)
    server.kill()

    with pytest.raises(NatsUnreachable, match="connection lost"):
        async with asyncio.timeout(30):
            await asking


async def test_a_request_made_while_down_is_answered_once_up(js: JetStream, server) -> None:
    await filled(js)
    server.kill()
    await eventually(lambda: not js.connection.is_connected)
    asking = asyncio.create_task(js.stream_names())
    await asyncio.to_thread(server.start)

    assert await asking == ["S"]


async def test_a_cancelled_request_is_cancelled(js: JetStream) -> None:
    """nats-py returns an answer that comes in the same moment, and the cancellation is lost."""
    for steps in range(200):
        asking = asyncio.create_task(js.stream_names())
        for _ in range(steps % 20):
            await asyncio.sleep(0)
        cancelled = asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled() == cancelled
    await eventually(
        lambda: not js.connection.pending_replies
    )  # once the last of them was answered


async def test_after_closing_everything_is_unreachable(server: NatsServer) -> None:
    async with connected(options(server)) as nc:
        js = JetStream(nc)
    for attempt in (js.stream_names(), js.connection.wait_connected(), js.connection.publish("a")):
        with pytest.raises(NatsUnreachable):
            await attempt


async def test_closing_is_quick_though_the_server_is_deaf(server: NatsServer) -> None:
    async with asyncio.timeout(15), connected(options(server)) as nc:  # nats-py alone: 30 s
        await nc.publish("a", bytes(900_000))
        server.freeze()


async def test_leaving_by_an_error_closes_it_and_lets_the_error_out(server: NatsServer) -> None:
    with pytest.raises(LookupError):
        async with connected(options(server)) as nc:
            raise LookupError
    assert nc.is_closed


async def test_any_connection_of_nats_py_will_do(server: NatsServer) -> None:
    """Without our callbacks the layer looks at the connection now and then."""
    nc = await nats.connect(server.url, reconnect_time_wait=0.1, max_reconnect_attempts=-1)
    try:
        js = JetStream(nc)
        await filled(js, "s.a")
        async with js.stream("S").ordered_consumer(idle_heartbeat=0.5) as reader:
            assert int((await reader.next()).payload) == 1
            server.kill()
            await asyncio.to_thread(server.start)
            assert await reader.next(idle_timeout=0) is None
    finally:
        await nc.close()


async def test_who_waits_for_a_message_hears_of_the_end(server: NatsServer) -> None:
    async with connected(options(server)) as nc:
        js = JetStream(nc)
        await filled(js)
        reader = js.stream("S").ordered_consumer()
        worker = await js.stream("S").create_consumer(ConsumerConfig(durable_name="d"))
        waiting = [
            asyncio.ensure_future(work) for work in (reader.next(), anext(worker.messages()))
        ]
        await asyncio.wait(waiting, timeout=0.1)

    async with asyncio.timeout(30):
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [NatsUnreachable, NatsUnreachable]


async def test_nothing_is_left_running(server: NatsServer) -> None:
    before = asyncio.all_tasks()
    async with connected(options(server)) as nc:
        js = JetStream(nc)
        await filled(js, "s.a")
        async with js.stream("S").ordered_consumer() as reader:
            await reader.next()

    await eventually(lambda: asyncio.all_tasks() == before)
