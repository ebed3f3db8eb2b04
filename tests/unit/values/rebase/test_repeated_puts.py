"""What defines a computed value or its function as it is makes nothing due."""

from typing import Any

import pytest

from rebaser_core.commits import ControlState
from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetComputed,
    SetInputs,
    SetValue,
)
from rebaser_server.commit_log.state import Batch
from rebaser_server.graph_application.content import BranchOrigin, GraphContent
from rebaser_server.values.bulk_rebase import RebaseResult
from rebaser_server.values.edits import Edits
from tests.helpers.batches import new_id

NET, TAX, GROSS, ADD = (new_id() for _ in range(4))
INPUTS: dict[str, Any] = {"values": [NET, TAX]}
PUT = PutValue(value_id=GROSS, name="gross", func_id=ADD, inputs=INPUTS)
DEFINE: list[AnyUpdate] = [
    PutFunc(func_id=ADD, name="add", runtime="builtin", code="sum"),
    PutValue(value_id=NET, name="net", value=1),
    PutValue(value_id=TAX, name="tax", value=2),
    PUT,
]


def send(content: GraphContent, *updates: AnyUpdate) -> RebaseResult:
    return content.apply_now(9, Batch(updates, from_client=True))


def definitions(content: GraphContent) -> dict[str, Any]:
    graph = content.graph
    return {
        value.id: (value.name, value.text, value.status, value.inputs, graph.roots.get(value.id))
        for value in graph.values.values()
    }


def computed(*, branch: bool = False, failed: str | None = None) -> GraphContent:
    content = GraphContent()
    content.apply_now(1, Batch(DEFINE))
    result = SetComputed(value_id=GROSS, value=None if failed else 3, failed=failed)
    content.apply_now(0, Batch([result]), covers=1)
    content.complete(1)
    if branch:
        content.edits = Edits()
    return content


def test_the_same_definition_again_is_not_performed() -> None:
    """Nor is any root left; what differs is performed as ever."""
    content = computed()

    again = send(content, *DEFINE[1:])
    changed = send(content, SetValue(value_id=NET, value=5), PUT)

    assert [update.KIND for update in again.updates] == ["putValue", "putValue"]
    assert (again.corrections, again.dirty) == ([], False)
    assert [update.KIND for update in changed.updates] == ["setValue"]
    assert changed.dirty


@pytest.mark.parametrize(
    "updates",
    [
        [PUT.model_copy(update={"name": "total"})],
        [PUT.model_copy(update={"inputs": {"values": [TAX, NET]}})],
        [PUT.model_copy(update={"func_id": new_id()})],
        [RemoveValue(value_id=GROSS), PUT],
        [SetInputs(value_id=GROSS, inputs={}), PUT],
        [PUT.model_copy(update={"value": 3})],
    ],
    ids=["name", "inputs", "function", "after removal", "after other inputs", "corrected"],
)
def test_a_put_that_changes_anything_is_performed(updates: list[AnyUpdate]) -> None:
    """As judged at its place in the batch."""
    done = send(computed(), *updates)

    assert len(done.updates) == len(updates)
    assert done.dirty


def test_a_value_without_a_result_is_computed_again() -> None:
    """Its function may have been mended meanwhile."""
    assert send(computed(failed="ValueError"), PUT).dirty


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("update", [DEFINE[0], SetInputs(value_id=GROSS, inputs=INPUTS)])
def test_the_same_function_or_inputs_again_make_only_failed_values_due(
    update: AnyUpdate, fails: bool
) -> None:
    """A replay of the log comes to the same, where others made values due before."""
    failed = "ValueError" if fails else None
    content = computed(failed=failed)

    assert send(content, update).dirty == fails
    assert computed(failed=failed).apply_now(9, Batch([update])).dirty == fails
    assert send(content, SetInputs(value_id=GROSS, inputs={"values": [NET]}), update).dirty


def test_another_name_of_a_function_makes_nothing_due() -> None:
    """Another code, or the return of a function that was removed, does."""
    put = PutFunc(func_id=ADD, name="add", runtime="builtin", code="sum")

    assert not send(computed(), put.model_copy(update={"name": "plus"})).dirty
    assert send(computed(), put.model_copy(update={"code": "max"})).dirty
    assert send(computed(), RemoveFunc(func_id=ADD), put).dirty


def test_inputs_that_are_corrected_to_those_that_are_there_make_nothing_due() -> None:
    """So the log, which has them corrected, comes to the same."""
    done = send(computed(), SetInputs(value_id=GROSS, inputs=INPUTS | {"more": new_id()}))

    assert (len(done.corrections), done.dirty) == (1, False)


def test_a_replay_performs_what_the_log_has() -> None:
    """Older commits hold such puts, and `rebaser dvu run` writes them: they leave roots."""
    assert computed().apply_now(9, Batch([PUT])).dirty


def test_what_was_performed_gives_the_same_graph() -> None:
    """So leaving updates out of a batch needs no word in the log."""
    live, again = computed(), computed()

    done = send(live, SetValue(value_id=TAX, value=7), PUT, *DEFINE[1:3])
    again.apply_now(9, Batch(done.updates))

    assert definitions(live) == definitions(again)
    assert done.dirty


def test_a_branch_makes_a_value_its_own_by_the_first_put() -> None:
    """The second one changes nothing."""
    content = computed(branch=True)

    first, second = send(content, PUT), send(content, PUT)

    assert (first.dirty, second.dirty, second.updates) == (True, False, [])
    assert content.edits is not None
    assert content.edits.values[GROSS].ours == PUT


def test_what_a_merge_or_a_recomputation_brings_is_no_edit_of_a_branch() -> None:
    content = computed(branch=True)

    content.apply_now(9, Batch([PUT], head_side=[]))

    assert content.edits == Edits()


def test_a_branch_that_is_not_started_begins_where_its_base_was() -> None:
    assert GraphContent(origin=BranchOrigin(7)).cursor(ControlState()) == 7
