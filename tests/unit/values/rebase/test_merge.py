"""A branch is head with its own edits rebased onto it, however head's changes came to it."""

import subprocess
import sys

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from rebaser_core.updates import PutValue, RemoveValue, SetInputs, SetValue
from rebaser_server.values.edits import edits_to_json, value_definition
from rebaser_server.values.merge import EditFootprint
from rebaser_server.values.rebase import rebase
from tests.helpers.in_memory_branch import Branch, Head, definitions
from tests.helpers.paths import ROOT
from tests.helpers.random_batches import FUNCS, VALUES, batches, examples, require_consistent
from tests.helpers.random_batches import definitions as sensible
from tests.helpers.random_branch_histories import stories
from tests.helpers.reference_model import Model, plain

steps = st.lists(st.tuples(st.sampled_from(["head", "branch", "reach"]), batches), max_size=7)


def told(start, story):
    """Head and branch after a story; in between the branch is what it must be.

    Except where it wants what head stands in the way of, and its own batch has changed that:
    then with the next catching up.
    """
    head = Head()
    head.request(start)
    branch = Branch(head)
    for who, batch in story:
        if who == "head":
            head.request(batch)
        elif who == "branch":
            branch.request(batch)
        else:
            branch.catch_up()
        if who == "reach" or EditFootprint.of(branch.graph, branch.edits).is_satisfied:
            assert definitions(branch.graph) == branch.must_be()
    return head, branch


@given(sensible, steps)
@examples(120)
def test_a_branch_is_head_with_its_edits(start, story):
    _, branch = told(start, story)
    require_consistent(branch.graph)


@given(sensible, st.lists(batches, max_size=5))
@examples(80)
def test_its_edits_say_no_less_than_all_that_was_asked_of_it(start, own):
    """However many batches they were folded from."""
    head = Head()
    head.request(start)
    branch, model = Branch(head), Model()
    for batch in head.log:
        model.apply(1, batch)
    for batch in own:
        branch.request(batch)
        model.apply(2, batch)

    assert definitions(branch.graph) == branch.must_be()
    assert {i: (n.name, n.func, n.inputs) for i, n in model.nodes.items()} == {
        v.id: (v.name, v.func_id, v.inputs) for v in branch.graph.values.values()
    }


def test_a_merge_is_the_same_in_every_process():
    """Byte for byte: a merge must not depend on where, or under which seed, it was made."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.random_branch_histories"],
            env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]

    outputs = {child.communicate()[0] for child in children}

    assert outputs == {stories()}


@given(sensible, steps)
@examples(80)
def test_what_head_is_can_be_told_from_a_branch(start, story):
    """So a difference needs nothing but the branch."""
    _, branch = told(start, story)
    view = branch.edits.head_view(branch.graph)

    values = {*branch.edits.theirs, *branch.graph.values, *branch.reached.values}
    assert {i: known(view.value(i)) for i in values} == {
        i: known(value_definition(branch.reached, i)) for i in values
    }


def known(put):
    return put and (put.name, put.func_id, put.inputs or {}, plain(put.value))


@given(sensible, steps)
@examples(120)
def test_applied_to_head_the_difference_makes_it_what_the_branch_is_and_needs_no_correction(
    start, story
):
    head, branch = told(start, story)
    branch.catch_up()

    done = rebase(head.graph, 99, branch.difference())

    assert not done.corrections
    assert definitions(head.graph) == definitions(branch.graph)


@given(sensible, steps)
@examples(80)
def test_after_it_is_applied_there_is_no_difference(start, story):
    head, branch = told(start, story)
    branch.catch_up()
    head.request(branch.difference())

    changed = branch.catch_up()

    assert changed == []
    assert branch.difference() == []


@given(sensible, steps, st.lists(batches, min_size=1, max_size=4), st.lists(batches, max_size=2))
@examples(120)
def test_line_by_line_at_once_and_by_difference_come_to_the_same(start, story, more, own):
    """Also where the branch slept for so long that head's log is gone."""
    head, branch = told(start, story)
    for batch in own:
        branch.request(batch)
    one, other = branch.fork(), branch.fork()
    for batch in more:
        head.request(batch)

    while branch.cursor < len(head.log):
        branch.catch_up(1)
    one.catch_up()
    other.catch_up_by_difference()

    assert definitions(branch.graph) == definitions(one.graph) == definitions(other.graph)
    assert branch.difference() == one.difference() == other.difference()


def test_a_value_that_head_removes_and_makes_again_comes_to_the_same():
    source, dependent, func = VALUES[0], VALUES[1], FUNCS[0]
    start = [PutValue(value_id=source, value=0), PutValue(value_id=dependent, func_id=func)]
    test_line_by_line_at_once_and_by_difference_come_to_the_same.hypothesis.inner_test(
        start,
        [],
        [
            [RemoveValue(value_id=source)],
            [
                SetInputs(value_id=dependent, inputs={"values": [source]}),
                PutValue(value_id=source, value=0),
            ],
        ],
        [[SetValue(value_id=source, value=0)]],
    )


