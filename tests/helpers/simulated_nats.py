"""The product's own client over the simulated server of `tests/schedules`, in virtual time."""

import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ConnectOptions, JetStream, connect, connected
from rebaser_core.streams import Streams
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.graph_application.state_machine import open_state_loader
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.schedules.broker import Broker
from tests.schedules.connection import Client
from tests.schedules.loop import Loop
from tests.schedules.network import Weather


class Nats:
    """A deployment's streams, without a daemon."""

    def __init__(self, js: JetStream, settings: Settings) -> None:
        self.streams = Streams(js=js)
        self._settings = settings

    def loader(self, change_set: ChangeSet) -> StateLoader:
        return open_state_loader(self.streams.js, self._settings, change_set)


def simulated(store: Path, test: Callable[[Nats], Awaitable[Any]]) -> None:
    """Run the test with streams that nothing was sent to."""
    loop = Loop(test.__name__)
    broker = Broker(loop, Weather(random.Random(1)), lambda *_: None)
    settings = Settings.model_validate({"store": {"root": str(store)}})

    async def run() -> None:
        async with connected(ConnectOptions(servers=("nats://simulated",))) as nc:
            js = JetStream(nc)
            await prepare(js, settings)
            await test(Nats(js, settings))

    with mock.patch.object(connect, "SecureClient", partial(Client, broker)):
        loop.run(run())
