"""What becomes of an update's results when the change set went on meanwhile."""

import pytest
from hypothesis import given

from rebaser_core.updates import (
    PutFunc,
    PutValue,
    SetInputs,
    SetValue,
)
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.in_memory_change_set import ChangeSet
from tests.helpers.random_batches import FUNCS, batches, contents, examples, histories
from tests.helpers.reference_model import Model
from tests.helpers.replay import after

SOURCE, FIRST, SECOND = ulid(0), ulid(1), ulid(2)
SUM = FUNCS[2]
DEFINITIONS = [
    PutFunc(func_id=SUM, name="sum", runtime="builtin", code="sum"),
    PutValue(value_id=SOURCE, value=1),
    PutValue(value_id=FIRST, func_id=SUM, inputs={"values": [SOURCE]}),
    PutValue(value_id=SECOND, func_id=SUM, inputs={"values": [FIRST]}),
]


@pytest.fixture
def change_set():
    """Source → first → second, right; then the source became 2 and an update is under way."""
    change_set = ChangeSet()
    change_set.request(DEFINITIONS)
    change_set.update_until_right()
    change_set.request([SetValue(value_id=SOURCE, value=2)])
    change_set.start_update()
    return change_set


def value_of(change_set, value_id):
    value = change_set.graph.values[value_id]
    return value.value if value.status == "ok" else value.status.value


def test_results_settle_the_roots_that_they_cover(change_set):
    done = change_set.finish_update()

    assert len(done.updates) == 2
    assert (value_of(change_set, FIRST), value_of(change_set, SECOND)) == (2, 2)
    assert change_set.graph.roots == {}
    assert not change_set.is_due


def test_an_input_that_changed_meanwhile_drops_nothing_and_stays_a_root(change_set):
    """Else an update that takes longer than the pause between two edits would never get in."""
    change_set.request([SetValue(value_id=SOURCE, value=3)])
    latest = change_set.sequence

    done = change_set.finish_update()

    assert not done.corrections
    assert value_of(change_set, SECOND) == 2  # right for what it was computed from
    assert change_set.graph.roots == {SOURCE: latest}
    assert change_set.is_due


@pytest.mark.parametrize(
    "edit",
    [
        PutValue(value_id=FIRST, func_id=SUM, inputs={"values": [SOURCE]}),
        SetInputs(value_id=FIRST, inputs={"values": []}),
        PutFunc(func_id=SUM, name="sum", runtime="builtin", code="max"),
    ],
    ids=["put again", "inputs replaced", "function replaced"],
)
def test_a_value_defined_anew_meanwhile_drops_its_result_and_stays_a_root(change_set, edit):
    change_set.request([edit])

    done = change_set.finish_update()

    assert done.corrections[0].code == "stale-result"
    assert FIRST in done.corrections[0].detail
    assert value_of(change_set, FIRST) == "pending"
    assert change_set.graph.roots[FIRST] == change_set.dirty
    assert change_set.is_due


@given(histories, batches)
@examples(100)
def test_any_batch_of_results_does_what_the_model_does(history, batch):
    graph, model = after(history), Model()
    for sequence, earlier in enumerate(history, 1):
        model.apply(sequence, earlier)
    for covers in (len(history) - 1, len(history)):
        done = rebase(graph, 99, batch, covers)
        _, corrections = model.apply(99, batch, covers)
        graph.clear_roots(covers)
        model.settle(covers)

        assert [(c.index, c.code) for c in done.corrections] == [c[:2] for c in corrections]
        assert not done.dirty
        assert contents(graph) == model.contents()
