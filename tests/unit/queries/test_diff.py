"""A difference for people: what of a value differs, on which side, and whether on both."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.ids import RequestId
from rebaser_core.updates import AnyUpdate, PutFunc, PutValue, RemoveValue, SetInputs, SetValue
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import decode_result
from rebaser_server.graph_application.commands import digest, head_request_id
from rebaser_server.queries.comparisons import Effects, changes_in, effects
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.in_memory_branch import Branch, Head
from tests.helpers.in_memory_change_set import as_update
from tests.helpers.random_batches import batches, computable, examples
from tests.helpers.reference_model import plain

NET, TAX, SUM, GROSS, NEW, OLD = (ulid(number) for number in range(6))
START = [
    PutFunc(func_id=SUM, name="sum", runtime="builtin", code="sum"),
    PutValue(value_id=NET, name="net", value=100),
    PutValue(value_id=TAX, name="tax", value=19),
    PutValue(value_id=GROSS, name="gross", func_id=SUM, inputs={"values": [NET, TAX]}),
]


@pytest.mark.parametrize(
    ("edit", "what", "head", "branch"),
    [
        (SetValue(value_id=NET, value=1), "value", 100, 1),
        (PutValue(value_id=NET, name="price", value=100), "name", "net", "price"),
        (PutValue(value_id=NEW, value=[1]), "added", None, [1]),
        (RemoveValue(value_id=TAX), "removed", 19, None),
        (
            SetInputs(value_id=GROSS, inputs={"values": [NET]}),
            "inputs",
            {"values": [NET, TAX]},
            {"values": [NET]},
        ),
        (
            PutFunc(func_id=SUM, name="sum", runtime="builtin", code="max"),
            "function",
            {"runtime": "builtin", "code": "sum"},
            {"runtime": "builtin", "code": "max"},
        ),
    ],
    ids=lambda what: what if isinstance(what, str) else "",
)
def test_differences_are_shown(edit, what, head, branch):
    trunk = Head()
    trunk.request(START)
    side = Branch(trunk)

    side.request([edit])

    [change] = changes_in(side.graph, side.edits)
    assert (change.what, change.head, change.branch, change.both) == (what, head, branch, False)


def test_both_sides_and_what_was_there_before_are_shown_where_both_changed():
    trunk = Head()
    trunk.request(START)
    side = Branch(trunk)
    side.request([SetValue(value_id=NET, value=1)])
    trunk.request([SetValue(value_id=NET, value=2)])

    side.catch_up()

    [change] = changes_in(side.graph, side.edits)
    assert (change.base, change.head, change.branch, change.both) == (100, 2, 1, True)

    for each, code in ((side, "max"), (trunk, "min")):
        each.request([PutFunc(func_id=SUM, name="sum", runtime="builtin", code=code)])
    side.catch_up()

    of_function, _ = changes_in(side.graph, side.edits)
    assert (of_function.what, of_function.both) == ("function", True)


def test_equal_changes_on_both_sides_are_no_difference():
    trunk = Head()
    trunk.request(START)
    side = Branch(trunk)
    side.request([SetValue(value_id=NET, value=1)])
    trunk.request([SetValue(value_id=NET, value=1)])

    side.catch_up()

    assert changes_in(side.graph, side.edits) == []
    assert side.difference() == []


def test_a_difference_is_named_by_what_it_says_and_by_what_it_replaces():
    def digest_of(*edits, head=()):
        trunk = Head()
        trunk.request(START)
        side = Branch(trunk)
        side.request(edits)
        trunk.request(head)
        side.catch_up()
        return digest(side.difference(), side.edits.head_view(side.graph))

    one = SetValue(value_id=NET, value=1)

    assert digest_of(one) == digest_of(SetValue(value_id=NET, value=1))
    assert digest_of(one) == digest_of(one, head=[SetValue(value_id=TAX, value=2)])
    assert digest_of(one) != digest_of(SetValue(value_id=NET, value=1.0))
    assert digest_of(one) != digest_of(one, head=[SetValue(value_id=NET, value=2)])
    rewired = SetInputs(value_id=GROSS, inputs={"values": [NET]})
    assert digest_of(rewired) != digest_of(rewired, head=[RemoveValue(value_id=TAX)])
    sums = [PutValue(value_id=NEW, func_id=SUM, inputs={"a": each}) for each in (NET, TAX)]
    assert digest_of(sums[0]) != digest_of(sums[1])
    added = PutValue(value_id=NEW, value=1)
    assert digest_of(added) != digest_of(added, head=[PutValue(value_id=NEW, value=2)])


def test_the_request_to_head_has_the_same_id_each_time_and_another_than_what_asked_for_it():
    request = RequestId()

    assert head_request_id(request) == head_request_id(RequestId.from_str(str(request)))
    assert head_request_id(request) != request
    assert head_request_id(request).timestamp == request.timestamp


class Computing:
    """A head and a branch of it whose updates of dependent values come when a story says so."""

    def __init__(self, base: list[AnyUpdate]) -> None:
        self.head = Head()
        self.head.request(base)
        settle(self.head.graph)
        self.branch = Branch(self.head)

    def go_on(self, step: str, batch: list[AnyUpdate]) -> None:
        match step:
            case "head":
                self.head.request(batch)
            case "branch":
                self.branch.request(batch)
            case "follow":
                self.branch.catch_up(min(1, len(self.head.log) - self.branch.cursor))
            case "compute head":
                settle(self.head.graph)
            case "compute branch":
                settle(self.branch.graph)

    def compare(self) -> tuple[Effects, list[AnyUpdate]]:
        """As `diff` does: the branch and its edits are others afterwards."""
        branch = self.branch.fork()
        branch.catch_up()
        difference = branch.difference()
        return effects(branch.graph, self.head.graph, difference), difference


def settle(graph: Graph) -> None:
    """Do all that is to be computed, as an update does."""
    last = max(graph.roots.values(), default=0)
    if not last:
        return
    outcomes = [
        decode_result(evaluate(blob.encode())) for blob in plan(graph, slots=2, small=0).units
    ]
    results = [as_update(each) for outcome in outcomes for each in outcome.value_results]
    rebase(graph, last + 1, results, last)
    graph.clear_roots(last)


def shown(found: Effects) -> dict[str, tuple[Any, Any]]:
    sides = [
        (each.id, (each.head_status, plain(each.head)), (each.branch_status, plain(each.branch)))
        for each in found.differing
    ]
    return {value_id: (head, branch) for value_id, head, branch in sides}


def outcome(graph: Graph, value_id: str) -> tuple[Any, Any]:
    value = graph.values.get(value_id)
    if value is None:
        return None, plain(None)
    return value.status.value, plain(value.value)


def truth(head: Graph, difference: list[AnyUpdate]) -> dict[str, tuple[Any, Any]]:
    """What head has once it is computed, less what it has after the difference, where computed."""
    before, after = deepcopy(head), deepcopy(head)
    rebase(after, 10**6, difference)
    settle(before)
    settle(after)
    computed = {v.id for graph in (before, after) for v in graph.values.values() if v.func_id}
    sides = {i: (outcome(before, i), outcome(after, i)) for i in computed}
    return {value_id: (one, other) for value_id, (one, other) in sides.items() if one != other}


steps = st.lists(
    st.tuples(
        st.sampled_from(["head", "head", "branch", "branch", "follow"])
        | st.sampled_from(["compute head", "compute branch"]),
        batches,
    ),
    max_size=8,
)


@given(computable, steps)
@examples(100)
def test_the_effects_shown_are_those_that_applying_has(base, story):
    """Head after apply and its update, less head before: all of it where both are computed, and
    nothing else ever, however far the branch is behind."""
    team = Computing(base)

    for step, batch in story:
        team.go_on(step, batch)

    found, difference = team.compare()
    is_true = truth(team.head.graph, difference)
    sides = shown(found)
    assert len(sides) == len(found.differing)
    assert sides.keys().isdisjoint(found.unknown)
    assert sides == {i: both for i, both in is_true.items() if i not in found.unknown}
    settle(team.head.graph)
    team.branch.catch_up()
    settle(team.branch.graph)
    found, difference = team.compare()
    assert (shown(found), found.unknown) == (truth(team.head.graph, difference), [])
    assert truth(team.head.graph, difference) == is_true


def test_what_loses_an_input_by_a_removal_is_an_effect_and_so_is_what_is_added_or_removed():
    """Nothing but the removal is an update of the difference; the rest follows from it."""
    team = Computing([*START, PutValue(value_id=OLD, func_id=SUM, inputs={"values": [TAX]})])
    added = PutValue(value_id=NEW, func_id=SUM, inputs={"values": [GROSS]})
    team.branch.request([RemoveValue(value_id=OLD), RemoveValue(value_id=TAX), added])

    early, _ = team.compare()
    settle(team.branch.graph)
    found, _ = team.compare()

    assert {*early.unknown} == {GROSS, NEW}
    assert shown(found) == {
        GROSS: (("ok", plain(119)), ("ok", plain(100))),
        NEW: ((None, plain(None)), ("ok", plain(100))),
        OLD: (("ok", plain(19)), (None, plain(None))),
    }


def test_a_changed_function_has_effects_on_what_it_computes():
    team = Computing(START)
    team.branch.request([PutFunc(func_id=SUM, name="sum", runtime="builtin", code="max")])

    early, _ = team.compare()
    settle(team.branch.graph)
    found, _ = team.compare()

    assert early.unknown == [GROSS]
    assert shown(found) == {GROSS: (("ok", plain(119)), ("ok", plain(100)))}


def test_what_head_alone_changed_is_no_effect_of_a_branch_that_sleeps():
    """Nothing of it is counted, and what the branch does elsewhere is known nevertheless."""
    us, uk, pus, puk, both = (ulid(number) for number in range(6, 11))
    team = Computing([
        START[0],
        *(PutValue(value_id=source, value=10) for source in (us, uk)),
        PutValue(value_id=pus, func_id=SUM, inputs={"values": [us]}),
        PutValue(value_id=puk, func_id=SUM, inputs={"values": [uk]}),
        PutValue(value_id=both, func_id=SUM, inputs={"values": [us, uk]}),
    ])  # fmt: skip
    team.branch.request([SetValue(value_id=uk, value=11)])
    settle(team.branch.graph)
    team.head.request([SetValue(value_id=us, value=20)])
    settle(team.head.graph)

    found, _ = team.compare()

    assert shown(found) == {puk: (("ok", plain(10)), ("ok", plain(11)))}
    assert found.unknown == [both]
