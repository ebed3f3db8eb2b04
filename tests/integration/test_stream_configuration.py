"""Streams that somebody set otherwise: what would lose or refuse commits stops new work (X3)."""

import asyncio
import json
import os
import signal
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import StreamConfig
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.configuration_faults import Fault, judge
from rebaser_server.cluster.nats_writes import WriteWatch
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.commands.doctor import examine
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.service.composition import provisioner_of
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.blocking_function import Gate
from tests.helpers.deployment import Daemon, Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.stream_backup import Snapshot, backup, restore
from tests.integration.test_doctor import Asked
from tests.integration.test_ops_endpoint import get, started, status_of, url_of

COMMITS, BATCHES, REQUESTS = "REBASER_COMMITS", "OBJ_REBASER_BATCHES", "REBASER_REQUESTS"
SECOND = 10**9  # in nanoseconds


async def edit(deployment: Deployment, stream: str, **fields: Any) -> None:
    """As `nats stream edit` does."""
    config = (await deployment.js.stream_config(stream)).to_json()
    await deployment.js.request(f"STREAM.UPDATE.{stream}", {**config, **fields})


async def doctor(deployment: Deployment, *, repair: bool = False) -> tuple[int, list[Any]]:
    """The exit code, and all that is worse than a note."""
    with redirect_stdout(StringIO()) as said:
        code = await examine(deployment.settings, Asked(repair=repair))
    return code, [row for row in json.loads(said.getvalue()) if row["severity"] != "note"]


async def is_unready(daemon: Daemon) -> bool:
    return (await get(url_of(daemon) + "readyz"))[0] == 503


async def set_some(deployment: Deployment, change_set: ChangeSet, values: ExampleGraph) -> None:
    await deployment.client.enqueue_updates(*change_set, values.define(1, 2))
    for number in range(5):
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, number)])


async def net(deployment: Deployment, change_set: ChangeSet, values: ExampleGraph) -> Any:
    return (await deployment.graph(change_set)).values[values.net].value


async def test_a_limit_that_drops_commits_stops_work_and_costs_none_that_is_in_hand(
    deployment: Deployment,
) -> None:
    """A checkpoint of what is in memory is written at once; the rest waits until it is mended."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await started(deployment, QUIET_PERIOD="60")
    await set_some(deployment, change_set, values)
    await eventually(lambda: _is_net(deployment, change_set, values, 4))

    await edit(deployment, COMMITS, max_msgs_per_subject=2)
    await eventually(lambda: bool(daemon.said("work stopped")))
    await eventually(lambda: _is_given_back(daemon))
    last = (await deployment.js.stream_info(COMMITS)).state.last_seq
    await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 41)])
    await eventually(lambda: is_unready(daemon))

    [said] = daemon.said("work stopped")
    assert "max_msgs_per_subject is 2, not -1: NATS drops the oldest" in said["reason"]
    assert said["remedy"] == "`rebaser doctor --repair`"
    [rebaser] = (await status_of(daemon))["rebasers"]
    assert rebaser["natsProblem"] == [said["reason"], said["remedy"]]
    daemon.send(signal.SIGKILL)
    await asyncio.to_thread(daemon.process.wait)
    again = await deployment.start()
    await eventually(lambda: bool(again.said("work stopped")))
    assert (await deployment.js.stream_info(COMMITS)).state.last_seq == last
    code, [finding] = await _found(deployment)
    assert (code, finding["where"]) == (Exit.REPAIRABLE, f"stream {COMMITS}")
    assert finding["what"].endswith("no new work is begun")

    assert (await doctor(deployment, repair=True))[0] == Exit.OK

    await eventually(lambda: bool(again.said("work resumed")))
    await deployment.at_rest()
    assert await net(deployment, change_set, values) == 41
    assert await doctor(deployment) == (Exit.OK, [])


async def _is_net(
    deployment: Deployment, change_set: ChangeSet, values: ExampleGraph, value: int
) -> bool:
    graph = await deployment.graph(change_set)
    return values.net in graph.values and graph.values[values.net].value == value


async def _is_given_back(daemon: Daemon) -> bool:
    return not (await status_of(daemon))["rebasers"][0]["holdings"]


async def _found(deployment: Deployment) -> tuple[int, list[Any]]:
    """What is found of the configuration; waiting requests are no fault here."""
    code, found = await doctor(deployment)
    return code, [row for row in found if row["check"] == "configuration"]


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "purged"])
async def test_a_log_that_is_gone_leaves_what_is_in_memory_in_the_store(
    is_deleted: bool, deployment: Deployment
) -> None:
    """Else the change set would begin anew, without a word, once there is an empty stream."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await started(deployment, QUIET_PERIOD="60")
    await set_some(deployment, change_set, values)
    await eventually(lambda: _is_at_rest(daemon, deployment, change_set))
    config = await deployment.js.stream_config(COMMITS)
    checkpoints = checkpoints_of(deployment.archive(change_set))
    assert checkpoints.metadata(change_set) is None

    await (deployment.js.delete_stream if is_deleted else deployment.js.purge)(COMMITS)
    await eventually(lambda: bool(daemon.said("work stopped")))
    await eventually(lambda: is_unready(daemon))
    await eventually(lambda: checkpoints.metadata(change_set) is not None)
    if is_deleted:
        await deployment.js.create_stream(config)
    else:
        other, _ = new_change_sets(2)
        await deployment.js.publish(deployment.streams.commits(other), b"")
    await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 41)])

    await eventually(lambda: bool(daemon.said("history broken")))
    assert (await doctor(deployment))[0] == Exit.DAMAGED


