"""Updates that are due are found in logs of any number, each look reading a bounded part."""

from collections.abc import Sequence

import pytest

from rebaser_core.commits import CommitV2, ControlState
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_server.cluster.reconciler import Reconciler, UnfinishedScanner
from rebaser_server.commit_log.log import UNSAVED, CommitLog
from tests.helpers.deployment import Deployment, new_change_sets

CLEAN, DUE = ControlState(dirty_sequence=1, clean_sequence=1), ControlState(dirty_sequence=1)


async def write(deployment: Deployment, change_set: ChangeSet, *heads: ControlState) -> None:
    log = CommitLog(deployment.streams, change_set)
    for head in heads:
        previous, _ = await log.last()
        await log.append([CommitV2(id=RequestId(), previous=previous, control=head)])


async def found(deployment: Deployment, lines: int, looks: int) -> list[set[str]]:
    unfinished = UnfinishedScanner(deployment.js, deployment.streams.commits_stream)
    return [await unfinished.scan(lines) for _ in range(looks)]


@pytest.fixture
async def logs(deployment: Deployment) -> Sequence[ChangeSet]:
    """Of 40 change sets, two lines each, one with an update that is due."""
    change_sets = new_change_sets(40)
    for change_set in change_sets:
        await write(deployment, change_set, DUE, DUE if change_set is change_sets[17] else CLEAN)
    return change_sets


async def test_one_look_finds_it_if_there_are_few(
    deployment: Deployment, logs: Sequence[ChangeSet]
) -> None:
    """Wherever it begins; a pair of lines that it begins between is to be looked at again."""
    for _ in range(20):
        [looked] = await found(deployment, 1_000, 1)

        assert deployment.streams.commits(logs[17]) in looked
        assert len(looked) <= 2


async def test_looks_go_on_where_the_last_one_ended_and_round_and_round(
    deployment: Deployment, logs: Sequence[ChangeSet]
) -> None:
    """Two rounds in looks of 20 of the 80 lines: it is found in each round."""
    due = deployment.streams.commits(logs[17])

    looks = await found(deployment, 20, 9)

    assert any(due in look for look in looks[:5])
    assert any(due in look for look in looks[5:])
    assert all(len(look) <= 3 for look in looks)  # what it was cut off from is looked at again


async def test_looks_share_a_round_without_a_gap_or_a_line_twice(deployment: Deployment) -> None:
    """X2: each reads as many lines as it may, from the one behind the last look's."""
    change_sets = new_change_sets(12)
    for change_set in change_sets:
        await write(deployment, change_set, DUE)

    looks = await found(deployment, 3, 4)

    assert [len(look) for look in looks] == [3, 3, 3, 3]
    assert set[str]().union(*looks) == {deployment.streams.commits(each) for each in change_sets}


async def test_only_what_is_due_by_now_and_has_no_task_gets_one(
    deployment: Deployment, logs: Sequence[ChangeSet]
) -> None:
    reconciler = Reconciler(deployment.streams, 60)

    made = [await reconciler.reconcile(), await reconciler.reconcile()]

    assert made == [1, 0]
    tasks = await deployment.js.stream_subjects(deployment.streams.tasks_stream)
    assert set(tasks) == {deployment.streams.task(logs[17])}


@pytest.mark.parametrize("has_room", [True, False])
async def test_what_lacks_a_checkpoint_alone_is_found_while_slots_are_free(
    deployment: Deployment, *, has_room: bool
) -> None:
    """X2b: a run that has nothing else to do takes the slot of none that has."""
    [change_set] = new_change_sets(1)
    js, streams = deployment.js, deployment.streams
    entry = CommitV2(id=RequestId(), previous=0, control=CLEAN)
    await CommitLog(streams, change_set).append([entry], {entry.id: {UNSAVED: "1"}})

    unfinished = UnfinishedScanner(js, streams.commits_stream, lambda: has_room)

    assert await unfinished.scan(10) == ({streams.commits(change_set)} if has_room else set())


async def test_an_empty_log_has_nothing_due(deployment: Deployment) -> None:
    assert await found(deployment, 10, 2) == [set(), set()]
