"""What a Rebaser does about a NATS that is not, or no longer, as it must be (S-1 to S-3, X3)."""

import asyncio
import signal
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from rebaser_core.jetstream import StreamNotFound
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_core.versioning import MESSAGE_VERSION
from rebaser_server.cluster.upkeep import Monitor
from rebaser_server.service.composition import provisioner_of
from tests.chaos.processes import three_servers
from tests.helpers.batches import ExampleGraph, new_id, put
from tests.helpers.deployment import (
    REBASER,
    SCALED,
    Daemon,
    Deployment,
    new_change_sets,
    rebaser_with,
)
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running


async def delete_the_consumer(deployment: Deployment) -> None:
    await deployment.js.delete_consumer(deployment.streams.tasks_stream, TASKS_CONSUMER)


async def delete_the_tasks(deployment: Deployment) -> None:
    await deployment.js.delete_stream(deployment.streams.tasks_stream)


@pytest.mark.parametrize("delete", [delete_the_consumer, delete_the_tasks])
async def test_a_deleted_consumer_or_task_stream_is_created_again(
    deployment: Deployment, delete: Any
) -> None:
    """Nobody need start a daemon again: an operator's slip is not an outage."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await deployment.start(QUIET_PERIOD="30")
    await deployment.client.enqueue_updates(*change_set, values.define(1, 2))
    await eventually(lambda: bool(daemon.said("taken")))

    await delete(deployment)
    await deployment.client.enqueue_updates(*change_set, values.define(3, 4))

    async def total() -> bool:
        found = (await deployment.graph(change_set)).values.get(values.gross)
        return found is not None and found.value == 7

    await eventually(total, within=60)
    await eventually(lambda: bool(daemon.said("tasks stream recreated")))
    assert daemon.process.poll() is None


async def test_a_missing_stream_is_reported_and_not_replaced_by_an_empty_one(
    deployment: Deployment,
) -> None:
    """S-5: its sequences would begin again below what was handled."""
    daemon = await deployment.start()
    stream = deployment.streams.requests_stream

    await deployment.js.delete_stream(stream)

    await eventually(lambda: bool(daemon.said("configuration differs")))
    [told, *_] = daemon.said("configuration differs")
    assert (told["what"], told["field"]) == (f"stream {stream}", "existence")
    assert "first_seq" in told["remedy"]
    with pytest.raises(StreamNotFound):
        await deployment.js.stream_info(stream)


async def test_a_changed_configuration_is_logged_with_a_hint(
    deployment: Deployment,
) -> None:
    daemon = await deployment.start()
    stream = deployment.streams.tasks_stream
    info = await deployment.js.consumer_info(stream, TASKS_CONSUMER)
    body = {"stream_name": stream, "config": info.config.to_json() | {"ack_wait": 9 * 10**9}}
    filtered = f"{TASKS_CONSUMER}.{info.config.filter_subject}"

    await deployment.js.request(f"CONSUMER.CREATE.{stream}.{filtered}", body)

    await eventually(lambda: bool(daemon.said("configuration differs")))
    [told, *_] = daemon.said("configuration differs")
    assert (told["field"], told["expected"], told["actual"]) == ("ack_wait", 2 * 10**9, 9 * 10**9)
    assert told["remedy"] == (
        "set it back with `nats consumer edit`, or set REBASER_ACK_WAIT to match for all Rebasers"
    )


async def test_a_consumer_that_is_paused_is_reported(deployment: Deployment) -> None:
    """No Rebaser is given a task meanwhile, and nothing else says why."""
    daemon = await deployment.start()
    stream = deployment.streams.tasks_stream

    until = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    await deployment.js.request(f"CONSUMER.PAUSE.{stream}.{TASKS_CONSUMER}", {"pause_until": until})

    await eventually(lambda: bool(daemon.said("configuration differs")))
    [told, *_] = daemon.said("configuration differs")
    assert told["field"] == "pause_until"
    assert told["remedy"].startswith("resume it with `nats consumer resume`")


async def test_a_request_that_waits_too_long_is_reported(deployment: Deployment) -> None:
    """Here one of a newer version, which waits for a newer server."""
    [change_set] = new_change_sets(1)
    subject = deployment.streams.requests(change_set)
    headers = {
        "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
        MESSAGE_VERSION: "99",
        "X-CONTENT-TYPE": "application/json",
    }
    daemon = await deployment.start(
        command=rebaser_with("rebaser_server.cluster.upkeep:ALERT_AFTER", "1.5")
    )

    await deployment.js.publish(subject, b"{}", headers=headers)

    await eventually(lambda: bool(daemon.said("requests wait too long")))
    [told, *_] = daemon.said("requests wait too long")
    assert told["seconds"][subject] >= 1
    assert told["requests"] == 1


async def test_of_many_requests_only_those_that_wait_too_long_are_reported(
    deployment: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, young = new_change_sets(2)
    provisioner = provisioner_of(deployment.js, deployment.settings)
    limit = 4.0
    monkeypatch.setattr("rebaser_server.cluster.upkeep.ALERT_AFTER", limit)
    for _ in range(3):
        await deployment.js.publish(deployment.streams.requests(old), b"x")
    await asyncio.sleep(limit + 0.1)  # until these wait too long
    await deployment.js.publish(deployment.streams.requests(young), b"x")

    await Monitor(provisioner, 1.0).report_old_requests()
    told = capsys.readouterr().out

    assert told.count("requests wait too long") == 1
    assert str(old.change_set_id) in told
    assert str(young.change_set_id) not in told


@pytest.mark.long
async def test_a_daemon_waits_for_a_cluster_that_has_no_leader_yet(tmp_path: Path) -> None:
    """One server of three is up: a restart would change nothing, and look like a crash."""
    async with AsyncExitStack() as stack:
        first, *others = three_servers(tmp_path)
        for server in (first, *others):
            stack.callback(server.kill)
        await asyncio.to_thread(first.start)
        variables = {"NATS__URL": first.url, "NATS__REPLICAS": "3", "INSTANCE_ID": "early"}
        daemon = Daemon("early", tmp_path, SCALED | variables)
        stack.callback(daemon.kill)
        await eventually(lambda: bool(daemon.said("waiting for JetStream")), within=120)

        for server in others:
            await asyncio.to_thread(server.start)

        await eventually(lambda: bool(daemon.said("ready")), within=120)


async def test_a_daemon_says_what_its_user_may_not_do(tmp_path: Path) -> None:
    """Else it would say only that JetStream does not answer."""
    user = 'user: low, password: low, permissions: {publish: ["_INBOX.>"], subscribe: [">"]}'
    config = f"accounts {{ A {{ jetstream: enabled, users: [ {{ {user} }} ] }} }}"
    with running(NatsServer(tmp_path / "nats", config)) as server:
        login = {"NATS__USER": "low", "NATS__PASSWORD": "low", "NATS__URL": server.url}
        daemon = Daemon("low", tmp_path, {**login, "STORE__ROOT": str(tmp_path / "store")})

        def is_said() -> bool:
            refused = daemon.said("nats permission refused")
            return any("$js.api" in each["reason"].lower() for each in refused)

        await eventually(is_said)
        daemon.kill()


async def test_a_daemon_that_waits_for_a_leader_can_be_stopped(tmp_path: Path) -> None:
    first, *_ = three_servers(tmp_path)
    async with AsyncExitStack() as stack:
        stack.callback(first.kill)
        await asyncio.to_thread(first.start)
        daemon = Daemon("early", tmp_path, SCALED | {"NATS__URL": first.url})
        stack.callback(daemon.kill)
        await eventually(lambda: bool(daemon.said("waiting for JetStream")), within=120)

        daemon.send(signal.SIGTERM)

        assert await daemon.ended() == 0


async def test_a_daemon_that_is_stopped_before_it_began_ends_with_success(tmp_path: Path) -> None:
    """The second half of what it imports takes a second, in which a supervisor may think again."""
    variables = SCALED | {"NATS__URL": "nats://127.0.0.1:9"}
    daemon = Daemon("early", tmp_path, variables, command=list(REBASER))  # a fork has imported it
    status = Path(f"/proc/{daemon.process.pid}/status")
    term = 1 << (signal.SIGTERM - 1)

    def heeds_signals() -> bool:
        [caught] = (x for x in status.read_text().splitlines() if x.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) & term)

    try:
        await eventually(heeds_signals, within=120)
        daemon.send(signal.SIGTERM)

        assert await daemon.ended() == 0
    finally:
        daemon.kill()


async def test_a_consumer_with_a_shorter_lease_than_ours_has_its_tasks_reported_in_time(
    deployment: Deployment,
) -> None:
    """W1, W15: else it gives the task away under its holder, who counts as dead each time."""
    [change_set] = new_change_sets(1)
    stream, reports = deployment.streams.tasks_stream, list[bytes]()

    async def on_ack(message: Msg) -> None:
        if message.data.startswith(b"+WPI"):
            reports.append(message.data)

    await deployment.nc.subscribe(f"$JS.ACK.{stream}.>", cb=on_ack)
    config = (await deployment.js.consumer_config(stream, TASKS_CONSUMER)).to_json()
    config["ack_wait"] = 6 * 10**9  # which a busy machine keeps
    verb = f"CONSUMER.CREATE.{stream}.{TASKS_CONSUMER}.{config['filter_subject']}"
    await deployment.js.request(verb, {"stream_name": stream, "config": config})
    daemon = await deployment.start(ACK_WAIT="80", QUIET_PERIOD="60")
    await deployment.client.enqueue_updates(*change_set, [put(new_id(), 1)])

    await eventually(lambda: len(reports) > 2, within=60)
    assert [taken["delivered"] for taken in daemon.said("taken")] == [1]