async def _is_at_rest(daemon: Daemon, deployment: Deployment, change_set: ChangeSet) -> bool:
    """Whether requests were handled and nothing is due, and a run has it in its quiet period."""
    _, last = await deployment.archive(change_set).log.last()
    is_done = last is not None and last.settled is not None and not last.control.dvu_due
    requests = (await deployment.js.stream_info(REQUESTS)).state.messages
    return is_done and not requests and bool((await status_of(daemon))["rebasers"][0]["holdings"])


async def test_an_update_in_hand_gives_way_to_a_stop_and_is_computed_afterwards(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It might take hours, and its result would be a commit."""
    gate = Gate(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(gate.path), prepend=os.pathsep)
    [change_set] = new_change_sets(1)
    daemon = await started(deployment)
    gate.close()
    await deployment.client.enqueue_updates(*change_set, gate.define(1))
    await eventually(gate.seen, within=60)

    await edit(deployment, COMMITS, max_age=3600 * SECOND)
    await eventually(lambda: _is_given_back(daemon), within=60)
    gate.open()

    assert (await deployment.graph(change_set)).values[gate.value].value is None
    await provisioner_of(deployment.js, deployment.settings).mend(f"stream {COMMITS}")
    await deployment.at_rest()
    assert (await deployment.graph(change_set)).values[gate.value].value == 1


async def test_requests_that_a_stream_of_commits_refuses_wait_until_it_is_mended(
    deployment: Deployment,
) -> None:
    """Not one becomes a dead letter, though each try is refused for good."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await deployment.start(MAX_ATTEMPTS="1", RECONCILE_INTERVAL="60")
    await edit(deployment, COMMITS, max_msg_size=600)

    await deployment.client.enqueue_updates(
        *change_set, [*values.define(1, 2), set_to(values.net, "x" * 900)]
    )
    await eventually(lambda: bool(daemon.said("work stopped")))

    assert await deployment.dead_letters(change_set) == []
    assert daemon.said("request failed") == []
    assert (await doctor(deployment, repair=True))[0] == Exit.OK
    await deployment.at_rest()
    assert await net(deployment, change_set, values) == "x" * 900


async def test_requests_that_vanish_are_handled_while_they_are_there(
    deployment: Deployment,
) -> None:
    """To stop would lose more of them."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    await edit(deployment, REQUESTS, max_age=3600 * SECOND)
    daemon = await started(deployment)

    await set_some(deployment, change_set, values)
    await deployment.at_rest()

    [said] = daemon.said("requests may be lost")
    assert f"{REQUESTS}: max_age is" in said["reason"]
    status, reasons = await get(url_of(daemon) + "readyz")
    assert (status, "max_age" in json.loads(reasons)["nats"]) == (200, True)
    assert await net(deployment, change_set, values) == 4
    assert (await doctor(deployment, repair=True))[0] == Exit.OK
    await eventually(lambda: bool(daemon.said("requests kept again")))


@pytest.mark.parametrize("stream", [COMMITS, REQUESTS])
async def test_a_sealed_stream_is_no_full_disk(deployment: Deployment, stream: str) -> None:
    """NATS takes that back for a copy alone, as `doctor` says."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.client.enqueue_updates(*change_set, values.define(1, 2))
    await edit(deployment, stream, sealed=True)

    daemon = await deployment.start()
    code, found = await doctor(deployment)

    assert [row["check"] for row in found] == ["configuration"] * 3  # it denies both deletions, too
    assert code == Exit.DAMAGED
    assert "restart" not in str(found)
    assert "nats stream restore" in found[0]["remedy"]
    await eventually(lambda: bool(daemon.said("work stopped")))
    [said] = daemon.said("work stopped")
    assert "sealed" in str([row["what"] for row in found])
    assert stream in said["reason"]
    daemon.kill()
    copy = await backup(deployment.nc, stream)
    unsealed = {"sealed": False, "deny_delete": False, "deny_purge": False}
    config = {**copy.told["config"], **unsealed}
    await deployment.js.delete_stream(stream)
    await restore(deployment.nc, Snapshot({**copy.told, "config": config}, copy.chunks))
    await deployment.start()
    await deployment.at_rest()
    assert await net(deployment, change_set, values) == 1
    assert await doctor(deployment) == (Exit.OK, [])


Case = tuple[str, dict[str, Any]]

STOPPING: tuple[Case, ...] = (
    *(
        (stream, fields)
        for stream in (COMMITS, BATCHES)
        for fields in (
            {"max_age": 3600 * SECOND},
            {"max_msgs_per_subject": 2},
            {"max_msgs": 1000, "discard": "old"},
            {"max_bytes": 10**6, "discard": "old"},
            {"max_msg_size": 1000},
            {"retention": "interest"},
            {"no_ack": True},
            {"sources": [{"name": "OTHERS"}]},
            {"subject_transform": {"src": ">", "dest": "elsewhere.>"}},
            {"consumer_limits": {"max_ack_pending": 3}},
        )
    ),
    (COMMITS, {"subjects": ["elsewhere.>"]}),
    (REQUESTS, {"consumer_limits": {"max_ack_pending": 3}}),
)
"""What NATS takes back, and forgets or refuses commits until then."""

HARMFUL: tuple[Case, ...] = (
    (COMMITS, {"republish": {"src": ">", "dest": "copies.>"}}),
    (COMMITS, {"allow_rollup_hdrs": True}),
    (COMMITS, {"max_bytes": 10**9}),
    (COMMITS, {"max_consumers": 7}),
    (COMMITS, {"allow_direct": False}),
    (COMMITS, {"allow_batched": True}),
    (COMMITS, {"mirror_direct": True}),
    (REQUESTS, {"max_age": 3600 * SECOND}),
    (REQUESTS, {"duplicate_window": SECOND}),
    (REQUESTS, {"discard": "old", "discard_new_per_subject": False}),
    (REQUESTS, {"discard_new_per_subject": False}),
    (REQUESTS, {"max_msgs": 5}),
    ("REBASER_TASKS", {"discard_new_per_subject": False}),
    ("REBASER_TASKS", {"max_age": 3600 * SECOND}),
    ("REBASER_DEAD_LETTERS", {"max_age": 3600 * SECOND}),
    ("REBASER_DEAD_LETTERS", {"max_msgs_per_subject": 5}),
    ("KV_REBASER_CHANGE_SETS", {"max_age": 3600 * SECOND}),
    ("KV_REBASER_CHANGE_SETS", {"max_bytes": 5000}),
    ("KV_REBASER_PAUSES", {"max_msg_size": 10}),
    ("KV_REBASER_PAUSES", {"max_msgs_per_subject": 5}),
    ("KV_REBASER_PAUSES", {"retention": "interest"}),
)

CHOSEN: tuple[Case, ...] = (
    (REQUESTS, {"max_msgs": 5_000_000}),
    (REQUESTS, {"max_msgs": -1}),
    (REQUESTS, {"max_msgs_per_subject": 500_000}),
    (BATCHES, {"allow_rollup_hdrs": False}),
)

HARMLESS: tuple[Case, ...] = (
    (COMMITS, {"description": "ours", "compression": "s2", "metadata": {"by": "us"}}),
    (COMMITS, {"max_msg_size": 64 * 1024 * 1024}),
    (REQUESTS, {"duplicate_window": 3600 * SECOND}),
)


async def config_of(deployment: Deployment, stream: str) -> dict[str, Any]:
    config = (await deployment.js.stream_config(stream)).to_json()
    return {**config, "metadata": None}  # where the server counts its levels


async def faults_of(provisioner: Provisioner, fields: dict[str, Any]) -> list[Fault]:
    """Those found, of which each of the fields has one."""
    faults = judge(await provisioner.diff())
    assert {fault.drift.field.partition(".")[0] for fault in faults} == fields.keys()
    return faults


@pytest.mark.parametrize("found", [STOPPING, HARMFUL], ids=["stops writing", "work goes on"])
async def test_what_does_harm_is_found_and_can_be_mended(
    deployment: Deployment, found: tuple[Case, ...]
) -> None:
    """What forgets or refuses commits is known as that: nothing is written until it is mended."""
    await deployment.js.create_stream(StreamConfig(name="OTHERS", subjects=["others"]))
    provisioner = provisioner_of(deployment.js, deployment.settings)
    watch = WriteWatch(provisioner)

    for stream, fields in found:
        before = await config_of(deployment, stream)
        await edit(deployment, stream, **fields)
        await watch.look()
        assert watch.stop.is_set == (found is STOPPING)
        faults = await faults_of(provisioner, fields)
        assert all(fault.can_be_mended for fault in faults)
        await provisioner.mend(f"stream {stream}")

        assert await config_of(deployment, stream) == before
        await watch.look()
        assert not watch.stop.is_set


async def test_what_operators_may_choose_is_left_as_it_is(deployment: Deployment) -> None:
    """`doctor` names the setting that makes it the deployment's."""
    for stream, fields in CHOSEN:
        before = await config_of(deployment, stream)
        await edit(deployment, stream, **fields)

        _, [finding] = await doctor(deployment, repair=True)

        assert (finding["repaired"], finding["repairable"]) == (False, False)
        assert "for all Rebasers" in finding["remedy"]
        config = await config_of(deployment, stream)
        assert {field: config[field] for field in fields} == fields
        await edit(deployment, stream, **before)


async def test_what_does_no_harm_is_no_finding(deployment: Deployment) -> None:
    for stream, fields in HARMLESS:
        await edit(deployment, stream, **fields)

    assert await doctor(deployment) == (Exit.OK, [])


async def test_a_consumer_that_is_set_otherwise_is_found_and_mended(
    deployment: Deployment,
) -> None:
    """One that NATS does not change is made anew, which costs no task (S-3)."""
    js, stream = deployment.js, deployment.streams.tasks_stream
    provisioner = provisioner_of(js, deployment.settings)
    config = (await js.consumer_config(stream, TASKS_CONSUMER)).to_json()
    verb = f"CONSUMER.CREATE.{stream}.{TASKS_CONSUMER}.{config['filter_subject']}"

    for fields in (
        {"max_deliver": 3},
        {"max_ack_pending": 7},
        {"inactive_threshold": SECOND * 60},
        {"headers_only": True},
        {"max_batch": 1, "max_expires": SECOND},
        {"backoff": [SECOND, 2 * SECOND], "max_deliver": 5, "ack_wait": SECOND},
        {"pause_until": "2126-11-22T01:02:03Z"},
        {"replay_policy": "original"},
        {"mem_storage": True},
    ):
        await js.delete_consumer(stream, TASKS_CONSUMER)
        await js.request(verb, {"stream_name": stream, "config": {**config, **fields}})
        faults = await faults_of(provisioner, fields)
        assert all(fault.can_be_mended for fault in faults)
        await provisioner.mend(f"consumer {stream}/{TASKS_CONSUMER}")

        assert (await js.consumer_config(stream, TASKS_CONSUMER)).to_json() == config
        assert await provisioner.diff() == []
