"""A change set's state goes on line by line, and a checkpoint holds all of it but the graph."""

import json
from pathlib import Path

from rebaser_core.commits import (
    CommitV2,
    ControlState,
    DvuClaim,
    FailedAttempts,
    RequestOutcome,
    SettledRequest,
)
from rebaser_core.ids import RequestId
from rebaser_core.messages import Inline, InlineBatch, StoreRef
from rebaser_core.updates import PutValue
from rebaser_server.commit_log.state import Checkpoint, RecentRequest, State
from rebaser_server.graph_application.content import GraphContent, graph_of
from rebaser_server.graph_application.state_machine import GraphStateMachine
from rebaser_server.store.checkpoints import Checkpoints, restore_touched, take_changes
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.batches import new_id

IDS = [RequestId.from_int(number) for number in range(9)]


def line(settled=None, **head):
    return CommitV2(id=RequestId(), previous=0, control=ControlState(**head), settled=settled)


def settled(request_id, outcome=RequestOutcome.APPLIED, updates=None):
    return SettledRequest(id=request_id, sequence=1, outcome=outcome, updates=updates)


def test_a_line_brings_its_head_and_its_request():
    state = State(GraphContent())

    state.advance(line(settled(IDS[0]), last_sequence=7, epoch=2), 3)

    assert (state.commit, state.control) == (3, ControlState(last_sequence=7, epoch=2))
    assert state.recent == {IDS[0]: RecentRequest(3, RequestOutcome.APPLIED)}


def test_a_line_that_settles_no_request_is_remembered_by_its_head_alone():
    state = State(GraphContent())

    state.advance(line(epoch=1), 1)

    assert state.control.epoch == 1
    assert not state.recent


def test_a_commit_clears_the_roots_that_it_covers():
    """Also where the line has no results: nothing came out changed, and the roots are done with."""
    state = State(GraphContent())
    graph_of(state).mark_root(graph_of(state).add("early"), 4)
    graph_of(state).mark_root(graph_of(state).add("late"), 5)

    state.advance(line(clean_sequence=4, dirty_sequence=5), 1)

    assert graph_of(state).roots == {"late": 5}
    assert "early" in graph_of(state).touched


def test_a_duplicate_does_not_replace_what_it_repeats():
    """Whoever asks again is told what became of the first one."""
    state = State(GraphContent())
    state.advance(line(settled(IDS[0])), 1)

    state.advance(line(settled(IDS[0], RequestOutcome.DUPLICATE)), 2)

    assert state.recent == {IDS[0]: RecentRequest(1, RequestOutcome.APPLIED)}


def test_batches_that_lie_elsewhere_are_known_until_their_lines_are_gone():
    state = State(GraphContent())
    inline = Inline(inline=InlineBatch(updates=[]))

    state.advance(line(settled(IDS[0], updates=inline)), 1)
    state.advance(line(settled(IDS[1], updates=StoreRef(store="key"))), 2)

    assert state.external_batches == [(2, StoreRef(store="key"))]


def test_all_but_the_graph_survives_as_plain_data():
    """A run that starts from a checkpoint answers, claims and cleans up as the last one would."""
    state = State(GraphContent())
    state.advance(line(settled(IDS[0], updates=StoreRef(store="key"))), 1)
    state.advance(line(settled(IDS[1], RequestOutcome.DEAD), epoch=3), 2)
    state.advance(
        line(
            last_sequence=9,
            dirty_sequence=8,
            clean_sequence=5,
            claim=DvuClaim(id=IDS[2], covers=8),
            attempts=FailedAttempts(sequence=10, count=2),
        ),
        3,
    )

    again = State.from_checkpoint(
        Checkpoint(3, json.loads(json.dumps(state.metadata())), GraphContent())
    )

    assert (again.control, again.commit, again.external_batches) == (
        state.control,
        3,
        state.external_batches,
    )
    assert list(again.recent.items()) == list(state.recent.items())
    assert again.metadata() == state.metadata()


def test_a_checkpoint_that_is_not_written_leaves_all_to_the_next_one(tmp_path: Path) -> None:
    """Its commits count as unsaved, those of the time of its writing with them."""
    machine, state = GraphStateMachine(Checkpoints(str(tmp_path))), State(GraphContent())
    state.advance(line(settled(IDS[0])), 1)
    first = state.begin_checkpoint(machine, 1.0)
    state.advance(line(settled(IDS[1])), 2)
    state.advance(line(), 3)

    state.abandon_checkpoint(machine, first)
    assert (state.checkpoint_commit, state.checkpoints, state.unsaved) == (0, [], (3, 2))

    second = state.begin_checkpoint(machine, 2.0)
    state.advance(line(settled(IDS[2])), 4)
    assert state.unsaved == (4, 3)
    state.finish_checkpoint(second)
    assert (state.checkpoint_commit, state.checkpoints) == (3, [(3, 2.0, 3)])
    assert state.unsaved == (1, 1)


def test_without_a_sound_table_the_next_checkpoint_is_a_first_one(tmp_path: Path) -> None:
    """There is nothing that changes could be added to."""
    machine, state = GraphStateMachine(Checkpoints(str(tmp_path))), State(GraphContent())
    state.advance(line(settled(IDS[0])), 1)
    state.finish_checkpoint(state.begin_checkpoint(machine, 1.0))
    state.advance(line(settled(IDS[1])), 2)

    state.abandon_checkpoint(machine, state.begin_checkpoint(machine, 2.0))
    state.forget_checkpoints()

    assert state.begin_checkpoint(machine, 3.0).checkpoints == [(2, 3.0, 1)]


def test_values_of_a_checkpoint_that_is_not_written_are_in_the_next_one() -> None:
    graph = Graph()
    rebase(graph, 1, [PutValue(value_id=new_id(), value=1)])

    lost = take_changes(graph, 1, {}, whole=False)
    restore_touched(graph, lost)

    assert len(take_changes(graph, 1, {}, whole=False)) == len(lost) == 2, "the value and the head"
