"""The examples of concurrent edits in `docs/rebase.md` are what happens, in either order."""

import json
import re

import pytest

from rebaser_server.values.edits import Edits, same_value
from tests.helpers.in_memory_branch import Branch, Head
from tests.helpers.paths import ROOT
from tests.helpers.reference_model import plain
from tests.unit.values.rebase.test_documented_rebases import START, batch, id_of

PAGE = (ROOT / "docs/rebase.md").read_text()
EXAMPLES = re.findall(r"```concurrent\n(.*?)```", PAGE, re.DOTALL)


def said(example, who):
    return batch(re.findall(rf"^{who} *→ (.*)", example, re.MULTILINE))


def check(graph, claim):
    word, verb, what = claim.split(" ", 2)
    value = graph.values.get(id_of(word))
    if (verb, what) == ("is", "gone"):
        assert value is None
    elif verb == "takes":
        assert value.input_ids() == [id_of(w) for w in what.split(", ")]
    elif verb == "runs":
        assert graph.funcs[id_of(word)].code == what
    elif what.startswith("named "):
        assert (value.name or "none") == what.removeprefix("named ")
    else:
        assert plain(value.value) == plain(json.loads(what))


def test_there_are_examples():
    assert len(EXAMPLES) > 8


@pytest.mark.parametrize("order", ["branch first", "head first"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_documented_concurrent_edits_end_as_documented(example, order):
    head = Head()
    head.request(batch(START.splitlines()))
    head.request(said(example, "first"))
    branch = Branch(head)

    if order == "branch first":
        branch.request(said(example, "branch"))
    head.request(said(example, "head"))
    branch.catch_up()
    if order == "head first":
        branch.request(said(example, "branch"))

    for claim in re.findall(r"^branch: (.*)", example, re.MULTILINE):
        check(branch.graph, claim)
    if order == "branch first":
        both = re.findall(r"^both changed: (.*)", example, re.MULTILINE)
        assert changed_on_both_sides(branch.edits) >= set(map(id_of, both))
    head.request(branch.difference())
    for claim in re.findall(r"^head: (.*)", example, re.MULTILINE):
        check(head.graph, claim)


def changed_on_both_sides(edits: Edits) -> set[str]:
    """Values that the branch edited and head changed since."""
    return {i for i, e in edits.values.items() if not same_value(e.base, edits.theirs[i])}
