"""What the page on reliability says that rounds of chaos break, they do."""

import re

from tests.chaos.faults import _KINDS
from tests.helpers.paths import ROOT


def test_the_kinds_that_the_page_names_are_there() -> None:
    """In its table of faults, behind `chaos:`."""
    page = (ROOT / "docs/reliability.md").read_text()
    rows = re.findall(r"^\|.*\bchaos: (.*)\|$", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert named
    assert named <= _KINDS.keys()
