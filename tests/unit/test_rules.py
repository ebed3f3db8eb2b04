"""Every rule of the protocol is named where it lives, and in a test."""

import re
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

PAGE = (ROOT / "docs/protocol.md").read_text()
TESTS = [
    path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__).resolve()
]
ROW = re.compile(r"^\| ((?:S-|[CWDLXFPO])\d+[^|]*) \|[^|]*\| (`[^|`]+\.py`[^|]*) \|", re.MULTILINE)


def rules():
    """Each rule with the files in which the page says that it lives."""
    found = {}
    for names, where in ROW.findall(PAGE):
        for name in names.split(", "):
            found[name] = where_of(where)
    return found


def where_of(cell):
    """The files of a cell; one without a directory is in the directory of the one before."""
    directory, files = "", []
    for name in re.findall(r"`([^`]+\.py)`", cell):
        directory = name.rpartition("/")[0] or directory
        files.append(ROOT / directory / name.rpartition("/")[2])
    return files


def names(rule, text):
    return re.search(rf"(?<![\w-]){re.escape(rule)}(?![\w-])", text) is not None


RULES = rules()


def test_the_page_has_all_rules_that_were_designed():
    designed = [f"C{n}" for n in range(1, 4)] + [f"W{n}" for n in range(1, 16)]
    designed += [f"D{n}" for n in range(1, 7)] + ["L1", "L2", "X1", "X2", "X3", "X4"]
    designed += [f"S-{n}" for n in range(1, 8)]

    assert [rule for rule in designed if rule not in RULES] == []


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_named_where_the_page_says_that_it_lives(rule):
    assert any(names(rule, file.read_text()) for file in RULES[rule])


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_named_in_a_test(rule):
    assert any(names(rule, text) for text in TESTS)
