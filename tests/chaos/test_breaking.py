"""What breaks things in a round does what it says: else a round without violations says nothing."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.clock import Clock, library
from tests.chaos.slow_files import NotPossible, slow_files
from tests.helpers.machine_requirements import lacking, program

YEAR = 365 * 86_400.0

TELL = """
import os, sys, time
time.time()  # before it knows its clock, as in a fork of what is loaded already
os.environ["CHAOS_CLOCK"] = sys.argv[1]
while sys.stdin.readline():
    print(time.time(), time.monotonic(), flush=True)
"""


def test_the_wall_clock_of_a_running_process_is_set_and_its_others_run_on(tmp_path: Path) -> None:
    program("cc", package="gcc libc6-dev")
    clock = Clock(library(tmp_path), tmp_path / "clock")
    with subprocess.Popen(
        [sys.executable, "-c", TELL, clock.variables["CHAOS_CLOCK"]],
        env={"LD_PRELOAD": clock.variables["LD_PRELOAD"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for ahead in (YEAR, -YEAR, -1.0, 0.0):
            clock.set(ahead)
            assert process.stdin is not None
            assert process.stdout is not None
            began = time.time(), time.monotonic()
            print(file=process.stdin, flush=True)
            wall, running = map(float, process.stdout.readline().split())

            assert began[0] - 0.1 <= wall - ahead <= time.time() + 0.1
            assert began[1] <= running <= time.monotonic()
        process.kill()


WRITE = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
while sys.stdin.readline():
    began = time.monotonic()
    os.pwrite(file, b"x", 0)
    os.fsync(file)
    print(time.monotonic() - began, flush=True)
"""


async def test_the_files_of_a_process_are_slow_for_as_long_as_they_are_to_be(
    tmp_path: Path,
) -> None:
    program("strace", package="strace")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITE, tmp_path / "file",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    async def takes() -> float:
        process.stdin.write(b"\n")
        return float(await process.stdout.readline())

    try:
        await takes()
        async with slow_files(process.pid, 1.5):
            slow = await takes()
        fast = min([await takes() for _ in range(5)])  # others may keep the disk busy
    except NotPossible:
        lacking("the right to trace processes", "allow it to strace (SYS_PTRACE)")
    finally:
        process.kill()
        await process.wait()

    assert slow >= 3
    assert fast < 1.5
