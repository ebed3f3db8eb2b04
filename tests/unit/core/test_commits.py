"""The head of a change set."""

import json

import pytest

from rebaser_core.commits import ClosedState, Commit, ControlState
from rebaser_core.errors import MalformedMessage
from tests.wire.samples import REQUEST


@pytest.mark.parametrize(("dirty", "clean", "due"), [(0, 0, False), (5, 4, True), (5, 5, False)])
def test_a_dvu_is_due_while_roots_are_not_covered(dirty, clean, due):
    assert ControlState(dirty_sequence=dirty, clean_sequence=clean).dvu_due is due


@pytest.mark.parametrize(("status", "left"), [("applying", True), ("applied", False)])
def test_a_branch_on_its_way_to_head_is_unfinished(status, left):
    """Or, were its task lost, nobody would go on."""
    head = ControlState(closing=ClosedState(status=status, request=REQUEST))

    assert head.unfinished is left
    assert not head.dvu_due


def test_a_line_with_an_unknown_outcome_is_malformed():
    settled = {"id": str(REQUEST), "sequence": 1, "outcome": "maybe"}
    line = {"v1": {"id": str(REQUEST), "previous": 0, "control": {}, "settled": settled}}

    with pytest.raises(MalformedMessage, match=r"settled\.outcome: Input should be 'applied'"):
        Commit.decode_stored(json.dumps(line).encode())


def test_a_line_may_begin_with_a_blank():
    line = json.dumps({"v1": {"id": str(REQUEST), "previous": 0, "control": {}}})

    assert Commit.decode_stored(f"\n {line}".encode()).control == ControlState()
