"""Memory that is free is the system's again, and looking for garbage is rare."""

import os
import subprocess
import sys

from rebaser_server.runtime.memory import THRESHOLDS

MIB = 1 << 20
ARRAYS = 40
EACH = 8  # MiB

PROGRAM = f"""
import sys
import numpy as np
from rebaser_server.runtime.memory import limit_kept_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

in_force = sys.argv[1] == "limited" and limit_kept_memory()
for _ in range(4):
    np.ones(30 << 20, np.uint8)  # glibc takes from the heap what is smaller than this from now on
arrays, between = [], []
for _ in range({ARRAYS}):
    arrays.append(np.ones({EACH} << 20, np.uint8))
    between.append(np.ones(100_000, np.uint8))
before = resident()
del arrays
print(int(in_force), before - resident())
"""


def run(mode: str, **variables: str) -> tuple[bool, int]:
    """Whether the settings were in force, and the octets that the system has back."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    in_force, freed = done.stdout.split()
    return in_force == "1", int(freed)


def test_what_large_arrays_had_is_given_back() -> None:
    """Though small pieces that are still in use lie between them."""
    in_force, freed = run("limited")

    assert in_force
    assert freed > ARRAYS * EACH * MIB * 0.9
    assert run("as it is")[1] < freed / 2


def test_settings_of_the_environment_stay() -> None:
    assert run("limited", MALLOC_ARENA_MAX="3")[0] is False


PIECES = """
import sys
import numpy as np
from rebaser_server.runtime.memory import give_back_memory, limit_kept_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

limit_kept_memory()
pieces = [np.ones(100_000, np.uint8) for _ in range(2_000)]
full = resident()
pieces = pieces[::100]
kept = full - resident()
if sys.argv[1] == "given back":
    give_back_memory()
print(kept, full - resident())
"""


def test_small_pieces_that_are_free_are_given_back_on_demand() -> None:
    """Though others that are still in use lie between them."""

    def freed(mode: str) -> list[int]:
        command = [sys.executable, "-c", PIECES, mode]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        return [int(each) for each in done.stdout.split()]

    assert freed("given back")[1] > 2_000 * 100_000 * 0.9
    assert freed("as it is")[1] < 2_000 * 100_000 * 0.5


QUIET = """
import os, sys, tempfile
from rebaser_server.runtime.memory import quiet_allocators

if sys.argv[1] == "quiet":
    quiet_allocators()
import pyarrow, deltalake

table = pyarrow.table({"number": list(range(1000))})
with tempfile.TemporaryDirectory() as directory:
    deltalake.write_deltalake(directory, table)
threads = [open(f"/proc/self/task/{each}/comm").read() for each in os.listdir("/proc/self/task")]
print(sum("jemalloc" in name for name in threads))
"""


def test_the_allocators_of_tables_have_no_threads() -> None:
    """Where a limit forbids them, they would fill the log with complaints."""

    def threads(mode: str) -> int:
        command = [sys.executable, "-c", QUIET, mode]
        variables = {"PATH": os.environ["PATH"]}
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=variables)
        return int(done.stdout)

    assert threads("quiet") == 0
    assert threads("as it is") > 0


def test_a_command_looks_for_garbage_rarely_while_it_imports() -> None:
    code = (
        "import gc, sys; sys.argv = ['rebaser', '--help']; sys.modules['argparse'] = None\n"
        "from rebaser_server.__main__ import run\n"
        "try: run()\n"
        "except SystemExit: print(gc.get_threshold())"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == f"{THRESHOLDS}\n"


LOOKS = """
import gc
from rebaser_server.runtime.memory import collect_rarely, exempt_modules

collect_rarely()
import rebaser_server.service.daemon
exempt_modules()
looked_at = [len(gc.get_objects())]

def note(phase, look):
    if phase == "start" and look["generation"] < 2:
        looked_at.append(sum(len(gc.get_objects(n)) for n in range(look["generation"] + 1)))

gc.callbacks.append(note)
kept = [[] for _ in range(1_000_000)]
print(max(looked_at), len(looked_at))
"""


def test_each_look_for_garbage_is_at_few_objects() -> None:
    """All work waits for it: of the modules it is at none, of a large batch at a part."""
    done = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=True)

    most, looks = map(int, done.stdout.split())
    assert looks > 10
    assert most < 60_000
