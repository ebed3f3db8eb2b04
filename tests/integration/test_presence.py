"""A Rebaser whose connection is gone is known to be, without waiting for its heartbeats (F6)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client

from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.cluster import membership
from rebaser_server.cluster.membership import ANSWERS, PresenceChecks, present
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running

SUBJECTS = Subjects()
MEMBER = f"other/1{ANSWERS}"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that a busy machine answers late is not given up."""
    monkeypatch.setattr(membership, "CHECK_TIMEOUT", 2.0)


@pytest.fixture
async def nc(nats_server: NatsServer) -> AsyncIterator[Client]:
    async with connected(ConnectOptions(servers=(nats_server.url,))) as nc:
        yield nc


@asynccontextmanager
async def member(nats_server: NatsServer) -> AsyncIterator[str]:
    """The name of one with a connection of its own."""
    options = ConnectOptions(servers=(nats_server.url,))
    async with connected(options) as nc, present(Streams(js=JetStream(nc)), "other/1") as name:
        yield name


async def test_a_member_is_absent_once_its_connection_is_gone(
    nats_server: NatsServer, nc: Client
) -> None:
    checks = PresenceChecks(Streams(js=JetStream(nc)))
    async with member(nats_server) as name:
        assert name == MEMBER
        assert not await checks.confirm_absence(name)
        assert not checks.is_doubted(name)

    await eventually(lambda: checks.confirm_absence(name))


async def test_one_refusal_is_not_enough_and_a_sign_of_life_undoes_it(nc: Client) -> None:
    checks = PresenceChecks(Streams(js=JetStream(nc)))

    await checks.check(MEMBER)
    assert checks.is_doubted(MEMBER)
    assert not checks.is_absent(MEMBER)

    assert await checks.confirm_absence(MEMBER)
    checks.clear(MEMBER)
    assert not checks.is_absent(MEMBER)


async def test_two_refusals_at_one_moment_count_as_one(nc: Client) -> None:
    """All that is unknown to a server for a moment would be dead."""
    checks = PresenceChecks(Streams(js=JetStream(nc)))

    await asyncio.gather(checks.check(MEMBER), checks.check(MEMBER))

    assert not checks.is_absent(MEMBER)


async def test_a_frozen_member_is_in_no_doubt(nc: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is there, so it is not refused, and only its silence speaks."""
    monkeypatch.setattr(membership, "CHECK_TIMEOUT", 0.02)
    checks = PresenceChecks(Streams(js=JetStream(nc)))

    async with subscribed(nc, SUBJECTS.join("rebaser", "presence", MEMBER)):
        assert not await checks.confirm_absence(MEMBER)

    assert not checks.is_doubted(MEMBER)


async def test_a_member_of_an_older_release_is_never_absent(nc: Client) -> None:
    checks = PresenceChecks(Streams(js=JetStream(nc)))

    assert not await checks.confirm_absence("older/1")


async def _reconnect(nc: Client, _: NatsServer) -> None:
    await nc.force_reconnect()


async def _restart(_: Client, server: NatsServer) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


@pytest.mark.parametrize("lose", [_reconnect, _restart])
async def test_after_an_own_reconnect_no_refusal_counts_for_a_while(
    nats_server: NatsServer,
    nc: Client,
    monkeypatch: pytest.MonkeyPatch,
    lose: Callable[[Client, NatsServer], Awaitable[None]],
) -> None:
    """The others may be reconnecting, too, and have no subscription yet."""
    monkeypatch.setattr(membership, "_SETTLING_TIME", 600.0)  # this may take long here
    checks = PresenceChecks(Streams(js=JetStream(nc)))
    assert await checks.confirm_absence(MEMBER)

    await lose(nc, nats_server)

    await eventually(lambda: nc.is_connected and nc.stats["reconnects"] > 0)
    assert not checks.is_absent(MEMBER)
    assert not await checks.confirm_absence(MEMBER)
    monkeypatch.setattr(checks, "_settled_at", 0.0)
    assert await checks.confirm_absence(MEMBER)


@pytest.mark.parametrize("denied", ["subscribe", "publish"])
async def test_a_rebaser_that_checks_do_not_reach_does_not_say_that_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:
    """Its permissions keep them away; the others would take it for dead."""
    monkeypatch.setattr(membership, "CHECK_TIMEOUT", 0.05)
    permissions = f'{denied}: {{ deny: "rebaser.presence.*" }}'
    user = f"{{ user: u, password: p, permissions: {{ {permissions} }} }}"
    config = f"authorization {{ users: [{user}] }}\n"
    with running(NatsServer(tmp_path, config)) as server:
        options = ConnectOptions(servers=(server.url,), user="u", password="p")
        async with connected(options) as nc, present(Streams(js=JetStream(nc)), "this/1") as name:
            assert name == "this/1"
