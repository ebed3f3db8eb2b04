"""Every file, directory, test and setting that a page names exists."""

import re
from pathlib import Path

import pytest

from rebaser_server.settings.settings import setting_names
from tests.docs.conftest import ROOT

PATH = re.compile(r"`((?:rebaser_core|rebaser_client|rebaser_server|tests|docs|deploy)/[\w./-]+)`")

TEST = re.compile(r"\btest_[a-z0-9_]+\b")

TESTS = {
    name
    for path in (ROOT / "tests").rglob("*.py")
    for name in [path.stem, *re.findall(r"def (test_\w+)", path.read_text())]
}

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
PAGES += [*(ROOT / "tests" / "mutants").glob("*.md"), *(ROOT / "tests" / "chaos").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_on_a_page_exists(page: Path) -> None:
    """A reader who opens a file that a page names must find it."""
    named = PATH.findall(page.read_text())

    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_on_a_page_exists(page: Path) -> None:
    """A page proves a statement by the test that it names."""
    assert {name for name in TEST.findall(page.read_text()) if name not in TESTS} == set()


VARIABLE = re.compile(r"\b(?:KV_|OBJ_)?REBASER_[A-Z0-9_]*")
GROUP_OF_TABLE = re.compile(
    r"^\| `(REBASER_[A-Z]+__)` \|.*\n\|[-:| ]+\|\n((?:\|.*\n)*)", re.MULTILINE
)
ROW = re.compile(r"^\| `([A-Z_]+)` \|", re.MULTILINE)
NOT_SETTINGS = {
    *(f"REBASER_{name}" for name in ("REQUESTS", "TASKS", "COMMITS", "DEAD_LETTERS")),
    *(f"REBASER_{name}" for name in ("BATCHES", "CHANGE_SETS", "PAUSES")),
}
"""Streams and buckets."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_on_a_page_exists(page: Path) -> None:
    """Alone, as the beginning of others, or in a table whose head says how they begin."""
    text, settings = page.read_text(), set(setting_names())
    named = set(VARIABLE.findall(text))
    for group, rows in GROUP_OF_TABLE.findall(text):
        named |= {group + name for name in ROW.findall(rows)}

    unknown = {
        name
        for name in named
        if name not in settings | NOT_SETTINGS
        and not (name.endswith("_") and any(each.startswith(name) for each in settings))
        and not name.startswith(("KV_", "OBJ_"))
    }
    assert unknown == set()
