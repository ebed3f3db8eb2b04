"""States of released change sets are used while they are true, and take bounded memory."""

from rebaser_core.commits import CommitV2, ControlState, RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_server.commit_log.log import LogEnd
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import MIN_SIZE, StateCache
from rebaser_server.graph_application.content import GraphContent

CHANGE_SET, OTHER, THIRD = (ChangeSet(WorkspaceId(), ChangeSetId()) for _ in range(3))


def commit(*, settles: bool = False) -> CommitV2:
    settled = SettledRequest(id=RequestId(), sequence=1, outcome=RequestOutcome.APPLIED)
    return CommitV2(
        id=RequestId(), previous=0, control=ControlState(), settled=settled if settles else None
    )


def state_of(entry: CommitV2) -> State:
    state = State(GraphContent())
    state.advance(entry, 7)
    return state


async def test_it_is_there_once_if_the_log_ends_with_the_commit_that_it_ends_with() -> None:
    released, entry = StateCache(10**6), commit()
    loaded = state_of(entry)
    released.keep(CHANGE_SET, loaded, 0, entry)

    assert await released.take(CHANGE_SET, LogEnd(7, entry)) is loaded
    assert await released.take(CHANGE_SET, LogEnd(7, entry)) is None
    assert released.total == 0


async def test_it_is_worth_nothing_once_the_log_moved() -> None:
    released, entry = StateCache(10**6), commit()
    released.keep(CHANGE_SET, state_of(entry), 0, entry)

    assert await released.take(CHANGE_SET, LogEnd(8, commit())) is None
    assert len(released) == 0


async def test_a_commit_of_another_past_in_the_same_place_is_another_one() -> None:
    """As after NATS was restored from a backup."""
    released, entry = StateCache(10**6), commit()
    for end, is_its_own in (
        (LogEnd(7, entry), True),
        (LogEnd(7, commit()), False),
        (LogEnd(8, entry), False),
        (LogEnd(), False),
    ):
        released.keep(CHANGE_SET, state_of(entry), 0, entry)
        assert (await released.take(CHANGE_SET, end) is not None) is is_its_own


async def test_the_commit_that_the_log_may_end_with_is_known_while_the_state_is_kept() -> None:
    released, entry = StateCache(10**6), commit()
    assert released.last_commit(CHANGE_SET) is None

    loaded = state_of(entry)
    released.keep(CHANGE_SET, loaded, 0, entry)
    assert released.last_commit(CHANGE_SET) == (7, entry)

    await released.take(CHANGE_SET, LogEnd(7, entry))
    assert released.last_commit(CHANGE_SET) is None


async def test_the_states_that_were_released_first_go_if_they_do_not_all_fit() -> None:
    released, entry = StateCache(2 * (MIN_SIZE + 100)), commit()
    for change_set in (CHANGE_SET, OTHER, THIRD):
        released.keep(change_set, state_of(entry), 100, entry)

    assert released.total == 2 * (MIN_SIZE + 100)
    assert await released.take(CHANGE_SET, LogEnd(7, entry)) is None
    assert await released.take(OTHER, LogEnd(7, entry)) is not None


async def test_with_no_memory_none_is_kept() -> None:
    released, entry = StateCache(0), commit()

    released.keep(CHANGE_SET, state_of(entry), 0, entry)

    assert await released.take(CHANGE_SET, LogEnd(7, entry)) is None


def test_those_without_a_checkpoint_are_named_until_a_run_was_asked_for() -> None:
    released = StateCache(10**6)
    released.keep(CHANGE_SET, state_of(commit(settles=True)), 0, None)
    released.keep(OTHER, state_of(commit()), 0, None)
    released.keep(THIRD, state_of(commit(settles=True)), 0, None)

    assert list(released.unsaved(0)) == [CHANGE_SET, THIRD]
    assert list(released.unsaved(3600)) == []

    released.on_task(CHANGE_SET)
    assert list(released.unsaved(0)) == [THIRD]
