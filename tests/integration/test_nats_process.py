"""The NATS server of `rebaser up`."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.streams import Streams
from rebaser_server.cluster.nats_watch import read_durability
from rebaser_server.runtime.ports import PORTS
from rebaser_server.service.composition import prepare
from rebaser_server.service.dev_server import ANY_PORT, NatsNotStarted, Sync, nats_server
from rebaser_server.settings.settings import Settings


@pytest.mark.parametrize(("sync", "said"), [("always", "always"), ("periodic", "every 120 s")])
async def test_the_server_syncs_as_it_is_asked_to(tmp_path: Path, sync: Sync, said: str) -> None:
    async with (
        nats_server(tmp_path, ANY_PORT, sync=sync) as nats,
        connected(ConnectOptions(servers=(nats.clients,))) as nc,
    ):
        await prepare(JetStream(nc), Settings())

        found = await read_durability(Streams(js=JetStream(nc)), nats.monitoring)

    assert found.sync == said


async def test_unless_asked_otherwise_what_it_confirms_is_on_the_disk(tmp_path: Path) -> None:
    async with (
        nats_server(tmp_path, ANY_PORT) as nats,
        connected(ConnectOptions(servers=(nats.clients,))) as nc,
    ):
        await prepare(JetStream(nc), Settings())

        assert (await read_durability(Streams(js=JetStream(nc)), nats.monitoring)).sync == "always"


async def test_a_port_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with pytest.raises(
            NatsNotStarted, match=f"^port {port} is in use: .*choose another --port"
        ):
            async with nats_server(tmp_path, port):
                pass


async def test_a_directory_that_takes_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "nats.conf").mkdir()

    with pytest.raises(NatsNotStarted, match=f"did not start: .*{tmp_path}/nats.conf"):
        async with nats_server(tmp_path, ANY_PORT):
            pass


async def test_a_port_of_its_own_choice_is_none_that_connections_are_given(tmp_path: Path) -> None:
    """One of those could be in use when NATS is started again."""
    async with nats_server(tmp_path, ANY_PORT) as nats:
        assert {urlsplit(url).port for url in nats} < set(PORTS)
