"""Every file and directory that a page names exists."""

import re
from pathlib import Path

import pytest

from tests.docs.conftest import ROOT

PATH = re.compile(r"`((?:rebaser_core|rebaser_client|rebaser_server|tests|docs|deploy)/[\w./-]+)`")

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
