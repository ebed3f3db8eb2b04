"""`rebaser doctor` finds what is wrong, repairs what is safe, and says so by its exit code."""

import asyncio
import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable

from rebaser_core.calls import key_of
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import NatsUnreachable, StreamConfig
from rebaser_core.records import PauseScope
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.pauses import PauseStore
from rebaser_server.commands.doctor import examine  # the command, in this process
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.commit_log.batch_store import open_shared_files
from rebaser_server.doctor import checks
from rebaser_server.doctor.checks import Finding, Severity, repair
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.files import CHANGE_SETS, IN_NATS
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.handlers import Context, Service
from rebaser_server.handlers.sending import Alarms
from rebaser_server.runtime.tasks import wait_forever
from tests.helpers.batches import ExampleGraph, new_id, put
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.scripted_owner import NOTHING, Owner
from tests.helpers.workers import Working


@pytest.fixture
async def deployment(deployment: Deployment) -> Deployment:
    """Have its requests begin behind those that scripted owners commit."""
    await deployment.js.purge(deployment.streams.requests_stream, below_sequence=100)
    return deployment


class Asked:
    """Arguments of the command."""

    def __init__(self, **said: bool) -> None:
        self.repair = said.get("repair", False)
        self.all = said.get("all", True)
        self.deep = True
        self.json = True


Report = tuple[int, list[dict[str, Any]]]


async def doctor(deployment: Deployment, capsys: Any, **said: bool) -> Report:
    """The exit code, and what is found beside the note on durability, which is always there."""
    capsys.readouterr()  # what workers in this process logged
    code = await examine(deployment.settings, Asked(**said))
    found = json.loads(capsys.readouterr().out)
    return code, [row for row in found if row["check"] != "durability"]


def table_of(owner: Owner) -> DeltaTable:
    return DeltaTable(checkpoints_of(owner.archive).uri(owner.archive.change_set))


async def test_a_deployment_that_is_well_has_nothing(deployment: Deployment, capsys: Any) -> None:
    for change_set in new_change_sets(2):
        owner = await Owner.of(deployment, change_set)
        for number in range(3):
            await owner.commit([put(new_id(), number)])
            await owner.checkpoint()

    assert await doctor(deployment, capsys) == (Exit.OK, [])


async def test_work_without_a_task_gets_one(deployment: Deployment, capsys: Any) -> None:
    asked, due = new_change_sets(2)
    streams = deployment.streams
    await deployment.js.publish(streams.requests(asked), b"")
    await (await Owner.of(deployment, due)).commit(ExampleGraph().define())

    code, found = await doctor(deployment, capsys)
    again, repaired = await doctor(deployment, capsys, repair=True)

    assert (code, again) == (Exit.REPAIRABLE, Exit.OK)
    assert {row["where"] for row in found} == {str(asked), str(due)}
    assert all(row["repaired"] for row in repaired)
    tasks = await deployment.js.stream_subjects(streams.tasks_stream)
    assert set(tasks) == {streams.task(asked), streams.task(due)}


async def test_work_of_a_paused_change_set_needs_no_task(
    deployment: Deployment, capsys: Any
) -> None:
    [change_set], streams = new_change_sets(1), deployment.streams
    await deployment.js.publish(streams.requests(change_set), b"")
    await PauseStore(streams).pause(PauseScope(*change_set), by="ada", reason=None)

    code, found = await doctor(deployment, capsys)

    assert (code, [row["check"] for row in found]) == (Exit.OK, ["pauses"])


async def test_a_repair_that_fails_is_told_and_leaves_the_finding() -> None:
    async def fail() -> None:
        raise OSError("disk full")

    finding = await repair(Finding("tasks", "here", "no task", repair=fail))

    assert finding.what == "no task; not repaired: disk full"
    assert finding.matters
    assert not replace(finding, severity=Severity.NOTE).matters


async def test_services_whose_states_are_in_nats_have_nothing(
    deployment: Deployment, capsys: Any
) -> None:
    store = deployment.settings.store.model_copy(update={"root": IN_NATS})
    deployment.settings = deployment.settings.model_copy(update={"store": store})
    service, working = Service("bells"), Working(deployment)

    @service.handler
    def ring(ctx: Context[None]) -> None:
        pass

    async with working.worker(service):
        await working.key("bells", "k-1").call("ring")
        await deployment.at_rest()

    code, found = await doctor(deployment, capsys)
    assert code == Exit.OK
    # A client may send the task after the worker has done its work.
    assert [row for row in found if row["severity"] != Severity.NOTE] == []


