"""The state of a change set at any commit since the oldest checkpoint that is kept."""

import shutil
from dataclasses import replace

import pyarrow.compute as pc
import pytest
from deltalake.exceptions import CommitFailedError

from rebaser_core.commits import ClosedState, CommitV2
from rebaser_core.ids import RequestId
from rebaser_core.records import ChangeSetStatus
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.errors import NotRetained
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.store.compaction import compact, drop_superseded
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.random_batches import contents
from tests.helpers.scripted_owner import NOTHING, Owner


async def test_every_commit_is_restored_as_it_was(deployment: Deployment) -> None:
    """Between checkpoints, at them, and at sequences that another change set's lines have."""
    (change_set, other), value = new_change_sets(2), new_id()
    owner, stranger = [await Owner.of(deployment, c) for c in (change_set, other)]
    known = {owner.own.state.commit: contents(graph_of(owner.own.state))}
    for number in range(1, 13):
        known[await stranger.commit([put(value, 0)])] = contents(graph_of(owner.own.state))
        commit = await owner.commit([put(new_id(), number), put(value, number)])
        known[commit] = contents(graph_of(owner.own.state))
        if number % 3 == 0:
            await owner.checkpoint()

    for at, graph in known.items():
        restored = await owner.archive.load(at)
        assert contents(graph_of(restored)) == graph, at
        assert restored.commit <= at
    last = await owner.archive.load()
    assert (last.commit, contents(graph_of(last))) == (commit, known[commit])


async def test_a_purged_commit_is_refused_with_the_oldest_kept(
    deployment: Deployment,
) -> None:
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set, NOTHING)
    purged = await owner.commit([put(value, 1)])
    commits = []
    for number in range(2, 5):
        commits.append(await owner.commit([set_to(value, number)]))
        await owner.checkpoint()

    with pytest.raises(NotRetained, match=f"before commit {commits[1]} is not kept"):
        await owner.archive.load(purged)
    assert await value_at(owner, value, commits[1]) == 3
    with pytest.raises(NotRetained, match=f"ends at commit {commits[2]}"):
        await owner.archive.load(commits[2] + 1)


async def test_a_tidied_table_still_has_the_past_that_is_kept(deployment: Deployment) -> None:
    """Only rows that no state needs from where the past begins are dropped."""
    [change_set], ids = new_change_sets(1), [new_id() for _ in range(100)]
    owner = await Owner.of(deployment, change_set)
    commits = []
    for number in range(60):
        there = [put(i, number) for i in ids[:-number] or ids]
        commits.append(await owner.commit([*there, {"removeValue": {"valueId": ids[-number]}}]))
        await owner.checkpoint()
    checkpoints, known = checkpoints_of(owner.archive), contents(graph_of(owner.own.state))

    async def require_past(first: int) -> None:
        assert contents(graph_of(await owner.archive.load())) == known
        for number in (first, first + 1, 45, 59):
            assert await value_at(owner, ids[0], commits[number]) == number

    merged = compact(checkpoints, change_set, 0, 0)
    assert merged == "small files merged"
    assert len(checkpoints.open(change_set).file_uris()) == 1
    await require_past(1)

    for number in range(60, 63):
        commits.append(await owner.commit([put(ids[0], number)]))
        await owner.checkpoint()
    known = contents(graph_of(owner.own.state))
    drop_superseded(checkpoints.open(change_set), commits[40])
    await require_past(40)
    rows = checkpoints.open(change_set).to_pyarrow_table()
    assert len(rows.filter(pc.less_equal(rows["commit"], commits[40]))) == 1 + 100 - 40


async def test_rows_are_dropped_when_that_is_worth_it(deployment: Deployment) -> None:
    """When there are as many new ones as old ones: on average each is written anew once."""
    [change_set], ids = new_change_sets(1), [new_id() for _ in range(600)]
    owner = await Owner.of(deployment, change_set, NOTHING)
    done = []
    for number in range(12):
        commit = await owner.commit([put(i, number) for i in ids])
        await owner.checkpoint()
        done.append(compact(checkpoints_of(owner.archive), change_set, commit, 0))

    assert done.count("superseded rows dropped") == 3
    assert await value_at(owner, ids[5], commit) == 11


async def test_a_checkpoint_that_comes_while_rows_are_dropped_stays(deployment: Deployment) -> None:
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set)
    for number in range(3):
        commit = await owner.commit([put(value, number)])
        await owner.checkpoint()
    seen = checkpoints_of(owner.archive).open(change_set)
    later = await owner.commit([set_to(value, "later")])
    await owner.checkpoint()

    with pytest.raises(CommitFailedError):
        drop_superseded(seen, commit)

    assert await value_at(owner, value, commit) == 2
    assert await value_at(owner, value, later) == "later"


async def test_a_deleted_change_set_has_no_past_and_is_not_broken(
    deployment: Deployment,
) -> None:
    """A branch that was forked from it, and not taken up yet, then says so."""
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set, NOTHING)
    for number in range(3):
        commit = await owner.commit([put(value, number)])
        await owner.checkpoint()
    await owner.own.write(closing=ClosedState(status=ChangeSetStatus.DELETED, request=RequestId()))

    shutil.rmtree(checkpoints_of(owner.archive).uri(change_set))

    with pytest.raises(NotRetained, match="was deleted"):
        await owner.archive.load(commit)


async def test_a_concurrent_reader_sees_a_consistent_state(
    deployment: Deployment,
) -> None:
    """Not that the store were newer than the log, whose end is looked at a moment later."""
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set)
    await owner.commit([put(value, 1)])

    class MeanwhileOverhauled(CommitLog):
        async def last(self) -> tuple[int, CommitV2 | None]:
            last = await super().last()
            if owner.own.state.checkpoint_commit == 0:
                await owner.commit([set_to(value, 2)])
                await owner.checkpoint()
            return last

    log = MeanwhileOverhauled(deployment.streams, change_set)
    restored = await replace(owner.archive, log=log).load()

    assert graph_of(restored).values[value].value == 1


async def value_at(owner: Owner, value_id: str, commit: int) -> object:
    return graph_of(await owner.archive.load(commit)).values[value_id].value
