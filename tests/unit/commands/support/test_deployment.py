"""Commands reach the store in one way: the one that finds out where it is."""

import re

from tests.helpers.paths import ROOT

OWN = ROOT / "rebaser_server/commands/support/deployment.py"
UNCERTAIN = re.compile(r"\b(open_state_loader|open_shared_files|(?:deployment\.)settings\.store)\b")


def test_no_command_opens_the_store_that_the_settings_name_by_itself() -> None:
    """Unless a person set it, that is a directory below the one where the command was given."""
    files = set((ROOT / "rebaser_server/commands").rglob("*.py")) - {OWN}

    assert [str(file) for file in sorted(files) if UNCERTAIN.search(file.read_text())] == []
