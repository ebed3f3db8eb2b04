"""A damaged checkpoint loses nothing: the one before it and the log have all that it had (S-7)."""

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from rebaser_core.ids import ChangeSet
from rebaser_server.doctor.checks import Severity, check_history, repair
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.processor.outcomes import OutcomeLookup
from tests.helpers.batches import new_id, put
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.random_batches import contents
from tests.helpers.scripted_owner import NOTHING, Owner
from tests.integration.test_backup import (
    COMMITTED,
    WAITING,
    Asked,
    saved,
    stop_daemons,
)


def last_entry(deployment: Deployment, change_set: ChangeSet) -> Path:
    uri = checkpoints_of(deployment.archive(change_set)).uri(change_set)
    return max((Path(uri) / "_delta_log").glob("*.json"))


def last_data(deployment: Deployment, change_set: ChangeSet) -> Path:
    uri = checkpoints_of(deployment.archive(change_set)).uri(change_set)
    now = DeltaTable(uri)
    before = set(DeltaTable(uri, now.version() - 1).file_uris())
    [new] = set(now.file_uris()) - before
    return Path(new.removeprefix("file://"))


Find = Callable[[Deployment, ChangeSet], Path]


def empty_all(deployment: Deployment, change_set: ChangeSet, *patterns: str) -> None:
    uri = Path(checkpoints_of(deployment.archive(change_set)).uri(change_set))
    for pattern in patterns:
        for file in uri.rglob(pattern):
            file.write_bytes(b"")


async def saved_often(deployment: Deployment, change_set: ChangeSet) -> Owner:
    """The log is purged as far as it ever is."""
    owner = await Owner.of(deployment, change_set, NOTHING)
    for number in range(4):
        await owner.commit([put(new_id(), number)])
        await owner.checkpoint()
    assert await owner.archive.earliest_commit()
    return owner


@pytest.mark.parametrize("find", [last_entry, last_data])
@pytest.mark.parametrize("left", [0, 0.5])
async def test_the_next_owner_has_the_state_and_the_next_checkpoint_is_sound(
    deployment: Deployment, find: Find, left: float
) -> None:
    [change_set] = new_change_sets(1)
    owner = await saved_often(deployment, change_set)
    file = find(deployment, change_set)
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * left)])
    finding = await check_history(owner.archive, deep=True)
    assert finding is not None
    assert (finding.severity, "damaged" in finding.what) == (Severity.WARNING, True)

    successor = await Owner.over(deployment.archive(change_set), NOTHING)

    assert contents(graph_of(successor.own.state)) == contents(graph_of(owner.own.state))
    await successor.commit([put(new_id(), 4)])
    await successor.checkpoint()
    loaded = await deployment.archive(change_set).load()
    assert (loaded.damage, loaded.unsaved.commits) == ("", 0)
    assert contents(graph_of(loaded)) == contents(graph_of(successor.own.state))
    assert await check_history(owner.archive, deep=True) is None


@pytest.mark.parametrize("find", [last_entry, last_data])
async def test_the_doctor_repairs_it(deployment: Deployment, find: Find) -> None:
    [change_set] = new_change_sets(1)
    owner = await saved_often(deployment, change_set)
    find(deployment, change_set).write_bytes(b"")

    finding = await check_history(owner.archive, deep=True)
    assert finding is not None

    assert (await repair(finding)).repaired

    assert await check_history(owner.archive, deep=True) is None
    loaded = await deployment.archive(change_set).load()
    assert contents(graph_of(loaded)) == contents(graph_of(owner.own.state))


def restored(table: DeltaTable) -> None:
    table.restore(table.version() - 2)


def updated(table: DeltaTable) -> None:
    table.update(updates={"value": "'4711'"}, predicate="kind = 'value'")


def deleted(table: DeltaTable) -> None:
    table.delete("commit > 1 AND kind = 'value'")


