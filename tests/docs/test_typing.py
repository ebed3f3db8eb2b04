"""What pages show for clients passes `mypy --strict`, without any plugin."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.docs.conftest import ROOT
from tests.docs.test_python import BLOCK

HEAD = """
import asyncio
from rebaser_client import ChangeSetId, RebaserClient, RequestId, WorkspaceId, connect
from rebaser_client.batches import Updates
"""
SIGNATURE = (
    "client: RebaserClient, workspace: WorkspaceId, change_set: ChangeSetId, updates: Updates"
)

README = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.long
def test_what_users_copy_passes_a_strict_checker(tmp_path: Path) -> None:
    """The README's program, and each block of the docs as the body of a function."""
    blocks = [
        block
        for page in sorted((ROOT / "docs").glob("*.md"))
        for block in BLOCK.findall(page.read_text())
    ]
    shown = tmp_path / "shown.py"
    shown.write_text(
        HEAD
        + "".join(
            f"\nasync def block_{number}({SIGNATURE}) -> None:\n{textwrap.indent(block, '    ')}"
            for number, block in enumerate(blocks)
        )
    )
    programs = [shown]
    for number, program in enumerate(README.findall((ROOT / "README.md").read_text())):
        programs.append(tmp_path / f"readme_{number}.py")
        programs[-1].write_text(program)

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", *programs],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert len(programs) > 1
    assert done.returncode == 0, done.stdout
