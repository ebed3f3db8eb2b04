"""The examples of `docs/rebase.md` are what happens; concurrent edits in either order."""

import json
import re

import pytest

from rebaser_core.messages import InlineBatch
from rebaser_server.values.edits import Edits, same_value
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.in_memory_branch import Branch, Head
from tests.helpers.in_memory_change_set import ChangeSet
from tests.helpers.paths import ROOT
from tests.helpers.reference_model import plain

PAGE = (ROOT / "docs/rebase.md").read_text()
[START] = re.findall(r"```jsonl start\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
CONCURRENT = re.findall(r"```concurrent\n(.*?)```", PAGE, re.DOTALL)
WORDS = sorted(set(re.findall(r'"([a-z]+)"', PAGE)))


def batch(lines):
    """The updates of these lines, with a ULID for each word that stands for one."""
    return InlineBatch.model_validate(
        {"updates": [with_ids(json.loads(line)) for line in lines]}
    ).updates


def with_ids(update):
    [(kind, body)] = update.items()
    for field in {"valueId", "funcId"} & body.keys():
        body[field] = id_of(body[field])
    if "inputs" in body:
        body["inputs"] = {name: list(map(id_of, ids)) for name, ids in body["inputs"].items()}
    return {kind: body}


def id_of(word):
    return ulid(WORDS.index(word))


def test_there_are_examples():
    assert len(EXAMPLES) > 10
    assert len(CONCURRENT) > 8


@pytest.mark.parametrize("example", EXAMPLES)
def test_documented_rebases_end_as_documented(example):
    change_set = ChangeSet()
    change_set.request(batch(START.splitlines()))
    change_set.update_until_right()

    done = change_set.request(batch(re.findall(r"→ (.*)", example)))

    said = re.findall(r"← (.*)", example)
    assert [correction.code for correction in done.corrections] == [
        code for code in said if code != "as sent"
    ]
    [roots] = re.findall(r"roots: (.*)", example)
    assert change_set.graph.roots.keys() == {id_of(w) for w in roots.split(", ") if w != "none"}


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


@pytest.mark.parametrize("order", ["branch first", "head first"])
@pytest.mark.parametrize("example", CONCURRENT)
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