@pytest.mark.parametrize("change", [restored, updated, deleted])
@pytest.mark.parametrize("gone", [False, True], ids=["to be turned back", "for good"])
async def test_what_another_program_changed_in_a_table_is_a_finding_and_not_served(
    deployment: Deployment, change: Callable[[DeltaTable], None], gone: bool
) -> None:
    [change_set] = new_change_sets(1)
    owner = await saved_often(deployment, change_set)
    uri = checkpoints_of(owner.archive).uri(change_set)
    change(DeltaTable(uri))
    if gone:
        DeltaTable(uri).vacuum(0, dry_run=False, enforce_retention_duration=False)

    finding = await check_history(deployment.archive(change_set), deep=False)

    assert finding is not None
    assert "by delta-rs" in finding.what
    if gone:
        assert (finding.severity, "backups" in finding.remedy) == (Severity.ERROR, True)
        with pytest.raises(HistoryInconsistent, match="by delta-rs"):
            await Owner.over(deployment.archive(change_set))
        return
    loaded = await deployment.archive(change_set).load()
    assert contents(graph_of(loaded)) == contents(graph_of(owner.own.state))
    assert (await repair(finding)).repaired
    assert await check_history(deployment.archive(change_set), deep=True) is None


async def test_the_outcome_of_a_request_is_known_all_the_same(deployment: Deployment) -> None:
    """Some of it was in the damaged checkpoint alone, as far as the store goes."""
    [change_set] = new_change_sets(1)
    owner = await saved_often(deployment, change_set)
    [*_, (request, _)] = owner.own.state.recent.items()
    last_data(deployment, change_set).write_bytes(b"")
    machine = deployment.archive(change_set).machine

    outcomes = OutcomeLookup(deployment.streams, machine)
    found = await outcomes._find_result(change_set, request)

    assert found is not None


async def test_without_anything_sound_it_is_refused_with_the_way_out(
    deployment: Deployment,
) -> None:
    [change_set] = new_change_sets(1)
    await saved_often(deployment, change_set)
    empty_all(deployment, change_set, "*.parquet")

    with pytest.raises(HistoryInconsistent, match=r"damaged: .*restore .* backups"):
        await deployment.archive(change_set).load()
    with pytest.raises(HistoryInconsistent):
        await Owner.over(deployment.archive(change_set))
    finding = await check_history(deployment.archive(change_set), deep=True)
    assert finding is not None
    assert (finding.severity, finding.repair) == (Severity.ERROR, None)
    assert "backups" in finding.remedy


async def test_while_the_log_has_everything_no_checkpoint_is_needed(
    deployment: Deployment,
) -> None:
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    for number in range(3):
        await owner.commit([put(new_id(), number)])
        await owner.checkpoint()
    empty_all(deployment, change_set, "*.parquet", "*.json")

    successor = await Owner.over(deployment.archive(change_set))
    await successor.commit([put(new_id(), 3)])
    await successor.checkpoint()

    loaded = await deployment.archive(change_set).load()
    assert (loaded.damage, loaded.unsaved.commits) == ("", 0)
    assert len(graph_of(loaded).values) == 4


async def test_under_a_living_owner_the_checkpoint_after_the_next_has_everything(
    deployment: Deployment,
) -> None:
    [change_set] = new_change_sets(1)
    owner = await saved_often(deployment, change_set)
    last_entry(deployment, change_set).write_bytes(b"")

    for number in range(2):
        await owner.commit([put(new_id(), number)])
        await owner.checkpoint()
        loaded = await deployment.archive(change_set).load()
        assert contents(graph_of(loaded)) == contents(graph_of(owner.own.state))


@pytest.mark.long
async def test_a_daemon_goes_on_from_the_checkpoint_before(deployment: Deployment) -> None:
    asked = Asked(deployment)
    first = await deployment.start(CHECKPOINT_EVERY="3", HISTORY__MAX_COMMITS="0")
    await asked.ask(COMMITTED)
    await saved(deployment, asked.change_set)

    async def is_purged() -> bool:
        await asked.ask(1)  # checkpoints are written beside the requests, perhaps of many at once
        return bool(await deployment.archive(asked.change_set).earliest_commit())

    await eventually(is_purged, within=120)
    await stop_daemons(deployment)
    assert not first.said("checkpoint damaged")
    await asked.ask(WAITING, wait=False)
    last_data(deployment, asked.change_set).write_bytes(b"")
    last_entry(deployment, asked.change_set).write_bytes(b"")

    daemon = await deployment.start()
    await deployment.at_rest()

    graph = await deployment.graph(asked.change_set)
    assert graph.values[asked.values.gross].value == len(asked.sent) - 1
    assert {line["change_set"] for line in daemon.said("checkpoint damaged")} == {
        str(asked.change_set)
    }
