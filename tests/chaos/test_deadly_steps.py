"""A daemon of a round dies at the step that is set, and at no other."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.deadly_steps import STEPS, TABLE_STEPS, VARIABLE
from tests.helpers.batches import new_id
from tests.helpers.paths import ROOT
from tests.helpers.s3_server import BUCKET, s3_running

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
import io, json, os, sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from deltalake import DeltaTable
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.files import SharedFiles
from rebaser_server.store.publications import HeadTables, Publications
from rebaser_server.tables import TableFiles, Written
from tests.chaos.deadly_steps import TABLE_STEPS, arm

arm()
file = io.BytesIO()
pq.write_table(pa.table({{"id": [1]}}), file)
root, options, folder = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
workspace, change_set = WorkspaceId(), ChangeSetId()
steps = ["none", *TABLE_STEPS]

def work(number):
    tables = TableFiles(SharedFiles(root, options))
    upload = f"{{number}}" * 64
    tables.adopt(str(workspace), upload, file.getvalue())
    tables.finish(tables.begin(str(workspace), f"{{number}}a" * 32), Written([], 0, "[1]"))
    publications = Publications(folder, tables, 3600)
    head = ChangeSet(workspace, change_set)
    publications.publish(head, HeadTables(number + 1, {{f"of{{number}}": upload}}, ()))

for number, step in enumerate(steps):
    Path(os.environ[{VARIABLE!r}]).write_text(step)
    pid = os.fork()
    if not pid:
        work(number)
        os._exit(0)
    print(os.waitpid(pid, 0)[1])
Path(os.environ[{VARIABLE!r}]).write_text("none")
tables = TableFiles(SharedFiles(root, options))  # before, threads of its client were forked, too
for number, step in enumerate(steps):
    print(tables.find(str(workspace), f"{{number}}" * 64) is None)
    print(tables.find(str(workspace), f"{{number}}a" * 32) is None)
    print(not DeltaTable.is_deltatable(str(folder / str(workspace) / f"of{{number}}")))
for number, step in enumerate(steps):
    work(number)
    print(DeltaTable(folder / str(workspace) / f"of{{number}}").count())
"""


def run(code: str, tmp_path: Path, *arguments: str | Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
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
    killed = [int(line) == 9 for line in run(REMEMBERS, tmp_path, tmp_path / "store")]
    assert killed == [False, *("commit" not in step.rpartition(", ")[2] for step in STEPS)]


@pytest.mark.parametrize("place", ["a folder", pytest.param("S3", marks=pytest.mark.long)])
def test_a_process_that_keeps_tables_dies_at_each_step_on_the_way(
    place: str, tmp_path: Path
) -> None:
    """Then there is no table, or a whole one; what is published is whole in the end."""
    with ExitStack() as stack:
        root, options = str(tmp_path / "store"), dict[str, str]()
        if place == "S3":
            root, options = f"s3://{BUCKET}/{new_id()}", stack.enter_context(s3_running())
        said = run(KEEPS_TABLES, tmp_path, root, json.dumps(options), tmp_path / "published")

    count = 1 + len(TABLE_STEPS)
    killed, there, published = said[:count], said[count:-count], said[-count:]
    assert killed == ["0", *["9"] * len(TABLE_STEPS)]
    no_upload, no_result, no_version = there[::3], there[1::3], there[2::3]
    assert no_upload == ["False", "False", "False", "True", "False", "False", "False"]
    assert no_result == ["False", "True", "False", "True", "True", "False", "False"]
    assert no_version == ["False", "True", "True", "True", "True", "True", "False"]
    assert published == ["1"] * count
