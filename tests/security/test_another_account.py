"""A whole Rebaser whose streams are another account's, which exports them (ADR-19)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rebaser_client.client import connect
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.messages import SuccessStatusV3
from tests.helpers.batches import ExampleGraph, new_id, put
from tests.helpers.deployment import SCALED, Daemon, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running

# As a platform has it that keeps streams for many: the account `STREAMS` stores, and exports to
# `REBASER` the JetStream API, what is published into streams, and acks.
CONFIG = """
accounts {
  STREAMS {
    jetstream: enabled
    users: [ {user: s, password: s} ]
    exports: [
      {service: "$JS.API.>", response: stream}
      {service: "$JS.ACK.>"}
      {service: "$KV.>"}
      {service: "$O.>"}
      {service: "rebaser.requests.*.*"}
      {service: "rebaser.tasks.*.*.process"}
      {service: "rebaser.commits.*.*"}
      {service: "rebaser.dead-letters.*.*"}
      {stream: "_INBOX.rebaser.>"}
    ]
  }
  REBASER {
    users: [ {user: r, password: r} ]
    imports: [
      {service: {account: STREAMS, subject: "$JS.API.>"}, to: "js.streams.>"}
      {service: {account: STREAMS, subject: "$JS.ACK.>"}}
      {service: {account: STREAMS, subject: "$KV.>"}, to: "js.streams.$KV.>"}
      {service: {account: STREAMS, subject: "$O.>"}, to: "js.streams.$O.>"}
      {service: {account: STREAMS, subject: "rebaser.requests.*.*"}}
      {service: {account: STREAMS, subject: "rebaser.tasks.*.*.process"}}
      {service: {account: STREAMS, subject: "rebaser.commits.*.*"}}
      {service: {account: STREAMS, subject: "rebaser.dead-letters.*.*"}}
      {stream: {account: STREAMS, subject: "_INBOX.rebaser.>"}}
    ]
  }
}
"""


WITHOUT_INBOXES = "\n".join(line for line in CONFIG.splitlines() if "_INBOX" not in line)


@pytest.fixture(params=[CONFIG, WITHOUT_INBOXES], ids=["inboxes", "no inboxes"])
def nats_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    """With the inboxes exported, which only push consumers need, and without."""
    with running(NatsServer(tmp_path / "nats", request.param)) as server:
        yield server


async def test_a_rebaser_works_on_streams_of_another_account(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = Daemon(
        "far",
        tmp_path,
        SCALED
        | {
            "NATS__URL": nats_server.url,
            "NATS__USER": "r",
            "NATS__PASSWORD": "r",
            "NATS__API_PREFIX": "js.streams",
            "NATS__INBOX_PREFIX": "_INBOX.rebaser",
            "STORE__ROOT": str(tmp_path / "store"),
            "OPS__PORT": "0",
        },
    )
    near = ConnectOptions(servers=(nats_server.url,), user="s", password="s")
    try:
        await daemon.ready()
        async with (
            connect(
                nats_server.url, user="r", password="r",
                api_prefix="js.streams", inbox_prefix="_INBOX.rebaser",
            ) as client,
            connected(near) as nc,
        ):  # fmt: skip
            _, reply = await client.enqueue_updates_with_reply(*change_set, values.define(3, 4))
            assert isinstance((await reply).status, SuccessStatusV3)
            large = [put(new_id(), number) for number in range(600)]
            await client.enqueue_updates(*change_set, large)
            await client.enqueue_updates(
                *change_set, [{"setValue": {"valueId": values.net, "value": 5}}]
            )

            async def computed() -> bool:
                read = await client.change_set(*change_set).values()
                return len(read) == 603 and read[values.gross].value == 9

            await eventually(computed, within=60)
            streams = JetStream(nc)

            async def at_rest() -> bool:
                kept = [await streams.stream_info(f"REBASER_{n}") for n in ("REQUESTS", "TASKS")]
                return not any(info.state.messages for info in kept)

            await eventually(at_rest, within=60)
            assert "KV_REBASER_CHANGE_SETS" in await streams.stream_names()
    finally:
        daemon.kill()
    assert not daemon.said("task not finished")