@pytest.mark.parametrize("loss", ["purged", "deleted"])
async def test_timers_whose_alarms_are_gone_get_them_again(
    deployment: Deployment, capsys: Any, loss: str
) -> None:
    """All keys get them, once one of the sample lacks an alarm; then they ring."""
    service, rung, working = Service("bells"), [], Working(deployment)
    streams, js = deployment.streams, deployment.js

    @service.handler
    def ring(ctx: Context[None]) -> None:
        rung.append(ctx.key)

    keys = [f"k-{number}" for number in range(25)]
    with mock.patch.object(Alarms, "_hear", _deaf):
        async with working.worker(service):
            for key in keys:
                await working.key("bells", key).send("ring", after=1)
            await deployment.at_rest()
    assert await doctor(deployment, capsys) == (Exit.OK, [])
    await (js.purge if loss == "purged" else js.delete_stream)(streams.alarms_stream)

    code, found = await doctor(deployment, capsys, all=False)
    again, repaired = await doctor(deployment, capsys, all=False, repair=True)

    assert (code, again) == (Exit.REPAIRABLE, Exit.OK)
    lost = [row for row in found if row["check"] == "timers"]
    assert {row["where"] for row in lost} == {str(key_of("bells", key)) for key in keys}
    assert all("1 timer without an alarm" in row["what"] for row in lost)
    missing = [row["where"] for row in found if row["check"] == "configuration"]
    assert missing == ([f"stream {streams.alarms_stream}"] if loss == "deleted" else [])
    assert all(row["repaired"] for row in repaired if row["check"] == "timers")
    async with working.worker(service):
        await eventually(lambda: {*rung} == {*keys})  # a call may be made again
        await deployment.at_rest()
    assert await doctor(deployment, capsys) == (Exit.OK, [])


async def _deaf(*_: object) -> None:
    await wait_forever()


async def test_a_stream_that_is_configured_otherwise_is_for_a_person(
    deployment: Deployment, capsys: Any
) -> None:
    stream = deployment.streams.requests_stream
    config = await deployment.js.stream_config(stream)
    await deployment.js.update_stream(config | StreamConfig(max_age=timedelta(hours=1)))
    await deployment.js.delete_consumer(deployment.streams.tasks_stream, TASKS_CONSUMER)

    code, found = await doctor(deployment, capsys, repair=True)

    assert code == Exit.DAMAGED
    assert {row["check"] for row in found} == {"configuration"}
    assert any("max_age" in row["what"] and "nats stream edit" in row["remedy"] for row in found)
    assert any(TASKS_CONSUMER in row["where"] for row in found)


async def test_a_stream_without_batches_is_given_them(deployment: Deployment, capsys: Any) -> None:
    """The remedy says that all Rebasers have to be able to read them first."""
    stream = deployment.streams.commits_stream
    config = await deployment.js.stream_config(stream)
    await deployment.js.update_stream(config | StreamConfig(allow_atomic=False))

    code, [found] = await doctor(deployment, capsys)
    again, _ = await doctor(deployment, capsys, repair=True)

    assert (code, again) == (Exit.REPAIRABLE, Exit.OK)
    assert found["repairable"]
    assert "once all Rebasers" in found["remedy"]
    assert (await deployment.js.stream_config(stream)).allow_atomic


@pytest.mark.parametrize("subject", ["rebaser.requests.nobody", "rebaser.commits.nobody"])
async def test_a_message_that_names_no_change_set_is_named(
    deployment: Deployment, capsys: Any, subject: str
) -> None:
    await deployment.js.publish(subject, b"")

    code, found = await doctor(deployment, capsys)

    assert code == Exit.DAMAGED
    assert subject in found[0]["what"]


async def a_damaged_one(deployment: Deployment, change_set: ChangeSet) -> Owner:
    """Its last checkpoint's file is gone; the one before it is sound."""
    owner = await Owner.of(deployment, change_set, NOTHING)
    for number in range(4):
        await owner.commit([put(new_id(), number)])
        await owner.checkpoint()
    table = table_of(owner)
    before = set(DeltaTable(table.table_uri, table.version() - 1).file_uris())
    [last] = set(table.file_uris()) - before
    await asyncio.to_thread(Path(last).unlink)
    return owner


async def test_a_damaged_checkpoint_is_replaced_by_the_one_before_and_the_log(
    deployment: Deployment, capsys: Any
) -> None:
    [change_set] = new_change_sets(1)
    owner = await a_damaged_one(deployment, change_set)

    code, found = await doctor(deployment, capsys)
    again, repaired = await doctor(deployment, capsys, repair=True)

    assert (code, again) == (Exit.REPAIRABLE, Exit.OK)
    assert [row["check"] for row in found] == ["history"]
    assert repaired[0]["repaired"]
    assert len(graph_of(await owner.archive.load()).values) == 4
    later = await Owner.of(deployment, change_set)  # and it goes on from there
    await later.commit([put(new_id(), 5)])
    await later.checkpoint()
    assert len(graph_of(await owner.archive.load()).values) == 5


