"""A deployment for each test; servers start in milliseconds, so nothing is shared."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.helpers.blocking_function import Gate
from tests.helpers.browser import browsing
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


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        yield browser


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(gate.path), prepend=os.pathsep)
    return gate
