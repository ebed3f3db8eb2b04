"""The pictures of the documentation."""

import re

from tests.docs.conftest import ROOT
from tests.docs.pictures import MOST_BYTES


def test_pictures_are_small_and_used() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    pictures = [*(ROOT / "docs" / "images").glob("*.png")]

    assert {each.name for each in pictures} == {*re.findall(r"images/([\w-]+\.png)", pages)}
    assert [each.name for each in pictures if each.stat().st_size > MOST_BYTES] == []
