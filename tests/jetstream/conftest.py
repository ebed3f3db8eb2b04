"""A server, a connection to it and its JetStream, for each test its own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from tests.helpers.nats_process import NatsServer, running

V2_ACKS = "feature_flags { js_ack_fc_v2: true }"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running(NatsServer(tmp_path / "nats")) as server:
        yield server


@pytest.fixture(params=["", V2_ACKS], ids=["v1-acks", "v2-acks"])
def either_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    """With acks of version 1, and of version 2."""
    with running(NatsServer(tmp_path / "nats", request.param)) as server:
        yield server


@pytest.fixture
async def nc(server: NatsServer) -> AsyncIterator[Client]:
    async with connected(ConnectOptions(servers=(server.url,))) as nc:
        yield nc


@pytest.fixture
def js(nc: Client) -> JetStream:
    return JetStream(nc, timeout=30)


@pytest.fixture
async def either_js(either_server: NatsServer) -> AsyncIterator[JetStream]:
    async with connected(ConnectOptions(servers=(either_server.url,))) as nc:
        yield JetStream(nc, timeout=30)