def test_head_removes_an_input_that_the_branch_no_longer_has():
    """What the branch knows of head's value loses that input, too."""
    kept, removed = VALUES[0], VALUES[1]
    head = Head()
    head.request(
        [
            PutValue(value_id=removed, value=0),
            PutValue(value_id=kept, name="c", func_id=FUNCS[0], inputs={"values": [removed]}),
        ]
    )
    branch = Branch(head)
    branch.request([PutValue(value_id=kept, value=0)])
    head.request([RemoveValue(value_id=removed)])

    branch.catch_up()

    assert branch.edits.theirs[kept] == value_definition(head.graph, kept)
    branch.request([PutValue(value_id=removed, name="c", value=0)])
    assert not rebase(head.graph, 99, branch.difference()).corrections
    assert definitions(head.graph) == definitions(branch.graph)


A, B, C, D = VALUES[:4]


def takes(value_id, *inputs):
    return PutValue(value_id=value_id, func_id=FUNCS[0], inputs={"values": [*inputs]})


@pytest.mark.parametrize(
    ("start", "own", "heads"),
    [
        ([], [PutValue(value_id=A, name="a", value=1)], [PutValue(value_id=B, name="a", value=2)]),
        (
            [takes(C), takes(B, C), takes(A), takes(D, A)],
            [SetInputs(value_id=A, inputs={"values": [B]})],
            [SetInputs(value_id=C, inputs={"values": [D]})],
        ),
        (
            [PutValue(value_id=A, value=0), takes(B, A)],
            [SetValue(value_id=A, value=1)],
            [RemoveValue(value_id=A), PutValue(value_id=A, value=0)],
        ),
    ],
    ids=["one name", "a cycle together", "removed and put again"],
)
def test_edits_stay_where_head_comes_in_their_way(start, own, heads):
    head = Head()
    head.request(start)
    branch = Branch(head)
    branch.request(own)
    head.request(heads)

    branch.catch_up()

    assert definitions(branch.graph) == branch.must_be()


def test_a_later_edit_goes_into_the_earlier_one():
    """Head's own definitions stay known."""
    head = Head()
    head.request([PutValue(value_id=A, value=0)])
    branch = Branch(head)
    branch.request([SetValue(value_id=A, value=1), PutValue(value_id=B, value=1), takes(C, B)])
    head.request([SetValue(value_id=A, value=5)])
    branch.catch_up()

    branch.request([SetValue(value_id=A, value=2), SetValue(value_id=B, value=2)])

    assert branch.edits.theirs[A] == PutValue(value_id=A, value=5)
    assert branch.edits.values[B].ours == PutValue(value_id=B, value=2)
    branch.request([RemoveValue(value_id=B)])
    assert branch.edits.values[C].ours == takes(C)


def test_a_difference_has_no_more_than_what_differs():
    """A value that was removed and put again takes its dependents' input away first."""
    head = Head()
    head.request([PutValue(value_id=A, name="a", value=0), PutValue(value_id=B), takes(C, B)])
    branch = Branch(head)
    again = PutValue(value_id=B, value=1)

    branch.request([SetValue(value_id=A, value=0.0), RemoveValue(value_id=B), again])

    assert branch.difference() == [
        RemoveValue(value_id=B),
        SetValue(value_id=A, value=0.0),
        again,
    ]


@given(sensible, steps, batches)
@examples(80)
def test_edits_come_back_from_a_checkpoint_as_they_were(start, story, more):
    head, branch = told(start, story)

    again = branch.fork()

    assert edits_to_json(again.edits, again.graph) == edits_to_json(branch.edits, branch.graph)
    assert again.must_be() == branch.must_be()
    head.request(more)
    assert list(map(as_plain, again.catch_up())) == list(map(as_plain, branch.catch_up()))
    assert definitions(again.graph) == definitions(branch.graph)


def as_plain(update):
    return update.KIND, plain(update.to_wire())


@given(sensible, st.lists(batches, max_size=4))
@examples(50)
def test_a_branch_without_edits_is_head(start, more):
    head = Head()
    head.request(start)
    branch = Branch(head)
    for batch in more:
        head.request(batch)
        branch.catch_up()

    assert definitions(branch.graph) == definitions(head.graph)
    assert branch.difference() == []


@given(sensible, st.lists(batches, max_size=2), batches)
@examples(200)
def test_what_is_beside_the_edits_is_taken_over_as_it_is(start, own, batch):
    """The short way comes to what the long one does."""
    head = Head()
    head.request(start)
    branch = Branch(head)
    for edit in own:
        branch.request(edit)
    done = head.request(batch).updates
    reach = EditFootprint.of(branch.graph, branch.edits)

    spared = reach.is_disjoint_from(done)
    branch.catch_up()

    assert definitions(branch.graph) == branch.must_be()
    target(float(spared))
