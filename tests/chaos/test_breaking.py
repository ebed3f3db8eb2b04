"""What breaks things in a round does what it says: else a round without violations says nothing."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.clock import Clock, library
from tests.chaos.slow_files import NotPossible, slow_files
from tests.helpers.machine_requirements import lacking, program

YEAR = 365 * 86_400.0

TELL = """
import sys, time
from datetime import datetime, UTC
while sys.stdin.readline():
    print(time.time(), datetime.now(UTC).timestamp(), time.monotonic(), flush=True)
"""


class Teller:
    """A process that tells the time when asked."""

    def __init__(self, clock: Clock) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TELL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clock.variables,
        )

    def ask(self) -> list[float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return list(map(float, self.process.stdout.readline().split()))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    program("cc", package="gcc libc6-dev")
    return Clock(library(tmp_path), tmp_path / "clock")


@pytest.fixture
def teller(clock: Clock) -> Iterator[Teller]:
    teller = Teller(clock)
    with teller.process:
        yield teller
        teller.process.kill()


@pytest.mark.parametrize("ahead", [YEAR, -YEAR, -1.0], ids=["a year on", "a year back", "a second"])
def test_the_wall_clock_of_a_running_process_is_set_and_its_others_run_on(
    clock: Clock, teller: Teller, ahead: float
) -> None:
    began = time.monotonic()
    before = teller.ask()
    clock.set(ahead)
    after = teller.ask()
    took = time.monotonic() - began
    clock.set(0)
    began = time.time()
    right_again = teller.ask()

    wall, date, running = (b - a for a, b in zip(before, after, strict=True))
    assert 0 <= running <= took
    assert ahead - 0.1 <= wall <= ahead + took
    assert ahead - 0.1 <= date <= ahead + took
    assert began - 0.1 <= right_again[0] <= time.time() + 0.1


LEARN = """
import os, sys, time
time.time()
os.environ["CHAOS_CLOCK"] = sys.argv[1]
print(time.time())
"""


def test_a_fork_learns_of_its_clock_when_it_is_forked_already(clock: Clock) -> None:
    clock.set(YEAR)
    variables = {"LD_PRELOAD": clock.variables["LD_PRELOAD"]}
    command = [sys.executable, "-c", LEARN, clock.variables["CHAOS_CLOCK"]]

    said = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)

    assert float(said.stdout) == pytest.approx(time.time() + YEAR, abs=30)


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
        fast = await takes()
    except NotPossible:
        lacking("the right to trace processes", "allow it to strace (SYS_PTRACE)")
    finally:
        process.kill()
        await process.wait()

    assert slow >= 3
    assert fast < 1.5
