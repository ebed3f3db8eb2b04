"""Checkpoints are written beside the requests, and whatever fails is made up for."""

import asyncio
import itertools
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from rebaser_server.commit_log.state import Retention
from rebaser_server.graph_application import state_machine
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.runtime.tasks import background
from rebaser_server.store.checkpoints import CheckpointChanges, Checkpoints
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.random_batches import contents
from tests.helpers.scripted_owner import NOTHING, Owner


async def test_commits_go_on_while_a_checkpoint_is_written(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that takes long is in nobody's way; what came meanwhile is for the next one."""
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set)
    written, may_end = threading.Event(), threading.Event()
    real = Checkpoints.save

    def slow(self: Checkpoints, *what: Any) -> None:
        written.set()
        may_end.wait(30)
        real(self, *what)

    monkeypatch.setattr(Checkpoints, "save", slow)
    await owner.commit([put(value, 1)])
    checkpoint = asyncio.create_task(owner.checkpoint())
    await asyncio.to_thread(written.wait)

    meanwhile = await owner.commit([put(value, 2), put(new_id(), 3)])

    assert not checkpoint.done()
    may_end.set()
    assert await checkpoint < meanwhile
    restored = await owner.archive.load()
    assert restored.entries == 1
    assert contents(graph_of(restored.state)) == contents(graph_of(owner.own.state))
    assert await owner.checkpoint() == meanwhile
    assert (await owner.archive.load()).entries == 0


async def test_the_next_checkpoint_holds_the_changes_of_a_failed_one(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the store had kept it; and the past stays as it was."""
    [change_set], value, other = new_change_sets(1), new_id(), new_id()
    owner = await Owner.of(deployment, change_set)
    commits = [await owner.commit([put(value, 0), put(other, 0)])]
    await owner.checkpoint()
    real, keeps = Checkpoints.save, [False, True]

    def failing(self: Checkpoints, change_set: Any, changes: CheckpointChanges) -> None:
        if keeps.pop():
            real(self, change_set, changes)
        raise OSError("the store is away")

    for number, change in enumerate([set_to(value, 1), {"removeValue": {"valueId": other}}], 1):
        commits.append(await owner.commit([change]))
        with monkeypatch.context() as patched:
            patched.setattr(Checkpoints, "save", failing)
            assert await owner.checkpoint() == commits[0]
        assert len(keeps) == 2 - number
    commits.append(await owner.commit([set_to(value, 3)]))
    await owner.checkpoint()

    graph = graph_of((await owner.archive.load()).state)
    assert contents(graph) == contents(graph_of(owner.own.state))
    seen = [
        graph_of((await owner.archive.load(commit)).state).values[value].value for commit in commits
    ]
    assert seen == [0, 1, 1, 3]
    assert [kept.entries for kept in owner.own.checkpoints] == [2, 3]


async def test_a_log_stays_as_short_as_it_may_be_however_long_the_change_set_lives(
    deployment: Deployment,
) -> None:
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set, Retention(1e9, entries=10, batches=10**9))
    longest = 0
    for number in range(60):
        await owner.commit([put(value, number)])
        if number % 4 == 3:
            await owner.checkpoint()
        stream = deployment.streams.commits_stream
        [lines] = (await deployment.js.stream_subjects(stream)).values()
        longest = max(longest, lines)

    assert longest <= 10 + 4 + 4
    assert len(owner.own.checkpoints) <= 4
    successor = await Owner.over(owner.archive)
    assert successor.own.checkpoints[-len(owner.own.checkpoints) :] == owner.own.checkpoints


async def test_few_large_batches_are_reason_for_a_checkpoint_as_are_many_small_ones(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a change set filled by a few requests takes as long to load as it took to fill."""
    monkeypatch.setattr(state_machine, "MIN_CHANGED_VALUES", 100)
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    owner.own.observers = (owner.checkpointing.on_commit,)
    async with background(owner.checkpointing.run()):
        await owner.commit([put(new_id(), 0) for _ in range(99)])
        assert not owner.own.checkpoint_commit

        commit = await owner.commit([put(new_id(), 0)])

        await eventually(lambda: owner.own.checkpoint_commit == commit)


async def test_a_daemon_writes_and_tidies_while_requests_come(deployment: Deployment) -> None:
    """Here there is a checkpoint after nearly each request, and soon too many files."""
    [change_set], value = new_change_sets(1), new_id()
    daemon = await deployment.start(CHECKPOINT_EVERY="1", HISTORY__MAX_COMMITS="5")
    numbers = itertools.count()

    async def tidied_after_another() -> bool:
        batch = [put(value, next(numbers))]
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, batch)
        await reply
        return bool(daemon.said("table compacted"))

    await eventually(tidied_after_another, within=90)
    await deployment.at_rest()
    assert (await deployment.graph(change_set)).values[value].value == next(numbers) - 1
    assert await deployment.archive(change_set).earliest_commit() > 0, "the log was purged"


async def test_a_checkpoint_asked_for_twice_is_not_the_one_before_itself(
    deployment: Deployment,
) -> None:
    """The log behind it is all that a store has which loses its last write."""
    [change_set], value = new_change_sets(1), new_id()
    owner = await Owner.of(deployment, change_set, NOTHING)
    await owner.commit([put(value, 1)])

    await owner.checkpoint()
    await owner.checkpoint()

    assert await owner.archive.earliest_commit() == 0
    table = Path(checkpoints_of(owner.archive).uri(change_set))
    await asyncio.to_thread(shutil.rmtree, table)
    assert contents(graph_of((await owner.archive.load()).state)) == contents(
        graph_of(owner.own.state)
    )


@pytest.mark.parametrize("is_due", [False, True])
async def test_who_makes_room_writes_a_checkpoint_only_if_the_log_is_long(
    deployment: Deployment, *, is_due: bool
) -> None:
    """W10d: else a change set that never rests would have none, and its log no end."""
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    await owner.commit([put(new_id(), 1)])
    if is_due:
        owner.checkpointing.requested.set()

    await owner.checkpointing.on_end(is_preempted=True)

    assert owner.own.checkpoint_commit == (owner.own.state.commit if is_due else 0)
