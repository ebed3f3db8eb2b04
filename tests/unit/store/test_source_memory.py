"""Tables of others, and files of clients, are read by groups of rows, however large they are."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

MIB = 1 << 20

PROGRAM = """
import sys
from pathlib import Path
from rebaser_client.arrow_batches import read_parquet
from rebaser_server.files import SharedFiles
from rebaser_server.runtime.memory import limit_kept_memory
from rebaser_server.store.sources import Sources
from rebaser_server.tables import TableFiles

def copied(path):
    sources = Sources(str(Path(path).parent))
    tables = TableFiles(SharedFiles(sys.argv[3] + "/store"))
    sources.copy(sources.newest(path).table, "01J00000000000000000000000", tables)

def read(path):
    for _ in read_parquet(Path(path)):
        pass

limit_kept_memory()
for path in sys.argv[1:3]:
    {"copied": copied, "read": read}[sys.argv[4]](path)
    # Not of getrusage(2), which counts what the parent had when it forked.
    print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def rows(size: int) -> pa.Table:
    numbers = np.random.default_rng(7).integers(0, 1 << 62, size >> 3)
    return pa.table({"n": numbers})


@pytest.mark.parametrize(
    ("kind", "way", "sizes"),
    [
        ("parquet", "copied", (32 * MIB, 96 * MIB)),
        ("delta", "copied", (96 * MIB, 256 * MIB)),  # Arrow reads some groups ahead
        ("parquet", "read", (32 * MIB, 96 * MIB)),
    ],
)
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, kind: str, way: str, sizes: tuple[int, int]
) -> None:
    """By default, Arrow keeps all bytes of a file until its last row is read."""
    small, large = (tmp_path / name for name in ("small", "large"))
    for path, size in zip((small, large), sizes, strict=True):
        if kind == "delta":
            write_deltalake(path, rows(size), target_file_size=1 << 30)
        else:
            pq.write_table(rows(size), path, row_group_size=1 << 17)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, small, large, tmp_path, way],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )

    before, after = map(int, done.stdout.split())
    assert (after - before) * 1024 < (sizes[1] - sizes[0]) / 2
