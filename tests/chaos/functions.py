"""Functions for daemons under test, installed beside them for as long as a test runs."""

from pathlib import Path

_CODE = '''"""For tests."""

import time


def slow(*, value, seconds):
    time.sleep(seconds)
    return value
'''


def install(directory: Path) -> Path:
    """Make `chaos-slow` known to whatever starts with the returned directory in `PYTHONPATH`."""
    root = directory / "functions"
    info = root / "rebaser_chaos-0.dist-info"
    info.mkdir(parents=True)
    (root / "rebaser_chaos_functions.py").write_text(_CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rebaser-chaos\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[rebaser.functions]\nchaos-slow = rebaser_chaos_functions:slow\n"
    )
    return root
