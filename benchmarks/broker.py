"""A nats-server for one round of benchmarks, and what it tells of itself."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers.nats_process import MONITORING, SYNC_ALWAYS, NatsServer, running

DURABILITY = {
    "default": "",
    "sync always": SYNC_ALWAYS,
}
"""When what was acknowledged is on the disk: within two minutes, or before the acknowledgement."""


class Traffic(NamedTuple):
    """Messages of one connection."""

    to_server: int
    from_server: int


class Broker:
    """A running server."""

    def __init__(self, url: str, pid: int, monitoring: str) -> None:
        self.url = url
        self.pid = pid
        self._address = monitoring.removeprefix("http://")

    @property
    def durability(self) -> str:
        """As the server says it, not as it was asked to."""
        config = self._ask("/varz")["jetstream"]["config"]
        always = config.get("sync_always", False)
        return "always" if always else f"every {config['sync_interval'] / 1e9:g} s"

    def traffic(self, name: str) -> Traffic:
        """What the connection of that name sent and got so far."""
        [found] = [c for c in self._ask("/connz")["connections"] if c.get("name") == name]
        return Traffic(found["in_msgs"], found["out_msgs"])

    def _ask(self, path: str) -> Any:
        connection = http.client.HTTPConnection(self._address, timeout=10)
        try:
            connection.request("GET", path)
            return json.load(connection.getresponse())
        finally:
            connection.close()


@contextmanager
def broker(directory: Path, durability: str = "default") -> Iterator[Broker]:
    """Run a server whose store is in `directory`."""
    with running(NatsServer(directory, MONITORING + DURABILITY[durability])) as server:
        pid = server.process.pid if server.process else 0
        yield Broker(server.url, pid, server.monitoring)
