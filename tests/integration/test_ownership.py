"""A run that another one overtakes finds out, whatever it was doing, and touches nothing (W15)."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from rebaser_core.commits import CommitV2
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_server.cluster.membership import Membership
from rebaser_server.commit_log.state import Retention
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.errors import AppendRefused, Fenced, RetryLater
from rebaser_server.graph_application.state_machine import GraphStateMachine
from rebaser_server.processor.checkpointer import Checkpointer
from rebaser_server.processor.ownership import CommittedEntry, acquire_ownership
from rebaser_server.processor.requests import RequestHandler
from rebaser_server.processor.run import process
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.service.composition import build_services, provisioner_of
from rebaser_server.service.daemon import ValueGraph
from rebaser_server.store.checkpoints import Checkpoints, GraphCheckpoint
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.scripted_owner import NOTHING


class Slow(Checkpoints):
    """Between its look at the store and the look at the log, something happens."""

    def __init__(self, root: str, meanwhile: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__(root)
        self._meanwhile = meanwhile
        self._loop = asyncio.get_running_loop()

    def load(self, *which: Any) -> GraphCheckpoint | None:
        found = super().load(*which)
        asyncio.run_coroutine_threadsafe(self._meanwhile(), self._loop).result()
        return found


async def work_of_a_successor(archive: StateLoader) -> None:
    """As much as it takes until the log begins behind what was there before it came."""
    own = await acquire_ownership(archive, "successor")
    nothing_kept = Retention(seconds=0, entries=0, batches=0)
    checkpointing = Checkpointer(own, 1, nothing_kept)
    for _ in range(2):
        await own.write()
        await checkpointing.write()
    await own.write()


async def test_a_newcomer_that_is_overtaken_while_it_restores_does_not_call_history_broken(
    deployment: Deployment,
) -> None:
    """What the successor purged is missing only to one who looked at the store before that.

    Who calls it broken has a person called for nothing, and gives back what is another's.
    """
    [change_set] = new_change_sets(1)
    archive = deployment.archive(change_set)
    await (await acquire_ownership(archive, "before")).write()
    slow = Slow(deployment.settings.store.root, lambda: work_of_a_successor(archive))

    with pytest.raises(Fenced):
        await acquire_ownership(replace(archive, machine=GraphStateMachine(slow)), "newcomer")

    assert await owner_of(deployment, change_set) == "successor"


async def test_a_run_that_is_overtaken_while_idle_ends_and_gives_its_slot_back(
    deployment: Deployment,
) -> None:
    """W10b: nothing else would show it, since no request comes and no line is written."""
    [change_set] = new_change_sets(1)
    daemon = await deployment.start(QUIET_PERIOD="600")
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, [])
    await reply

    await acquire_ownership(deployment.archive(change_set), "successor")

    await eventually(lambda: bool(daemon.said("ownership lost")), within=60)
    assert await owner_of(deployment, change_set) == "successor"


async def owner_of(deployment: Deployment, change_set: ChangeSet) -> str:
    _, last = await deployment.archive(change_set).log.last()
    assert last is not None
    return last.control.owner.partition("/")[0]


async def test_each_commit_is_observed_also_before_a_refused_one(
    deployment: Deployment,
) -> None:
    """The state includes a commit when its observer is called."""
    [change_set] = new_change_sets(1)
    own = await acquire_ownership(deployment.archive(change_set), "owner")
    seen: list[tuple[int, str | None]] = []

    def observe(committed: CommittedEntry) -> None:
        assert own.state.commit == committed.sequence
        seen.append((committed.sequence, committed.action))

    own.on_commit = observe
    before = own.state.commit
    own.stage(action="checkpoint")
    own.stage(owner="x" * 2_000_000)  # more than a message may have
    own.stage()

    with pytest.raises(AppendRefused):
        await own.flush()

    assert seen == [(before + 1, "checkpoint")]


async def test_a_checkpoint_that_waits_for_the_lock_is_not_written_once_the_run_is_fenced(
    deployment: Deployment,
) -> None:
    """Its content may hold what the log does not: each row of a checkpoint is committed."""
    [change_set] = new_change_sets(1)
    archive = deployment.archive(change_set)
    own = await acquire_ownership(archive, "first")
    await own.write()
    checkpointing = Checkpointer(own, 1, NOTHING)
    async with own.lock:
        waiting = asyncio.create_task(checkpointing.write())
        await acquire_ownership(archive, "second")
        with pytest.raises(Fenced):
            await own.write()
    await waiting

    assert own.state.checkpoint_commit == 0


async def test_a_failed_run_learns_by_its_release_that_it_was_fenced(
    deployment: Deployment,
) -> None:
    """W15: so it does not give back a task that is another's."""
    [change_set] = new_change_sets(1)
    archive = deployment.archive(change_set)
    own = await acquire_ownership(archive, "first")
    await acquire_ownership(archive, "second")

    with pytest.raises(Fenced):
        await own.leave()


async def test_a_run_that_fails_after_it_was_overtaken_ends_as_overtaken(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W15: what it failed of is no reason to give back a task that is another's by now."""
    [change_set] = new_change_sets(1)
    await deployment.client.enqueue_updates(*change_set, [])
    services = build_services(
        provisioner_of(deployment.js, deployment.settings),
        deployment.settings,
        ValueGraph(deployment.settings, deployment.executor, lambda: 1, CostModel()),
        Membership(deployment.streams, "first"),
    )

    async def overtaken_and_put_off(*_: Any) -> None:
        await acquire_ownership(deployment.archive(change_set), "second")
        raise RetryLater("the store does not answer")

    monkeypatch.setattr(RequestHandler, "handle", overtaken_and_put_off)

    with pytest.raises(Fenced):
        await process(services, change_set, Shutdown(), SlotLease(change_set.workspace_id))


async def test_a_failed_run_whose_last_write_went_through_unheard_releases_behind_it(
    deployment: Deployment,
) -> None:
    """W14: else the next run took it for dead, and after some of these a request was given up."""
    [change_set] = new_change_sets(1)
    own = await acquire_ownership(deployment.archive(change_set), "only")
    claimed = own.state.control.model_copy(update={"dirty_sequence": 7})
    unheard = CommitV2(id=RequestId(), previous=own.state.commit, control=claimed)
    await own.loader.log.append([unheard])

    await own.leave()

    _, last = await own.loader.log.last()
    assert last is not None
    assert (last.control.owner, last.control.dirty_sequence) == ("", 7)
