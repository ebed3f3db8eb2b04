"""The examples of `docs/rebase.md` are what happens."""

import json
import re

import pytest

from rebaser_core.messages import InlineBatch
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.in_memory_change_set import ChangeSet
from tests.helpers.paths import ROOT

PAGE = (ROOT / "docs/rebase.md").read_text()
[START] = re.findall(r"```jsonl start\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
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
