"""A deployment for each test; servers start in milliseconds, so nothing is shared."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.helpers.deployment import Deployment, deployed
from tests.helpers.nats_process import NatsServer, running


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with running(NatsServer(tmp_path / "nats")) as server:
        yield server


@pytest.fixture
async def deployment(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(nats_server, tmp_path) as deployment:
        yield deployment
