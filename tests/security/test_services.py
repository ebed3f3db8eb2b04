"""Workers of services and their callers under the accounts of deploy/nats, and who may not."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rebaser_client import NoSuchService
from rebaser_core.calls import StateQuery, StateQueryV1, StateReply, key_of, service_id
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import NatsUnreachable
from rebaser_server.handlers import Context, Service
from rebaser_server.runtime.tasks import Shutdown, background
from rebaser_server.service.worker import serve
from rebaser_server.settings.settings import NatsSettings, Settings
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.helpers.workers import SCALED
from tests.security.roles import (
    client_of,
    connected_as,
    password,
    variables,
    violations,
    with_accounts,
)

COUNTER = key_of("counters", "clicks")
RINGING = f"rebaser.ringing.{COUNTER}"
ALARM = f"rebaser.alarms.{COUNTER}.token"


def counters() -> Service:
    service = Service("counters")

    @service.state
    class Count:
        total: int = 0

    @service.handler
    def add(ctx: Context[Count], number: int = 1) -> int:
        ctx.state.total += number
        return ctx.state.total

    @service.handler
    def hand_on(ctx: Context[Count], key: str) -> None:
        ctx.to(key).send("add", 10)

    return service


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with with_accounts(tmp_path / "nats") as server:
        yield server


@asynccontextmanager
async def working(server: NatsServer, directory: Path) -> AsyncIterator[None]:
    """A worker in the server's role, in this process, which is in order when the body ends."""
    said = variables(server, "server")
    nats = NatsSettings(
        url=server.url,
        user=said["NATS__USER"],
        password=password("server"),
        inbox_prefix=said["NATS__INBOX_PREFIX"],
        batches_rollup=False,
    )
    settings = Settings.model_validate({"nats": nats, "store": {"root": str(directory / "store")}})
    shutdown, ready = Shutdown(), asyncio.Event()
    running = serve(
        settings.model_copy(update=SCALED), [counters()], shutdown, lambda _: ready.set()
    )
    async with background(running):
        await ready.wait()
        yield
        shutdown.set()


async def test_a_caller_and_a_worker_work_without_a_single_violation(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Calls, sends between keys, timers that ring, states, and a service that is not there."""
    async with working(nats_server, tmp_path), client_of(nats_server) as client:
        clicks, others = (client.service("counters").key(key) for key in ("clicks", "others"))
        assert await clicks.call("add") == 1
        sent = await clicks.send("add", 2)
        await eventually(lambda: is_settled(clicks, sent))
        await clicks.call("hand_on", "others")
        await clicks.send("add", 30, after=timedelta(seconds=1))
        await clicks.send("add", every="0 7 * * 1-5", zone="Europe/Berlin", timer="daily")
        await clicks.cancel("daily")

        async def rung() -> bool:
            values = [(await key.state()).value for key in (clicks, others)]
            return values == [{"total": 33}, {"total": 10}]

        await eventually(rung, within=60)
        assert await clicks.timers() == ()
        with pytest.raises(NoSuchService, match="'counter'"):
            await client.service("counter").key("clicks").call("add")

    assert violations(nats_server) == []


async def is_settled(key: Any, request: RequestId) -> bool:
    try:
        return bool(await key.outcome(request))
    except Exception as error:  # noqa: BLE001 - asked again
        del error
        return False


async def test_a_client_sets_no_alarms_and_describes_no_services(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    subjects = (ALARM, RINGING, f"$KV.REBASER_CHANGE_SETS.{service_id('counters')}.service.x")
    async with working(nats_server, tmp_path), connected_as(nats_server, "client") as client:
        for subject in subjects:
            with pytest.raises(NatsUnreachable):
                await client.connection.request(subject, b"{}", timeout=0.15)
        await client.connection.ping(30)

    assert len(violations(nats_server)) == len(subjects)


async def test_a_state_is_told_to_nobody_who_asks_by_the_subject_of_another_key(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Permissions are by subject: a client that is bound to a service reads no other one's keys."""
    asked = StateQueryV1(id=RequestId(), **COUNTER._asdict())
    headers, payload = StateQuery.encode(asked)
    async with working(nats_server, tmp_path), client_of(nats_server) as client:
        await client.service("counters").key("clicks").call("add", 7)

        own, other = [
            StateReply.decode(answer.headers or {}, answer.data)
            for answer in [
                await client._streams.js.connection.request(
                    client._streams.states(where), payload, headers=headers, timeout=30
                )
                for where in (COUNTER, key_of("others", "clicks"))
            ]
        ]

    assert own.state == {"total": 7}
    assert (other.state, other.key, other.commit) == (None, None, 0)
    assert other.error is not None
