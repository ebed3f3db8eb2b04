"""Who is presumed dead, and whose turn it is to act on it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.jetstream.connection import Connection, subscribed
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.cluster import membership
from rebaser_server.cluster.membership import Membership, present
from rebaser_server.runtime.tasks import background
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer

SUBJECTS = Subjects()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that a busy machine answers late is not given up."""
    monkeypatch.setattr(membership, "CHECK_TIMEOUT", 2.0)


@asynccontextmanager
async def member(server: NatsServer, name: str) -> AsyncIterator[tuple[Membership, Client]]:
    """One with a connection of its own, which beats and checks."""
    async with (
        connected(ConnectOptions(servers=(server.url,))) as nc,
        present(Streams(js=JetStream(nc)), name) as instance,
    ):
        members = Membership(Streams(js=JetStream(nc)), instance)
        async with background(members.heartbeat()), background(members.check_presence()):
            yield members, nc


def _cut(nc: Client) -> None:
    """End its connection as the end of its process does, and let it make no other."""
    transport, nc._transport = nc._transport, None
    nc._status = Client.CLOSED
    assert transport is not None
    transport.close()


async def test_a_member_whose_process_ended_is_presumed_dead_without_a_long_silence(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the others finds it out; and none is presumed dead that only falls silent (F6)."""
    monkeypatch.setattr(membership, "PRESUMED_DEAD", 1e6)
    async with AsyncExitStack() as stack:
        one, _ = await stack.enter_async_context(member(nats_server, "a/1"))
        other, _ = await stack.enter_async_context(member(nats_server, "b/2"))
        _, gone = await stack.enter_async_context(member(nats_server, "c/3"))
        await eventually(lambda: one.alive() == other.alive() == 3)

        _cut(gone)

        await eventually(lambda: one.suspected() == other.suspected() == {"c/3-p"})


async def test_a_member_that_falls_silent_and_is_connected_is_not(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be slow: its connection answers for it until the silence is long."""
    monkeypatch.setattr(membership, "PRESUMED_DEAD", 1e6)
    options = ConnectOptions(servers=(nats_server.url,))
    async with (
        member(nats_server, "a/1") as (one, _),
        connected(options) as nc,
        present(Streams(js=JetStream(nc)), "b/2") as silent,
    ):
        await Connection.of(nc).publish(f"rebaser.members.{silent}", b"0")
        await eventually(lambda: one.is_known(silent))
        heard = one._last_heard[silent]
        await eventually(lambda: asyncio.get_running_loop().time() - heard > 2 * membership.OVERDUE)

        assert one.suspected() == set()


async def test_a_member_that_is_refused_while_its_heartbeats_come_is_not(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F6: a server that forgot its subscription may still hear it. Here nothing is overdue."""
    monkeypatch.setattr(membership, "PRESUMED_DEAD", 1e6)
    monkeypatch.setattr(membership, "OVERDUE", 1e6)
    async with member(nats_server, "a/1") as (one, nc):
        await eventually(lambda: one.is_known(one.instance))
        await Connection.of(nc).publish("rebaser.members.b/2-p", b"0")

        await eventually(lambda: one._checks.is_absent("b/2-p"))

        assert one.is_known("b/2-p")
        assert one.suspected() == set()


async def test_each_member_is_asked_by_the_one_before_it_and_by_all_once_it_is_overdue(
    nats_server: NatsServer,
) -> None:
    """F6: so the checks are as many as the members, and a death is found out by each of them."""
    async with connected(ConnectOptions(servers=(nats_server.url,))) as nc:
        names = ["a/1-p", "b/2-p", "c/3-p", "d/4-p"]
        asked, asked_if_overdue = {}, {}
        for name in names:
            members = Membership(Streams(js=JetStream(nc)), name)
            now = asyncio.get_running_loop().time()
            members._last_heard = dict.fromkeys(names, now)
            asked[name] = members._to_be_checked()
            if name != "c/3-p":
                members._last_heard["c/3-p"] = now - 2 * membership.OVERDUE
                asked_if_overdue[name] = members._to_be_checked()

    ring = dict(zip(names, [*names[1:], names[0]], strict=True))
    assert asked == {name: [neighbour] for name, neighbour in ring.items()}
    assert asked_if_overdue == {
        "a/1-p": ["b/2-p", "c/3-p"],
        "b/2-p": ["c/3-p"],
        "d/4-p": ["a/1-p", "c/3-p"],
    }


async def test_a_check_that_a_member_died_at_delays_no_other(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither answered nor refused, and the next one is sent all the same."""
    monkeypatch.setattr(membership, "PRESUMED_DEAD", 1e6)
    monkeypatch.setattr(membership, "CHECK_TIMEOUT", 1e6)
    asked = asyncio.Event()

    async def hear(_: Msg) -> None:
        asked.set()

    options = ConnectOptions(servers=(nats_server.url,))
    async with (
        member(nats_server, "a/1") as (one, _),
        connected(options) as nc,
        subscribed(nc, SUBJECTS.join("rebaser", "presence", "b/2-p"), hear),
    ):
        await Connection.of(nc).publish("rebaser.members.b/2-p", b"0")
        await asked.wait()

        _cut(nc)

        await eventually(lambda: one.suspected() == {"b/2-p"})


async def test_a_member_that_left_is_not_presumed_dead(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "PRESUMED_DEAD", 1e6)
    async with member(nats_server, "a/1") as (one, _):
        async with member(nats_server, "b/2"):
            await eventually(lambda: one.alive() == 2)

        await eventually(lambda: not one.is_known("b/2-p"))
        assert one.suspected() == set()


async def test_the_one_that_checks_a_dead_member_acts_first(
    nats_server: NatsServer,
) -> None:
    """The others follow backwards on the ring."""
    async with connected(ConnectOptions(servers=(nats_server.url,))) as nc:
        names = ["a", "b", "d", "e"]
        turns = {}
        for name in names:
            members = Membership(Streams(js=JetStream(nc)), name)
            now = asyncio.get_running_loop().time()
            members._last_heard = dict.fromkeys([*names, "c"], now)
            turns[name] = members.turn("c")

    assert turns == {"b": 0, "a": 1, "e": 2, "d": 3}


async def test_gone_is_who_has_no_connection_and_not_who_is_silent(
    nats_server: NatsServer,
) -> None:
    """One that answers no checks, by its name, is gone unless it is heard (L1)."""
    async with (
        member(nats_server, "a/1") as (one, nc),
        member(nats_server, "b/2") as (_, other),
        present(Streams(js=JetStream(nc)), "c/3") as silent,
    ):
        await eventually(lambda: one.is_known("b/2-p"))
        await Connection.of(nc).publish("rebaser.members.old/4", b"0")
        await eventually(lambda: one.is_known("old/4"))
        living = [one.instance, "b/2-p", silent, "old/4"]
        assert [await one.is_gone(instance) for instance in living] == [False] * 4
        assert await one.is_gone("d/5-p")
        assert await one.is_gone("older/6")

        _cut(other)

        await eventually(lambda: one.is_gone("b/2-p"))


async def test_a_member_that_does_not_hear_itself_presumes_none_dead(
    nats_server: NatsServer,
) -> None:
    """F6: it is cut off itself, and what it does not hear says nothing of the others."""
    async with connected(ConnectOptions(servers=(nats_server.url,))) as nc:
        members = Membership(Streams(js=JetStream(nc)), "a/1")
        now = asyncio.get_running_loop().time()
        silent = now - 2 * membership.PRESUMED_DEAD
        for own, suspected in ((silent, set()), (now, {"b/2"})):
            members._last_heard = {"a/1": own, "b/2": silent}
            assert members.suspected() == suspected
            assert members.is_alive("b/2") == (not suspected)
