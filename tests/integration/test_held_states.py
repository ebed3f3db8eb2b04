"""What a process holds for its runs answers questions: as of the log's last commit, or not."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.queries import ValuesQueryV2
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import StateCache, StateLoader
from rebaser_server.errors import AppendRefused
from rebaser_server.graph_application.content import graph_of
from rebaser_server.processor.ownership import acquire_ownership
from rebaser_server.queries.value_queries import ValueQueries
from rebaser_server.queries.values import FEW, prepare_find
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.scripted_owner import EVERYTHING, Owner, read_updates


class Answers:
    """A process that owns a change set, or did, and is asked about it."""

    def __init__(self, deployment: Deployment, change_set: ChangeSet, held: StateCache) -> None:
        self._change_set = change_set
        self._held = held

        def open_loader(_: ChangeSet) -> StateLoader:
            return replace(deployment.archive(change_set), cache=held)

        self._service = ValueQueries(open_loader).values

    async def ask(self, *which: str, inputs: int = 0) -> tuple[int, list[object], bool]:
        """The commit of the answer, its values, and whether the state came from log and store."""
        query = ValuesQueryV2(
            id=RequestId(),
            workspace_id=self._change_set.workspace_id,
            change_set_id=self._change_set.change_set_id,
            which=list(which),
            inputs=inputs,
        )
        replies = [reply async for reply in self._service.replies(query, {})]
        values = [value.value for reply in replies for value in reply.values]
        is_loaded = len(self._held) > 0 and self._held.last_commit(self._change_set) is None
        return replies[0].commit, values, is_loaded


async def owned(
    deployment: Deployment, updates: Sequence[object]
) -> tuple[Owner, StateCache, Answers]:
    [change_set] = new_change_sets(1)
    held = StateCache(1 << 20)
    loader = replace(deployment.archive(change_set), cache=held)
    owner = Owner(await acquire_ownership(loader, "owner"), EVERYTHING)
    await owner.commit(updates)
    return owner, held, Answers(deployment, change_set, held)


async def test_an_owner_answers_from_its_state(deployment: Deployment) -> None:
    value = new_id()
    owner, held, answers = await owned(deployment, [put(value, 1)])

    with held.owned(owner.archive.change_set, owner.own):
        commit = await owner.commit([set_to(value, 2)])
        assert await answers.ask(value) == (commit, [2], False)
        assert await answers.ask() == (commit, [2], False)
        assert await answers.ask(value, inputs=1) == (commit, [2], False)

    assert await answers.ask(value) == (commit, [2], True)


async def test_what_is_not_committed_yet_is_not_seen(deployment: Deployment) -> None:
    """A question waits for the commit, whose lock is held from before anything is applied."""
    value = new_id()
    owner, held, answers = await owned(deployment, [put(value, 1)])

    with held.owned(owner.archive.change_set, owner.own):
        async with owner.own.lock:
            commits = await owner.prepared(read_updates([set_to(value, 2)]))
            asked = asyncio.create_task(answers.ask(value))
            await asyncio.wait([asked], timeout=0.05)
            assert not asked.done()
            commit = await commits()
        assert await asked == (commit, [2], False)


async def test_an_owner_that_was_fenced_off_does_not_answer(deployment: Deployment) -> None:
    value = new_id()
    owner, held, answers = await owned(deployment, [put(value, 1)])
    other = Owner(await acquire_ownership(owner.archive, "other"), EVERYTHING)
    commit = await other.commit([set_to(value, 2)])

    with held.owned(owner.archive.change_set, owner.own):
        assert await answers.ask(value) == (commit, [2], True)


async def test_a_run_that_was_displaced_here_takes_nothing_from_the_next(
    deployment: Deployment,
) -> None:
    """A lease may end under a run that lives, and its process take the task itself."""
    value = new_id()
    owner, held, answers = await owned(deployment, [put(value, 1)])
    other = Owner(await acquire_ownership(owner.archive, "other"), EVERYTHING)
    commit = await other.commit([set_to(value, 2)])

    with ExitStack() as later:
        with held.owned(owner.archive.change_set, owner.own):
            later.enter_context(held.owned(owner.archive.change_set, other.own))
            assert await answers.ask(value) == (commit, [2], False)
        assert await answers.ask(value) == (commit, [2], False)
    assert owner.archive.change_set not in held


async def test_requests_wait_for_a_look_whose_reader_gave_up(deployment: Deployment) -> None:
    """A thread cannot be cancelled, and looks at what requests would change."""
    owner, held, _ = await owned(deployment, [put(new_id(), 1)])
    looking, go_on = threading.Event(), threading.Event()

    def look(state: State) -> int:
        looking.set()
        go_on.wait()
        return state.commit

    with held.owned(owner.archive.change_set, owner.own):
        reading = asyncio.create_task(held.read(owner.archive, look, "a moment"))
        await eventually(looking.is_set)
        reading.cancel()
        await asyncio.wait([reading])

        assert owner.own.lock.locked()
        go_on.set()
        await eventually(lambda: not owner.own.lock.locked())


async def test_a_state_that_may_hold_what_the_log_does_not_is_not_read(
    deployment: Deployment,
) -> None:
    value = new_id()
    owner, held, answers = await owned(deployment, [put(value, 1)])
    commit = owner.own.state.commit
    await owner.prepared(read_updates([set_to(value, 2)]))  # applied, and never committed
    owner.own.spoil()

    with held.owned(owner.archive.change_set, owner.own):
        assert await answers.ask(value) == (commit, [1], True)


async def test_a_state_that_may_hold_what_the_log_does_not_is_not_left_to_the_next_run(
    deployment: Deployment,
) -> None:
    """W2c: a commit was refused, or work under the lock broke off; the log's state is loaded."""
    value = new_id()
    owner, _, _ = await owned(deployment, [put(value, 1)])
    async with owner.own.lock:
        await owner.prepared(read_updates([set_to(value, 2)]))
        with pytest.raises(AppendRefused):
            await owner.own.write(owner="x" * 2_000_000)  # more than a message may have
    await owner.own.release()
    owner.own.keep_state()

    second = await Owner.over(owner.archive)
    assert graph_of(second.own.state).values[value].value == 1
    with suppress(LookupError):
        async with second.own.lock:
            await second.prepared(read_updates([set_to(value, 3)]))
            raise LookupError
    await second.own.release()
    second.own.keep_state()

    third = await Owner.over(owner.archive)
    assert graph_of(third.own.state).values[value].value == 1


