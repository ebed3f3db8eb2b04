"""What a deployment says about when NATS has on its disks what it confirms."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.streams import Streams
from rebaser_server.cluster.nats_watch import Durability, read_durability
from rebaser_server.commands.doctor import examine  # the command, in this process
from rebaser_server.service.composition import provisioner_of
from rebaser_server.settings.settings import Settings
from tests.chaos.processes import three_servers
from tests.helpers.deployment import Deployment, deployed
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import MONITORING, SYNC_ALWAYS, NatsServer, running
from tests.integration.test_doctor import Asked
from tests.integration.test_ops_endpoint import started, status_of


@pytest.fixture
async def synced(tmp_path: Path) -> AsyncIterator[Deployment]:
    """On a server that syncs before it confirms."""
    with running(NatsServer(tmp_path / "nats", MONITORING + SYNC_ALWAYS)) as server:
        async with deployed(server, tmp_path) as deployment:
            yield deployment


async def said(deployment: Deployment, monitoring: str | None) -> str:
    return (await read_durability(deployment.streams, monitoring)).sync


async def test_a_server_says_when_it_syncs(synced: Deployment, tmp_path: Path) -> None:
    assert await said(synced, synced.nats.monitoring) == "always"

    with running(NatsServer(tmp_path / "other", MONITORING)) as server:
        async with deployed(server, tmp_path) as periodic:
            assert await said(periodic, f"{server.monitoring}/") == "every 120 s"


async def test_what_is_not_known_is_not_guessed(synced: Deployment, tmp_path: Path) -> None:
    """Another server's word does not count, nor does a part of what was asked for."""
    with running(NatsServer(tmp_path / "other", MONITORING + SYNC_ALWAYS)) as other:
        foreign = await said(synced, other.monitoring)
        both = await said(synced, f"{other.monitoring}, {synced.nats.monitoring}")
    gone = await said(synced, f"{synced.nats.monitoring},{other.monitoring}")
    client = await said(synced, synced.nats.url.replace("nats", "http"))

    assert (await said(synced, None)).startswith("unknown: set REBASER_NATS__MONITORING")
    assert foreign.startswith("unknown: no monitoring port of server N")
    assert both == "always"
    assert gone.startswith(f"unknown: {other.monitoring}: Cannot connect")
    assert client.startswith("unknown: http://127.0.0.1:")


async def test_a_password_in_an_address_is_not_shown(synced: Deployment) -> None:
    found = await said(synced, "http://ada:secret@127.0.0.1:1")

    assert found.startswith("unknown: http://")
    assert "secret" not in found


async def test_a_rebaser_says_it_at_its_start_on_its_page_and_through_the_doctor(
    synced: Deployment, capsys: Any
) -> None:
    """The doctor knows it from the Rebaser, where its own settings name no monitoring port."""
    assert (await durability_finding(synced, capsys)).startswith("sync: unknown: set REBASER")
    daemon = await started(synced, NATS__MONITORING=synced.nats.monitoring)

    [line] = daemon.said("durability")
    [rebaser] = (await status_of(daemon))["rebasers"]

    assert (line["sync"], line["replicas"]) == ("always", 1)
    assert rebaser["durability"] == {"sync": "always", "replicas": 1}

    async def doctor_knows() -> bool:  # unless the Rebaser is too busy to answer
        return await durability_finding(synced, capsys) == "sync: always; replicas: 1"

    await eventually(doctor_knows)


async def durability_finding(deployment: Deployment, capsys: Any) -> str:
    await examine(deployment.settings, Asked())
    [row] = json.loads(capsys.readouterr().out)
    assert (row["check"], row["severity"]) == ("durability", "note")
    return str(row["what"])


@pytest.mark.long
async def test_of_three_servers_the_least_durable_counts(tmp_path: Path) -> None:
    servers = three_servers(tmp_path, [MONITORING, *[MONITORING + SYNC_ALWAYS] * 2])
    settings = Settings.model_validate({"nats": {"replicas": 3}})
    with running(servers[0]), running(servers[1]), running(servers[2]):
        urls = [server.monitoring for server in servers]
        async with connected(ConnectOptions(servers=(servers[0].url,))) as nc:
            js = JetStream(nc)
            await provisioner_of(js, settings).ensure_when_up()

            all_known = await read_durability(Streams(js=js), ",".join(urls))
            two_known = await read_durability(Streams(js=js), ",".join(urls[1:]))

    assert all_known == Durability("every 120 s", 3)
    assert two_known == Durability("unknown: no monitoring port of server n0", 3)
