"""Functions for daemons under test, installed beside them for as long as a test runs."""

from pathlib import Path

from tests.helpers import loop_monitor

DEADLY = (13, 31)
"""Values for which `chaos-crash` ends the process that calls it."""

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
'''


def install(directory: Path) -> Path:
    """Make both known to every process that has the returned directory in its `PYTHONPATH`.

    Daemons with it log what holds their event loops.
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
    )
    return loop_monitor.install(root)
