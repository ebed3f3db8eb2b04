"""What operators and clients hear of a NATS that has no room, or does not write."""

import json
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rebaser_client.client import RebaserClient
from rebaser_core.errors import NotConfirmed, QueueFull
from rebaser_core.jetstream import ApiError, JetStream, StreamConfig
from rebaser_server.commands.doctor import examine  # the command, in this process
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.doctor import checks
from rebaser_server.service.composition import provisioner_of
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, deployed, new_change_sets
from tests.helpers.nats_process import MONITORING, NatsServer, running
from tests.integration.test_doctor import Asked

ROOM = 3_000_000  # octets
OF_THE_SERVER = f"jetstream {{ max_file_store: {ROOM} }}\n"
OF_THE_ACCOUNT = f"""
accounts {{ A {{ jetstream: {{ max_file: {ROOM} }}, users: [{{ user: a, password: a }}] }} }}
no_auth_user: a
"""


@pytest.fixture(params=[OF_THE_SERVER, OF_THE_ACCOUNT], ids=["server", "account"])
async def small(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Deployment]:
    """On a NATS with room for little."""
    with running(NatsServer(tmp_path / "nats", MONITORING + request.param)) as server:
        async with deployed(server, tmp_path) as deployment:
            nats = deployment.settings.nats.model_copy(update={"monitoring": server.monitoring})
            deployment.settings = deployment.settings.model_copy(update={"nats": nats})
            yield deployment


async def is_stored(js: JetStream, size: int) -> bool:
    try:
        await js.publish("others", bytes(size))
    except ApiError as error:
        if error.is_out_of_room:
            return False
        raise
    return True


async def fill(js: JetStream) -> None:
    await js.create_stream(StreamConfig(name="OTHERS", subjects=["others"]))
    for size in (300_000, 3_000, 30):
        while await is_stored(js, size):
            pass


async def room(deployment: Deployment, capsys: Any) -> tuple[int, list[dict[str, Any]]]:
    code = await examine(deployment.settings, Asked())
    return code, [row for row in json.loads(capsys.readouterr().out) if row["check"] == "room"]


async def test_a_nats_without_room_is_called_that_by_doctor_and_clients(
    small: Deployment, capsys: Any
) -> None:
    """And all is well again once there is room."""
    assert await room(small, capsys) == (Exit.OK, [])
    await fill(small.js)
    [change_set], graph = new_change_sets(1), ExampleGraph()

    code, [trial, usage] = await room(small, capsys)
    async with RebaserClient.on(small.nc, small.js, retry_for=0.1) as client:
        with pytest.raises((NotConfirmed, QueueFull), match="NATS has no room: its disk, or a"):
            await client.enqueue_updates(*change_set, graph.define())

    assert code == Exit.DAMAGED
    assert trial["what"].startswith("a trial write is refused: NATS has no room: its disk, or a ")
    assert (trial["severity"], usage["severity"]) == ("error", "warning")
    assert f" of {ROOM:,} bytes are in use" in usage["what"]
    await small.js.delete_stream("OTHERS")
    assert await room(small, capsys) == (Exit.OK, [])


async def test_a_server_that_answers_and_cannot_write_is_found(deployment: Deployment) -> None:
    """As when others have filled its disk: it logs the error, and leaves the message unanswered."""
    process = deployment.nats.process
    assert process is not None
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, 1))  # octets of a file
    impatient = JetStream(deployment.nc, timeout=3)

    found = checks.room(provisioner_of(impatient, deployment.settings), None)
    [finding] = [finding async for finding in found]

    assert finding.what.startswith("a trial write is not confirmed: ")
    assert "servers' logs" in finding.remedy
