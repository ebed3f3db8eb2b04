"""A daemon of a round dies at the step that is set, and at no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.deadly_steps import STEPS, TABLE_STEPS, VARIABLE
from tests.helpers.paths import ROOT

REMEMBERS = f"""
import os, sys
from pathlib import Path

from rebaser_core.ids import RequestId
from rebaser_server.compute.memo import Memo
from rebaser_server.compute.results import REMEMBERED
from rebaser_server.files import SharedFiles
from tests.chaos.deadly_steps import STEPS, arm

arm()
for step in ["none", *STEPS]:
    Path(os.environ[{VARIABLE!r}]).write_text(step)
    pid = os.fork()
    if not pid:
        memo = Memo(SharedFiles(sys.argv[1]), 1 << 20)
        for _ in range(16):
            memo.put("workspace", REMEMBERED.empty_table())
        os._exit(0)
    print(os.waitpid(pid, 0)[1])
"""

KEEPS_TABLES = f"""
import io, os, sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rebaser_server.files import SharedFiles
from rebaser_server.tables import TableFiles, Written
from tests.chaos.deadly_steps import TABLE_STEPS, arm

arm()
file = io.BytesIO()
pq.write_table(pa.table({{"id": [1]}}), file)
tables = TableFiles(SharedFiles(sys.argv[1]))
for number, step in enumerate(["none", *TABLE_STEPS]):
    Path(os.environ[{VARIABLE!r}]).write_text(step)
    pid = os.fork()
    if not pid:
        tables.adopt("workspace", f"{{number}}" * 64, file.getvalue())
        tables.finish(tables.begin("workspace", f"{{number}}a" * 32), Written([], 0, "[1]"))
        os._exit(0)
    print(os.waitpid(pid, 0)[1])
    print(tables.find("workspace", f"{{number}}" * 64) is None)
    print(tables.find("workspace", f"{{number}}a" * 32) is None)
"""


def run(code: str, tmp_path: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "store"],
        cwd=ROOT,
        env=os.environ | {VARIABLE: str(tmp_path / "step")},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.long
def test_a_process_that_remembers_results_dies_at_each_step_on_the_way(tmp_path: Path) -> None:
    """The two steps of the commit itself it does not come to."""
    killed = [int(line) == 9 for line in run(REMEMBERS, tmp_path)]
    assert killed == [False, *("commit" not in step.rpartition(", ")[2] for step in STEPS)]


def test_a_process_that_keeps_tables_dies_at_each_step_on_the_way(tmp_path: Path) -> None:
    """Then there is no table, or a whole one."""
    said = run(KEEPS_TABLES, tmp_path)

    killed, no_upload, no_result = said[::3], said[1::3], said[2::3]
    assert killed == ["0", *["9"] * len(TABLE_STEPS)]
    assert no_upload == ["False", "False", "False", "True", "False"]
    assert no_result == ["False", "True", "False", "True", "True"]