async def test_a_store_that_lost_more_than_its_last_write_is_for_a_person(
    deployment: Deployment, capsys: Any
) -> None:
    [change_set] = new_change_sets(1)
    owner = await a_damaged_one(deployment, change_set)
    shutil.rmtree(Path(table_of(owner).table_uri.removeprefix("file://")))

    code, found = await doctor(deployment, capsys, repair=True)

    assert code == Exit.DAMAGED
    assert found[0]["where"] == str(change_set)
    assert "backup" in found[0]["remedy"]


@pytest.mark.parametrize("is_tried", [False, True], ids=["before work", "after work was tried"])
async def test_a_log_that_nats_dropped_is_found_by_what_the_store_has(
    is_tried: bool, deployment: Deployment, capsys: Any
) -> None:
    """A stream whose retention is `interest` drops every message that no consumer waits for."""
    [change_set], stream = new_change_sets(1), deployment.streams.commits_stream
    owner = await Owner.of(deployment, change_set)
    await owner.commit([put(new_id(), 1)])
    await owner.checkpoint()
    kept = owner.own.state.commit
    config = await deployment.js.stream_config(stream)
    for retention in ("interest", "limits"):
        await deployment.js.update_stream(config | StreamConfig(retention=retention))
    if is_tried:
        with pytest.raises(HistoryInconsistent):
            await Owner.of(deployment, change_set)

    for everything in (True, False):
        code, found = await doctor(deployment, capsys, all=everything)

        [finding] = [row for row in found if row["check"] == "history"]
        assert code == Exit.DAMAGED
        assert finding["where"] == str(change_set)
        assert f"dropped the log; the values as of commit {kept} are left" in finding["what"]
        assert "backup" in finding["remedy"]


async def test_a_store_that_cannot_be_listed_is_a_finding(
    deployment: Deployment, capsys: Any
) -> None:
    files = open_shared_files(deployment.settings.store, deployment.streams)
    await asyncio.to_thread(files.put, CHANGE_SETS, b"a file in the place of the folder")

    code, found = await doctor(deployment, capsys)

    assert code == Exit.DAMAGED
    [finding] = [row for row in found if row["check"] == "history"]
    assert "check failed" in finding["what"]


async def test_a_checkpoint_that_says_other_than_the_log_is_found(
    deployment: Deployment, capsys: Any
) -> None:
    """Should it ever happen: somebody wrote into the table, or a value was computed otherwise."""
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set)
    await owner.commit([put(value, 1)])
    await owner.checkpoint()
    await owner.commit([put(new_id(), 2)])
    graph_of(owner.own.state).rename(graph_of(owner.own.state).values[value], "not in the log")
    await owner.checkpoint()

    code, found = await doctor(deployment, capsys)

    assert code == Exit.DAMAGED
    assert "differs from a replay of the log" in found[0]["what"]


async def test_a_nats_that_is_away_says_nothing_about_histories(
    deployment: Deployment,
) -> None:
    [change_set] = new_change_sets(1)
    loader = deployment.archive(change_set)
    loader.log._streams.js.timeout = 0.2
    deployment.nats.freeze()

    with pytest.raises(NatsUnreachable):
        await anext(checks.check_histories([loader], None, deep=False))

    deployment.nats.thaw()


async def test_unfinished_work_is_repaired(deployment: Deployment, capsys: Any) -> None:
    store = deployment.settings.store
    soon = store.model_copy(update={"orphan_retention": timedelta(milliseconds=10)})
    deployment.settings = deployment.settings.model_copy(update={"store": soon})
    await deployment.js.publish(f"$O.{deployment.streams.batches_bucket}.C.x", b"half")

    async def is_found() -> bool:
        return (await doctor(deployment, capsys))[0] != Exit.OK

    await eventually(is_found)
    code, found = await doctor(deployment, capsys)
    again, _ = await doctor(deployment, capsys, repair=True)

    assert (code, again) == (Exit.REPAIRABLE, Exit.OK)
    assert found[0]["what"] == "1 chunk without a reference"


async def test_a_wrong_clock_makes_no_work_look_old(
    deployment: Deployment, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await deployment.js.publish(f"$O.{deployment.streams.batches_bucket}.C.x", b"half")
    monkeypatch.setattr("time.time", lambda: 4e9)

    assert await doctor(deployment, capsys) == (Exit.OK, [])
