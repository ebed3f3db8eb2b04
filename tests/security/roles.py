"""A NATS server with the accounts of deploy/nats, and everybody's way in."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from rebaser_client.client import RebaserClient, connect
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from tests.helpers.nats_process import NatsServer, running
from tests.helpers.paths import ROOT

ACCOUNTS = ROOT / "deploy/nats/accounts.conf"
ROLES = ("server", "operator", "client")
API_PREFIX = "js.rebaser"


def password(role: str) -> str:
    return f"{role}-secret"


@contextmanager
def with_accounts(directory: Path, config: str = "") -> Iterator[NatsServer]:
    os.environ |= {f"NATS_{role.upper()}_PASSWORD": password(role) for role in ROLES}
    try:
        with running(NatsServer(directory, config or ACCOUNTS.read_text())) as server:
            yield server
    finally:
        for role in ROLES:
            del os.environ[f"NATS_{role.upper()}_PASSWORD"]


def variables(server: NatsServer, role: str) -> dict[str, str]:
    """Settings of a daemon or a command, without their prefix."""
    return {
        "NATS__URL": server.url,
        "NATS__USER": role,
        "NATS__PASSWORD": password(role),
        "NATS__INBOX_PREFIX": f"_INBOX.{role}",
    }


@asynccontextmanager
async def connected_as(
    server: NatsServer, role: str, inbox_prefix: str | None = None
) -> AsyncIterator[JetStream]:
    options = ConnectOptions(
        servers=(server.url,),
        user=role,
        password=password(role),
        inbox_prefix=inbox_prefix or f"_INBOX.{role}",
    )
    async with connected(options) as nc:
        yield JetStream(nc, api_prefix=API_PREFIX if role == "client" else None)


@asynccontextmanager
async def client_of(server: NatsServer) -> AsyncIterator[RebaserClient]:
    async with connect(
        server.url,
        user="client",
        password=password("client"),
        inbox_prefix="_INBOX.client",
        api_prefix=API_PREFIX,
    ) as client:
        yield client


def violations(server: NatsServer) -> list[str]:
    return [line for line in server.log.splitlines() if "Violation" in line]
