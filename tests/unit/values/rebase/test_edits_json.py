"""A branch's edits lie beside its graph, and leave out what the graph says as well."""

from rebaser_core.updates import PutFunc, PutValue, RemoveValue, SetValue
from rebaser_server.values.edits import edits_from_json, edits_to_json
from tests.helpers.batches import new_id
from tests.helpers.in_memory_branch import Branch, Head

ONE, TWO, THREE, FUNC = sorted(new_id() for _ in range(4))


def edited_branch() -> Branch:
    head = Head()
    head.request([PutValue(value_id=each, value=0) for each in (ONE, TWO)])
    branch = Branch(head)
    branch.request([PutFunc(func_id=FUNC, name="f", runtime="builtin", code="sum")])
    branch.request([SetValue(value_id=ONE, value=1), RemoveValue(value_id=TWO)])
    branch.request([PutValue(value_id=THREE, func_id=FUNC, inputs={"values": [ONE]})])
    return branch


def test_what_the_graph_holds_is_left_out() -> None:
    """A value that is as the branch defined it has nothing but its id."""
    branch = edited_branch()

    stored = dict(edits_to_json(branch.edits, branch.graph)["values"])

    assert stored[THREE] == {}
    assert stored[ONE].keys() == {"want", "base"}
    assert stored[TWO]["cut"]


def test_edits_are_read_as_they_were_stored() -> None:
    """A value that is removed later loses its place among the inputs of an edit read back."""
    branch = edited_branch()

    edits = edits_from_json(edits_to_json(branch.edits, branch.graph), branch.graph)

    assert edits == branch.edits