async def test_a_state_that_was_released_answers_while_the_log_ends_with_it(
    deployment: Deployment,
) -> None:
    value = new_id()
    owner, _, answers = await owned(deployment, [put(value, 1)])
    await owner.own.release()
    commit = owner.own.state.commit
    owner.own.keep_state()

    assert await answers.ask(value) == (commit, [1], False)
    assert await answers.ask(value) == (commit, [1], False)

    other = Owner(
        await acquire_ownership(deployment.archive(owner.archive.change_set), "other"), EVERYTHING
    )
    commit = await other.commit([set_to(value, 2)])
    assert await answers.ask(value) == (commit, [2], True)


async def test_a_state_that_a_reader_brought_up_to_date_is_not_for_the_next_run(
    deployment: Deployment,
) -> None:
    """W2c: its books do not have the checkpoint that another process wrote meanwhile."""
    value = new_id()
    owner, _, answers = await owned(deployment, [put(value, 1)])
    await owner.own.release()
    owner.own.keep_state()
    other = await Owner.of(deployment, owner.archive.change_set)
    await other.commit([set_to(value, 2)])
    checkpoint = await other.checkpoint()
    await other.own.release()
    assert (await answers.ask(value))[1] == [2]

    following = await Owner.over(owner.archive)

    assert following.own.state.checkpoint_commit == checkpoint


async def test_a_long_read_holds_up_no_request(deployment: Deployment) -> None:
    """It has a state beside that of the run."""
    value, begun, free = new_id(), threading.Event(), threading.Event()
    owner, held, _ = await owned(deployment, [put(value, 1)])

    def look(state: State) -> object:
        begun.set()
        assert free.wait(60)
        return graph_of(state).values[value].value

    with held.owned(owner.archive.change_set, owner.own):
        reading = asyncio.create_task(owner.archive.read(look, "long"))
        await eventually(begun.is_set)
        await owner.commit([set_to(value, 2)])
        free.set()
        assert await reading == 1


async def test_a_run_waits_for_a_long_read_of_a_state_that_was_released(
    deployment: Deployment,
) -> None:
    """The event loop goes on meanwhile, and what is read is of one commit."""
    value, begun, free = new_id(), threading.Event(), threading.Event()
    owner, held, _ = await owned(deployment, [put(value, 1)])
    await owner.own.release()
    owner.own.keep_state()
    end = await owner.archive.log.end()

    def look(state: State) -> str:
        begun.set()
        assert free.wait(60)
        return graph_of(state).values[value].text

    reading = asyncio.create_task(held.read(owner.archive, look, "a moment"))
    await asyncio.to_thread(begun.wait)
    following = asyncio.create_task(Owner.over(owner.archive))

    async def is_taken_over() -> bool:
        return (await owner.archive.log.end()).sequence > end.sequence

    await eventually(is_taken_over)
    assert not following.done()
    free.set()

    assert await reading == "1"
    assert graph_of((await following).own.state).values[value].value == 1


async def test_a_large_read_is_of_one_commit_and_holds_up_none(deployment: Deployment) -> None:
    """Its rows are made from a snapshot, while requests are applied."""
    values = [new_id() for _ in range(FEW + 1)]
    owner, held, _ = await owned(deployment, [put(value, 1) for value in values])
    query = ValuesQueryV2(
        id=RequestId(),
        workspace_id=owner.archive.change_set.workspace_id,
        change_set_id=owner.archive.change_set.change_set_id,
    )
    commit = owner.own.state.commit

    with held.owned(owner.archive.change_set, owner.own):
        find = await held.read(
            owner.archive, lambda state: prepare_find(query, 1 << 30, state), "a moment"
        )
        assert not owner.own.lock.locked()
        await owner.commit([set_to(value, 2) for value in values] + [put(new_id(), 3)])

    found = find()
    assert found.commit == commit
    assert [row.text for row in found.rows] == ["1"] * len(values)
