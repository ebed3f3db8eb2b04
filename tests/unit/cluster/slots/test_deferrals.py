"""When deferred tasks are redelivered."""

import pytest

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.cluster.slots import DEFERRED_PER_SECOND, MAX_DEFERRAL, Deferrals

BUSY, OTHER = WorkspaceId(), WorkspaceId()
FIRST, AGAIN = 1, 2
"""Numbers of deliveries."""


def one_of(workspace):
    return ChangeSet(workspace, ChangeSetId())


async def test_tasks_put_off_come_back_one_after_the_other():
    """However large the crowd, what comes back of it is no flood, and none is put off for long."""
    deferrals = Deferrals()
    delays = [deferrals.defer(one_of(BUSY), AGAIN) for _ in range(5_000)]

    assert delays[200] - delays[100] == pytest.approx(100 / DEFERRED_PER_SECOND, rel=0.1)
    assert max(delays) <= MAX_DEFERRAL


async def test_a_crowd_that_was_put_off_is_not_before_another_workspace_s_task():
    deferrals = Deferrals()
    crowd = [deferrals.defer(one_of(BUSY), AGAIN) for _ in range(1_000)]

    assert deferrals.defer(one_of(OTHER), AGAIN) < 1 < crowd[-1]

    busy, other = deferrals.defer(one_of(BUSY), AGAIN), deferrals.defer(one_of(OTHER), AGAIN)
    assert other < 1 < crowd[-1] < busy


async def test_crowds_of_several_workspaces_are_no_larger_flood_than_one():
    deferrals = Deferrals()
    crowds = [BUSY, OTHER] * 500 + [WorkspaceId() for _ in range(1_000)]

    delays = sorted(deferrals.defer(one_of(workspace), AGAIN) for workspace in crowds)

    for seconds in (1, 5, 20):
        assert sum(delay <= seconds for delay in delays) <= 2 * DEFERRED_PER_SECOND * seconds
    assert delays[-1] <= MAX_DEFERRAL


async def test_a_process_that_takes_many_tasks_has_more_of_those_put_off_back():
    """However many wait: at a fixed pace its slots would wait for tasks, and the crowd for both."""
    deferrals = Deferrals()
    for _ in range(20 * DEFERRED_PER_SECOND):
        deferrals.on_taken(one_of(BUSY))

    delays = [deferrals.defer(one_of(BUSY), AGAIN) for _ in range(5_000)]

    assert sum(delay <= 10 for delay in delays) >= 10 * 4 * DEFERRED_PER_SECOND


async def test_what_is_put_off_for_the_first_time_is_back_soon():
    """Nothing says yet how long the runs of a crowd will be; short ones need many a second."""
    deferrals = Deferrals()
    crowd = [deferrals.defer(one_of(BUSY), FIRST) for _ in range(5_000)]

    assert max(crowd) < 10
    assert deferrals.defer(one_of(BUSY), AGAIN) - max(crowd) == pytest.approx(
        1 / DEFERRED_PER_SECOND, rel=0.1
    )


class Counted(ChangeSet):
    """A change set that counts how often one is looked up."""

    looks = 0

    def __hash__(self):
        Counted.looks += 1
        return super().__hash__()


async def test_a_look_costs_the_same_however_many_are_put_off():
    """It comes up to fifty times a second, and a hundred thousand may be put off."""
    deferrals = Deferrals()
    for _ in range(5_000):
        deferrals.defer(Counted(BUSY, ChangeSetId()), AGAIN)
    Counted.looks = 0

    due = deferrals.due()

    assert due[BUSY] > 0
    assert Counted.looks < len(deferrals) / 2


async def test_what_was_taken_or_put_off_again_is_not_due_any_more():
    deferrals = Deferrals()
    taken, again, other = (one_of(BUSY) for _ in range(3))
    for each in (taken, again, other):
        deferrals.defer(each, AGAIN)
    for _ in range(2 * DEFERRED_PER_SECOND):
        deferrals.defer(one_of(OTHER), AGAIN)
    deferrals.defer(again, AGAIN)

    deferrals.on_taken(taken)

    assert len(deferrals) == 2 + 2 * DEFERRED_PER_SECOND
    assert deferrals.due()[BUSY] <= 2
