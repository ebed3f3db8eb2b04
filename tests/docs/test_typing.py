"""What pages show for clients passes `mypy --strict`, without any plugin, and strict pyright."""

import json
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
from rebaser_client.requests import Updates
"""
SIGNATURE = (
    "client: RebaserClient, workspace: WorkspaceId, change_set: ChangeSetId, updates: Updates"
)

README = re.compile(r"```python\n(.*?)```", re.DOTALL)


PYRIGHT = {
    "typeCheckingMode": "strict",
    "reportUnusedVariable": False,  # pages show how one comes by a value, and stop there
    "reportUnusedExpression": False,  # as the last line of a notebook's cell
}


@pytest.fixture
def programs(tmp_path: Path) -> list[Path]:
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
    written = [shown]
    for number, program in enumerate(README.findall((ROOT / "README.md").read_text())):
        written.append(tmp_path / f"readme_{number}.py")
        written[-1].write_text(program)
    assert len(written) > 1
    return written


def checked(module: str, *words: object, there: Path) -> "subprocess.CompletedProcess[str]":
    """A type checker's run, as a program of its own."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        cwd=there,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_what_users_copy_passes_mypy(programs: list[Path], tmp_path: Path) -> None:
    """With no configuration but `--strict`."""
    done = checked("mypy", "--strict", "--config-file=", *programs, there=tmp_path)

    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_what_users_copy_passes_pyright(programs: list[Path], tmp_path: Path) -> None:
    """Also a type that only a plugin of mypy would know is a complaint here."""
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))

    done = checked("basedpyright", "--pythonpath", sys.executable, there=tmp_path)
    programs[0].write_text(f"{programs[0].read_text()}\nconnect(4222)\n")
    wrong = checked("basedpyright", "--pythonpath", sys.executable, there=tmp_path)

    assert done.returncode == 0, done.stdout
    assert 'parameter "servers"' in wrong.stdout
