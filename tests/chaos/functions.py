"""Functions for daemons under test, installed beside them for as long as a test runs."""

from pathlib import Path

from tests.chaos import deadly_steps
from tests.helpers import loop_monitor

DEADLY = (13, 31)
"""Values for which `chaos-crash` ends the process that calls it."""
CALLS = "CHAOS_CALLS"
"""The variable with the file in which each call of `chaos-counted` is a byte, where it is set."""

_CODE = f'''"""For tests."""

import os
import time


def crash(*, value):
    if value in {DEADLY}:
        os.abort()
    return value


def slow(*, value, seconds):
    time.sleep(seconds)
    return value


def counted(*, value):
    with open(os.environ.get({CALLS!r}, os.devnull), "ab") as file:
        file.write(b".")
    time.sleep(0.06)
    return [value, value]
'''

_ARM = f"""
    try:
        from {deadly_steps.__name__} import arm
        arm()
    except (ImportError, AttributeError):  # an older release has other names
        pass
"""


def install(directory: Path) -> Path:
    """Make both known to every process that has the returned directory in its `PYTHONPATH`.

    Daemons with it log what holds their event loops, and can be killed at `deadly_steps.STEPS`.
    """
    root = directory / "functions"
    info = root / "rebaser_chaos-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (root / "rebaser_chaos_functions.py").write_text(_CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rebaser-chaos\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[rebaser.functions]\n"
        "chaos-slow = rebaser_chaos_functions:slow\n"
        "chaos-crash = rebaser_chaos_functions:crash\n"
        "chaos-counted = rebaser_chaos_functions:counted\n"
    )
    return loop_monitor.install(root, _ARM)
