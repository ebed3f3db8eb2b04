"""A process at a standstill, and what it started, do nothing until it is over."""

import subprocess
import sys
from pathlib import Path

from tests.helpers.eventually import eventually
from tests.powercut.standstill import standstill

WRITER = """
import os, sys
os.fork()
parent = os.getppid()
with open(sys.argv[1], "a", buffering=1) as file:
    while os.getppid() == parent:  # an orphan gets another parent
        file.write(f"{os.getpid()}\\n")
"""


async def test_neither_a_process_nor_its_child_runs_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "written"
    process = start(file)

    def both_write() -> bool:
        return file.exists() and len(set(file.read_text().split())) == 2

    await eventually(both_write, within=60)
    with standstill([process.pid]):
        states = [state_of(int(pid)) for pid in set(file.read_text().split())]
    process.kill()
    process.wait()

    assert states == ["T", "T"]


def start(file: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", WRITER, str(file)])


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
