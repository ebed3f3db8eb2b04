"""Every file, directory and test that a page names exists."""

import re
from pathlib import Path

import pytest

from tests.docs.conftest import ROOT

PATH = re.compile(r"`((?:rebaser_core|rebaser_client|rebaser_server|tests|docs|deploy)/[\w./-]+)`")

TEST = re.compile(r"\btest_[a-z0-9_]+\b")

TESTS = {
    name
    for path in (ROOT / "tests").rglob("*.py")
    for name in [path.stem, *re.findall(r"def (test_\w+)", path.read_text())]
}

PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"))
    if page.name != "history.md"  # names files of their day
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_on_a_page_exists(page: Path) -> None:
    """A reader who opens a file that a page names must find it."""
    named = PATH.findall(page.read_text())

    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_on_a_page_exists(page: Path) -> None:
    """A page proves a statement by the test that it names."""
    assert {name for name in TEST.findall(page.read_text()) if name not in TESTS} == set()
