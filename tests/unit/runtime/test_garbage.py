"""Looking for garbage takes long where there is much that is none."""

import subprocess
import sys

from rebaser_server.runtime.process import THRESHOLDS


def test_a_command_looks_for_garbage_rarely_while_it_imports() -> None:
    code = (
        "import gc, sys; sys.argv = ['rebaser', '--help']; sys.modules['argparse'] = None\n"
        "from rebaser_server.__main__ import run\n"
        "try: run()\n"
        "except SystemExit: print(gc.get_threshold())"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == f"{THRESHOLDS}\n"
