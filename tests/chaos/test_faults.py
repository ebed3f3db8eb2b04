"""Rounds of chaos break all that the page about them says they break."""

import re
from pathlib import Path

from tests.chaos.faults import _KINDS


def test_the_kinds_that_the_page_names_are_there() -> None:
    """In its table of faults, behind `chaos:`."""
    page = Path(__file__).with_name("README.md").read_text()
    rows = re.findall(r"^\|.*\bchaos: (.*)\|$", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert named
    assert named <= _KINDS.keys()
