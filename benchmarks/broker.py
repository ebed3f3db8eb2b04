"""A nats-server for one round of benchmarks, or a cluster of three, and what it tells of itself."""

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.processes import three_servers
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


_AGREED_WITHIN = 60.0  # seconds


class Broker:
    """A running server; or three, the first of which everything connects to."""

    def __init__(self, servers: Sequence[NatsServer]) -> None:
        self.url = servers[0].url
        self.pids = [server.process.pid for server in servers if server.process]
        self._addresses = [server.monitoring.removeprefix("http://") for server in servers]

    @property
    def pid(self) -> int:
        """The first one's."""
        return self.pids[0]

    @property
    def servers(self) -> int:
        """How many; streams have as many replicas."""
        return len(self._addresses)

    @property
    def name(self) -> str:
        """The first one's."""
        return str(self._ask("/varz")["server_name"])

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

    def wait(self) -> None:
        """Return once the servers of a cluster agree on who leads it."""
        end = time.monotonic() + _AGREED_WITHIN
        while any(self._ask("/healthz", one)["status"] != "ok" for one in self._addresses):
            if time.monotonic() > end:
                raise RuntimeError("the servers do not form a cluster")
            time.sleep(0.05)

    def _ask(self, path: str, address: str = "") -> Any:
        connection = http.client.HTTPConnection(address or self._addresses[0], timeout=10)
        try:
            connection.request("GET", path)
            return json.load(connection.getresponse())
        finally:
            connection.close()


@contextmanager
def broker(
    directory: Path, durability: str = "default", *, cluster: bool = False
) -> Iterator[Broker]:
    """Run a server whose store is in `directory`, or a cluster of three."""
    config = MONITORING + DURABILITY[durability]
    several = three_servers(directory, [config] * 3) if cluster else []
    with ExitStack() as stack:
        servers = several or [NatsServer(directory, config)]
        found = Broker([stack.enter_context(running(server)) for server in servers])
        found.wait()
        yield found
