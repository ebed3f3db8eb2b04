"""A daemon of a round dies at the step that is set, and at no other."""

import os
import subprocess
import sys
from pathlib import Path

from tests.chaos.deadly_steps import STEPS, VARIABLE
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


def test_a_process_that_remembers_results_dies_at_each_step_on_the_way(tmp_path: Path) -> None:
    """The two steps of the commit itself it does not come to."""
    done = subprocess.run(
        [sys.executable, "-c", REMEMBERS, tmp_path / "store"],
        cwd=ROOT,
        env=os.environ | {VARIABLE: str(tmp_path / "step")},
        capture_output=True,
        text=True,
        check=True,
    )

    killed = [int(line) == 9 for line in done.stdout.split()]
    assert killed == [False, *("commit" not in step.rpartition(", ")[2] for step in STEPS)]
