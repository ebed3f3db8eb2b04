"""A difference for people: what of a value differs, on which side, and whether on both."""

import pytest

from rebaser_core.ids import RequestId
from rebaser_core.updates import PutFunc, PutValue, RemoveValue, SetInputs, SetValue
from rebaser_server.graph_application.commands import digest, head_request_id
from rebaser_server.queries.diff import changes_in
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.in_memory_branch import Branch, Head

NET, TAX, SUM, GROSS, NEW = (ulid(number) for number in range(5))
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


def test_equal_changes_on_both_sides_are_no_difference():
    trunk = Head()
    trunk.request(START)
    side = Branch(trunk)
    side.request([SetValue(value_id=NET, value=1)])
    trunk.request([SetValue(value_id=NET, value=1)])

    side.catch_up()

    assert changes_in(side.graph, side.edits) == []
    assert side.difference() == []


def test_a_difference_is_named_by_what_it_says():
    one, other = SetValue(value_id=NET, value=1), SetValue(value_id=NET, value=1.0)

    assert digest([one]) == digest([SetValue(value_id=NET, value=1)])
    assert digest([one]) != digest([other])


def test_the_request_to_head_has_the_same_id_each_time_and_another_than_what_asked_for_it():
    request = RequestId()

    assert head_request_id(request) == head_request_id(RequestId.from_str(str(request)))
    assert head_request_id(request) != request
    assert head_request_id(request).timestamp == request.timestamp
